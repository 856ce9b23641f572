//! The parsers of the request path, for fuzzing.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::headers::overrides;
use super::{elastic, grpc, headers};

/// Whether a Host field names one.
pub(crate) fn is_host(host: &[u8]) -> bool {
    headers::validate::is_host(host)
}

/// Nobody outside steers, nothing that steers goes further, and gRPC's deadlines are times. Fields that steer, a line each:
/// `name: value`; the last line is a deadline of gRPC.
pub fn steering(data: &[u8]) {
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
    assert_eq!(overrides::take_overrides(&mut outside, false), None, "somebody outside steers");
    if let Some(overrides) = overrides::take_overrides(&mut inside, true) {
        assert!(overrides.retries.is_none_or(|retries| retries <= 10));
    }
    assert_eq!(inside, outside);
    assert!(!inside.keys().any(|name| overrides::is_override(name.as_str())), "what steers goes further");
}

/// What an answer says of the upstream's load.
pub(crate) fn load_report(headers: &HeaderMap) -> Option<f64> {
    elastic::utilization(&headers.clone().into())
}
