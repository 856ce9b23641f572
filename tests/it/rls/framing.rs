//! What the port expects of a call and how it responds: media type, encodings, messages and trailers (gRPC over HTTP/2).

use bytes::Bytes;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use prost::Message as _;

use super::{Code, RlsService, descriptor};
use crate::support::h2::{H2Client, H2Response};
use crate::support::wait;

const RULES: &str =
    "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: hour, requests_per_unit: 1000000 }\n";

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const QUOTAS: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";
const CHECK: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Methods that take one message.
const WITH_ONE_MESSAGE: [&str; 3] = [SHOULD_RATE_LIMIT, CHECK, WATCH];
const ALL: [&str; 4] = [SHOULD_RATE_LIMIT, CHECK, WATCH, QUOTAS];

/// Parts of a message: of its prefix, without its payload, with a part of that.
const TRUNCATED: [&[u8]; 3] = [b"\0\0\0\0", b"\0\0\0\0\x01", b"\0\0\0\0\x02\x0a"];

/// Field of a header section.
type Field<'a> = (&'a str, &'a str);

const GRPC: Field<'_> = ("content-type", "application/grpc");

/// A message without compression.
fn message(payload: &[u8]) -> Vec<u8> {
    flagged_message(0, payload)
}

fn flagged_message(flag: u8, payload: &[u8]) -> Vec<u8> {
    [&[flag][..], &u32::try_from(payload.len()).unwrap().to_be_bytes(), payload].concat()
}

/// A message that asks for the health of a service.
fn health_request(service: &str) -> Vec<u8> {
    message(&[&[0x0a, service.len() as u8], service.as_bytes()].concat())
}

fn rate_limit_request(domain: &str) -> Vec<u8> {
    let descriptors = vec![descriptor("k=v")];
    message(&RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 1 }.encode_to_vec())
}

/// The service, and a connection to it.
struct Port {
    service: RlsService,
    h2: H2Client,
}

impl Port {
    fn open() -> Self {
        let service = RlsService::start(&[("rules.yaml", RULES)]);
        let h2 = H2Client::connect(service.weir.rls_address("grpc"));
        Self { service, h2 }
    }

    /// Makes a complete call.
    fn call(&mut self, path: &str, fields: &[Field<'_>], body: &[u8]) -> H2Response {
        let mut request = self.h2.request("POST", path).header("te", "trailers");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let (response, mut sending) = self.h2.send_request(request, false);
        // The service may have rejected the head and reset the stream (RFC 9113 section 8.1).
        let _ = sending.send_data(Bytes::copy_from_slice(body), true);
        self.h2.read_response(response).unwrap()
    }

    /// Makes a complete gRPC call, and returns its status.
    fn status(&mut self, path: &str, body: &[u8]) -> (u8, String) {
        status(&self.call(path, &[GRPC], body))
    }

    /// Calls of a reason that were not served.
    fn unserved(&self, reason: &str) -> f64 {
        self.service.weir.metric("weir_rate_limit_calls_not_served_total", &[("reason", reason)])
    }
}

/// The number and the text of a status, which is in the trailers if there are any.
fn status(response: &H2Response) -> (u8, String) {
    assert_eq!((response.status.as_u16(), response.header("content-type")), (200, "application/grpc"));
    let fields = response.trailers.as_ref().unwrap_or(&response.headers);
    let text = |name| fields.get(name).map_or("", |value| value.to_str().unwrap());
    (text("grpc-status").parse().unwrap(), text("grpc-message").to_owned())
}

#[test]
fn unary_response_is_a_message_between_its_head_and_trailers() {
    let mut port = Port::open();
    let calls = [(SHOULD_RATE_LIMIT, rate_limit_request("d")), (CHECK, message(b""))];
    for (path, request) in calls {
        let response = port.call(path, &[GRPC], &request);
        assert_eq!(status(&response), (0, String::new()), "{path}");
        assert_eq!((response.headers.len(), response.trailers.unwrap().len()), (1, 1), "{path}");
        let (prefix, payload) = response.body.split_at(5);
        assert_eq!(prefix, &flagged_message(0, payload)[..5], "{path}");
    }
}

#[test]
fn streams_send_their_head_at_once_and_end_with_trailers() {
    let mut port = Port::open();
    for path in [QUOTAS, WATCH] {
        let request = port.h2.request("POST", path).header(GRPC.0, GRPC.1).header("te", "trailers");
        let (response, mut sending) = port.h2.send_request(request, false);
        if path == WATCH {
            sending.send_data(Bytes::from(message(b"")), true).unwrap();
        }
        let head = port.h2.response_head(response).unwrap();
        assert_eq!(head.headers().len(), 1, "{path}");
        assert_eq!(head.headers()[GRPC.0], GRPC.1, "{path}");
        let mut body = head.into_body();
        if path == WATCH {
            let serving = port.h2.block_on(body.data()).unwrap().unwrap();
            assert_eq!(serving[..], message(&[8, 1])[..]);
        } else {
            sending.send_data(Bytes::new(), true).unwrap();
            assert!(port.h2.block_on(body.data()).is_none(), "no report, no assignment");
            let trailers = port.h2.block_on(body.trailers()).unwrap().unwrap();
            assert_eq!((trailers.len(), &trailers["grpc-status"]), (1, &"0".parse().unwrap()));
        }
    }
}

#[test]
fn watch_of_an_unknown_service_stays_open() {
    let mut port = Port::open();
    let request = port.h2.request("POST", WATCH).header(GRPC.0, GRPC.1);
    let (response, mut sending) = port.h2.send_request(request, false);
    sending.send_data(Bytes::from(health_request("another")), true).unwrap();
    let mut body = port.h2.response_head(response).unwrap().into_body();
    assert_eq!(port.h2.block_on(body.data()).unwrap().unwrap()[..], message(&[8, 3])[..]);
    port.service.weir.admin_post("/healthcheck/fail");
    port.service.weir.admin_post("/healthcheck/ok");
    assert!(!body.is_end_stream());
    assert_eq!(port.status(CHECK, &health_request("another")), (5, "unknown%20service".to_owned()));
}

#[test]
fn unsupported_encoding_is_unimplemented_and_the_supported_one_is_named() {
    let mut port = Port::open();
    for path in ALL {
        let response = port.call(path, &[GRPC, ("grpc-encoding", "gzip")], &message(b""));
        let text = "Content%20is%20compressed%20with%20%60gzip%60%20which%20isn't%20supported";
        assert_eq!(status(&response), (12, text.to_owned()), "{path}");
        assert!(response.is_head_only, "{path}");
        assert_eq!(response.header("grpc-accept-encoding"), "identity", "{path}");
    }
    let identity = [GRPC, ("grpc-encoding", "identity"), ("grpc-accept-encoding", "gzip")];
    let served = port.call(SHOULD_RATE_LIMIT, &identity, &rate_limit_request("d"));
    assert_eq!((status(&served).0, served.headers.len()), (0, 1), "responses are never compressed");
    assert_eq!(status(&port.call(QUOTAS, &identity, b"")).0, 0);
}

#[test]
fn flag_of_a_message_must_be_0() {
    let mut port = Port::open();
    for path in ALL {
        let text = "protocol%20error:%20received%20message%20with%20compressed-flag%20but%20no%20grpc-encoding%20was%20specified";
        assert_eq!(port.status(path, &flagged_message(1, b"")), (13, text.to_owned()), "{path}");
        let text = "protocol%20error:%20received%20message%20with%20invalid%20compression%20flag:%202%20(valid%20flags%20are%200%20and%201),%20while%20sending%20request";
        assert_eq!(port.status(path, &flagged_message(2, b"")), (13, text.to_owned()), "{path}");
    }
}

#[test]
fn call_without_a_complete_message_is_an_internal_error() {
    let mut port = Port::open();
    for path in WITH_ONE_MESSAGE {
        assert_eq!(port.status(path, b""), (13, "Missing%20request%20message.".to_owned()), "{path}");
        for truncated in TRUNCATED {
            let ended = (13, "Unexpected%20EOF%20decoding%20stream.".to_owned());
            assert_eq!(port.status(path, truncated), ended, "{path}");
        }
    }
    assert_eq!(port.status(QUOTAS, b""), (0, String::new()), "a stream may have no message");
    for truncated in TRUNCATED {
        assert_eq!(port.status(QUOTAS, truncated), (13, "the%20last%20report%20is%20incomplete".to_owned()));
    }
}

#[test]
fn announced_length_is_bounded() {
    let mut port = Port::open();
    let announced = |bytes: u32| [&[0][..], &bytes.to_be_bytes()].concat();
    let text = "message%20too%20large,%20at%20most%201048576%20bytes:%201048577";
    for path in ALL {
        assert_eq!(port.status(path, &announced(1 << 20)).0, 13, "{path}");
        assert_eq!(port.status(path, &announced((1 << 20) + 1)), (11, text.to_owned()), "{path}");
    }
}

#[test]
fn malformed_message_ends_the_call() {
    let mut port = Port::open();
    for path in WITH_ONE_MESSAGE {
        let (code, text) = port.status(path, &message(b"\xff"));
        assert!(
            code == 13 && text.starts_with("failed%20to%20decode%20Protobuf%20message"),
            "{path}: {text}"
        );
    }
    let (code, text) = port.status(QUOTAS, &message(b"\xff"));
    assert!(code == 3 && text.starts_with("malformed%20report"), "{text}");
}

#[test]
fn first_of_several_messages_is_the_request() {
    let mut port = Port::open();
    let (known, unknown) = (health_request(""), health_request("another"));
    assert_eq!(port.status(CHECK, &[&known[..], &unknown].concat()).0, 0);
    assert_eq!(port.status(CHECK, &[&unknown[..], &known].concat()).0, 5);
    let (d, other) = (rate_limit_request("d"), rate_limit_request("other"));
    let response = port.call(SHOULD_RATE_LIMIT, &[GRPC], &[&d[..], &other].concat());
    let decided = RateLimitResponse::decode(&response.body[5..]).unwrap();
    assert_eq!((decided.overall_code(), decided.statuses.len()), (Code::Ok, 1));
    assert_eq!(port.service.stat("ratelimit.service.rate_limit.d.k.total_hits"), 1);
    for rest in [&b"\0\0\0"[..], b"\x01\0\0\0\0", b"\0\0\0\0\x01\xff"] {
        assert_eq!(port.status(SHOULD_RATE_LIMIT, &[&d[..], rest].concat()).0, 13, "{rest:?}");
    }
    assert_eq!(port.service.stat("ratelimit.service.rate_limit.d.k.total_hits"), 1);
}

/// A client ends a call itself when its time is over.
#[test]
fn timeout_of_a_call_is_left_to_the_client() {
    let mut port = Port::open();
    for timeout in ["1n", "20m", "never"] {
        let fields = [GRPC, ("grpc-timeout", timeout)];
        let response = port.call(SHOULD_RATE_LIMIT, &fields, &rate_limit_request("d"));
        assert_eq!(status(&response).0, 0, "{timeout}");
        assert_eq!(status(&port.call(CHECK, &fields, &message(b""))).0, 0, "{timeout}");
    }
}

#[test]
fn unknown_service_or_method_is_unimplemented() {
    let mut port = Port::open();
    let paths = [
        "/other.Service/Method",
        "/envoy.service.ratelimit.v3.RateLimitService/Other",
        "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/Other",
        "/grpc.health.v1.Health/List",
    ];
    for path in paths {
        let response = port.call(path, &[GRPC], &message(b""));
        assert_eq!(status(&response), (12, "no%20such%20service%20or%20method".to_owned()), "{path}");
        assert!(response.is_head_only, "{path}");
    }
    assert_eq!(port.unserved("unimplemented"), 4.0);
}

/// A client of server reflection keeps its stream open until it has a response.
#[test]
fn unknown_method_is_unimplemented_before_its_message_ends() {
    let mut port = Port::open();
    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let request = port.h2.request("POST", reflection).header(GRPC.0, GRPC.1);
    let (response, mut sending) = port.h2.send_request(request, false);
    sending.send_data(Bytes::from(message(b"")), false).unwrap();
    assert_eq!(status(&port.h2.read_response(response).unwrap()).0, 12);
}

#[test]
fn stream_that_fails_is_counted() {
    let mut port = Port::open();
    assert_eq!(port.status(QUOTAS, &flagged_message(1, b"")).0, 13);
    wait::until_true("the count", || port.unserved("message") == 1.0);
}

#[test]
fn other_media_type_is_unsupported() {
    let mut port = Port::open();
    for path in ALL {
        for media_type in ["text/plain", "application/grpc-web", "application/grp", ""] {
            let response = port.call(path, &[("content-type", media_type)], &message(b""));
            assert_eq!((response.status.as_u16(), response.header("grpc-status")), (415, "3"), "{path}");
            assert!(response.is_head_only, "{path}");
        }
    }
    assert_eq!(port.unserved("message"), 16.0);
    for media_type in ["application/grpc+proto", "application/grpc;charset=utf-8"] {
        let response = port.call(CHECK, &[("content-type", media_type)], &message(b""));
        assert_eq!(status(&response).0, 0, "{media_type}");
    }
    assert_eq!(status(&port.call(CHECK, &[], &message(b""))).0, 0, "without a media type");
}
