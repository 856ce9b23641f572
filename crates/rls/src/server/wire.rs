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

use crate::request::{LimitOverride, RlsDescriptor, RlsEntry, RlsRequest};
use crate::response::{Code, CurrentLimit, RlsDescriptorStatus, RlsResponse};
use crate::unit::RlsUnit;

/// Converts a request.
pub(super) fn request_from_proto(wire: RateLimitRequest) -> RlsRequest {
    RlsRequest {
        domain: wire.domain,
        descriptors: wire.descriptors.into_iter().map(descriptor_from_proto).collect(),
        hits_addend: wire.hits_addend,
    }
}

fn descriptor_from_proto(wire: RateLimitDescriptor) -> RlsDescriptor {
    let entry = |WireEntry { key, value }| RlsEntry { key, value };
    RlsDescriptor {
        entries: wire.entries.into_iter().map(entry).collect(),
        limit: wire.limit.map(override_from_proto),
        hits_addend: wire.hits_addend.map(|hits| hits.value),
        is_negative_hits: wire.is_negative_hits,
    }
}

fn override_from_proto(wire: RateLimitOverride) -> LimitOverride {
    let unit = u64::try_from(wire.unit).ok().and_then(RlsUnit::from_request_number);
    LimitOverride { requests_per_unit: wire.requests_per_unit, unit }
}

/// Converts a response.
pub(super) fn response_to_proto(response: RlsResponse) -> RateLimitResponse {
    let header = |(name, value): (std::sync::Arc<str>, String)| HeaderValue {
        key: name.to_string(),
        value,
        ..HeaderValue::default()
    };
    RateLimitResponse {
        overall_code: code_to_proto(response.overall_code).into(),
        statuses: response.statuses.iter().map(status_to_proto).collect(),
        response_headers_to_add: response.headers.into_iter().map(header).collect(),
        dynamic_metadata: response.metadata.map(struct_to_proto),
        ..RateLimitResponse::default()
    }
}

const fn code_to_proto(code: Code) -> WireCode {
    match code {
        Code::Ok => WireCode::Ok,
        Code::OverLimit => WireCode::OverLimit,
    }
}

fn status_to_proto(status: &RlsDescriptorStatus) -> DescriptorStatus {
    DescriptorStatus {
        code: code_to_proto(status.code).into(),
        current_limit: status.current_limit.as_ref().map(current_limit_to_proto),
        limit_remaining: status.limit_remaining,
        duration_until_reset: status.duration_until_reset.map(duration_to_proto),
        ..DescriptorStatus::default()
    }
}

fn current_limit_to_proto(limit: &CurrentLimit) -> RateLimit {
    // UNKNOWN is 0.
    let unit = limit.unit.map_or(0, |unit| unit as i32);
    RateLimit { name: limit.name.to_string(), requests_per_unit: limit.requests_per_unit, unit }
}

/// Converts a duration.
pub(super) fn duration_to_proto(duration: Duration) -> protobuf::Duration {
    protobuf::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or(0),
    }
}

/// Converts a duration from a peer; negative values become zero.
pub(super) fn duration_from_proto(wire: protobuf::Duration) -> Duration {
    let seconds = u64::try_from(wire.seconds).unwrap_or(0);
    Duration::new(seconds, u32::try_from(wire.nanos).unwrap_or(0).min(999_999_999))
}

fn struct_to_proto(map: Map<String, Value>) -> Struct {
    let fields: HashMap<String, protobuf::Value> =
        map.into_iter().map(|(name, value)| (name, value_to_proto(value))).collect();
    Struct { fields }
}

/// Converts JSON; all numbers of a `Struct` are doubles.
fn value_to_proto(value: Value) -> protobuf::Value {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(value),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => Kind::StringValue(text),
        Value::Array(values) => {
            Kind::ListValue(ListValue { values: values.into_iter().map(value_to_proto).collect() })
        }
        Value::Object(map) => Kind::StructValue(struct_to_proto(map)),
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
        for unit in RlsUnit::ALL {
            assert_eq!(ResponseUnit::from_str_name(unit.as_str()), ResponseUnit::try_from(unit as i32).ok());
            let in_requests = RequestUnit::from_str_name(unit.as_str());
            assert_eq!(
                in_requests.map(|request_unit| request_unit as i32),
                RlsUnit::from_request_number(unit as u64).map(|unit| unit as i32)
            );
        }
        assert_eq!(RlsUnit::from_request_number(0), None);
    }
}
