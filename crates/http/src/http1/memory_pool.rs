//! Memory that messages leave to the next ones on their thread.
//!
//! A connection needs buffers and a header map while it has a message, not between messages. The memory that was used last
//! is handed out first, so it is still in the processor's cache: with memory of its own for each connection, every message
//! would begin in a cold cache. What no message has needed for a second is freed.

use std::cell::RefCell;
use std::thread::LocalKey;

use bytes::BytesMut;
use http::HeaderMap;

use super::read_buf::READ_SIZE;

/// Maximum number of read buffers, of write buffers and of header maps that are kept.
const MAX_KEPT: usize = 1024;
/// Capacity of a new write buffer, in bytes: enough for most heads.
const WRITE_CAPACITY: usize = 1024;
/// Maximum capacity of a write buffer that is kept, in bytes.
const MAX_WRITE_CAPACITY: usize = 16 * 1024;
/// Maximum capacity of a header map that is kept.
const MAX_FIELDS: usize = 64;

#[derive(Debug)]
struct Kept<T> {
    /// The last one used is at the end.
    values: Vec<T>,
    /// Number of values that have not been used since the last [`trim`]: those at the beginning.
    unused: usize,
}

thread_local! {
    static READ_BUFFERS: RefCell<Kept<BytesMut>> = const { RefCell::new(Kept::new()) };
    static WRITE_BUFFERS: RefCell<Kept<Vec<u8>>> = const { RefCell::new(Kept::new()) };
    static HEADER_MAPS: RefCell<Kept<HeaderMap>> = const { RefCell::new(Kept::new()) };
}

impl<T> Kept<T> {
    const fn new() -> Self {
        Self { values: Vec::new(), unused: 0 }
    }

    fn take(&mut self) -> Option<T> {
        let value = self.values.pop();
        self.unused = self.unused.min(self.values.len());
        value
    }

    fn trim(&mut self) {
        self.values.drain(..self.unused);
        self.values.shrink_to(2 * self.values.len());
        self.unused = self.values.len();
    }
}

/// Frees what no message on this thread has used since the last call.
pub fn trim() {
    READ_BUFFERS.with_borrow_mut(Kept::trim);
    WRITE_BUFFERS.with_borrow_mut(Kept::trim);
    HEADER_MAPS.with_borrow_mut(Kept::trim);
}

/// Makes room for `count` bytes that are read: in a buffer that was kept, if `buffer` has no memory of its own and one
/// read is enough.
pub fn reserve_for_read(buffer: &mut BytesMut, count: usize) {
    if buffer.capacity() == 0 && count <= READ_SIZE {
        let kept = READ_BUFFERS.with_borrow_mut(Kept::take);
        *buffer = kept.unwrap_or_else(|| BytesMut::with_capacity(READ_SIZE));
    } else {
        buffer.reserve(count);
    }
}

/// Takes the memory of a read buffer whose bytes are no longer needed. Leaves it there if parts of it are still in use. What is
/// larger than [`READ_SIZE`] is freed.
pub fn take_back_read(buffer: &mut BytesMut) {
    buffer.clear();
    // `capacity` is that of the rest of a block. Only this shows that there is no more before it.
    if buffer.try_reclaim(READ_SIZE + 1) {
        *buffer = BytesMut::new();
    } else if buffer.try_reclaim(READ_SIZE) {
        keep(&READ_BUFFERS, std::mem::take(buffer));
    }
}

/// Returns an empty buffer for bytes that are to be written.
pub fn write_buffer() -> Vec<u8> {
    WRITE_BUFFERS.with_borrow_mut(Kept::take).unwrap_or_else(|| Vec::with_capacity(WRITE_CAPACITY))
}

/// Keeps a write buffer, whatever is in it.
pub fn take_back_write(mut buffer: Vec<u8>) {
    if (1..=MAX_WRITE_CAPACITY).contains(&buffer.capacity()) {
        buffer.clear();
        keep(&WRITE_BUFFERS, buffer);
    }
}

/// Returns an empty header map.
pub fn header_map() -> HeaderMap {
    HEADER_MAPS.with_borrow_mut(Kept::take).unwrap_or_default()
}

/// Keeps an empty header map.
pub fn take_back_headers(map: HeaderMap) {
    if (1..=MAX_FIELDS).contains(&map.capacity()) {
        keep(&HEADER_MAPS, map);
    }
}

fn keep<T>(kept: &'static LocalKey<RefCell<Kept<T>>>, value: T) {
    // A thread that ends keeps nothing.
    let _ = kept.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        if kept.values.len() < MAX_KEPT {
            kept.values.push(value);
        }
    });
}

#[cfg(test)]
mod tests {
    use bytes::BufMut as _;

    use super::*;

    fn read_buffer() -> BytesMut {
        let mut buffer = BytesMut::new();
        reserve_for_read(&mut buffer, READ_SIZE);
        buffer
    }

    #[test]
    fn buffer_is_reused_once_nothing_uses_parts_of_it() {
        let mut buffer = read_buffer();
        let memory = buffer.as_ptr();
        buffer.put_slice(b"head body");
        let head = buffer.split_to(5).freeze();
        take_back_read(&mut buffer);
        assert_ne!(read_buffer().as_ptr(), memory, "a part is in use");
        assert_eq!(head, &b"head "[..]);
        drop(head);
        take_back_read(&mut buffer);
        assert_eq!(buffer.capacity(), 0);
        let again = read_buffer();
        assert_eq!((again.as_ptr(), again.len()), (memory, 0));
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
            let (piece, mut rest) = buffer();
            take_back_read(&mut rest);
            drop(piece);
            let (piece, mut rest) = buffer();
            drop(piece);
            take_back_read(&mut rest);
            assert_eq!(rest.capacity(), 0, "{used} of {size} reads");
            assert!(READ_BUFFERS.with_borrow(|kept| kept.values.is_empty()), "{used} of {size} reads");
        }
    }

    #[test]
    fn written_bytes_and_headers_leave_nothing_but_memory() {
        let mut buffer = write_buffer();
        buffer.extend_from_slice(b"HTTP/1.1 200 OK\r\n\r\n");
        let memory = buffer.as_ptr();
        take_back_write(buffer);
        let again = write_buffer();
        assert_eq!((again.as_ptr(), again.len()), (memory, 0));

        take_back_headers(HeaderMap::with_capacity(8));
        assert!(header_map().capacity() >= 8);
        assert_eq!(header_map().capacity(), 0, "each map is handed out once");
    }

    #[test]
    fn kept_memory_is_bounded() {
        take_back_read(&mut BytesMut::with_capacity(4 * READ_SIZE));
        take_back_read(&mut BytesMut::new());
        take_back_write(Vec::with_capacity(MAX_WRITE_CAPACITY + 1));
        take_back_write(Vec::new());
        take_back_headers(HeaderMap::with_capacity(4 * MAX_FIELDS));
        take_back_headers(HeaderMap::new());
        let lengths = || {
            [
                READ_BUFFERS.with_borrow(|kept| kept.values.len()),
                WRITE_BUFFERS.with_borrow(|kept| kept.values.len()),
                HEADER_MAPS.with_borrow(|kept| kept.values.len()),
            ]
        };
        assert_eq!(lengths(), [0; 3], "too large or too small");
        for _ in 0..2 * MAX_KEPT {
            take_back_read(&mut BytesMut::with_capacity(READ_SIZE));
            take_back_write(Vec::with_capacity(1));
            take_back_headers(HeaderMap::with_capacity(1));
        }
        assert_eq!(lengths(), [MAX_KEPT; 3]);
    }

    #[test]
    fn memory_that_has_not_been_used_since_the_last_time_is_freed() {
        let kept = || WRITE_BUFFERS.with_borrow(|kept| kept.values.len());
        let use_at_once = |number: usize| {
            let buffers: Vec<_> = (0..number).map(|_| write_buffer()).collect();
            buffers.into_iter().for_each(take_back_write);
        };
        use_at_once(9);
        trim();
        assert_eq!(kept(), 9, "used for the first time");
        use_at_once(4);
        use_at_once(6);
        trim();
        assert_eq!(kept(), 6);
        trim();
        assert_eq!(kept(), 0);
    }
}
