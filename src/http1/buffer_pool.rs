//! Read buffers that connections have left to the next ones on their thread.
//!
//! A connection needs a buffer while it has a message. Allocators keep few blocks of this size at hand, and the one that
//! was used last is in the processor's cache.

use std::cell::RefCell;

use bytes::BytesMut;

use super::read_buf::READ_SIZE;

/// Maximum number of buffers that are kept, 16 KiB each at most.
const MAX_BUFFERS: usize = 32;

thread_local! {
    static BUFFERS: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// Returns an empty buffer with room for one read.
pub fn take() -> BytesMut {
    let kept = BUFFERS.with_borrow_mut(Vec::pop);
    kept.unwrap_or_else(|| BytesMut::with_capacity(READ_SIZE))
}

/// Keeps the memory of a buffer whose bytes are no longer needed, unless parts of it are still in use.
pub fn put(mut buffer: BytesMut) {
    buffer.clear();
    if buffer.try_reclaim(READ_SIZE) && buffer.capacity() <= 2 * READ_SIZE {
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
    fn kept_buffers_are_bounded() {
        put(BytesMut::with_capacity(4 * READ_SIZE));
        put(BytesMut::new());
        assert!(BUFFERS.with_borrow(Vec::is_empty), "too large or too small");
        (0..2 * MAX_BUFFERS).for_each(|_| put(BytesMut::with_capacity(READ_SIZE)));
        assert_eq!(BUFFERS.with_borrow(Vec::len), MAX_BUFFERS);
    }
}
