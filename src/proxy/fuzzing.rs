//! Fuzz targets for parsers of the request path.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::elastic;
use super::headers::overrides;
use weir_policy::rules::grpc::parse_timeout;

/// Checks that external clients cannot set overrides, that overrides are never forwarded, and that gRPC timeouts are
/// within bounds. Each line of `data` is a header `name: value`, and is also parsed as a gRPC timeout.
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
        if let Some(timeout) = parse_timeout(line) {
            assert!(timeout <= Duration::from_secs(99_999_999 * 3600));
        }
    }
    let (mut inside, mut outside) = (given.clone(), given);
    assert_eq!(overrides::take_overrides(&mut outside, false), None, "an external request has an override");
    if let Some(overrides) = overrides::take_overrides(&mut inside, true) {
        assert!(overrides.retries.is_none_or(|retries| retries <= 10));
    }
    assert_eq!(inside, outside);
    assert!(!inside.keys().any(|name| overrides::is_override(name.as_str())), "an override is forwarded");
}

/// Returns the utilization that a response reports.
pub fn load_report(headers: &HeaderMap) -> Option<f64> {
    elastic::utilization(&headers.clone().into())
}
