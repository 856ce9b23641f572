//! Reads the messages of unary calls completely before the calls are decided.
//!
//! The client controls how fast it sends. So a call with an incomplete message has a timeout, and the number and size
//! of such calls are bounded per worker. Above that the oldest one is ended; a well-behaved client would have completed
//! it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Body;
use tokio::sync::Notify;
use tokio::time::sleep;
use tonic::Status;

use super::grpc::MESSAGE_PREFIX_LEN;
use crate::request::MAX_MESSAGE_BYTES;

/// Maximum time from a call's headers to the end of its message. Envoy sends both at once, and times out after 20 ms by
/// default.
pub(super) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum incomplete calls of a worker: as many as one connection may have in flight.
const MAX_INCOMPLETE_CALLS: usize = 1024;

/// Maximum bytes of incomplete messages of a worker.
const MAX_INCOMPLETE_BYTES: usize = 16 << 20;

/// Returns the status of a call whose message was incomplete after [`MESSAGE_TIMEOUT`].
pub(super) fn incomplete_status() -> Status {
    Status::deadline_exceeded(format!("message incomplete after {} seconds", MESSAGE_TIMEOUT.as_secs()))
}

/// Returns the status of a call whose body was aborted.
pub(super) fn cancelled_status() -> Status {
    Status::cancelled("the call was cancelled")
}

/// The incomplete calls of one worker.
#[derive(Debug, Default)]
pub(super) struct MessageReader {
    /// Calls in order of arrival.
    calls: RefCell<BTreeMap<u64, Rc<IncompleteCall>>>,
    arrivals: Cell<u64>,
    bytes: Cell<usize>,
}

/// One incomplete call.
#[derive(Debug, Default)]
struct IncompleteCall {
    bytes: Cell<usize>,
    /// Signals that the call is ended in favour of others.
    displaced: Notify,
}

/// Permit of an incomplete call, returned on drop.
struct IncompleteCallGuard<'r> {
    reader: &'r MessageReader,
    arrival: u64,
    call: Rc<IncompleteCall>,
}

impl MessageReader {
    /// Reads everything that a call sends: the message and its prefix.
    ///
    /// # Errors
    /// The status with which to end the call.
    pub(super) async fn read_message(
        &self,
        mut body: impl Body<Data = Bytes> + Unpin,
    ) -> Result<Bytes, Status> {
        let mut message = PartialMessage::default();
        // Most calls are complete at this point; they need neither a permit nor a timer.
        if let Poll::Ready(read) = poll_fn(|cx| Poll::Ready(message.poll_read(&mut body, cx))).await {
            return read.map(|()| message.into_bytes());
        }
        message.copy_frame();
        let guard = self.register_call();
        let remainder = poll_fn(|cx| {
            let read = message.poll_read(&mut body, cx);
            guard.record_size(message.len());
            read
        });
        tokio::select! {
            biased;
            read = remainder => read?,
            () = guard.call.displaced.notified() => {
                return Err(Status::resource_exhausted("too many calls with incomplete messages"));
            }
            () = sleep(MESSAGE_TIMEOUT) => return Err(incomplete_status()),
        }
        Ok(message.into_bytes())
    }

    fn register_call(&self) -> IncompleteCallGuard<'_> {
        let arrival = self.arrivals.get();
        self.arrivals.set(arrival + 1);
        let call = Rc::<IncompleteCall>::default();
        self.calls.borrow_mut().insert(arrival, Rc::clone(&call));
        self.displace_oldest();
        IncompleteCallGuard { reader: self, arrival, call }
    }

    /// Ends the oldest calls until the others are within the bounds.
    fn displace_oldest(&self) {
        let mut calls = self.calls.borrow_mut();
        while calls.len() > MAX_INCOMPLETE_CALLS || self.bytes.get() > MAX_INCOMPLETE_BYTES {
            let Some((_, oldest)) = calls.pop_first() else { return };
            self.bytes.set(self.bytes.get().saturating_sub(oldest.bytes.get()));
            oldest.displaced.notify_one();
        }
    }
}

impl IncompleteCallGuard<'_> {
    /// Records how many bytes the call holds.
    fn record_size(&self, bytes: usize) {
        let more = bytes.saturating_sub(self.call.bytes.replace(bytes));
        if self.reader.calls.borrow().contains_key(&self.arrival) {
            self.reader.bytes.set(self.reader.bytes.get().saturating_add(more));
            self.reader.displace_oldest();
        }
    }
}

impl Drop for IncompleteCallGuard<'_> {
    fn drop(&mut self) {
        if self.reader.calls.borrow_mut().remove(&self.arrival).is_some() {
            self.reader.bytes.set(self.reader.bytes.get().saturating_sub(self.call.bytes.get()));
        }
    }
}

/// The part of a message received so far.
#[derive(Debug, Default)]
struct PartialMessage {
    /// The message, if it arrived in one frame.
    single_frame: Bytes,
    buffer: Vec<u8>,
}

impl PartialMessage {
    fn len(&self) -> usize {
        self.single_frame.len() + self.buffer.len()
    }

    /// Reads what is available; ready at the end of the body.
    fn poll_read(
        &mut self,
        body: &mut (impl Body<Data = Bytes> + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Status>> {
        loop {
            match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                None => return Poll::Ready(Ok(())),
                Some(Err(_)) => return Poll::Ready(Err(cancelled_status())),
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    if self.len() + data.len() > MAX_MESSAGE_BYTES + MESSAGE_PREFIX_LEN {
                        let message = format!("message too large, at most {MAX_MESSAGE_BYTES} bytes");
                        return Poll::Ready(Err(Status::resource_exhausted(message)));
                    }
                    self.push(data);
                }
            }
        }
    }

    fn push(&mut self, data: Bytes) {
        if self.len() == 0 {
            self.single_frame = data;
        } else {
            self.copy_frame();
            self.buffer.extend_from_slice(&data);
        }
    }

    /// Copies the data, because a slice of a frame keeps its whole read buffer in memory.
    fn copy_frame(&mut self) {
        let frame = std::mem::take(&mut self.single_frame);
        self.buffer.extend_from_slice(&frame);
    }

    fn into_bytes(self) -> Bytes {
        if self.buffer.is_empty() { self.single_frame } else { self.buffer.into() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::task::Waker;

    use hyper::body::Frame;

    use super::*;

    /// A body with these frames, which then ends or stays pending.
    struct FramesBody {
        frames: VecDeque<Bytes>,
        is_complete: bool,
    }

    impl Body for FramesBody {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            match self.frames.pop_front() {
                Some(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
                None if self.is_complete => Poll::Ready(None),
                None => Poll::Pending,
            }
        }
    }

    fn frames_body(frames: &[usize], is_complete: bool) -> FramesBody {
        FramesBody { frames: frames.iter().map(|length| vec![7; *length].into()).collect(), is_complete }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    #[test]
    fn message_is_read_completely_whatever_its_frames() {
        let (reader, runtime) = (MessageReader::default(), runtime());
        let read = |frames: &[usize]| runtime.block_on(reader.read_message(frames_body(frames, true)));
        assert_eq!(read(&[]).unwrap().len(), 0);
        assert_eq!(read(&[10]).unwrap().len(), 10);
        assert_eq!(read(&[10, 0, 20, 1]).unwrap().len(), 31);
        assert_eq!(
            read(&[MAX_MESSAGE_BYTES, MESSAGE_PREFIX_LEN]).unwrap().len(),
            MAX_MESSAGE_BYTES + MESSAGE_PREFIX_LEN
        );
        let too_large = read(&[MAX_MESSAGE_BYTES, MESSAGE_PREFIX_LEN, 1]).unwrap_err();
        assert_eq!(too_large.code(), tonic::Code::ResourceExhausted);
    }

    #[test]
    fn incomplete_calls_are_limited_in_number_and_bytes_and_the_oldest_is_rejected() {
        let (reader, runtime) = (MessageReader::default(), runtime());
        let _guard = runtime.enter();
        let mut cx = Context::from_waker(Waker::noop());
        let mut calls: Vec<_> = (0..=MAX_INCOMPLETE_CALLS)
            .map(|_| Box::pin(reader.read_message(frames_body(&[1], false))))
            .collect();
        for call in &mut calls {
            assert!(call.as_mut().poll(&mut cx).is_pending());
        }
        assert_eq!(
            (reader.calls.borrow().len(), reader.bytes.get()),
            (MAX_INCOMPLETE_CALLS, MAX_INCOMPLETE_CALLS)
        );
        let Poll::Ready(Err(displaced)) = calls[0].as_mut().poll(&mut cx) else { panic!("not displaced") };
        assert_eq!(displaced.code(), tonic::Code::ResourceExhausted);
        assert!(calls[1].as_mut().poll(&mut cx).is_pending());
        drop(calls);
        assert_eq!((reader.calls.borrow().len(), reader.bytes.get()), (0, 0));

        let mut large: Vec<_> = (0..=MAX_INCOMPLETE_BYTES / MAX_MESSAGE_BYTES)
            .map(|_| Box::pin(reader.read_message(frames_body(&[MAX_MESSAGE_BYTES], false))))
            .collect();
        for call in &mut large {
            assert!(call.as_mut().poll(&mut cx).is_pending());
        }
        assert!(reader.bytes.get() <= MAX_INCOMPLETE_BYTES);
        assert!(large[0].as_mut().poll(&mut cx).is_ready());
        drop(large);
        assert_eq!(reader.bytes.get(), 0);
    }
}
