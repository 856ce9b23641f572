//! The parsers of the request path, for fuzzing.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::connection::http1;
use super::headers::envoy;
use super::{elastic, grpc, headers};

/// The head of a request.
pub(crate) fn request(data: &[u8]) {
    http1::fuzzing::request(data);
}

/// Whether a Host field names one.
pub(crate) fn is_host(host: &[u8]) -> bool {
    headers::is_host(host)
}

/// Fields that steer, a line each: `name: value`; the last line is a deadline of gRPC.
pub(crate) fn steering(data: &[u8]) {
    let mut given = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n').take(64) {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (name, value) = (&line[..colon], line.get(colon + 1..).unwrap_or_default());
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value.trim_ascii()))
        {
            given.append(name, value);
        }
        if let Some(timeout) = grpc::timeout(line) {
            assert!(timeout <= Duration::from_secs(99_999_999 * 3600));
        }
    }
    let (mut inside, mut outside) = (given.clone(), given);
    assert_eq!(envoy::take_controls(&mut outside, false), None, "somebody outside steers");
    if let Some(controls) = envoy::take_controls(&mut inside, true) {
        assert!(controls.retries.is_none_or(|retries| retries <= 10));
    }
    assert_eq!(inside, outside);
    assert!(!inside.keys().any(|name| envoy::is_control(name.as_str())), "what steers goes further");
}

/// What an answer says of the upstream's load.
pub(crate) fn load_report(headers: &HeaderMap) -> Option<f64> {
    elastic::utilization(&headers.clone().into())
}
