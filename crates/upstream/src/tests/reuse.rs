//! Tests of a request on an idle connection whose end the runtime has not reported yet.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};

use super::*;
use crate::endpoint::PooledConnection;
use crate::outgoing::OutgoingRequest;
use crate::response_body::UpstreamResponseBody;
use weir_http::http1::head::ReceivedHead;
use weir_http::http1::interim::InterimResponses;

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Reads a request with the body `order` and responds to it.
fn respond(stream: &mut TcpStream) {
    let mut read = Vec::new();
    while !read.ends_with(b"order") {
        let mut piece = [0; 1024];
        let bytes = stream.read(&mut piece).expect("a request");
        assert_ne!(bytes, 0, "a request was truncated");
        read.extend_from_slice(&piece[..bytes]);
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").expect("a response");
}

/// Responds to one request on each of two connections, and closes the first on a signal.
fn serve_and_close(listener: &TcpListener, close: &mpsc::Receiver<()>, closed: &mpsc::Sender<()>) {
    let (mut first, _) = listener.accept().expect("a connection");
    respond(&mut first);
    close.recv().expect("the signal to close");
    drop(first);
    closed.send(()).expect("the test waits for the close");
    let (mut second, _) = listener.accept().expect("another connection");
    respond(&mut second);
}

async fn post(upstream: &Upstream, connection: PooledConnection) -> StatusCode {
    let head = Request::builder().method(Method::POST).uri("/").header("host", "a.test").body(()).unwrap();
    let request = OutgoingRequest::from(head.into_parts().0);
    let endpoint = upstream.pick(&[]).expect("an endpoint");
    let body = UpstreamResponseBody::<Full<Bytes>>::full(Bytes::from_static(b"order"));
    let response = endpoint
        .send(
            connection,
            &request,
            &ReceivedHead::default(),
            body,
            &InterimResponses::default(),
            &Cell::new(false),
        )
        .await
        .map_err(|unanswered| unanswered.error);
    let response = response.expect("a response");
    let status = response.status;
    response.body.collect().await.expect("a body");
    status
}

#[tokio::test]
async fn non_idempotent_request_is_not_sent_on_a_closed_idle_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else { panic!("not IPv4") };
    let (close, closes) = mpsc::channel();
    let (closing_says, closed) = mpsc::channel();
    let server = thread::spawn(move || serve_and_close(&listener, &closes, &closing_says));

    let upstream = upstream(settings(&[(&address.ip().to_string(), address.port())]));
    let endpoint = upstream.pick(&[]).expect("an endpoint");
    let line = endpoint.connect(CLIENT, false).await.expect("a connection");
    assert_eq!(post(&upstream, line).await, StatusCode::OK);
    // Without yielding to the runtime, which would notice the end.
    close.send(()).unwrap();
    closed.recv().unwrap();
    let line = endpoint.try_checkout(CLIENT, false).expect("a permit").expect("a connection that seems open");
    assert_eq!(post(&upstream, line).await, StatusCode::OK);
    server.join().unwrap();
}
