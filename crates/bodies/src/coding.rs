//! Content codings of bodies (RFC 9110, section 8.4.1).

use std::io::Read;

use ruzstd::decoding::StreamingDecoder;

use crate::Unreadable;

/// The largest window of a Zstandard frame, which decoders have to support (RFC 8878, section 3.1.1.1.2).
const MAX_WINDOW: u64 = 8 * 1024 * 1024;

/// Maximum length of a piece that is decoded at once.
const MAX_PIECE: usize = 4096;

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

    /// Decodes a whole body, and has its content read in pieces. Decoding ends after `max` bytes, however long the content is. Returns
    /// the length of the content.
    ///
    /// Some decoders read one member or frame only, others all of them. So there may be but one.
    ///
    /// # Errors
    /// [`Unreadable::TooLong`] if the content is longer, [`Unreadable::Coding`] if the body does not have the coding or goes on behind it, and
    /// those of `read`.
    pub fn decode(
        self,
        body: &[u8],
        max: usize,
        mut read: impl FnMut(&[u8]) -> Result<(), Unreadable>,
    ) -> Result<usize, Unreadable> {
        let (length, rest) = match self {
            Self::Gzip => {
                let mut decoder = flate2::bufread::GzDecoder::new(body);
                (read_content(&mut decoder, max, &mut read)?, decoder.into_inner())
            }
            Self::Brotli => {
                let mut decoder = brotli_decompressor::Decompressor::new(body, MAX_PIECE);
                let length = read_content(&mut decoder, max, &mut read)?;
                // Once it has stated its end, it fails if there is more in its buffer.
                decoder.read(&mut [0]).map_err(|_| Unreadable::Coding)?;
                (length, decoder.into_inner())
            }
            Self::Zstd => {
                let decoder = StreamingDecoder::new_with_max_window_size(body, MAX_WINDOW);
                let mut decoder = decoder.map_err(|_| Unreadable::Coding)?;
                (read_content(&mut decoder, max, &mut read)?, *decoder.get_ref())
            }
        };
        if rest.is_empty() { Ok(length) } else { Err(Unreadable::Coding) }
    }
}

/// Reads the content in pieces, and returns its length.
fn read_content(
    decoder: &mut impl Read,
    max: usize,
    read: &mut impl FnMut(&[u8]) -> Result<(), Unreadable>,
) -> Result<usize, Unreadable> {
    let (mut piece, mut length) = ([0; MAX_PIECE], 0);
    loop {
        let size = decoder.read(&mut piece).map_err(|_| Unreadable::Coding)?;
        length += size;
        match size {
            0 => return Ok(length),
            _ if length > max => return Err(Unreadable::TooLong),
            _ => read(&piece[..size])?,
        }
    }
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

    fn decode(coding: Coding, body: &[u8], max: usize) -> Result<Vec<u8>, Unreadable> {
        let mut content = Vec::new();
        let length = coding.decode(body, max, |piece| {
            content.extend_from_slice(piece);
            Ok(())
        })?;
        assert_eq!(content.len(), length);
        Ok(content)
    }

    #[test]
    fn bodies_are_decoded() {
        assert_eq!(decode(Coding::Gzip, &gzip(TEXT), 64).as_deref(), Ok(TEXT));
        assert_eq!(decode(Coding::Zstd, &zstd(TEXT), 64).as_deref(), Ok(TEXT));
        assert_eq!(decode(Coding::Brotli, BROTLI, 64).as_deref(), Ok(TEXT));
        let long = [TEXT; 1000].concat();
        assert_eq!(decode(Coding::Gzip, &gzip(&long), long.len()).as_deref(), Ok(&*long));
        assert_eq!(decode(Coding::Zstd, &zstd(&long), long.len()).as_deref(), Ok(&*long));
        let refused = Coding::Gzip.decode(&gzip(TEXT), 64, |_| Err(Unreadable::Invalid));
        assert_eq!(refused, Err(Unreadable::Invalid), "the reader ends it");
    }

    #[test]
    fn decoding_ends_at_the_maximum() {
        let bomb = vec![b' '; 10_000_000];
        for (coding, body) in [(Coding::Gzip, gzip(&bomb)), (Coding::Zstd, zstd(&bomb))] {
            assert!(body.len() < 50_000, "{coding:?} takes {} bytes", body.len());
            assert_eq!(decode(coding, &body, 1000), Err(Unreadable::TooLong), "{coding:?}");
        }
        assert_eq!(decode(Coding::Gzip, &gzip(TEXT), TEXT.len()).as_deref(), Ok(TEXT));
        assert_eq!(decode(Coding::Gzip, &gzip(TEXT), TEXT.len() - 1), Err(Unreadable::TooLong));
    }

    #[test]
    fn what_is_not_encoded_is_unreadable() {
        for coding in [Coding::Gzip, Coding::Brotli, Coding::Zstd] {
            assert_eq!(decode(coding, TEXT, 64), Err(Unreadable::Coding), "{coding:?}");
        }
        assert_eq!(decode(Coding::Gzip, &gzip(TEXT)[..20], 64), Err(Unreadable::Coding), "truncated");
    }

    #[test]
    fn what_follows_the_first_member_is_unreadable() {
        for (coding, body) in
            [(Coding::Gzip, gzip(TEXT)), (Coding::Brotli, BROTLI.to_vec()), (Coding::Zstd, zstd(TEXT))]
        {
            for behind in [&body[..], b"\0", &[0; 2 * MAX_PIECE], b"\x50\x2a\x4d\x18\0\0\0\0"] {
                let followed = [&body, behind].concat();
                assert_eq!(decode(coding, &followed, 64), Err(Unreadable::Coding), "{coding:?}");
            }
        }
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
