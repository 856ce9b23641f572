//! Counting by response headers and by the status of gRPC calls.

use std::io::Read as _;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};

use super::{remaining, scripted_upstream, start_with_rule, statuses};
use crate::support::h2::{H2Client, H2Response};
use crate::support::h2_origin::H2Origin;
use crate::support::{AfterResponse, Client, Origin, Request, Weir, config, fetch, origin, wait};

/// Returns a request that makes the upstream respond with 200 and this header.
fn request_for_header(header: &str) -> Request {
    Request::get("/200").header("x-answer", header)
}

fn statuses_of(weir: &Weir, request: &Request, times: usize) -> Vec<u16> {
    (0..times).map(|_| fetch(weir.address(), request).status).collect()
}

#[test]
fn only_matching_response_headers_count() {
    let origin = scripted_upstream();
    let rule = "{ name: login, key: [], limit: 2/year, algorithm: fixed_window, count: { response_header: { x-login: [failed, \"~^locked-\"] } } }";
    let weir = start_with_rule(&origin, rule);
    assert_eq!(statuses_of(&weir, &request_for_header("X-Login: ok"), 3), [200; 3]);
    assert_eq!(statuses(&weir, &["/200", "/401"]), [200, 401]);
    assert_eq!(remaining(&weir, &request_for_header("X-Login: failed")), 1);
    assert_eq!(remaining(&weir, &request_for_header("x-login: locked-1")), 0);
    assert_eq!(statuses_of(&weir, &request_for_header("X-Login: ok"), 2), [429; 2]);
}

#[test]
fn any_line_of_a_repeated_response_header_may_match() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\nx-login: ok\r\nX-Login: failed\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_with_rule(
        &origin,
        "{ name: a, key: [], limit: 1/d, count: { response_header: { x-login: failed } } }",
    );
    assert_eq!(statuses(&weir, &["/", "/"]), [200, 429]);
}

#[test]
fn a_redirect_counts_by_its_location() {
    let origin = scripted_upstream();
    let rule = "{ name: login, key: [], limit: 2/d, count: { response_status: 3xx, response_header: { location: \"~^/login\" } } }";
    let weir = start_with_rule(&origin, rule);
    let redirected = |to: &str| Request::get("/302").header("x-answer", &format!("Location: {to}"));
    assert_eq!(statuses_of(&weir, &redirected("/home"), 3), [302; 3]);
    // Both conditions must hold.
    assert_eq!(statuses_of(&weir, &request_for_header("location: /login"), 3), [200; 3]);
    assert_eq!(statuses_of(&weir, &redirected("/login?failed"), 3), [302, 302, 429]);
}

#[test]
fn not_present_matcher_counts_absent_response_header() {
    let origin = scripted_upstream();
    let weir = start_with_rule(
        &origin,
        "{ name: a, key: [], limit: 1/d, count: { response_header: { x-cache: \"!present\" } } }",
    );
    assert_eq!(statuses_of(&weir, &request_for_header("x-cache: hit"), 3), [200; 3]);
    assert_eq!(statuses(&weir, &["/200", "/200"]), [200, 429]);
}

#[test]
fn local_reply_has_no_response_headers_to_match() {
    let (_socket, address) = origin::refusing_address();
    let rule = |count: &str| {
        let rule = format!("{{ name: a, key: [], limit: 1/d, count: {{ response_header: {count} }} }}");
        Weir::start(&config(address, &format!("rules:\n  - {rule}\n")))
    };
    let named = rule("{ x-login: failed }");
    assert_eq!(statuses(&named, &["/", "/"]), [503, 503]);
    // Headers added by Weir do not count as headers of the upstream.
    let ours = rule("{ x-ratelimit-limit: \"*\" }");
    assert_eq!(statuses(&ours, &["/", "/"]), [503, 503]);
    let absent = rule("{ x-login: \"!present\" }");
    assert_eq!(statuses(&absent, &["/", "/"]), [503, 429]);
}

#[test]
fn matching_preserves_the_case_of_response_headers() {
    let header = "X-Odd-CASE: 1";
    let origin = scripted_upstream();
    let seen = |count: &str| {
        let weir = start_with_rule(&origin, &format!("{{ name: a, key: [], limit: 9/d, count: {count} }}"));
        let client = Client::connect(weir.address());
        client.send(request_for_header(header).to_bytes());
        let (mut stream, mut response) = (client.wire.stream(), Vec::new());
        while !response.ends_with(b"ok") {
            let mut piece = [0; 1024];
            let length = stream.read(&mut piece).unwrap();
            assert!(length > 0, "the response was truncated");
            response.extend_from_slice(&piece[..length]);
        }
        String::from_utf8(response).unwrap().contains(header)
    };
    assert!(seen("{ response_status: 401 }"));
    assert!(seen("{ response_header: { x-odd-case: \"2\" } }"));
}

/// Returns an upstream that ends calls with the status in the request header `x-status`: in trailers, or with `x-only`
/// in the header section alone. Without `x-status` it ends them without a status.
fn grpc_upstream() -> H2Origin {
    H2Origin::start(None, |request, mut respond| async move {
        let status = request.headers().get("x-status").cloned();
        let http = request.headers().get("x-http").map_or("200", |value| value.to_str().unwrap());
        let head = Response::builder().status(http).header("content-type", "application/grpc");
        let fields = |status: HeaderValue| HeaderMap::from_iter([("grpc-status".parse().unwrap(), status)]);
        match (status, request.headers().contains_key("x-only")) {
            (Some(status), true) => {
                respond.send_response(head.header("grpc-status", status).body(()).unwrap(), true)?;
            }
            (status, _) => {
                let mut stream = respond.send_response(head.body(()).unwrap(), false)?;
                stream.send_data(Bytes::from_static(b"\0\0\0\0\x01x"), status.is_none())?;
                if let Some(status) = status {
                    stream.send_trailers(fields(status))?;
                }
            }
        }
        Ok(())
    })
}

/// Starts a proxy for calls with this rule, and connects a client.
fn start_and_connect(origin: &H2Origin, rule: &str) -> (Weir, H2Client) {
    let weir = Weir::start(&config(origin.address(), &format!("rules:\n  - {rule}\n")));
    let client = H2Client::connect(weir.address());
    (weir, client)
}

fn grpc_status(call: &H2Response) -> String {
    let trailers = call.trailers.as_ref().and_then(|trailers| trailers.get("grpc-status"));
    trailers
        .map_or_else(|| call.header("grpc-status").to_owned(), |status| status.to_str().unwrap().to_owned())
}

const REJECTED: &str = "8";
const FAILED_CALLS: &str = "{ name: auth, key: [], limit: 2/year, algorithm: fixed_window, count: { grpc_status: [16, permission_denied] } }";

#[test]
fn grpc_call_counts_by_the_status_in_its_trailers() {
    let origin = grpc_upstream();
    let (_weir, mut client) = start_and_connect(&origin, FAILED_CALLS);
    let mut call = |status: &str| {
        let request = client.call().header("x-status", status);
        grpc_status(&client.fetch(request))
    };
    assert_eq!(
        ["0", "0", "14", "16", "0", "7", "0"].map(&mut call),
        ["0", "0", "14", "16", "0", "7", REJECTED]
    );
}

#[test]
fn trailers_only_response_counts_by_its_grpc_status() {
    let origin = grpc_upstream();
    let (_weir, mut client) = start_and_connect(&origin, FAILED_CALLS);
    let mut call = |status: &str| {
        let request = client.call().header("x-status", status).header("x-only", "1");
        grpc_status(&client.fetch(request))
    };
    assert_eq!(["0", "16", "5", "16", "16"].map(&mut call), ["0", "16", "5", "16", REJECTED]);
}

#[test]
fn missing_grpc_status_is_derived_from_the_http_status() {
    let origin = grpc_upstream();
    let (_weir, mut client) = start_and_connect(&origin, FAILED_CALLS);
    let mut call = |http: &str| {
        let request = client.call().header("x-http", http);
        client.fetch(request)
    };
    // The gRPC statuses unknown, unavailable, unauthenticated and permission denied.
    let found = ["200", "503", "401", "403"].map(|http| call(http).status.as_u16());
    assert_eq!(found, [200, 503, 401, 403]);
    assert_eq!(grpc_status(&call("200")), REJECTED);
}

#[test]
fn grpc_call_in_flight_reserves_its_charge() {
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let held = std::sync::Arc::clone(&gate);
    let origin = H2Origin::start(None, move |_, mut respond| {
        let held = std::sync::Arc::clone(&held);
        async move {
            let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
            let mut stream = respond.send_response(head, false)?;
            stream.send_data(Bytes::from_static(b"\0\0\0\0\0"), false)?;
            held.acquire().await.unwrap().forget();
            let ok = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))]);
            stream.send_trailers(ok)
        }
    });
    let (_weir, mut client) = start_and_connect(&origin, FAILED_CALLS);
    let request = || call_builder(&client);
    let requests = [request(), request()];
    let open: Vec<_> = requests.into_iter().map(|request| client.send_request(request, true).0).collect();
    let heads: Vec<_> = open.into_iter().map(|response| client.response_head(response).unwrap()).collect();
    let third = client.call();
    assert_eq!(grpc_status(&client.fetch(third)), REJECTED, "two calls in flight may still fail");
    gate.add_permits(1000);
    for head in heads {
        let mut stream = head.into_body();
        client.block_on(async {
            while stream.data().await.is_some() {}
            stream.trailers().await.unwrap()
        });
    }
    let next = client.call();
    assert_eq!(grpc_status(&client.fetch(next)), "0", "neither call has failed");
}

fn call_builder(client: &H2Client) -> http::request::Builder {
    client.call()
}

#[test]
fn client_disconnect_before_the_trailers_is_charged() {
    let origin = H2Origin::start(None, |_, mut respond| async move {
        let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
        let mut stream = respond.send_response(head, false)?;
        stream.send_data(Bytes::from_static(b"\0\0\0\0\0"), false)?;
        std::future::poll_fn(|cx| stream.poll_reset(cx)).await.map(drop)
    });
    let (weir, mut client) = start_and_connect(&origin, FAILED_CALLS);
    for tries in 1..=2 {
        let request = client.call();
        let (response, stream) = client.send_request(request, true);
        drop((client.response_head(response).unwrap(), stream));
        wait::until_true("the call to be over", || {
            weir.metric("weir_requests_reset_total", &[]) == f64::from(tries)
        });
    }
    let request = client.call();
    assert_eq!(grpc_status(&client.fetch(request)), REJECTED);
}

#[test]
fn upstream_reset_of_a_grpc_call_counts_as_unavailable() {
    let origin = H2Origin::start(None, |_, mut respond| async move {
        let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
        let mut stream = respond.send_response(head, false)?;
        stream.send_data(Bytes::from_static(b"\0\0\0\0\0"), false)?;
        stream.send_reset(h2::Reason::INTERNAL_ERROR);
        Ok(())
    });
    let rule = "{ name: a, key: [], limit: 1/d, count: { grpc_status: unavailable } }";
    let (weir, mut client) = start_and_connect(&origin, rule);
    let request = client.call();
    let (response, _stream) = client.send_request(request, true);
    // The reset may arrive before the response header section has been read.
    let _ = client.read_response(response);
    wait::until_true("the call to be over", || weir.metric("weir_requests_in_flight", &[]) == 0.0);
    let request = client.call();
    assert_eq!(grpc_status(&client.fetch(request)), REJECTED);
}

#[test]
fn local_reply_to_a_grpc_call_counts_by_its_grpc_status() {
    let (_socket, address) = origin::refusing_address();
    let rule = "{ name: a, key: [], limit: 1/d, count: { grpc_status: unavailable } }";
    let weir = Weir::start(&config(address, &format!("rules:\n  - {rule}\n")));
    let mut client = H2Client::connect(weir.address());
    let mut call = || {
        let request = client.call();
        grpc_status(&client.fetch(request))
    };
    assert_eq!([call(), call()], ["14", REJECTED]);
}

#[test]
fn grpc_status_matcher_ignores_plain_http_requests() {
    let origin = Origin::hello();
    let rule = "{ name: a, key: [], limit: 1/d, count: { grpc_status: [0, unknown] } }";
    let weir = start_with_rule(&origin, rule);
    assert_eq!(statuses(&weir, &["/", "/", "/"]), [200; 3]);
}

#[test]
fn grpc_call_is_refunded_by_its_status() {
    let origin = grpc_upstream();
    let rule = "{ name: a, key: [], limit: 2/year, algorithm: fixed_window, refund_on: [unavailable, 5xx] }";
    let (_weir, mut client) = start_and_connect(&origin, rule);
    let mut call = |status: &str| {
        let request = client.call().header("x-status", status);
        grpc_status(&client.fetch(request))
    };
    let statuses = ["14", "14", "14", "0", "14", "5", "0"].map(&mut call);
    assert_eq!(statuses, ["14", "14", "14", "0", "14", "5", REJECTED]);
}

#[test]
fn retried_request_counts_by_the_final_response() {
    let attempts = std::sync::atomic::AtomicUsize::new(0);
    let origin = Origin::start(move |turn| {
        turn.body()?;
        // Every second attempt succeeds; the others fail with the header that counts.
        let fails = attempts.fetch_add(1, std::sync::atomic::Ordering::SeqCst).is_multiple_of(2);
        let (status, login) = if fails { (503, "failed") } else { (200, "ok") };
        turn.send(format!("HTTP/1.1 {status} Told\r\nx-login: {login}\r\ncontent-length: 0\r\n\r\n"))?;
        Ok(AfterResponse::Keep)
    });
    let upstream = format!(
        "{{ address: \"{}\", retries: {{ attempts: 2, retry_on: 503, backoff: 1ms..2ms }} }}",
        origin.address()
    );
    let rule = "{ name: a, key: [], limit: 1/d, count: { response_header: { x-login: failed } } }";
    let rules = format!("rules:\n  - {rule}\n");
    let weir = Weir::start(&crate::support::config_with(crate::support::LISTENER, &upstream, &rules));
    assert_eq!(statuses(&weir, &["/", "/", "/"]), [200; 3]);
    assert_eq!(origin.requests().len(), 6);
}
