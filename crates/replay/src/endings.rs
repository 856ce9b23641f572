//! Ends of requests on the virtual clock: what they reserved is settled in the order of their ends.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use http::StatusCode;

use super::record::{LoggedRequest, RecordedEnd};
use weir_bodies::response::LatestValues;
use weir_http::headers::Headers;
use weir_limiter::Limiter;
use weir_limiter::timestamp::Timestamp;
use weir_limits::{FieldsRead, Settlement};
use weir_policy::rules::cost::RequestEnd;
use weir_policy::rules::grpc::CallStatus;

/// Maximum number of requests in flight, about 300 MB. If there are more, the first ones are settled early.
const MAX_IN_FLIGHT: usize = 1_000_000;

/// Requests in flight that have something to settle.
#[derive(Default)]
pub(super) struct Endings {
    /// The first end on top.
    queue: BinaryHeap<Reverse<Ending>>,
    added: u64,
}

/// End of a request that has something to settle.
struct Ending {
    at: Timestamp,
    /// Order among requests that end at the same time.
    order: u64,
    settlement: Box<Settlement>,
    status: u16,
    recorded_end: RecordedEnd,
    received: u64,
    sent: u64,
    cost: Option<u32>,
    /// Numbers of its body that state its cost, which count before `cost`.
    stated: Option<Box<LatestValues>>,
}

impl PartialEq for Ending {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Ending {}

impl PartialOrd for Ending {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ending {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl Endings {
    /// Adds a request that was forwarded at `forwarded`, and that ends after its logged duration. `stated`: the
    /// numbers of its response that state its cost.
    pub(super) fn add(
        &mut self,
        request: &LoggedRequest,
        stated: Option<Box<LatestValues>>,
        settlement: Box<Settlement>,
        forwarded: Timestamp,
    ) {
        self.added += 1;
        self.queue.push(Reverse(Ending {
            at: forwarded.saturating_add(request.end.since(request.start)),
            order: self.added,
            settlement,
            status: request.status,
            recorded_end: request.recorded_end,
            received: request.received.unwrap_or(0),
            sent: request.sent,
            cost: request.cost,
            stated,
        }));
    }

    /// Settles the requests that have ended by `now`.
    #[inline]
    pub(super) fn settle_until(&mut self, now: Timestamp, limiter: &Limiter) {
        let is_full = |number: usize| number > MAX_IN_FLIGHT;
        while self.queue.peek().is_some_and(|Reverse(ending)| ending.at <= now || is_full(self.queue.len())) {
            let Some(Reverse(mut ending)) = self.queue.pop() else { return };
            ending.at = ending.at.min(now);
            let headers = Headers::default();
            let end = request_end(ending.recorded_end, ending.status, &headers);
            ending.settlement.settle(&end, CallStatus::None, limiter, ending.at, |_, _| {});
            let read = match (&ending.stated, ending.cost) {
                (Some(stated), _) => FieldsRead::All(stated),
                (None, Some(units)) => FieldsRead::Recorded(units),
                (None, None) => FieldsRead::Unreadable,
            };
            ending.settlement.settle_fields(read, limiter, ending.at);
            ending.settlement.finish(ending.received, ending.sent, false, limiter, ending.at);
        }
    }
}

/// Returns the end of a request as cost models see it. The log has no `headers` of the response.
pub(super) fn request_end(recorded: RecordedEnd, status: u16, headers: &Headers) -> RequestEnd<'_> {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    match recorded {
        RecordedEnd::Response => RequestEnd::Responded { status, headers },
        RecordedEnd::Failure(failure) => RequestEnd::Failed { status, failure },
        RecordedEnd::Abandoned => RequestEnd::Abandoned,
    }
}
