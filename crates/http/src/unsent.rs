//! Bytes of responses that clients do not read, counted across all connections of the process.
//!
//! What is counted may exceed the maximum by what one connection adds at once; it then adds nothing more.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that wait to be written, of connections with more than a few of them.
static UNSENT: AtomicUsize = AtomicUsize::new(0);

/// Maximum of [`UNSENT`].
static MAX_UNSENT: AtomicUsize = AtomicUsize::new(usize::MAX);

const KIBIBYTE: usize = 1024;

/// Sets the maximum for all connections of the process, in bytes.
pub fn set_max(bytes: usize) {
    MAX_UNSENT.store(bytes, Ordering::Relaxed);
}

/// The bytes of one connection; given back when it is dropped. In KiB, rounded up: it is a part of each response.
#[derive(Debug, Default)]
pub struct UnsentBytes(u16);

impl UnsentBytes {
    /// Bytes of a connection that are not counted: a part of a body, and small heads. Every connection may have them.
    pub const FREE: usize = 48 * 1024;

    /// Records that `bytes` wait to be written on the connection.
    #[inline]
    pub fn record(&mut self, bytes: usize) {
        let counted = if bytes > Self::FREE { bytes } else { 0 };
        let kibibytes = u16::try_from(counted.div_ceil(KIBIBYTE)).unwrap_or(u16::MAX);
        if kibibytes != self.0 {
            self.change(kibibytes);
        }
    }

    #[cold]
    fn change(&mut self, kibibytes: u16) {
        let difference = usize::from(kibibytes.abs_diff(self.0)) * KIBIBYTE;
        if kibibytes > self.0 {
            UNSENT.fetch_add(difference, Ordering::Relaxed);
        } else {
            UNSENT.fetch_sub(difference, Ordering::Relaxed);
        }
        self.0 = kibibytes;
    }

    /// Whether a connection on which `bytes` wait may add more.
    pub fn has_room(bytes: usize) -> bool {
        bytes <= Self::FREE || has_room(&UNSENT, &MAX_UNSENT)
    }
}

impl Drop for UnsentBytes {
    fn drop(&mut self) {
        self.record(0);
    }
}

fn has_room(used: &AtomicUsize, max: &AtomicUsize) -> bool {
    used.load(Ordering::Relaxed) < max.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_budget_has_no_room() {
        let max = AtomicUsize::new(1000);
        assert!(has_room(&AtomicUsize::new(999), &max) && !has_room(&AtomicUsize::new(1000), &max));
    }

    #[test]
    fn small_amounts_are_not_counted() {
        let mut unsent = UnsentBytes::default();
        unsent.record(UnsentBytes::FREE);
        assert_eq!(unsent.0, 0);
        unsent.record(UnsentBytes::FREE + 1);
        assert_eq!(usize::from(unsent.0), UnsentBytes::FREE / KIBIBYTE + 1);
        assert!(UNSENT.load(Ordering::Relaxed) > UnsentBytes::FREE);
        unsent.record(1);
        assert_eq!(unsent.0, 0);
    }
}
