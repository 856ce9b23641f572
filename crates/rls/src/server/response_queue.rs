//! Queue of assignments for a client.
//!
//! The client controls how fast it receives them. So the queue is bounded in bytes, per stream and in total. A stream
//! that exceeds its maximum is ended, and its queue is dropped at once, even if there is no flow-control window for the
//! status.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::RateLimitQuotaResponse;
use hyper::body::{Body, Frame};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::Notify;
use tonic::Status;

use super::grpc;

/// Maximum bytes in the queue of one stream; more than the largest report can cause.
const MAX_QUEUED_BYTES: usize = 8 << 20;

/// Overhead of an assignment in memory, in addition to its names and numbers, in bytes.
const ASSIGNMENT_OVERHEAD: usize = 512;

/// Sending half; may be cloned.
#[derive(Clone, Debug)]
pub(super) struct ResponseSender(Arc<SharedQueue>);

/// Receiving half: the responses of a stream, encoded, and the trailers.
#[derive(Debug)]
pub(super) struct ResponseReceiver(Arc<SharedQueue>);

#[derive(Debug)]
struct SharedQueue {
    queue: Mutex<ResponseQueue>,
    /// Signals that the queue has ended.
    has_ended: Notify,
    /// Total bytes in the queues of all streams.
    total_queued_bytes: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct ResponseQueue {
    responses: VecDeque<(usize, RateLimitQuotaResponse)>,
    bytes: usize,
    /// How the stream ends once `responses` have been sent.
    final_status: Option<Result<(), Status>>,
    waker: Option<Waker>,
}

/// Creates both halves of a stream's queue; its bytes are also counted in `total_queued_bytes`.
pub(super) fn response_channel(total_queued_bytes: Arc<AtomicUsize>) -> (ResponseSender, ResponseReceiver) {
    let shared =
        Arc::new(SharedQueue { queue: Mutex::default(), has_ended: Notify::new(), total_queued_bytes });
    (ResponseSender(Arc::clone(&shared)), ResponseReceiver(shared))
}

impl ResponseSender {
    /// Adds a response; returns whether the queue is within its maximum.
    pub(super) fn push(&self, response: RateLimitQuotaResponse) -> bool {
        let bytes = response.encoded_len() + ASSIGNMENT_OVERHEAD * (1 + response.bucket_action.len());
        let mut queue = self.0.queue.lock();
        if queue.final_status.is_some() {
            return true;
        }
        queue.responses.push_back((bytes, response));
        queue.bytes += bytes;
        self.0.total_queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        queue.waker.take().into_iter().for_each(Waker::wake);
        queue.bytes <= MAX_QUEUED_BYTES
    }

    /// Returns the number of bytes in the queue.
    pub(super) fn queued_bytes(&self) -> usize {
        self.0.queue.lock().bytes
    }

    /// Ends the stream once its queue has been sent, unless it has ended already.
    pub(super) fn end_stream(&self, result: Result<(), Status>) {
        self.0.end_stream(&mut self.0.queue.lock(), result);
    }

    /// Ends the stream and drops its queue.
    pub(super) fn end_overflowed(&self) {
        let mut queue = self.0.queue.lock();
        self.0.clear(&mut queue);
        self.0.end_stream(&mut queue, Err(Status::resource_exhausted("too many unread assignments")));
    }

    /// Completes when the stream has ended, with its status.
    pub(super) async fn ended(&self) -> Result<(), Status> {
        loop {
            if let Some(status) = self.0.queue.lock().final_status.clone() {
                return status;
            }
            self.0.has_ended.notified().await;
        }
    }
}

impl SharedQueue {
    fn end_stream(&self, queue: &mut ResponseQueue, result: Result<(), Status>) {
        if queue.final_status.is_none() {
            queue.final_status = Some(result);
            queue.waker.take().into_iter().for_each(Waker::wake);
        }
        self.has_ended.notify_one();
    }

    fn clear(&self, queue: &mut ResponseQueue) {
        queue.responses = VecDeque::new();
        self.total_queued_bytes.fetch_sub(std::mem::take(&mut queue.bytes), Ordering::Relaxed);
    }
}

impl Body for ResponseReceiver {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut queue = self.0.queue.lock();
        let frame = if let Some((bytes, response)) = queue.responses.pop_front() {
            queue.bytes -= bytes;
            self.0.total_queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            let encoded = grpc::encode_message(&response);
            encoded.map_or_else(|status| Frame::trailers(grpc::trailers(&status)), Frame::data)
        } else if let Some(result) = &queue.final_status {
            let status = result.clone().err().unwrap_or_else(|| Status::ok(""));
            Frame::trailers(grpc::trailers(&status))
        } else {
            queue.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        Poll::Ready(Some(Ok(frame)))
    }
}

impl Drop for ResponseReceiver {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        self.0.clear(&mut queue);
        self.0.end_stream(&mut queue, Ok(()));
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::BucketAction;

    use super::*;

    fn next(responses: &mut ResponseReceiver) -> Poll<Option<Result<usize, tonic::Code>>> {
        let next = Pin::new(responses).poll_frame(&mut Context::from_waker(Waker::noop()));
        next.map(|next| {
            let frame = next?.unwrap();
            let code = frame.trailers_ref().map(|trailers| Status::from_header_map(trailers).unwrap().code());
            Some(code.map_or_else(|| Ok(response_in(frame.data_ref().unwrap()).bucket_action.len()), Err))
        })
    }

    fn response_in(message: &[u8]) -> RateLimitQuotaResponse {
        RateLimitQuotaResponse::decode(grpc::first_message(message).unwrap().unwrap()).unwrap()
    }

    fn response(actions: usize) -> RateLimitQuotaResponse {
        RateLimitQuotaResponse { bucket_action: vec![BucketAction::default(); actions] }
    }

    #[test]
    fn queued_responses_are_sent_in_order_before_the_final_status() {
        let all = Arc::<AtomicUsize>::default();
        let (sender, mut responses) = response_channel(Arc::clone(&all));
        assert_eq!(next(&mut responses), Poll::Pending);
        assert!(sender.push(response(1)) && sender.push(response(2)));
        assert_eq!(all.load(Ordering::Relaxed), sender.queued_bytes());
        sender.end_stream(Err(Status::cancelled("")));
        sender.end_stream(Ok(()));
        assert!(sender.push(response(3)), "pushed after the end");
        assert_eq!(next(&mut responses), Poll::Ready(Some(Ok(1))));
        assert_eq!(next(&mut responses), Poll::Ready(Some(Ok(2))));
        assert_eq!(next(&mut responses), Poll::Ready(Some(Err(tonic::Code::Cancelled))));
        assert_eq!((all.load(Ordering::Relaxed), sender.queued_bytes()), (0, 0));
    }

    #[test]
    fn response_queue_is_bounded_and_dropped_with_either_half() {
        let all = Arc::<AtomicUsize>::default();
        let (sender, mut responses) = response_channel(Arc::clone(&all));
        let count = (0..).take_while(|_| sender.push(response(128))).count();
        assert!((100..200).contains(&count), "{count}");
        sender.end_overflowed();
        assert_eq!((all.load(Ordering::Relaxed), sender.queued_bytes()), (0, 0));
        assert_eq!(next(&mut responses), Poll::Ready(Some(Err(tonic::Code::ResourceExhausted))));
        let (other, responses) = response_channel(Arc::clone(&all));
        assert!(other.push(response(128)));
        drop(responses);
        assert_eq!(all.load(Ordering::Relaxed), 0);
        assert!(other.push(response(128)));
        assert_eq!(all.load(Ordering::Relaxed), 0, "a response without a receiver is not counted");
    }
}
