//! Records malformed requests, which the decoder rejects, in the access log and the metrics.
//!
//! They have no request context, because they have no complete head. The first line is logged as far as it can be read.
//! Each of them ends its connection, so there is at most one per connection.

use std::time::Duration;

use http::{Method, StatusCode, Version};

use super::DownstreamConnection;
use crate::proxy::request_context::ResponseFlag;
use weir_telemetry::access_log::AccessLogEntry;
use weir_telemetry::metrics::FinalOutcome;

/// Maximum length of a logged method; longer words are not methods.
const MAX_METHOD: usize = 64;
/// Maximum bytes of a target that are logged.
const MAX_TARGET: usize = 4096;

/// Records an HTTP/1 request that was rejected with `status`; `read` is the beginning of its bytes.
pub(super) fn record_request(
    connection: &DownstreamConnection,
    status: StatusCode,
    flag: ResponseFlag,
    read: &[u8],
) {
    let metrics = &connection.worker.metrics;
    let took = connection.timer.head_duration();
    metrics.record_malformed_request();
    metrics.request_started(connection.listener);
    metrics.request_finished(connection.listener, status, took, FinalOutcome::Malformed);
    log(connection, &FirstLine::parse(read), Some(status), flag, took);
}

/// Records an HTTP/2 connection that ended with a protocol error, or because a header section took too long, which is not
/// attributed to a request.
pub(super) fn record_connection(connection: &DownstreamConnection, flag: ResponseFlag) {
    connection.worker.metrics.record_malformed_request();
    let line = FirstLine { protocol: Version::HTTP_2, ..FirstLine::unknown() };
    log(connection, &line, None, flag, Duration::ZERO);
}

fn log(
    connection: &DownstreamConnection,
    line: &FirstLine,
    status: Option<StatusCode>,
    flag: ResponseFlag,
    duration: Duration,
) {
    let shared = &connection.worker.shared;
    let view = connection.worker.view();
    let random = || connection.worker.random() as u64;
    let Some(log) = view.access_log.as_ref().filter(|log| log.is_sampled(random)) else { return };
    log.log(&AccessLogEntry {
        start: shared.clock.now().saturating_sub(duration),
        method: &line.method,
        path: &line.target,
        protocol: line.protocol,
        status,
        response_flags: flag.as_str(),
        attempts: 0,
        bytes_received: 0,
        bytes_sent: 0,
        duration,
        upstream_time: None,
        class: None,
        x_forwarded_for: None,
        user_agent: None,
        request_id: None,
        authority: None,
        upstream_host: None,
        other_headers: &[],
        decision: None,
        client_ip: connection.peer,
    });
}

/// Contents of a request line, with `-` for what cannot be read.
struct FirstLine {
    method: Method,
    target: String,
    protocol: Version,
}

impl FirstLine {
    fn unknown() -> Self {
        let method = Method::from_bytes(b"-").unwrap_or_default();
        Self { method, target: "-".to_owned(), protocol: Version::HTTP_11 }
    }

    /// Parses the beginning of a head, however malformed.
    fn parse(read: &[u8]) -> Self {
        let line = read.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let mut words = line.trim_ascii_end().splitn(3, |byte| *byte == b' ');
        let method = words.next().filter(|word| word.len() <= MAX_METHOD);
        let Some(method) = method.and_then(|word| Method::from_bytes(word).ok()) else {
            return Self::unknown();
        };
        let target = words.next().filter(|word| !word.is_empty()).unwrap_or(b"-");
        let target = String::from_utf8_lossy(&target[..target.len().min(MAX_TARGET)]).into_owned();
        let protocol = match words.next() {
            Some(b"HTTP/1.0") => Version::HTTP_10,
            _ => Version::HTTP_11,
        };
        Self { method, target, protocol }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_of_a_malformed_request_is_parsed_as_far_as_possible() {
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(MAX_TARGET));
        let cut = format!("/{}", "a".repeat(MAX_TARGET - 1));
        for (read, method, target) in [
            ("GET /a?b HTTP/1.0\r\nhost: a", "GET", "/a?b"),
            ("GET /a b HTTP/1.1\r\n", "GET", "/a"),
            ("POST /half", "POST", "/half"),
            ("GE", "GE", "-"),
            ("GET", "GET", "-"),
            ("G(T / HTTP/1.1\r\n", "-", "-"),
            ("\u{16}\u{3}\u{1}", "-", "-"),
            ("", "-", "-"),
            (&long, "GET", &cut),
        ] {
            let line = FirstLine::parse(read.as_bytes());
            assert_eq!((line.method.as_str(), line.target.as_str()), (method, target), "{read:?}");
        }
        assert_eq!(FirstLine::parse(b"GET / HTTP/1.0\r\n").protocol, Version::HTTP_10);
    }
}
