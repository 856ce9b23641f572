//! Conversion between Envoy's messages and plain data.

use std::collections::HashMap;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry as WireEntry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code as WireCode, DescriptorStatus, RateLimit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{self, ListValue, Struct};
use serde_json::{Map, Value};

use crate::rls::answer::{Answer, Code, CurrentLimit, Status};
use crate::rls::request::{Descriptor, Entry, Override, Request};
use crate::rls::unit::Unit;

/// Converts a request.
pub(super) fn request(wire: RateLimitRequest) -> Request {
    Request {
        domain: wire.domain,
        descriptors: wire.descriptors.into_iter().map(descriptor).collect(),
        hits_addend: wire.hits_addend,
    }
}

fn descriptor(wire: RateLimitDescriptor) -> Descriptor {
    let entry = |WireEntry { key, value }| Entry { key, value };
    Descriptor {
        entries: wire.entries.into_iter().map(entry).collect(),
        limit: wire.limit.map(limit),
        hits_addend: wire.hits_addend.map(|hits| hits.value),
        is_negative_hits: wire.is_negative_hits,
    }
}

fn limit(wire: RateLimitOverride) -> Override {
    let unit = u64::try_from(wire.unit).ok().and_then(Unit::of_request);
    Override { requests_per_unit: wire.requests_per_unit, unit }
}

/// Converts a response.
pub(super) fn response(answer: Answer) -> RateLimitResponse {
    let header = |(name, value): (std::sync::Arc<str>, String)| HeaderValue {
        key: name.to_string(),
        value,
        ..HeaderValue::default()
    };
    RateLimitResponse {
        overall_code: code(answer.overall).into(),
        statuses: answer.statuses.iter().map(status).collect(),
        response_headers_to_add: answer.headers.into_iter().map(header).collect(),
        dynamic_metadata: answer.metadata.map(structure),
        ..RateLimitResponse::default()
    }
}

const fn code(code: Code) -> WireCode {
    match code {
        Code::Ok => WireCode::Ok,
        Code::OverLimit => WireCode::OverLimit,
    }
}

fn status(status: &Status) -> DescriptorStatus {
    DescriptorStatus {
        code: code(status.code).into(),
        current_limit: status.current_limit.as_ref().map(current_limit),
        limit_remaining: status.limit_remaining,
        duration_until_reset: status.duration_until_reset.map(duration),
        ..DescriptorStatus::default()
    }
}

fn current_limit(limit: &CurrentLimit) -> RateLimit {
    // UNKNOWN is 0.
    let unit = limit.unit.map_or(0, |unit| unit as i32);
    RateLimit { name: limit.name.to_string(), requests_per_unit: limit.requests_per_unit, unit }
}

/// Converts a duration.
pub(super) fn duration(duration: Duration) -> protobuf::Duration {
    protobuf::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or(0),
    }
}

/// Converts a duration from a peer; negative values become zero.
pub(super) fn elapsed(wire: protobuf::Duration) -> Duration {
    let seconds = u64::try_from(wire.seconds).unwrap_or(0);
    Duration::new(seconds, u32::try_from(wire.nanos).unwrap_or(0).min(999_999_999))
}

fn structure(map: Map<String, Value>) -> Struct {
    let fields: HashMap<String, protobuf::Value> =
        map.into_iter().map(|(name, value)| (name, protobuf_value(value))).collect();
    Struct { fields }
}

/// Converts JSON; all numbers of a `Struct` are doubles.
fn protobuf_value(value: Value) -> protobuf::Value {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(value),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => Kind::StringValue(text),
        Value::Array(values) => {
            Kind::ListValue(ListValue { values: values.into_iter().map(protobuf_value).collect() })
        }
        Value::Object(map) => Kind::StructValue(structure(map)),
    };
    protobuf::Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit as ResponseUnit;
    use envoy_types::pb::envoy::r#type::v3::RateLimitUnit as RequestUnit;

    use super::*;

    #[test]
    fn units_have_the_numbers_of_the_protocol() {
        for unit in Unit::ALL {
            assert_eq!(ResponseUnit::from_str_name(unit.as_str()), ResponseUnit::try_from(unit as i32).ok());
            let in_requests = RequestUnit::from_str_name(unit.as_str());
            assert_eq!(
                in_requests.map(|asked| asked as i32),
                Unit::of_request(unit as u64).map(|unit| unit as i32)
            );
        }
        assert_eq!(Unit::of_request(0), None);
    }
}
