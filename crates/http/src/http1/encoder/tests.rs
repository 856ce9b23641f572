use std::convert::Infallible;
use std::task::Waker;

use hyper::body::{Body, Frame};
use tokio::io::AsyncWrite;

use super::*;

/// Counts how often the stream is flushed.
#[derive(Default)]
struct FlushCounter {
    written: Vec<u8>,
    flushed: usize,
}

impl AsyncWrite for FlushCounter {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.written.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flushed += 1;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl SpliceTarget for FlushCounter {}

/// Body whose end becomes known some time after its last byte.
struct LateEndBody(Vec<Option<Frame<Bytes>>>);

impl Body for LateEndBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.0.pop() {
            Some(Some(frame)) => Poll::Ready(Some(Ok(frame))),
            Some(None) => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}

impl MessageBody for LateEndBody {}

#[test]
fn encoder_flushes_at_the_end_of_a_message_without_further_bytes() {
    let frames = vec![None, Some(Frame::data(Bytes::from_static(b"ok")))];
    let mut sending = Encoder::new(WriteBuf::default(), BodyFraming::Length(2), LateEndBody(frames));
    let (mut stream, mut cx) = (FlushCounter::default(), Context::from_waker(Waker::noop()));
    assert!(sending.poll(&mut stream, &mut cx).is_pending());
    assert_eq!((&*stream.written, stream.flushed), (&b"ok"[..], 1));
    assert!(matches!(sending.poll(&mut stream, &mut cx), Poll::Ready(Ok(()))));
    assert_eq!((&*stream.written, stream.flushed), (&b"ok"[..], 2));
    assert!(sending.is_complete());
}

#[test]
fn end_is_announced_only_when_the_body_has_ended() {
    let frames = vec![
        Some(Frame::data(Bytes::from_static(b"end"))),
        None,
        Some(Frame::data(Bytes::from_static(b"begin"))),
    ];
    let mut sending = Encoder::new(WriteBuf::default(), BodyFraming::Length(8), LateEndBody(frames));
    let (mut stream, mut cx) = (FlushCounter::default(), Context::from_waker(Waker::noop()));
    let announced = std::cell::Cell::new(0);
    let before_end = || announced.set(announced.get() + 1);
    assert!(sending.poll_announcing_end(&mut stream, before_end, &mut cx).is_pending());
    assert_eq!((&*stream.written, announced.get()), (&b"begin"[..], 0));
    assert!(matches!(sending.poll_announcing_end(&mut stream, before_end, &mut cx), Poll::Ready(Ok(()))));
    assert_eq!((&*stream.written, announced.get()), (&b"beginend"[..], 1));
}
