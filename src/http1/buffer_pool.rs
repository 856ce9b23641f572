//! Read buffers that connections have left to the next ones on their thread.
//!
//! A connection needs a buffer while it has a message. Allocators keep few blocks of this size at hand, and the one that
//! was used last is in the processor's cache. Only buffers of the usual size are kept, so the memory of a thread is
//! bounded whatever messages there were.

use std::cell::RefCell;

use bytes::BytesMut;

use super::read_buf::READ_SIZE;

/// Maximum number of buffers that are kept.
const MAX_BUFFERS: usize = 32;

thread_local! {
    static BUFFERS: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// Makes room for `octets` bytes: in a buffer that was kept, if `buffer` has no memory of its own and one read is enough.
pub fn reserve(buffer: &mut BytesMut, octets: usize) {
    if buffer.capacity() == 0 && octets <= READ_SIZE {
        *buffer = take();
    } else {
        buffer.reserve(octets);
    }
}

/// Returns an empty buffer with room for one read.
fn take() -> BytesMut {
    let kept = BUFFERS.with_borrow_mut(Vec::pop);
    kept.unwrap_or_else(|| BytesMut::with_capacity(READ_SIZE))
}

/// Keeps the memory of a buffer whose bytes are no longer needed, unless it is larger than [`READ_SIZE`] or parts of it are
/// still in use.
pub fn put(mut buffer: BytesMut) {
    buffer.clear();
    // `capacity` is that of the rest of a block. Only this shows that there is no more before it.
    let is_larger = buffer.try_reclaim(READ_SIZE + 1);
    if !is_larger && buffer.try_reclaim(READ_SIZE) {
        // A thread that ends keeps nothing.
        let _ = BUFFERS.try_with(|buffers| {
            let mut buffers = buffers.borrow_mut();
            if buffers.len() < MAX_BUFFERS {
                buffers.push(buffer);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut as _;

    use super::*;

    fn address(buffer: &BytesMut) -> *const u8 {
        buffer.as_ptr()
    }

    #[test]
    fn buffer_is_reused_once_nothing_uses_parts_of_it() {
        let mut buffer = take();
        let memory = address(&buffer);
        buffer.put_slice(b"head body");
        let head = buffer.split_to(5).freeze();
        put(buffer);
        assert_ne!(address(&take()), memory, "a part is in use");
        assert_eq!(head, &b"head "[..]);

        let mut buffer = take();
        let memory = address(&buffer);
        buffer.put_slice(b"head body");
        drop(buffer.split_to(5).freeze());
        put(buffer);
        let again = take();
        assert_eq!((address(&again), again.len()), (memory, 0));
        assert!(again.capacity() >= READ_SIZE);
    }

    #[test]
    fn rest_of_a_large_buffer_is_not_kept() {
        for (size, used) in [(4, 20 * 1024), (16, 60 * 1024), (2, READ_SIZE + 1)] {
            let buffer = || {
                let mut buffer = BytesMut::with_capacity(size * READ_SIZE);
                buffer.put_bytes(0, used);
                (buffer.split_to(used).freeze(), buffer)
            };
            let (piece, rest) = buffer();
            put(rest);
            drop(piece);
            let (piece, rest) = buffer();
            drop(piece);
            put(rest);
            assert!(BUFFERS.with_borrow(Vec::is_empty), "{used} of {size} reads");
        }
    }

    #[test]
    fn kept_buffers_are_bounded() {
        put(BytesMut::with_capacity(4 * READ_SIZE));
        put(BytesMut::new());
        assert!(BUFFERS.with_borrow(Vec::is_empty), "too large or too small");
        (0..2 * MAX_BUFFERS).for_each(|_| put(BytesMut::with_capacity(READ_SIZE)));
        assert_eq!(BUFFERS.with_borrow(Vec::len), MAX_BUFFERS);
    }
}
