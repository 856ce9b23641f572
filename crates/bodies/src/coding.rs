//! Content codings of bodies (RFC 9110, section 8.4.1).

use std::io::{self, Read};

use crate::Unreadable;

/// The largest window of a Zstandard frame, which decoders have to support (RFC 8878, section 3.1.1.1.2).
const MAX_WINDOW: u64 = 8 * 1024 * 1024;

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    Gzip,
    Brotli,
    Zstd,
}

impl Coding {
    /// Returns the coding that the values of `content-encoding` name; `None` if they name none.
    ///
    /// # Errors
    /// [`Unreadable::Coding`] if it is unknown, or one of several.
    pub fn from_values<'v>(values: impl Iterator<Item = &'v [u8]>) -> Result<Option<Self>, Unreadable> {
        let names = values.flat_map(|value| value.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
        let mut named = names.filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case(b"identity"));
        let Some(name) = named.next() else { return Ok(None) };
        let coding = match name.to_ascii_lowercase().as_slice() {
            b"gzip" | b"x-gzip" => Self::Gzip,
            b"br" => Self::Brotli,
            b"zstd" => Self::Zstd,
            _ => return Err(Unreadable::Coding),
        };
        if named.next().is_some() { Err(Unreadable::Coding) } else { Ok(Some(coding)) }
    }

    /// Decodes a whole body to at most `max` bytes. Decoding ends there, however long the content is.
    ///
    /// # Errors
    /// [`Unreadable::TooLong`] if the content is longer, [`Unreadable::Coding`] if the body does not have the coding.
    pub fn decode(self, body: &[u8], max: usize) -> Result<Vec<u8>, Unreadable> {
        let content = match self {
            Self::Gzip => read(flate2::read::MultiGzDecoder::new(body), max),
            Self::Brotli => read(brotli_decompressor::Decompressor::new(body, 4096), max),
            Self::Zstd => read_zstd(body, max),
        };
        let content = content.map_err(|_| Unreadable::Coding)?;
        if content.len() > max { Err(Unreadable::TooLong) } else { Ok(content) }
    }
}

fn read_zstd(body: &[u8], max: usize) -> io::Result<Vec<u8>> {
    let mut decoder = ruzstd::decoding::StreamingDecoder::new_with_max_window_size(body, MAX_WINDOW)
        .map_err(io::Error::other)?;
    let content = read(&mut decoder, max)?;
    // Of several frames, some decoders read the first one only.
    if content.len() <= max && !decoder.get_ref().is_empty() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(content)
}

/// Reads one byte more than `max`, if there is one.
fn read(decoder: impl Read, max: usize) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    decoder.take(u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1)).read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const TEXT: &[u8] = b"{\"model\": \"x\"}";
    /// The text as the reference implementation compresses it.
    const BROTLI: &[u8] = &[
        0x8b, 0x06, 0x80, 0x7b, 0x22, 0x6d, 0x6f, 0x64, 0x65, 0x6c, 0x22, 0x3a, 0x20, 0x22, 0x78, 0x22, 0x7d,
        0x03,
    ];

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(content).expect("memory");
        encoder.finish().expect("memory")
    }

    fn zstd(content: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(content, ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[test]
    fn bodies_are_decoded() {
        assert_eq!(Coding::Gzip.decode(&gzip(TEXT), 64).as_deref(), Ok(TEXT));
        assert_eq!(Coding::Zstd.decode(&zstd(TEXT), 64).as_deref(), Ok(TEXT));
        assert_eq!(Coding::Brotli.decode(BROTLI, 64).as_deref(), Ok(TEXT));
    }

    #[test]
    fn decoding_ends_at_the_maximum() {
        let bomb = vec![b' '; 10_000_000];
        for (coding, body) in [(Coding::Gzip, gzip(&bomb)), (Coding::Zstd, zstd(&bomb))] {
            assert!(body.len() < 50_000, "{coding:?} takes {} bytes", body.len());
            assert_eq!(coding.decode(&body, 1000), Err(Unreadable::TooLong), "{coding:?}");
        }
        assert_eq!(Coding::Gzip.decode(&gzip(TEXT), TEXT.len()).as_deref(), Ok(TEXT));
        assert_eq!(Coding::Gzip.decode(&gzip(TEXT), TEXT.len() - 1), Err(Unreadable::TooLong));
    }

    #[test]
    fn what_is_not_encoded_is_unreadable() {
        for coding in [Coding::Gzip, Coding::Brotli, Coding::Zstd] {
            assert_eq!(coding.decode(TEXT, 64), Err(Unreadable::Coding), "{coding:?}");
        }
        assert_eq!(Coding::Gzip.decode(&gzip(TEXT)[..20], 64), Err(Unreadable::Coding), "truncated");
        assert_eq!(
            Coding::Zstd.decode(&[zstd(TEXT), zstd(TEXT)].concat(), 64),
            Err(Unreadable::Coding),
            "two frames"
        );
    }

    #[test]
    fn one_known_coding_is_named() {
        let named =
            |values: &[&'static str]| Coding::from_values(values.iter().map(|value| value.as_bytes()));
        assert_eq!(named(&[]), Ok(None));
        assert_eq!(named(&["", "identity"]), Ok(None));
        assert_eq!(named(&["GZIP"]), Ok(Some(Coding::Gzip)));
        assert_eq!(named(&["identity, br"]), Ok(Some(Coding::Brotli)));
        assert_eq!(named(&["zstd", ""]), Ok(Some(Coding::Zstd)));
        assert_eq!(named(&["gzip", "gzip"]), Err(Unreadable::Coding));
        assert_eq!(named(&["deflate"]), Err(Unreadable::Coding));
    }
}
