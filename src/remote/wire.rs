//! Conversion between Envoy's messages and `ServiceRequest` and `ServiceResponse`.

use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3::HeaderValue as WireHeader;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf;
use http::header::{CONTENT_LENGTH, EXPECT, HOST, TRAILER};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::service::{Descriptor, ServiceRequest, ServiceResponse, Status};
use crate::headers::is_hop_by_hop;
use crate::limiter::quota::{self, Period};

/// Maximum headers that a response may add for one side, and their total size in bytes, because header sections are
/// bounded.
const MOST_ADDED: usize = 64;
const MOST_OCTETS: usize = 16 * 1024;

/// Converts a request. If the hits of the descriptors differ, each descriptor has its own, and the request has the
/// maximum: a service that reads only that field then counts too much rather than too little.
pub(super) fn request(asked: ServiceRequest) -> RateLimitRequest {
    let hits = || asked.descriptors.iter().map(|descriptor| descriptor.hits);
    let most = hits().max().unwrap_or(0);
    let agree = hits().all(|hits| hits == most);
    RateLimitRequest {
        domain: asked.domain,
        descriptors: asked.descriptors.into_iter().map(|one| descriptor(one, agree)).collect(),
        hits_addend: most,
    }
}

fn descriptor(descriptor: Descriptor, agree: bool) -> RateLimitDescriptor {
    let entry = |(key, value)| Entry { key, value };
    let hits = protobuf::UInt64Value { value: descriptor.hits.into() };
    RateLimitDescriptor {
        entries: descriptor.entries.into_iter().map(entry).collect(),
        hits_addend: (!agree).then_some(hits),
        ..RateLimitDescriptor::default()
    }
}

/// Converts the response for `descriptors` descriptors; `None` if their number differs or there is no overall code.
pub(super) fn response(wire: RateLimitResponse, descriptors: usize) -> Option<ServiceResponse> {
    let is_over = match wire.overall_code() {
        Code::Ok => false,
        Code::OverLimit => true,
        Code::Unknown => return None,
    };
    if wire.statuses.len() != descriptors {
        return None;
    }
    Some(ServiceResponse {
        is_over,
        statuses: wire.statuses.iter().map(status).collect(),
        request_headers: headers(&wire.request_headers_to_add)?,
        response_headers: headers(&wire.response_headers_to_add)?,
        body: Bytes::from(wire.raw_body),
    })
}

fn status(wire: &DescriptorStatus) -> Status {
    Status {
        is_over: wire.code() == Code::OverLimit,
        limit: wire.current_limit.as_ref().and_then(limit),
        remaining: wire.limit_remaining,
        reset: wire.duration_until_reset.map(duration).unwrap_or_default(),
    }
}

/// Returns the count and the window of a limit.
fn limit(wire: &RateLimit) -> Option<(u32, Duration)> {
    let unit = match wire.unit() {
        Unit::Unknown => return None,
        Unit::Second => quota::TimeUnit::Second,
        Unit::Minute => quota::TimeUnit::Minute,
        Unit::Hour => quota::TimeUnit::Hour,
        Unit::Day => quota::TimeUnit::Day,
        Unit::Week => quota::TimeUnit::Week,
        Unit::Month => quota::TimeUnit::Month,
        Unit::Year => quota::TimeUnit::Year,
    };
    Some((wire.requests_per_unit, Period::one(unit).duration()))
}

/// Converts a duration; a negative one becomes zero.
fn duration(wire: protobuf::Duration) -> Duration {
    let nanos = u32::try_from(wire.nanos).unwrap_or(0).min(999_999_999);
    u64::try_from(wire.seconds).map_or(Duration::ZERO, |seconds| Duration::new(seconds, nanos))
}

/// Returns whether a service may add this header. Headers about framing or the connection are excluded, because they
/// could move the end of a message.
fn may_be_added(name: &HeaderName) -> bool {
    let is_of_message = matches!(*name, CONTENT_LENGTH | EXPECT | HOST | TRAILER);
    !is_of_message && !is_hop_by_hop(name.as_str().as_bytes())
}

/// Converts the headers that may be added; `None` if they exceed the maximum.
fn headers(wire: &[WireHeader]) -> Option<HeaderMap> {
    let read = |header: &WireHeader| {
        let name = HeaderName::try_from(&header.key).ok().filter(may_be_added)?;
        let octets = if header.raw_value.is_empty() { header.value.as_bytes() } else { &header.raw_value };
        Some((name, HeaderValue::from_bytes(octets).ok()?))
    };
    let (mut headers, mut octets) = (HeaderMap::new(), 0_usize);
    for (name, value) in wire.iter().filter_map(read) {
        octets = octets.saturating_add(name.as_str().len()).saturating_add(value.len());
        headers.append(name, value);
        if headers.len() > MOST_ADDED || octets > MOST_OCTETS {
            return None;
        }
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service_request(hits: [u32; 2]) -> ServiceRequest {
        let descriptor = |hits| Descriptor { entries: vec![("key".to_owned(), "value".to_owned())], hits };
        ServiceRequest { domain: "edge".to_owned(), descriptors: hits.map(descriptor).into() }
    }

    fn header(key: &str, value: &str) -> WireHeader {
        WireHeader { key: key.to_owned(), value: value.to_owned(), ..WireHeader::default() }
    }

    #[test]
    fn hits_that_agree_are_said_once() {
        let wire = request(service_request([3, 3]));
        assert_eq!(wire.hits_addend, 3);
        assert!(wire.descriptors.iter().all(|descriptor| descriptor.hits_addend.is_none()));
    }

    #[test]
    fn hits_that_differ_are_said_for_each_and_the_most_for_all() {
        let wire = request(service_request([1, 3]));
        let hits: Vec<_> = wire.descriptors.iter().map(|one| one.hits_addend.unwrap().value).collect();
        assert_eq!((wire.hits_addend, hits), (3, vec![1, 3]));
    }

    #[test]
    fn an_answer_about_other_descriptors_is_none() {
        let wire = RateLimitResponse { overall_code: Code::Ok.into(), ..RateLimitResponse::default() };
        assert!(response(wire.clone(), 0).is_some());
        assert!(response(wire, 1).is_none());
        assert!(
            response(RateLimitResponse::default(), 0).is_none(),
            "a response whose overall code is unknown"
        );
    }

    #[test]
    fn fields_that_say_where_a_message_ends_are_not_added() {
        let given =
            [("x-tier", "gold"), ("Content-Length", "0"), ("transfer-encoding", "chunked"), ("x bad", "1")];
        let added = headers(&given.map(|(key, value)| header(key, value)));
        let tier = HeaderMap::from_iter([("x-tier".parse().unwrap(), "gold".parse().unwrap())]);
        assert_eq!(added, Some(tier));
    }

    #[test]
    fn an_answer_with_more_fields_than_anybody_needs_is_none() {
        let many =
            |count: usize| (0..count).map(|index| header(&format!("x-{index}"), "")).collect::<Vec<_>>();
        assert_eq!(headers(&many(MOST_ADDED)).map(|headers| headers.len()), Some(MOST_ADDED));
        assert_eq!(headers(&many(MOST_ADDED + 1)), None);
        assert_eq!(headers(&many(30_000)), None, "more fields than a header map can hold");
        assert_eq!(headers(&[header("x-large", &"x".repeat(MOST_OCTETS))]), None);
    }

    #[test]
    fn a_negative_time_is_none() {
        assert_eq!(duration(protobuf::Duration { seconds: -1, nanos: 5 }), Duration::ZERO);
        assert_eq!(duration(protobuf::Duration { seconds: 1, nanos: -5 }), Duration::from_secs(1));
    }
}
