use std::future::poll_fn;
use std::task::Waker;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWrite, BufWriter, DuplexStream};

use super::*;

/// Stream that takes at most `most` bytes per write, and is pending after each.
struct NarrowStream {
    taken: Vec<u8>,
    max: usize,
    stops: bool,
}

impl SpliceTarget for NarrowStream {}

impl SpliceTarget for BufWriter<DuplexStream> {}

impl AsyncWrite for NarrowStream {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stops = !self.stops;
        if self.stops {
            return Poll::Pending;
        }
        let taken = self.max.min(bytes.len());
        self.taken.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let together: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.poll_write(cx, &together)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

proptest! {
    #[test]
    fn write_buf_keeps_order_under_partial_writes(
        sizes in proptest::collection::vec(prop_oneof![0..40_usize, MAX_COPIED_SIZE - 2..MAX_COPIED_SIZE + 3, 2000..9000_usize], 1..12),
        most in prop_oneof![1..20_usize, 500..5000_usize],
        eager: bool,
    ) {
        let mut write_buf = WriteBuf::default();
        let mut narrow = NarrowStream { taken: Vec::new(), max: most, stops: false };
        let mut wanted = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        write_buf.buffer_mut().extend_from_slice(b"head");
        wanted.extend_from_slice(b"head");
        for (index, size) in sizes.iter().enumerate() {
            while !write_buf.has_room() || (eager && !write_buf.is_empty()) {
                let _ = write_buf.poll_write(&mut narrow, &mut cx);
            }
            let piece = vec![b'a' + index as u8; *size];
            for (part, is_piece) in [(&b"size"[..], false), (&piece, true), (b"end", false)] {
                wanted.extend_from_slice(part);
                if is_piece {
                    write_buf.push(Bytes::copy_from_slice(part));
                } else {
                    write_buf.buffer_mut().extend_from_slice(part);
                }
            }
            prop_assert!(write_buf.copied.len() < MAX_BUFFERED_SIZE + MAX_COPIED_SIZE + 100, "{}", write_buf.copied.len());
        }
        while write_buf.poll_write(&mut narrow, &mut cx).is_pending() {}
        prop_assert!(write_buf.is_empty());
        prop_assert_eq!(write_buf.bytes_written(), wanted.len() as u64);
        prop_assert_eq!(narrow.taken, wanted);
    }
}

#[test]
fn write_buf_rewinds_a_partly_written_head() {
    let mut write_buf = WriteBuf::default();
    let mut cx = Context::from_waker(Waker::noop());
    write_buf.buffer_mut().extend_from_slice(b"head");
    for taken in [2, 1024] {
        let mut narrow = NarrowStream { taken: Vec::new(), max: taken, stops: true };
        let _ = write_buf.poll_write(&mut narrow, &mut cx);
        assert_eq!(narrow.taken, b"head"[..taken.min(4)]);
        assert_eq!(write_buf.bytes_written(), taken.min(4) as u64);
        write_buf.rewind();
        assert_eq!(write_buf.bytes_written(), 0);
    }
}

#[test]
fn write_buf_uses_the_memory_of_an_earlier_one_but_not_its_content() {
    let mut before = WriteBuf::default();
    before.buffer_mut().extend_from_slice(b"before");
    before.push(Bytes::from_static(&[b'x'; MAX_COPIED_SIZE + 1]));
    before.buffer_mut().extend_from_slice(b"behind");
    let memory = [before.copied.as_ptr(), before.tail.as_ptr()];
    drop(before);
    let (mut one, mut other) = (WriteBuf::default(), WriteBuf::default());
    assert!(one.buffer_mut().is_empty() && other.buffer_mut().is_empty());
    assert_eq!([other.copied.as_ptr(), one.copied.as_ptr()], memory);
}

#[tokio::test]
async fn write_buf_is_not_flushed_while_the_stream_buffers() {
    let (near, mut far) = tokio::io::duplex(4);
    let mut stream = BufWriter::new(near);
    let mut write_buf = WriteBuf::default();
    write_buf.buffer_mut().extend_from_slice(b"0123456789");
    let mut cx = Context::from_waker(Waker::noop());
    assert!(write_buf.poll_write(&mut stream, &mut cx).is_pending());
    assert!(write_buf.is_empty() && !write_buf.is_flushed());
    let mut read = [0; 10];
    let (read_all, written) =
        tokio::join!(far.read_exact(&mut read), poll_fn(|cx| write_buf.poll_write(&mut stream, cx)));
    assert!(read_all.is_ok() && written.is_ok() && write_buf.is_flushed());
    assert_eq!(&read, b"0123456789");
}
