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

use crate::rls::request::MAX_MESSAGE;

/// Maximum time from a call's headers to the end of its message. Envoy sends both at once, and times out after 20 ms by
/// default.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum incomplete calls of a worker: as many as one connection may have in flight.
const MAX_CALLS: usize = 1024;

/// Maximum bytes of incomplete messages of a worker.
const MAX_BYTES: usize = 16 << 20;

/// Length of the compression flag and the message length before a message (gRPC over HTTP/2,
/// "Length-Prefixed-Message").
pub(super) const PREFIX: usize = 5;

/// Returns the status of a call whose message was incomplete after [`TIMEOUT`].
pub(super) fn incomplete() -> Status {
    Status::deadline_exceeded(format!("message incomplete after {} seconds", TIMEOUT.as_secs()))
}

/// Returns the status of a call whose body was aborted.
pub(super) fn cancelled() -> Status {
    Status::cancelled("the call was cancelled")
}

/// The incomplete calls of one worker.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    /// Calls in order of arrival.
    calls: RefCell<BTreeMap<u64, Rc<Incomplete>>>,
    arrivals: Cell<u64>,
    bytes: Cell<usize>,
}

/// One incomplete call.
#[derive(Debug, Default)]
struct Incomplete {
    bytes: Cell<usize>,
    /// Signals that the call is ended in favour of others.
    displaced: Notify,
}

/// Permit of an incomplete call, returned on drop.
struct Place<'r> {
    of: &'r Receiving,
    arrival: u64,
    call: Rc<Incomplete>,
}

impl Receiving {
    /// Reads everything that a call sends: the message and its prefix.
    ///
    /// # Errors
    /// The status with which to end the call.
    pub(super) async fn message(&self, mut body: impl Body<Data = Bytes> + Unpin) -> Result<Bytes, Status> {
        let mut message = Message::default();
        // Most calls are complete at this point; they need neither a permit nor a timer.
        if let Poll::Ready(read) = poll_fn(|cx| Poll::Ready(message.poll(&mut body, cx))).await {
            return read.map(|()| message.bytes());
        }
        message.detach();
        let place = self.enter();
        let rest = poll_fn(|cx| {
            let read = message.poll(&mut body, cx);
            place.holds(message.len());
            read
        });
        tokio::select! {
            biased;
            read = rest => read?,
            () = place.call.displaced.notified() => {
                return Err(Status::resource_exhausted("too many calls with incomplete messages"));
            }
            () = sleep(TIMEOUT) => return Err(incomplete()),
        }
        Ok(message.bytes())
    }

    fn enter(&self) -> Place<'_> {
        let arrival = self.arrivals.get();
        self.arrivals.set(arrival + 1);
        let call = Rc::<Incomplete>::default();
        self.calls.borrow_mut().insert(arrival, Rc::clone(&call));
        self.displace();
        Place { of: self, arrival, call }
    }

    /// Ends the oldest calls until the others are within the bounds.
    fn displace(&self) {
        let mut calls = self.calls.borrow_mut();
        while calls.len() > MAX_CALLS || self.bytes.get() > MAX_BYTES {
            let Some((_, oldest)) = calls.pop_first() else { return };
            self.bytes.set(self.bytes.get().saturating_sub(oldest.bytes.get()));
            oldest.displaced.notify_one();
        }
    }
}

impl Place<'_> {
    /// Records how many bytes the call holds.
    fn holds(&self, bytes: usize) {
        let more = bytes.saturating_sub(self.call.bytes.replace(bytes));
        if self.of.calls.borrow().contains_key(&self.arrival) {
            self.of.bytes.set(self.of.bytes.get().saturating_add(more));
            self.of.displace();
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.of.calls.borrow_mut().remove(&self.arrival).is_some() {
            self.of.bytes.set(self.of.bytes.get().saturating_sub(self.call.bytes.get()));
        }
    }
}

/// The part of a message received so far.
#[derive(Debug, Default)]
struct Message {
    /// The message, if it arrived in one frame.
    whole: Bytes,
    parts: Vec<u8>,
}

impl Message {
    fn len(&self) -> usize {
        self.whole.len() + self.parts.len()
    }

    /// Reads what is available; ready at the end of the body.
    fn poll(
        &mut self,
        body: &mut (impl Body<Data = Bytes> + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Status>> {
        loop {
            match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                None => return Poll::Ready(Ok(())),
                Some(Err(_)) => return Poll::Ready(Err(cancelled())),
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    if self.len() + data.len() > MAX_MESSAGE + PREFIX {
                        let message = format!("message too large, at most {MAX_MESSAGE} bytes");
                        return Poll::Ready(Err(Status::resource_exhausted(message)));
                    }
                    self.push(data);
                }
            }
        }
    }

    fn push(&mut self, data: Bytes) {
        if self.len() == 0 {
            self.whole = data;
        } else {
            self.detach();
            self.parts.extend_from_slice(&data);
        }
    }

    /// Copies the data, because a slice of a frame keeps its whole read buffer in memory.
    fn detach(&mut self) {
        let whole = std::mem::take(&mut self.whole);
        self.parts.extend_from_slice(&whole);
    }

    fn bytes(self) -> Bytes {
        if self.parts.is_empty() { self.whole } else { self.parts.into() }
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
    struct Sent {
        frames: VecDeque<Bytes>,
        ends: bool,
    }

    impl Body for Sent {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            match self.frames.pop_front() {
                Some(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
                None if self.ends => Poll::Ready(None),
                None => Poll::Pending,
            }
        }
    }

    fn sent(frames: &[usize], ends: bool) -> Sent {
        Sent { frames: frames.iter().map(|length| vec![7; *length].into()).collect(), ends }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    #[test]
    fn a_message_is_read_whole_whatever_its_frames() {
        let (receiving, runtime) = (Receiving::default(), runtime());
        let read = |frames: &[usize]| runtime.block_on(receiving.message(sent(frames, true)));
        assert_eq!(read(&[]).unwrap().len(), 0);
        assert_eq!(read(&[10]).unwrap().len(), 10);
        assert_eq!(read(&[10, 0, 20, 1]).unwrap().len(), 31);
        assert_eq!(read(&[MAX_MESSAGE, PREFIX]).unwrap().len(), MAX_MESSAGE + PREFIX);
        let too_large = read(&[MAX_MESSAGE, PREFIX, 1]).unwrap_err();
        assert_eq!(too_large.code(), tonic::Code::ResourceExhausted);
    }

    #[test]
    fn incomplete_calls_are_bounded_in_number_and_bytes_and_the_oldest_gives_way() {
        let (receiving, runtime) = (Receiving::default(), runtime());
        let _guard = runtime.enter();
        let mut cx = Context::from_waker(Waker::noop());
        let mut calls: Vec<_> =
            (0..=MAX_CALLS).map(|_| Box::pin(receiving.message(sent(&[1], false)))).collect();
        for call in &mut calls {
            assert!(call.as_mut().poll(&mut cx).is_pending());
        }
        assert_eq!((receiving.calls.borrow().len(), receiving.bytes.get()), (MAX_CALLS, MAX_CALLS));
        let Poll::Ready(Err(displaced)) = calls[0].as_mut().poll(&mut cx) else { panic!("not displaced") };
        assert_eq!(displaced.code(), tonic::Code::ResourceExhausted);
        assert!(calls[1].as_mut().poll(&mut cx).is_pending());
        drop(calls);
        assert_eq!((receiving.calls.borrow().len(), receiving.bytes.get()), (0, 0));

        let mut large: Vec<_> = (0..=MAX_BYTES / MAX_MESSAGE)
            .map(|_| Box::pin(receiving.message(sent(&[MAX_MESSAGE], false))))
            .collect();
        for call in &mut large {
            assert!(call.as_mut().poll(&mut cx).is_pending());
        }
        assert!(receiving.bytes.get() <= MAX_BYTES);
        assert!(large[0].as_mut().poll(&mut cx).is_ready());
        drop(large);
        assert_eq!(receiving.bytes.get(), 0);
    }
}
