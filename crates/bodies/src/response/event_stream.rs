//! Documents in messages of `application/vnd.amazon.eventstream` (AWS's event stream encoding): the payload of each.
//!
//! Checksums are not checked: what reads the response does that, and a broken message has no valid document.

use super::document::ResponseDocuments;
use crate::Unreadable;

/// Total length, length of the headers, and a checksum, of 32 bits each.
const PRELUDE_SIZE: usize = 12;
/// The checksum at the end.
const TRAILER_SIZE: usize = 4;
/// Maximum size of a message: a payload of 24 MiB and headers of 128 KiB.
const MAX_MESSAGE_SIZE: usize = 24 * 1024 * 1024 + 128 * 1024 + PRELUDE_SIZE + TRAILER_SIZE;

/// Reads messages.
#[derive(Debug, Default)]
pub(super) struct EventStreamReader {
    prelude: [u8; PRELUDE_SIZE],
    /// Number of bytes of the prelude that have arrived.
    in_prelude: usize,
    /// Number of bytes that are still to come of each part after the prelude.
    headers: usize,
    payload: usize,
    trailer: usize,
}

impl EventStreamReader {
    /// Reads the next piece of the body.
    ///
    /// # Errors
    /// [`Unreadable::Invalid`] if the lengths in a prelude contradict each other.
    pub(super) fn read(
        &mut self,
        mut piece: &[u8],
        documents: &mut ResponseDocuments,
    ) -> Result<(), Unreadable> {
        while !piece.is_empty() {
            if self.in_prelude < PRELUDE_SIZE {
                let part = take(&mut piece, PRELUDE_SIZE - self.in_prelude);
                self.prelude[self.in_prelude..][..part.len()].copy_from_slice(part);
                self.in_prelude += part.len();
                if self.in_prelude == PRELUDE_SIZE {
                    self.begin_message()?;
                }
                continue;
            }
            self.headers -= take(&mut piece, self.headers).len();
            let payload = take(&mut piece, self.payload);
            self.payload -= payload.len();
            let is_skipped = self.payload == 0 && documents.may_skip(payload);
            if !payload.is_empty() && !is_skipped {
                // A payload that is not JSON has no values.
                let _ = documents.read(payload);
            }
            self.trailer -= take(&mut piece, self.trailer).len();
            if self.trailer == 0 {
                let _ = documents.end();
                self.in_prelude = 0;
            }
        }
        Ok(())
    }

    /// Whether a message has begun and not ended.
    pub(super) const fn is_within_message(&self) -> bool {
        self.in_prelude > 0
    }

    fn begin_message(&mut self) -> Result<(), Unreadable> {
        let length = |bytes: &[u8]| bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        let (total, headers) = (length(&self.prelude[..4]), length(&self.prelude[4..8]));
        let fixed = headers + PRELUDE_SIZE + TRAILER_SIZE;
        let payload = total.checked_sub(fixed).filter(|_| total <= MAX_MESSAGE_SIZE);
        self.payload = payload.ok_or(Unreadable::Invalid)?;
        (self.headers, self.trailer) = (headers, TRAILER_SIZE);
        Ok(())
    }
}

/// Takes at most `most` bytes off the front of `piece`.
fn take<'p>(piece: &mut &'p [u8], most: usize) -> &'p [u8] {
    let (part, rest) = piece.split_at(piece.len().min(most));
    *piece = rest;
    part
}
