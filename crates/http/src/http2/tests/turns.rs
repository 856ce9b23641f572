//! Streams that compete, and frames that arrive when they are not expected any more.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use http::Request;
use tokio::io::{AsyncWrite, WriteHalf};
use tokio::task::spawn_local;

use super::raw_peer::{GET, POST, RawPeer};
use super::tasks::Tasks;
use super::*;
use crate::http2::ClientConnection;
use crate::http2::frame::{FrameKind, flags, put_frame};

/// The writing half of a stream, which counts writes and their bytes.
struct CountedWriter {
    stream: WriteHalf<DuplexStream>,
    written: Rc<Cell<(usize, usize)>>,
}

impl AsyncWrite for CountedWriter {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(bytes)) = polled {
            let (writes, before) = self.written.get();
            self.written.set((writes + 1, before + bytes));
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Serves `/hold` by reading nothing until the stream ends, and everything else by [`echo`].
async fn hold_or_echo(request: Request<ReceiveStream>, mut responder: Responder) {
    if request.uri().path() == "/hold" {
        let _ = poll_fn(|cx| responder.poll_reset(cx)).await;
    } else {
        echo(request, responder).await;
    }
}

fn post(path: &str) -> Request<()> {
    Request::post(format!("http://a.test{path}")).body(()).unwrap()
}

#[test]
fn streams_that_compete_for_the_output_have_turns() {
    for streams in [2, 3, 4, 7] {
        run(async move {
            let (ours, theirs) = tokio::io::duplex(PIPE);
            spawn_local(serve(ours, SETTINGS, |_, mut responder| async move {
                let mut stream = responder.send_response(&Response::new(()), false).unwrap();
                let _ = send(&mut stream, &body(1 << 20), true).await;
            }));
            let sender = connect_h2(theirs).await;
            let mut bodies = Vec::new();
            for _ in 0..streams {
                let response = sender.clone().send_request(post("/"), true).unwrap().0;
                bodies.push((response.await.unwrap().into_body(), 0_usize));
            }
            // Whatever has arrived of any of them is read, until one is complete.
            let complete = poll_fn(|cx| {
                for (body, received) in &mut bodies {
                    while let Poll::Ready(data) = body.poll_data(cx) {
                        let Some(data) = data else { return Poll::Ready(()) };
                        let length = data.unwrap().len();
                        *received += length;
                        body.flow_control().release_capacity(length).unwrap();
                    }
                }
                Poll::Pending
            });
            complete.await;
            let received: Vec<_> = bodies.iter().map(|(_, received)| *received).collect();
            assert!(received.iter().all(|received| *received > 1 << 19), "{received:?}");
        });
    }
}

#[test]
fn small_messages_of_many_streams_are_written_together() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let settings = Http2Settings { max_streams: 1000, ..SETTINGS };
        spawn_local(serve(theirs, settings, echo));
        let written = Rc::<Cell<_>>::default();
        let (reader, stream) = tokio::io::split(ours);
        let stream = tokio::io::join(reader, CountedWriter { stream, written: Rc::clone(&written) });
        let (mut sender, connection) = ClientConnection::new(stream, settings);
        spawn_local(connection);
        exchange(&mut sender, &post("/"), b"first", None).await.unwrap();
        written.take();
        let calls: Vec<_> = (0..512)
            .map(|_| {
                let mut sender = sender.clone();
                spawn_local(async move { exchange(&mut sender, &post("/"), &[7; 200], None).await })
            })
            .collect();
        for call in calls {
            let (response, _) = call.await.unwrap().unwrap();
            assert_eq!(response.body(), &[7; 200]);
        }
        let (writes, bytes) = written.get();
        assert!(bytes > 512 * 200);
        assert!(writes < bytes / 4096, "{writes} writes of {bytes} bytes");
    });
}

#[test]
fn data_that_nothing_reads_does_not_stop_other_streams() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        spawn_local(serve(ours, SETTINGS, hold_or_echo));
        let sender = connect_h2(theirs).await;
        // More than half of the connection's window.
        let held: Vec<_> = (0..9)
            .map(|_| {
                let (response, mut stream) = sender.clone().send_request(post("/hold"), false).unwrap();
                stream.send_data(body(65_535).into(), false).unwrap();
                (response, stream)
            })
            .collect();
        let (response, mut stream) = sender.clone().send_request(post("/"), false).unwrap();
        stream.send_data(body(3 << 20).into(), true).unwrap();
        let mut echoed = response.await.unwrap().into_body();
        let mut received = 0;
        while let Some(data) = echoed.data().await {
            let length = data.unwrap().len();
            received += length;
            echoed.flow_control().release_capacity(length).unwrap();
        }
        assert_eq!(received, 3 << 20);
        drop(held);
    });
}

#[test]
fn stream_that_arrives_after_the_last_goaway_is_ignored() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &[]);
    peer.send_head(1, POST, false);
    let (request, responder) = server.request();
    server.connection.borrow_mut().graceful_shutdown();
    let frames = peer.frames();
    let (_, ping) = frames.iter().find(|(header, _)| header.kind == FrameKind::Ping).unwrap();
    peer.send(FrameKind::Ping, flags::ACK, 0, ping);
    // The client has opened it before it has read GOAWAY.
    peer.send_head(3, POST, false);
    peer.send(FrameKind::Data, 0, 3, b"late");
    peer.send_window_update(3, 1);
    peer.send(FrameKind::ResetStream, 0, 3, &8_u32.to_be_bytes());
    let frames = peer.frames();
    assert!(server.requests.borrow().is_empty());
    let goaways = frames.iter().filter(|(header, _)| header.kind == FrameKind::GoAway);
    let last: Vec<_> = goaways.map(|(_, payload)| payload[..].to_vec()).collect();
    assert_eq!(last, [[0, 0, 0, 1, 0, 0, 0, 0]]);
    peer.send(FrameKind::Data, flags::END_STREAM, 1, b"in time");
    tasks.spawn(echo(request, responder));
    assert_eq!(peer.data(1), (b"in time".to_vec(), true));
    assert_eq!(server.result.take(), Some(Ok(())));
}

#[test]
fn data_after_the_end_does_not_shorten_what_was_received() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &[]);
    peer.send_head(1, POST, false);
    peer.send(FrameKind::Data, 0, 1, b"who");
    peer.send(FrameKind::Data, flags::END_STREAM, 1, b"le");
    peer.send(FrameKind::Data, flags::END_STREAM, 1, b"more");
    let resets = peer.frames().into_iter().filter(|(header, _)| header.kind == FrameKind::ResetStream);
    assert_eq!(resets.map(|(_, reason)| reason).collect::<Vec<_>>(), [5_u32.to_be_bytes()]);
    let (request, _responder) = server.request();
    let body = async move { read(&mut request.into_body()).await.map(|(body, _)| body) };
    assert_eq!(tasks.block_on(body), Ok(b"whole".to_vec()));
}

#[test]
fn request_that_the_client_resets_at_once_is_not_started() {
    let tasks = Tasks::default();
    let (mut peer, server) = RawPeer::connect(&tasks, &[]);
    peer.send_many(2, |index, out| {
        let stream = 2 * index + 1;
        put_frame(out, FrameKind::Headers, flags::END_HEADERS | flags::END_STREAM, stream, GET);
        if index == 0 {
            put_frame(out, FrameKind::ResetStream, 0, stream, &8_u32.to_be_bytes());
        }
    });
    assert_eq!(server.requests.borrow().len(), 1);
}
