use std::future::poll_fn;
use std::task::Waker;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, BufWriter};

use super::*;

/// Takes so many bytes at a time, and then none until it is asked again.
struct Narrow {
    taken: Vec<u8>,
    most: usize,
    stops: bool,
}

impl AsyncWrite for Narrow {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stops = !self.stops;
        if self.stops {
            return Poll::Pending;
        }
        let taken = self.most.min(bytes.len());
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
    fn everything_arrives_in_order_however_little_is_taken_at_a_time(
        sizes in proptest::collection::vec(prop_oneof![0..40_usize, COPIED - 2..COPIED + 3, 2000..9000_usize], 1..12),
        most in prop_oneof![1..20_usize, 500..5000_usize],
        eager: bool,
    ) {
        let mut outbox = Outbox::default();
        let mut narrow = Narrow { taken: Vec::new(), most, stops: false };
        let mut wanted = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        outbox.end().extend_from_slice(b"head");
        wanted.extend_from_slice(b"head");
        for (index, size) in sizes.iter().enumerate() {
            while !outbox.has_room() || (eager && !outbox.is_empty()) {
                let _ = outbox.poll_write(&mut narrow, &mut cx);
            }
            let piece = vec![b'a' + index as u8; *size];
            for (part, is_piece) in [(&b"size"[..], false), (&piece, true), (b"end", false)] {
                wanted.extend_from_slice(part);
                if is_piece {
                    outbox.push(Bytes::copy_from_slice(part));
                } else {
                    outbox.end().extend_from_slice(part);
                }
            }
            prop_assert!(outbox.copied.len() < FULL + COPIED + 100, "{}", outbox.copied.len());
        }
        while outbox.poll_write(&mut narrow, &mut cx).is_pending() {}
        prop_assert!(outbox.is_empty());
        prop_assert_eq!(outbox.out(), wanted.len() as u64);
        prop_assert_eq!(narrow.taken, wanted);
    }
}

#[test]
fn a_head_can_be_written_twice() {
    let mut outbox = Outbox::default();
    let mut cx = Context::from_waker(Waker::noop());
    outbox.end().extend_from_slice(b"head");
    for taken in [2, 1024] {
        let mut narrow = Narrow { taken: Vec::new(), most: taken, stops: true };
        let _ = outbox.poll_write(&mut narrow, &mut cx);
        assert_eq!(narrow.taken, b"head"[..taken.min(4)]);
        assert_eq!(outbox.out(), taken.min(4) as u64);
        outbox.rewind();
        assert_eq!(outbox.out(), 0);
    }
}

#[test]
fn memory_is_used_again_but_not_what_was_in_it() {
    let mut outbox = Outbox::new(b"before".to_vec());
    assert!(outbox.is_empty() && outbox.end().is_empty());
    outbox.end().extend_from_slice(b"now");
    assert!(outbox.into_buffer().capacity() >= 6);
    let grown = Outbox::new(Vec::with_capacity(KEPT + 1));
    assert_eq!(grown.into_buffer().capacity(), 0);
}

#[tokio::test]
async fn what_lies_with_the_stream_is_not_out_yet() {
    let (near, mut far) = tokio::io::duplex(4);
    let mut stream = BufWriter::new(near);
    let mut outbox = Outbox::default();
    outbox.end().extend_from_slice(b"0123456789");
    let mut cx = Context::from_waker(Waker::noop());
    assert!(outbox.poll_write(&mut stream, &mut cx).is_pending());
    assert!(outbox.is_empty() && !outbox.is_out());
    let mut read = [0; 10];
    let (read_all, written) =
        tokio::join!(far.read_exact(&mut read), poll_fn(|cx| outbox.poll_write(&mut stream, cx)));
    assert!(read_all.is_ok() && written.is_ok() && outbox.is_out());
    assert_eq!(&read, b"0123456789");
}
