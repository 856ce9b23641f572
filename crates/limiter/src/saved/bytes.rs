//! Encodes numbers and texts as little-endian bytes. Reading returns `None` if there are too few bytes.

/// Bytes being written.
#[derive(Debug)]
pub(crate) struct ByteWriter<'a>(pub(crate) &'a mut Vec<u8>);

impl ByteWriter<'_> {
    pub(crate) fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes at most 4 GiB of text. A longer text is truncated, and may then not be valid UTF-8 for the reader.
    pub(crate) fn text(&mut self, text: &str) {
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.u32(length);
        self.0.extend_from_slice(&text.as_bytes()[..length as usize]);
    }

    /// Writes at most 255 bytes, which `write` appends, after their length in one byte.
    pub(crate) fn short(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.0.len();
        self.0.push(0);
        write(self.0);
        let length = self.0.len() - start - 1;
        debug_assert!(length <= u8::MAX.into());
        self.0[start] = length as u8;
    }
}

/// Bytes left to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteReader<'a>(pub(crate) &'a [u8]);

impl<'a> ByteReader<'a> {
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let length = self.u32()?;
        std::str::from_utf8(self.bytes(length as usize)?).ok()
    }

    /// Reads the bytes that [`ByteWriter::short`] wrote.
    pub(crate) fn short(&mut self) -> Option<&'a [u8]> {
        let [length] = self.array()?;
        self.bytes(length.into())
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_reader_reads_what_was_written_and_then_ends() {
        let mut bytes = Vec::new();
        let mut out = ByteWriter(&mut bytes);
        out.u16(7);
        out.u32(u32::MAX);
        out.u64(1 << 63);
        out.text("müde");
        out.short(|bytes| bytes.extend_from_slice(&[1, 2, 3]));
        let mut input = ByteReader(&bytes);
        assert_eq!((input.u16(), input.u32(), input.u64()), (Some(7), Some(u32::MAX), Some(1 << 63)));
        assert_eq!((input.text(), input.short()), (Some("müde"), Some(&[1, 2, 3][..])));
        assert!(input.is_empty());
        assert_eq!((input.u16(), input.text(), input.short()), (None, None, None));
    }

    #[test]
    fn byte_reader_rejects_lengths_past_the_end() {
        assert_eq!(ByteReader(&[255, 255, 255, 255, b'a']).text(), None);
        assert_eq!(ByteReader(&[4, 1, 2]).short(), None);
        assert_eq!(ByteReader(&[1, 0, 0, 0, 255]).text(), None);
    }
}
