//! UTF-8 that arrives in pieces.

/// Bytes of a character that a piece has begun.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Utf8 {
    begun: [u8; 4],
    len: usize,
}

impl Utf8 {
    /// Returns the length of the part of `piece` up to which the text may be UTF-8.
    pub(crate) fn valid_len(&mut self, piece: &[u8]) -> usize {
        let mut read = 0;
        while self.len > 0 {
            let Some(byte) = piece.get(read) else { return read };
            self.begun[self.len] = *byte;
            self.len += 1;
            match std::str::from_utf8(&self.begun[..self.len]) {
                Ok(_) => self.len = 0,
                Err(error) if error.error_len().is_some() => return read,
                Err(_) => {}
            }
            read += 1;
        }
        let rest = &piece[read..];
        let Err(error) = std::str::from_utf8(rest) else { return piece.len() };
        let (valid, tail) = rest.split_at(error.valid_up_to());
        if error.error_len().is_some() {
            return read + valid.len();
        }
        self.begun[..tail.len()].copy_from_slice(tail);
        self.len = tail.len();
        piece.len()
    }

    /// Whether the text may end here.
    pub(crate) const fn is_complete(&self) -> bool {
        self.len == 0
    }
}
