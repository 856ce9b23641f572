//! Settings of a rule whose requests wait in a queue for room (`throttle.wait`), and what they read from a request.
//!
//! The queues themselves are in `limiter::wait_queue`.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

use super::grpc::{GRPC_TIMEOUT, parse_timeout};
use super::key::KeyTemplate;
use super::pattern::Route;
use crate::identify::Attributes;
use weir_limiter::key::KeyHasher;
use weir_limiter::wait_queue::pace::PaceMode;
use weir_limiter::wait_queue::{Arrival, QueueOrder, QueueSettings};

/// Urgency of a request without a readable priority (RFC 9218 section 4.1).
const DEFAULT_URGENCY: u8 = 3;
/// The least urgent value.
const MAX_URGENCY: u8 = 7;
/// End of the name of a header whose value is a number of milliseconds.
const MILLISECONDS_SUFFIX: &str = "-ms";

/// How requests wait for room in the limits of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitPolicy {
    /// Maximum time that a request waits.
    pub max: Duration,
    /// Maximum number of waiting requests per key.
    pub max_queued: u32,
    /// Which request is first.
    pub order: QueueOrder,
    /// Key of the flows that take turns, for [`QueueOrder::Fair`].
    pub fair_key: KeyTemplate,
    /// Header with the time for which the caller waits.
    pub deadline: Option<HeaderName>,
    /// Header with the urgency of the request.
    pub priority: Option<HeaderName>,
    /// How admitted requests are spread over time.
    pub pace: Option<PaceMode>,
}

impl WaitPolicy {
    pub const fn queue(&self) -> QueueSettings {
        QueueSettings { max_queued: self.max_queued, order: self.order }
    }

    /// Returns what the place of a request in the queue depends on. `sequence` is its number in the order of arrival.
    pub fn arrival(&self, request: &Attributes<'_>, sequence: u64, hasher: KeyHasher) -> Arrival {
        let priority = self.priority.as_ref().and_then(|name| urgency(request.headers, name));
        let flow = match self.order {
            // Requests without a complete key are one flow.
            QueueOrder::Fair => {
                self.fair_key.hash(request, Route(""), hasher).map_or(0, |key| key.words()[0])
            }
            QueueOrder::Fifo | QueueOrder::Lifo => 0,
        };
        Arrival { sequence, priority: priority.unwrap_or(DEFAULT_URGENCY), flow }
    }

    /// Returns the maximum time that a request with these headers waits: [`Self::max`], or the caller's deadline if that
    /// is shorter.
    pub fn max_wait(&self, headers: &HeaderMap) -> Duration {
        let deadline = self.deadline.as_ref().and_then(|name| deadline(headers, name));
        deadline.map_or(self.max, |deadline| deadline.min(self.max))
    }
}

/// Returns the shortest readable deadline among the values of a header.
fn deadline(headers: &HeaderMap, name: &HeaderName) -> Option<Duration> {
    headers.get_all(name).iter().filter_map(|value| parse_deadline(name, value.as_bytes())).min()
}

/// Parses a relative deadline. `grpc-timeout` has its own units, headers whose name ends in `-ms` are in milliseconds,
/// and all others are in seconds unless the value has a unit.
fn parse_deadline(name: &HeaderName, value: &[u8]) -> Option<Duration> {
    if *name == GRPC_TIMEOUT {
        return parse_timeout(value);
    }
    let text = std::str::from_utf8(value).ok()?.trim();
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None if name.as_str().ends_with(MILLISECONDS_SUFFIX) => (text, 1e-3),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = number.parse::<f64>().ok().filter(|_| is_number)? * unit;
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// Returns the urgency in a header: the member `u` of RFC 9218's dictionary, or a plain number from 0 to 7.
fn urgency(headers: &HeaderMap, name: &HeaderName) -> Option<u8> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let members = values.flat_map(|value| value.split(',')).map(str::trim);
    // The last of several members with the same name counts (RFC 8941 section 3.2).
    members.filter_map(parse_urgency).next_back()
}

fn parse_urgency(member: &str) -> Option<u8> {
    let item = member.split(';').next().unwrap_or_default().trim();
    let number = item.strip_prefix("u=").unwrap_or(item);
    number.parse().ok().filter(|urgency| number.len() == 1 && *urgency <= MAX_URGENCY)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(name: &'static str, values: &[&'static str]) -> (HeaderMap, HeaderName) {
        let name = HeaderName::from_static(name);
        let entries = values.iter().map(|value| (name.clone(), HeaderValue::from_static(value)));
        (entries.collect(), name)
    }

    #[test]
    fn deadline_has_the_unit_of_its_header() {
        let read = |name, value| {
            let (headers, name) = headers(name, &[value]);
            deadline(&headers, &name)
        };
        let millis = |count| Some(Duration::from_millis(count));
        assert_eq!(read("grpc-timeout", "250m"), millis(250));
        assert_eq!(read("grpc-timeout", "250"), None);
        assert_eq!(read("x-envoy-expected-rq-timeout-ms", "1500"), millis(1500));
        assert_eq!(read("connect-timeout-ms", "0"), millis(0));
        assert_eq!(read("x-request-timeout", "2"), millis(2000));
        assert_eq!(read("x-request-timeout", "0.25"), millis(250));
        assert_eq!(read("x-request-timeout", " 1.5s "), millis(1500));
        assert_eq!(read("x-request-timeout", "300ms"), millis(300));
        assert_eq!(read("x-request-timeout", "99999999999999999999999999"), Some(Duration::MAX));
        for wrong in ["", "s", "-1", "1e3", "inf", "NaN", "1m", "soon"] {
            assert_eq!(read("x-request-timeout", wrong), None, "{wrong}");
        }
    }

    #[test]
    fn shortest_deadline_counts_and_unreadable_ones_do_not() {
        let (headers, name) = headers("x-request-timeout", &["3", "soon", "1"]);
        assert_eq!(deadline(&headers, &name), Some(Duration::from_secs(1)));
    }

    #[test]
    fn urgency_is_a_member_of_a_dictionary_or_a_number() {
        let read = |values: &[&'static str]| {
            let (headers, name) = headers("priority", values);
            urgency(&headers, &name)
        };
        assert_eq!(read(&["u=1"]), Some(1));
        assert_eq!(read(&["u=5, i"]), Some(5));
        assert_eq!(read(&["i, u=0;x=1"]), Some(0));
        assert_eq!(read(&["u=1, u=6"]), Some(6));
        assert_eq!(read(&["u=1", "u=2"]), Some(2));
        assert_eq!(read(&["7"]), Some(7));
        for none in ["", "i", "u=8", "u=-1", "u=1.5", "10", "u", "high"] {
            assert_eq!(read(&[none]), None, "{none}");
        }
    }
}
