//! UTF-8 that arrives in pieces.

/// Bytes of a character that a piece has begun.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Utf8 {
    begun: [u8; 4],
    len: usize,
}

impl Utf8 {
    /// Whether the text may be UTF-8 up to the end of `piece`.
    pub(crate) fn accepts(&mut self, mut piece: &[u8]) -> bool {
        while self.len > 0 {
            let Some((byte, rest)) = piece.split_first() else { return true };
            piece = rest;
            self.begun[self.len] = *byte;
            self.len += 1;
            match std::str::from_utf8(&self.begun[..self.len]) {
                Ok(_) => self.len = 0,
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => {}
            }
        }
        let Err(error) = std::str::from_utf8(piece) else { return true };
        let tail = &piece[error.valid_up_to()..];
        if error.error_len().is_some() {
            return false;
        }
        self.begun[..tail.len()].copy_from_slice(tail);
        self.len = tail.len();
        true
    }

    /// Whether the text may end here.
    pub(crate) const fn is_complete(&self) -> bool {
        self.len == 0
    }
}
