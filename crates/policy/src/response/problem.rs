//! Problem details in local replies (`on_limit.body: problem`): RFC 9457 with the problem types of the IETF draft on rate
//! limit headers, and the error details of gRPC (`google/rpc/error_details.proto`) with the same meaning.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use prost::Message;
use serde_json::json;

use super::grpc_reply::status_of;

/// Status and details of a gRPC call, as a message (gRPC over HTTP/2, "Status-Details").
pub const GRPC_STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
/// Media type of the body (RFC 9457 section 3).
pub const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";
const QUOTA_FAILURE: &str = "type.googleapis.com/google.rpc.QuotaFailure";

/// Problem details of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProblemReply {
    /// Name of the rule, which is the violated policy.
    rule: Box<str>,
    /// Body of a reply with 503, when it is unknown whether the limit is exceeded.
    pub unavailable: Bytes,
}

/// Returns the body of a rejection by the limit of `rule`.
pub fn quota_exceeded(rule: &str, status: StatusCode) -> Bytes {
    problem(&json!({
        "type": QUOTA_EXCEEDED,
        "title": "the quota of a policy is exceeded",
        "status": status.as_u16(),
        "detail": detail(rule),
        "violated-policies": [rule],
    }))
}

/// Returns the body of a rejection without a limit, whose problem is that of its status code (RFC 9457 section 4.2.1).
pub fn about_blank(status: StatusCode) -> Bytes {
    let title = status.canonical_reason().unwrap_or("rejected");
    problem(&json!({ "type": "about:blank", "title": title, "status": status.as_u16() }))
}

fn problem(members: &serde_json::Value) -> Bytes {
    format!("{members}\n").into()
}

fn detail(rule: &str) -> String {
    format!("the limit of the rule {rule} is exceeded")
}

impl ProblemReply {
    /// Creates the details of `rule`.
    pub fn new(rule: &str) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let unavailable = problem(&json!({
            "type": REDUCED_CAPACITY,
            "title": "the service has less capacity for the moment",
            "status": status.as_u16(),
        }));
        Self { rule: rule.into(), unavailable }
    }

    /// Returns the value of [`GRPC_STATUS_DETAILS`] for a call that the limit rejects with this HTTP status code and may
    /// be repeated after `retry_after` seconds.
    pub fn grpc_details(&self, status: StatusCode, retry_after: u64) -> Option<HeaderValue> {
        let delay = Duration { seconds: i64::try_from(retry_after).unwrap_or(i64::MAX) };
        let violation = Violation { subject: format!("rule:{}", self.rule), description: detail(&self.rule) };
        let details = vec![
            Any::new(RETRY_INFO, &RetryInfo { retry_delay: Some(delay) }),
            Any::new(QUOTA_FAILURE, &QuotaFailure { violations: vec![violation] }),
        ];
        let code = status_of(status).code();
        let status = Status { code: code.into(), message: detail(&self.rule), details };
        // Without padding: receivers must accept both, and senders should not pad.
        HeaderValue::try_from(STANDARD_NO_PAD.encode(status.encode_to_vec())).ok()
    }
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

impl Any {
    fn new(type_url: &str, message: &impl Message) -> Self {
        Self { type_url: type_url.to_owned(), value: message.encode_to_vec() }
    }
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Duration>,
}

/// `google.protobuf.Duration`, of whole seconds.
#[derive(Clone, Copy, PartialEq, Message)]
struct Duration {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

/// `google.rpc.QuotaFailure`.
#[derive(Clone, PartialEq, Message)]
struct QuotaFailure {
    #[prost(message, repeated, tag = "1")]
    violations: Vec<Violation>,
}

/// `google.rpc.QuotaFailure.Violation`.
#[derive(Clone, PartialEq, Message)]
struct Violation {
    #[prost(string, tag = "1")]
    subject: String,
    #[prost(string, tag = "2")]
    description: String,
}
