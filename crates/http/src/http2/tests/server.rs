//! The server against the client of `h2`.

use http::Request;
use tokio::task::spawn_local;

use super::*;

async fn read_all(mut body: h2::RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut all = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        all.extend_from_slice(&data);
        body.flow_control().release_capacity(data.len()).unwrap();
    }
    Ok(all)
}

#[test]
fn request_and_response_pass_with_bodies() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        start_server(ours, SETTINGS);
        let sender = connect_h2(theirs).await;
        for round in 0..20 {
            let id = format!("{round}");
            let request = Request::post("https://a.test/path?query");
            let request = request.header("x-id", &id).header("accept", "*/*").body(()).unwrap();
            let (response, mut stream) = sender.clone().send_request(request, false).unwrap();
            stream.send_data(body(200_000).into(), true).unwrap();
            let response = response.await.unwrap();
            assert!(response.headers()["x-id"] == *id && response.headers()["accept"] == "*/*");
            assert_eq!(response.headers()["x-uri"], "https://a.test/path?query");
            assert!(read_all(response.into_body()).await.unwrap() == body(200_000));
        }
    });
}

#[test]
fn stream_that_the_client_resets_ends_and_leaves_the_others() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let (ended, mut was_ended) = tokio::sync::mpsc::channel(1);
        spawn_local(serve(ours, SETTINGS, move |request, mut responder| {
            let ended = ended.clone();
            async move {
                if request.uri().path() == "/wait" {
                    let error = poll_fn(|cx| responder.poll_reset(cx)).await;
                    ended.send(error).await.unwrap();
                } else {
                    echo(request, responder).await;
                }
            }
        }));
        let sender = connect_h2(theirs).await;
        let waiting = Request::get("https://a.test/wait").body(()).unwrap();
        let (waiting, mut stream) = sender.clone().send_request(waiting, false).unwrap();
        let other = Request::get("https://a.test/").body(()).unwrap();
        assert_eq!(sender.clone().send_request(other.clone(), true).unwrap().0.await.unwrap().status(), 200);
        stream.send_reset(h2::Reason::CANCEL);
        assert_eq!(was_ended.recv().await, Some(Http2Error::ResetByPeer(crate::http2::Reason::CANCEL)));
        drop(waiting);
        assert_eq!(sender.clone().send_request(other, true).unwrap().0.await.unwrap().status(), 200);
    });
}

#[test]
fn response_that_is_dropped_resets_the_stream() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        spawn_local(serve(ours, SETTINGS, |request, mut responder| async move {
            match request.uri().path() {
                "/none" => {}
                // The client need not send its body.
                "/early" => drop(responder.send_response(&Response::new(()), true)),
                _ => drop(responder.send_response(&Response::new(()), false)),
            }
        }));
        let sender = connect_h2(theirs).await;
        let send = |path: &str| {
            let request = Request::post(format!("https://a.test{path}")).body(()).unwrap();
            sender.clone().send_request(request, false).unwrap()
        };
        let error = send("/none").0.await.unwrap_err();
        assert_eq!(error.reason(), Some(h2::Reason::CANCEL));
        let body = send("/half").0.await.unwrap().into_body();
        assert_eq!(read_all(body).await.unwrap_err().reason(), Some(h2::Reason::CANCEL));
        let (response, mut stream) = send("/early");
        assert_eq!(response.await.unwrap().status(), 200);
        let reset = poll_fn(|cx| stream.poll_reset(cx)).await.unwrap();
        assert_eq!(reset, h2::Reason::NO_ERROR);
    });
}

#[test]
fn graceful_shutdown_finishes_open_streams() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let served = spawn_local(async move {
            let mut connection = ServerConnection::new(ours, SETTINGS);
            let mut stopped = Box::pin(stopped);
            poll_fn(|cx| {
                std::task::ready!(connection.poll_handshake(cx))?;
                if stopped.as_mut().poll(cx).is_ready() {
                    connection.graceful_shutdown();
                    let (_, never) = tokio::sync::oneshot::channel();
                    stopped = Box::pin(never);
                }
                connection
                    .poll_requests(cx, |request, responder, _| drop(spawn_local(echo(request, responder))))
            })
            .await
        });
        let sender = connect_h2(theirs).await;
        let request = Request::post("https://a.test/").body(()).unwrap();
        let (response, mut stream) = sender.clone().send_request(request, false).unwrap();
        let response = response.await.unwrap();
        stop.send(()).unwrap();
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        stream.send_data(body(10_000).into(), true).unwrap();
        assert!(read_all(response.into_body()).await.unwrap() == body(10_000));
        assert_eq!(served.await.unwrap(), Ok(()));
    });
}
