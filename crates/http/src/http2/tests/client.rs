//! The client against the server of `h2`.

use h2::server;
use http::{Method, Request, StatusCode};
use tokio::task::spawn_local;

use super::*;
use crate::http2::{ClientConnection, Reason};

/// A server of `h2` that responds with `respond`.
fn start_peer<F: Future<Output = ()> + 'static>(
    stream: DuplexStream,
    respond: impl Fn(Request<h2::RecvStream>, server::SendResponse<Bytes>) -> F + 'static,
) {
    drop(spawn_local(async move {
        let mut connection =
            server::Builder::new().max_concurrent_streams(10).handshake(stream).await.unwrap();
        while let Some(Ok((request, responder))) = connection.accept().await {
            drop(spawn_local(respond(request, responder)));
        }
    }));
}

async fn respond_with_body(request: Request<h2::RecvStream>, mut responder: server::SendResponse<Bytes>) {
    let mut sent = request.into_body();
    let mut all = Vec::new();
    while let Some(Ok(data)) = sent.data().await {
        all.extend_from_slice(&data);
        sent.flow_control().release_capacity(data.len()).unwrap();
    }
    let mut stream = responder.send_response(Response::new(()), false).unwrap();
    stream.send_data(all.into(), false).unwrap();
    stream.send_trailers(sent.trailers().await.unwrap().unwrap_or_default()).unwrap();
}

#[test]
fn bodies_and_trailers_pass_in_both_directions() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        start_peer(theirs, respond_with_body);
        let sender = start_client(ours, SETTINGS);
        let exchanges: Vec<_> = (0..30)
            .map(|number| {
                let mut sender = sender.clone();
                spawn_local(async move {
                    let size = 5000 * number;
                    let request = Request::post("http://a.test/").header("x-id", number).body(()).unwrap();
                    let trailers = HeaderMap::from_iter([("x-end".parse().unwrap(), "1".parse().unwrap())]);
                    let (response, end) =
                        exchange(&mut sender, &request, &body(size), Some(trailers.clone())).await.unwrap();
                    assert!(
                        (response.status(), &end) == (StatusCode::OK, &Some(trailers)),
                        "{number} {end:?}"
                    );
                    assert!(*response.body() == body(size), "{number}");
                })
            })
            .collect();
        for exchange in exchanges {
            exchange.await.unwrap();
        }
    });
}

#[test]
fn rejected_stream_can_be_sent_again_and_others_continue() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        start_peer(theirs, |request, mut responder| async move {
            match request.uri().path() {
                "/refused" => responder.send_reset(h2::Reason::REFUSED_STREAM),
                _ => respond_with_body(request, responder).await,
            }
        });
        let mut sender = start_client(ours, SETTINGS);
        let request = |path: &str| Request::get(format!("http://a.test{path}")).body(()).unwrap();
        let error = exchange(&mut sender, &request("/refused"), b"x", None).await.unwrap_err();
        assert!(error.is_unprocessed(), "{error}");
        assert_eq!(exchange(&mut sender, &request("/"), b"x", None).await.unwrap().0.body(), b"x");
    });
}

#[test]
fn length_of_a_response_without_content_is_not_that_of_its_body() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        start_peer(theirs, |_, mut responder| async move {
            let response = Response::builder().header("content-length", "9").body(()).unwrap();
            drop(responder.send_response(response, true));
        });
        let mut sender = start_client(ours, SETTINGS);
        for (method, is_valid) in [(Method::HEAD, true), (Method::GET, false)] {
            let request = Request::builder().method(method).uri("http://a.test/").body(()).unwrap();
            let response = sender.send_request(&request, true).unwrap().0.await;
            match response {
                Ok(_) => assert!(is_valid),
                Err(error) => {
                    assert_eq!((is_valid, error), (false, Http2Error::Malformed(Reason::PROTOCOL_ERROR)))
                }
            }
        }
    });
}

#[test]
fn end_of_the_connection_ends_its_streams() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let (mut sender, connection) = ClientConnection::new(ours, SETTINGS);
        let driven = spawn_local(connection);
        let request = Request::get("http://a.test/").body(()).unwrap();
        let (response, _stream) = sender.send_request(&request, true).unwrap();
        let mut peer = server::handshake(theirs).await.unwrap();
        let accepted = peer.accept().await.unwrap().unwrap();
        drop((peer, accepted));
        assert!(matches!(
            response.await,
            Err(Http2Error::Io(_) | Http2Error::ResetByPeer(_) | Http2Error::GoneAway(_))
        ));
        drop(driven.await);
        assert!(poll_fn(|cx| sender.poll_ready(cx)).await.is_err());
        assert!(sender.send_request(&request, true).is_err());
    });
}
