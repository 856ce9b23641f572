//! Queue of assignments for a client.
//!
//! The client controls how fast it receives them. So the queue is bounded in bytes, per stream and in total. A stream
//! that exceeds its maximum is ended, and its queue is dropped at once, even if there is no flow-control window for the
//! status.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use envoy_types::pb::envoy::service::rate_limit_quota::v3::RateLimitQuotaResponse;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::Notify;
use tonic::Status;
use tonic::codegen::tokio_stream::Stream;

/// Maximum bytes in the queue of one stream; more than the largest report can cause.
const MAX_WAITING: usize = 8 << 20;

/// Overhead of an assignment in memory, in addition to its names and numbers, in bytes.
const OVERHEAD: usize = 512;

/// Sending half; may be cloned.
#[derive(Clone, Debug)]
pub(super) struct Outbox(Arc<Shared>);

/// Receiving half: the responses of a stream.
#[derive(Debug)]
pub(super) struct Responses(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// Signals that the queue has ended or that the receiving half was dropped.
    changed: Notify,
    /// Total bytes in the queues of all streams.
    waiting_in_all: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Queue {
    responses: VecDeque<(usize, RateLimitQuotaResponse)>,
    bytes: usize,
    /// How the stream ends once `responses` have been sent.
    end: Option<Result<(), Status>>,
    waker: Option<Waker>,
    /// Whether the receiving half was dropped.
    is_gone: bool,
}

/// Creates both halves of a stream's queue; its bytes are also counted in `waiting_in_all`.
pub(super) fn outbox(waiting_in_all: Arc<AtomicUsize>) -> (Outbox, Responses) {
    let shared = Arc::new(Shared { queue: Mutex::default(), changed: Notify::new(), waiting_in_all });
    (Outbox(Arc::clone(&shared)), Responses(shared))
}

impl Outbox {
    /// Adds a response; returns whether the queue is within its maximum.
    pub(super) fn push(&self, response: RateLimitQuotaResponse) -> bool {
        let bytes = response.encoded_len() + OVERHEAD * (1 + response.bucket_action.len());
        let mut queue = self.0.queue.lock();
        if queue.end.is_some() {
            return true;
        }
        queue.responses.push_back((bytes, response));
        queue.bytes += bytes;
        self.0.waiting_in_all.fetch_add(bytes, Ordering::Relaxed);
        queue.waker.take().into_iter().for_each(Waker::wake);
        queue.bytes <= MAX_WAITING
    }

    /// Returns the number of bytes in the queue.
    pub(super) fn waiting(&self) -> usize {
        self.0.queue.lock().bytes
    }

    /// Ends the stream once its queue has been sent, unless it has ended already.
    pub(super) fn end(&self, how: Result<(), Status>) {
        self.0.end(&mut self.0.queue.lock(), how);
    }

    /// Ends the stream and drops its queue.
    pub(super) fn overflow(&self) {
        let mut queue = self.0.queue.lock();
        self.0.clear(&mut queue);
        self.0.end(&mut queue, Err(Status::resource_exhausted("too many unread assignments")));
    }

    /// Completes when the stream has ended.
    pub(super) async fn ended(&self) {
        self.until(|queue| queue.end.is_some()).await;
    }

    /// Completes when the receiving half was dropped.
    pub(super) async fn gone(&self) {
        self.until(|queue| queue.is_gone).await;
    }

    async fn until(&self, condition: impl Fn(&Queue) -> bool) {
        while !condition(&self.0.queue.lock()) {
            self.0.changed.notified().await;
        }
    }
}

impl Shared {
    fn end(&self, queue: &mut Queue, how: Result<(), Status>) {
        if queue.end.is_none() {
            queue.end = Some(how);
            queue.waker.take().into_iter().for_each(Waker::wake);
        }
        self.changed.notify_one();
    }

    fn clear(&self, queue: &mut Queue) {
        queue.responses = VecDeque::new();
        self.waiting_in_all.fetch_sub(std::mem::take(&mut queue.bytes), Ordering::Relaxed);
    }
}

impl Stream for Responses {
    type Item = Result<RateLimitQuotaResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut queue = self.0.queue.lock();
        if let Some((bytes, response)) = queue.responses.pop_front() {
            queue.bytes -= bytes;
            self.0.waiting_in_all.fetch_sub(bytes, Ordering::Relaxed);
            return Poll::Ready(Some(Ok(response)));
        }
        match &mut queue.end {
            Some(how) => Poll::Ready(std::mem::replace(how, Ok(())).err().map(Err)),
            None => {
                queue.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Responses {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.is_gone = true;
        self.0.clear(&mut queue);
        self.0.end(&mut queue, Ok(()));
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::BucketAction;

    use super::*;

    fn next(responses: &mut Responses) -> Poll<Option<Result<usize, tonic::Code>>> {
        let next = Pin::new(responses).poll_next(&mut Context::from_waker(Waker::noop()));
        next.map(|next| {
            next.map(|next| next.map(|next| next.bucket_action.len()).map_err(|status| status.code()))
        })
    }

    fn response(actions: usize) -> RateLimitQuotaResponse {
        RateLimitQuotaResponse { bucket_action: vec![BucketAction::default(); actions] }
    }

    #[test]
    fn responses_come_in_their_order_and_before_the_end() {
        let all = Arc::<AtomicUsize>::default();
        let (outbox, mut responses) = outbox(Arc::clone(&all));
        assert_eq!(next(&mut responses), Poll::Pending);
        assert!(outbox.push(response(1)) && outbox.push(response(2)));
        assert_eq!(all.load(Ordering::Relaxed), outbox.waiting());
        outbox.end(Err(Status::cancelled("")));
        outbox.end(Ok(()));
        assert!(outbox.push(response(3)), "pushed after the end");
        assert_eq!(next(&mut responses), Poll::Ready(Some(Ok(1))));
        assert_eq!(next(&mut responses), Poll::Ready(Some(Ok(2))));
        assert_eq!(next(&mut responses), Poll::Ready(Some(Err(tonic::Code::Cancelled))));
        assert_eq!(next(&mut responses), Poll::Ready(None));
        assert_eq!((all.load(Ordering::Relaxed), outbox.waiting()), (0, 0));
    }

    #[test]
    fn what_waits_is_bounded_and_dropped_with_either_end() {
        let all = Arc::<AtomicUsize>::default();
        let (outbox, mut responses) = outbox(Arc::clone(&all));
        let count = (0..).take_while(|_| outbox.push(response(128))).count();
        assert!((100..200).contains(&count), "{count}");
        outbox.overflow();
        assert_eq!((all.load(Ordering::Relaxed), outbox.waiting()), (0, 0));
        assert_eq!(next(&mut responses), Poll::Ready(Some(Err(tonic::Code::ResourceExhausted))));
        let (other, responses) = super::outbox(Arc::clone(&all));
        assert!(other.push(response(128)));
        drop(responses);
        assert_eq!(all.load(Ordering::Relaxed), 0);
        assert!(other.push(response(128)));
        assert_eq!(all.load(Ordering::Relaxed), 0, "a response without a receiver is not counted");
    }
}
