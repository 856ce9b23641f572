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

use super::service::{ServiceDescriptor, ServiceDescriptorStatus, ServiceRequest, ServiceResponse};
use weir_http::headers::is_hop_by_hop;
use weir_limiter::quota::{self, Period};

/// Maximum headers that a response may add for one side, and their total size in bytes, because header sections are
/// bounded.
const MAX_ADDED_HEADERS: usize = 64;
const MAX_ADDED_HEADER_BYTES: usize = 16 * 1024;

/// Converts a request. If the hits of the descriptors differ, each descriptor has its own, and the request has the
/// maximum: a service that reads only that field then counts too much rather than too little.
pub(super) fn request_to_proto(request: ServiceRequest) -> RateLimitRequest {
    let hits = || request.descriptors.iter().map(|descriptor| descriptor.hits);
    let max_hits = hits().max().unwrap_or(0);
    let is_uniform = hits().all(|hits| hits == max_hits);
    RateLimitRequest {
        domain: request.domain,
        descriptors: request
            .descriptors
            .into_iter()
            .map(|one| descriptor_to_proto(one, is_uniform))
            .collect(),
        hits_addend: max_hits,
    }
}

fn descriptor_to_proto(descriptor: ServiceDescriptor, is_uniform: bool) -> RateLimitDescriptor {
    let entry = |(key, value)| Entry { key, value };
    let hits = protobuf::UInt64Value { value: descriptor.hits.into() };
    RateLimitDescriptor {
        entries: descriptor.entries.into_iter().map(entry).collect(),
        hits_addend: (!is_uniform).then_some(hits),
        ..RateLimitDescriptor::default()
    }
}

/// Converts the response for `descriptors` descriptors; `None` if their number differs or there is no overall code. A
/// response that is over the limit rejects the request in any case, with what can be read of the rest.
pub(super) fn response_from_proto(wire: RateLimitResponse, descriptors: usize) -> Option<ServiceResponse> {
    let is_over_limit = match wire.overall_code() {
        Code::Ok => false,
        Code::OverLimit => true,
        Code::Unknown => return None,
    };
    let statuses: Vec<_> = match wire.statuses.len() == descriptors {
        true => wire.statuses.iter().map(status_from_proto).collect(),
        false if is_over_limit => vec![UNREADABLE_STATUS; descriptors],
        false => return None,
    };
    let headers_of = |wire: &[WireHeader]| match headers_from_proto(wire) {
        None if is_over_limit => Some(HeaderMap::new()),
        headers => headers,
    };
    Some(ServiceResponse {
        is_over_limit,
        statuses: statuses.into_iter().collect(),
        request_headers: headers_of(&wire.request_headers_to_add)?,
        response_headers: headers_of(&wire.response_headers_to_add)?,
        body: Bytes::from(wire.raw_body),
    })
}

/// Status of each descriptor if a response is over the limit and does not say which of them are.
const UNREADABLE_STATUS: ServiceDescriptorStatus =
    ServiceDescriptorStatus { is_over_limit: true, limit: None, remaining: 0, reset: Duration::ZERO };

fn status_from_proto(wire: &DescriptorStatus) -> ServiceDescriptorStatus {
    ServiceDescriptorStatus {
        is_over_limit: wire.code() == Code::OverLimit,
        limit: wire.current_limit.as_ref().and_then(limit_from_proto),
        remaining: wire.limit_remaining,
        reset: wire.duration_until_reset.map(duration_from_proto).unwrap_or_default(),
    }
}

/// Returns the count and the window of a limit.
fn limit_from_proto(wire: &RateLimit) -> Option<(u32, Duration)> {
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
fn duration_from_proto(wire: protobuf::Duration) -> Duration {
    let nanos = u32::try_from(wire.nanos).unwrap_or(0).min(999_999_999);
    u64::try_from(wire.seconds).map_or(Duration::ZERO, |seconds| Duration::new(seconds, nanos))
}

/// Returns whether a service may add this header. Headers about framing or the connection are excluded, because they
/// could move the end of a message.
fn is_addable(name: &HeaderName) -> bool {
    let is_framing = matches!(*name, CONTENT_LENGTH | EXPECT | HOST | TRAILER);
    !is_framing && !is_hop_by_hop(name.as_str().as_bytes())
}

/// Converts the headers that may be added; `None` if they exceed the maximum.
fn headers_from_proto(wire: &[WireHeader]) -> Option<HeaderMap> {
    let read = |header: &WireHeader| {
        let name = HeaderName::try_from(&header.key).ok().filter(is_addable)?;
        let bytes = if header.raw_value.is_empty() { header.value.as_bytes() } else { &header.raw_value };
        Some((name, HeaderValue::from_bytes(bytes).ok()?))
    };
    let (mut headers, mut bytes) = (HeaderMap::new(), 0_usize);
    for (name, value) in wire.iter().filter_map(read) {
        bytes = bytes.saturating_add(name.as_str().len()).saturating_add(value.len());
        headers.append(name, value);
        if headers.len() > MAX_ADDED_HEADERS || bytes > MAX_ADDED_HEADER_BYTES {
            return None;
        }
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service_request(hits: [u32; 2]) -> ServiceRequest {
        let descriptor =
            |hits| ServiceDescriptor { entries: vec![("key".to_owned(), "value".to_owned())], hits };
        ServiceRequest { domain: "edge".to_owned(), descriptors: hits.map(descriptor).into() }
    }

    fn header(key: &str, value: &str) -> WireHeader {
        WireHeader { key: key.to_owned(), value: value.to_owned(), ..WireHeader::default() }
    }

    #[test]
    fn equal_hits_are_sent_once_for_the_request() {
        let wire = request_to_proto(service_request([3, 3]));
        assert_eq!(wire.hits_addend, 3);
        assert!(wire.descriptors.iter().all(|descriptor| descriptor.hits_addend.is_none()));
    }

    #[test]
    fn different_hits_are_sent_per_descriptor_and_their_maximum_for_the_request() {
        let wire = request_to_proto(service_request([1, 3]));
        let hits: Vec<_> = wire.descriptors.iter().map(|one| one.hits_addend.unwrap().value).collect();
        assert_eq!((wire.hits_addend, hits), (3, vec![1, 3]));
    }

    #[test]
    fn response_with_another_number_of_statuses_or_no_code_is_rejected() {
        let wire = RateLimitResponse { overall_code: Code::Ok.into(), ..RateLimitResponse::default() };
        assert!(response_from_proto(wire.clone(), 0).is_some());
        assert!(response_from_proto(wire, 1).is_none());
        assert!(
            response_from_proto(RateLimitResponse::default(), 0).is_none(),
            "a response whose overall code is unknown"
        );
    }

    #[test]
    fn response_that_is_over_the_limit_rejects_whatever_the_rest_is() {
        let over = RateLimitResponse { overall_code: Code::OverLimit.into(), ..RateLimitResponse::default() };
        let read = response_from_proto(over.clone(), 2).unwrap();
        assert!(read.is_over_limit && read.statuses.iter().all(|status| status.is_over_limit));
        assert_eq!(read.statuses.len(), 2);
        let many = (0..=MAX_ADDED_HEADERS).map(|index| header(&format!("x-{index}"), "")).collect();
        let wire = RateLimitResponse { response_headers_to_add: many, ..over };
        let read = response_from_proto(wire, 0).unwrap();
        assert!(read.is_over_limit && read.response_headers.is_empty());
    }

    #[test]
    fn framing_headers_of_a_response_are_not_added() {
        let given =
            [("x-tier", "gold"), ("Content-Length", "0"), ("transfer-encoding", "chunked"), ("x bad", "1")];
        let added = headers_from_proto(&given.map(|(key, value)| header(key, value)));
        let tier = HeaderMap::from_iter([("x-tier".parse().unwrap(), "gold".parse().unwrap())]);
        assert_eq!(added, Some(tier));
    }

    #[test]
    fn response_with_too_many_or_too_large_headers_is_rejected() {
        let many =
            |count: usize| (0..count).map(|index| header(&format!("x-{index}"), "")).collect::<Vec<_>>();
        assert_eq!(
            headers_from_proto(&many(MAX_ADDED_HEADERS)).map(|headers| headers.len()),
            Some(MAX_ADDED_HEADERS)
        );
        assert_eq!(headers_from_proto(&many(MAX_ADDED_HEADERS + 1)), None);
        assert_eq!(headers_from_proto(&many(30_000)), None, "more fields than a header map can hold");
        assert_eq!(headers_from_proto(&[header("x-large", &"x".repeat(MAX_ADDED_HEADER_BYTES))]), None);
    }

    #[test]
    fn negative_duration_becomes_zero() {
        assert_eq!(duration_from_proto(protobuf::Duration { seconds: -1, nanos: 5 }), Duration::ZERO);
        assert_eq!(duration_from_proto(protobuf::Duration { seconds: 1, nanos: -5 }), Duration::from_secs(1));
    }
}
