//! Endpoints that disappear while requests are in flight: such requests are sent to another endpoint if that is safe.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use bytes::Bytes;
use h2::Reason;
use socket2::{Domain, Socket, Type};

use super::{config, named_upstream};
use crate::support::h2_origin::H2Origin;
use crate::support::wire::{Framing, Wire};
use crate::support::{Client, Request, Weir};

/// An upstream that, on its second request, stops listening and closes the connection or resets the stream.
struct FailingUpstream {
    address: SocketAddr,
    /// Bound, but never listening, so that no other process gets the port.
    _held: Socket,
}

impl FailingUpstream {
    fn start(serve: impl FnOnce(TcpListener) + Send + 'static) -> Self {
        let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        held.set_reuse_address(true).unwrap();
        held.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = held.local_addr().unwrap().as_socket().unwrap();
        let listener = TcpListener::bind(address).unwrap();
        thread::spawn(move || serve(listener));
        Self { address, _held: held }
    }

    fn start_http1() -> Self {
        Self::start(|listener| {
            let mut wire = Wire::new(listener.accept().unwrap().0);
            let head = wire.read_head().unwrap().unwrap();
            wire.read_body(Framing::from_request(&head), |_| {}).unwrap();
            wire.send("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\ndoomed").unwrap();
            wire.read_head().unwrap();
            drop(listener);
        })
    }

    fn start_http2() -> Self {
        Self::start(|listener| {
            listener.set_nonblocking(true).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let mut connection = h2::server::handshake(listener.accept().await.unwrap().0).await.unwrap();
                let (_, mut respond) = connection.accept().await.unwrap().unwrap();
                let mut answer = respond.send_response(http::Response::new(()), false).unwrap();
                answer.send_data(Bytes::from_static(b"doomed"), true).unwrap();
                let (_, mut respond) = connection.accept().await.unwrap().unwrap();
                drop(listener);
                respond.send_reset(Reason::REFUSED_STREAM);
                // Until the peer has closed the connection.
                while connection.accept().await.is_some() {}
            });
        })
    }
}

fn start_with_endpoints(doomed: &FailingUpstream, other: SocketAddr, settings: &str) -> Weir {
    let places = format!("['{}', '{other}']", doomed.address);
    Weir::start(&config(&format!("upstream: {{ address: {places}, outliers: false{settings} }}")))
}

/// Sends six requests, which reach both endpoints, and returns the responses. The second one at the doomed endpoint
/// ends it.
fn send_six_requests(weir: &Weir, request: &Request) -> Vec<(u16, String)> {
    let mut client = Client::connect(weir.address());
    let answers = (0..6).map(|_| client.fetch(request));
    answers.map(|answer| (answer.status, answer.body.text())).collect()
}

fn count_responses(answers: &[(u16, String)], status: u16, body: &str) -> usize {
    answers.iter().filter(|answer| **answer == (status, body.to_owned())).count()
}

#[test]
fn request_on_a_closed_connection_moves_to_another_endpoint() {
    for settings in ["", ", retries: { retry_on: [connect_failure, reset], backoff: 1ms }"] {
        let (doomed, good) = (FailingUpstream::start_http1(), named_upstream("good"));
        let weir = start_with_endpoints(&doomed, good.address(), settings);
        let answers = send_six_requests(&weir, &Request::get("/"));
        assert_eq!(
            (count_responses(&answers, 200, "doomed"), count_responses(&answers, 200, "good")),
            (1, 5),
            "{answers:?}"
        );
        assert_eq!(good.requests().len(), 5, "each request is sent once");
        assert_eq!(weir.metric("weir_upstream_requests_in_flight", &[]), 0.0);
    }
}

#[test]
fn request_that_may_have_been_processed_is_not_moved() {
    let (doomed, good) = (FailingUpstream::start_http1(), named_upstream("good"));
    let weir = start_with_endpoints(&doomed, good.address(), "");
    let answers = send_six_requests(&weir, &Request::post("/", "an order"));
    assert_eq!(count_responses(&answers, 200, "doomed"), 1, "{answers:?}");
    // While the endpoint is down, other requests fail to connect and move to the other endpoint before anything is
    // sent.
    assert_eq!(count_responses(&answers, 503, "upstream unavailable\n"), 1, "{answers:?}");
    assert_eq!(count_responses(&answers, 200, "good"), 4, "{answers:?}");
}

#[test]
fn request_is_not_moved_with_zero_retry_attempts() {
    let (doomed, good) = (FailingUpstream::start_http1(), named_upstream("good"));
    let weir = start_with_endpoints(&doomed, good.address(), ", retries: { attempts: 0 }");
    let answers = send_six_requests(&weir, &Request::get("/"));
    assert!(count_responses(&answers, 503, "upstream unavailable\n") >= 1, "{answers:?}");
}

#[test]
fn refused_stream_moves_to_another_endpoint() {
    // A POST may be retried only if it was not processed, which the endpoint states here.
    let request = Request::new("POST", "/");
    let (doomed, good) = (FailingUpstream::start_http2(), H2Origin::hello());
    let weir = start_with_endpoints(&doomed, good.address(), ", http2: true");
    let answers = send_six_requests(&weir, &request);
    assert_eq!(
        (count_responses(&answers, 200, "doomed"), count_responses(&answers, 200, "hello")),
        (1, 5),
        "{answers:?}"
    );
    assert_eq!(good.streams(), 5);
}

#[test]
fn refused_stream_is_sent_at_most_twice_to_each_endpoint() {
    let refused = Arc::new(AtomicUsize::new(0));
    let refusing = || {
        let refused = Arc::clone(&refused);
        H2Origin::start(None, move |_, mut respond| {
            refused.fetch_add(1, Ordering::SeqCst);
            async move {
                respond.send_reset(Reason::REFUSED_STREAM);
                Ok(())
            }
        })
    };
    let origins = [refusing(), refusing(), refusing()];
    let places = origins.each_ref().map(|origin| format!("'{}'", origin.address())).join(", ");
    let retries = "retries: { attempts: 10, retry_on: connect_failure }";
    let weir = Weir::start(&config(&format!(
        "upstream: {{ address: [{places}], http2: true, outliers: false, {retries} }}"
    )));
    assert_eq!(Client::connect(weir.address()).get("/").status, 503);
    assert_eq!(refused.load(Ordering::SeqCst), 6);
    assert!(origins.iter().all(|origin| origin.streams() == 2));
}
