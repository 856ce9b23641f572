//! Endpoints that disappear while requests are in flight: such requests are sent to another endpoint if that is safe.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use bytes::Bytes;
use h2::Reason;
use socket2::{Domain, Socket, Type};

use super::{config, named};
use crate::support::h2_origin::H2Origin;
use crate::support::wire::{Framing, Wire};
use crate::support::{Client, Request, Weir};

/// An upstream that, on its second request, stops listening and closes the connection or resets the stream.
struct Doomed {
    address: SocketAddr,
    /// Bound, but never listening, so that no other process gets the port.
    _held: Socket,
}

impl Doomed {
    fn start(serve: impl FnOnce(TcpListener) + Send + 'static) -> Self {
        let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        held.set_reuse_address(true).unwrap();
        held.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = held.local_addr().unwrap().as_socket().unwrap();
        let listener = TcpListener::bind(address).unwrap();
        thread::spawn(move || serve(listener));
        Self { address, _held: held }
    }

    fn by_http1() -> Self {
        Self::start(|listener| {
            let mut wire = Wire::new(listener.accept().unwrap().0);
            let head = wire.read_head().unwrap().unwrap();
            wire.read_body(Framing::of_request(&head), |_| {}).unwrap();
            wire.send("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\ndoomed").unwrap();
            wire.read_head().unwrap();
            drop(listener);
        })
    }

    fn by_http2() -> Self {
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

fn beside(doomed: &Doomed, other: SocketAddr, settings: &str) -> Weir {
    let places = format!("['{}', '{other}']", doomed.address);
    Weir::start(&config(&format!("upstream: {{ address: {places}, outliers: false{settings} }}")))
}

/// Sends six requests, which reach both endpoints, and returns the responses. The second one at the doomed endpoint
/// ends it.
fn asked(weir: &Weir, request: &Request) -> Vec<(u16, String)> {
    let mut client = Client::connect(weir.address());
    let answers = (0..6).map(|_| client.ask(request));
    answers.map(|answer| (answer.status, answer.body.text())).collect()
}

fn times(answers: &[(u16, String)], status: u16, body: &str) -> usize {
    answers.iter().filter(|answer| **answer == (status, body.to_owned())).count()
}

#[test]
fn a_request_whose_kept_connection_and_whose_endpoint_are_gone_goes_to_another() {
    for settings in ["", ", retries: { retry_on: [connect_failure, reset], backoff: 1ms }"] {
        let (doomed, good) = (Doomed::by_http1(), named("good"));
        let weir = beside(&doomed, good.address(), settings);
        let answers = asked(&weir, &Request::get("/"));
        assert_eq!((times(&answers, 200, "doomed"), times(&answers, 200, "good")), (1, 5), "{answers:?}");
        assert_eq!(good.seen().len(), 5, "each request is sent once");
        assert_eq!(weir.metric("weir_upstream_requests_in_flight", &[]), 0.0);
    }
}

#[test]
fn what_the_endpoint_may_have_acted_on_goes_nowhere_else() {
    let (doomed, good) = (Doomed::by_http1(), named("good"));
    let weir = beside(&doomed, good.address(), "");
    let answers = asked(&weir, &Request::post("/", "an order"));
    assert_eq!(times(&answers, 200, "doomed"), 1, "{answers:?}");
    // While the endpoint is down, other requests fail to connect and move to the other endpoint before anything is
    // sent.
    assert_eq!(times(&answers, 503, "upstream unavailable\n"), 1, "{answers:?}");
    assert_eq!(times(&answers, 200, "good"), 4, "{answers:?}");
}

#[test]
fn where_connections_are_not_to_be_tried_again_a_request_stays_with_its_endpoint() {
    let (doomed, good) = (Doomed::by_http1(), named("good"));
    let weir = beside(&doomed, good.address(), ", retries: { attempts: 0 }");
    let answers = asked(&weir, &Request::get("/"));
    assert!(times(&answers, 503, "upstream unavailable\n") >= 1, "{answers:?}");
}

#[test]
fn a_stream_that_was_refused_by_an_endpoint_that_went_goes_to_another() {
    // A POST may be retried only if it was not processed, which the endpoint states here.
    let request = Request::new("POST", "/");
    let (doomed, good) = (Doomed::by_http2(), H2Origin::hello());
    let weir = beside(&doomed, good.address(), ", http2: true");
    let answers = asked(&weir, &request);
    assert_eq!((times(&answers, 200, "doomed"), times(&answers, 200, "hello")), (1, 5), "{answers:?}");
    assert_eq!(good.streams(), 5);
}

#[test]
fn endpoints_that_refuse_every_stream_are_each_asked_for_it_by_two_connections_at_most() {
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
