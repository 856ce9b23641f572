//! What clients ask over HTTP/1.1, and what upstreams answer.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::steered;
use crate::http1::{client, server};
use crate::proxy;

/// The head of a request is the same however it comes, and tells one end of its body.
pub fn request(data: &[u8]) {
    server::fuzzing::request(data);
}

/// The head and body of an answer are the same however they come, byte by byte or at once.
pub fn answer(data: &[u8]) {
    client::fuzzing::answer(data);
}

/// What is written in chunks is read as it was, and never more than that.
pub fn chunks(data: &[u8]) {
    client::fuzzing::chunks(data);
}

/// A load is a number that is no less than nothing, and what is no report says nothing.
pub fn load_report(data: &[u8]) {
    let (steer, report) = steered(data);
    let name = ["endpoint-load-metrics", "endpoint-load-metrics-bin"][usize::from(steer & 1)];
    let Ok(value) = HeaderValue::from_bytes(report) else { return };
    let headers = HeaderMap::from_iter([(HeaderName::from_static(name), value)]);
    if let Some(load) = proxy::fuzzing::load_report(&headers) {
        assert!(load.is_finite() && load >= 0.0, "a load of {load}");
    }
}
