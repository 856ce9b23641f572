//! Streams that compete, and frames that arrive when they are not expected any more.

use h2::client;
use http::Request;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::spawn_local;

use super::*;
use crate::http2::frame::{FRAME_HEADER_SIZE, FrameHeader, FrameKind, PREFACE, flags, put_frame};
use crate::http2::head::encode_request;
use crate::http2::hpack::HpackEncoder;

/// Serves `/hold` by reading nothing until the stream ends, and everything else by [`echo`].
async fn hold_or_echo(request: Request<ReceiveStream>, mut responder: Responder) {
    if request.uri().path() == "/hold" {
        let _ = poll_fn(|cx| responder.poll_reset(cx)).await;
    } else {
        echo(request, responder).await;
    }
}

async fn connect(stream: DuplexStream) -> client::SendRequest<Bytes> {
    let (sender, connection) = client::Builder::new().handshake(stream).await.unwrap();
    drop(spawn_local(async { drop(connection.await) }));
    sender.ready().await.unwrap()
}

fn post(path: &str) -> Request<()> {
    Request::post(format!("http://a.test{path}")).body(()).unwrap()
}

/// A client that writes frames itself.
struct RawClient {
    stream: DuplexStream,
    encoder: HpackEncoder,
    out: Vec<u8>,
}

impl RawClient {
    fn new(stream: DuplexStream) -> Self {
        let mut out = PREFACE.to_vec();
        put_frame(&mut out, FrameKind::Settings, 0, 0, &[]);
        Self { stream, encoder: HpackEncoder::new(), out }
    }

    fn request(&mut self, id: u32, flags: u8) {
        let mut block = Vec::new();
        self.encoder.begin(&mut block);
        encode_request(&post("/"), &mut self.encoder, &mut block);
        put_frame(&mut self.out, FrameKind::Headers, flags | flags::END_HEADERS, id, &block);
    }

    fn frame(&mut self, kind: FrameKind, flags: u8, id: u32, payload: &[u8]) {
        put_frame(&mut self.out, kind, flags, id, payload);
    }

    async fn flush(&mut self) {
        self.stream.write_all(&std::mem::take(&mut self.out)).await.unwrap();
    }

    /// Returns the next frame.
    async fn next(&mut self) -> (FrameHeader, Vec<u8>) {
        let mut header = [0; FRAME_HEADER_SIZE];
        self.stream.read_exact(&mut header).await.unwrap();
        let header = FrameHeader::parse(&header);
        let mut payload = vec![0; header.length];
        self.stream.read_exact(&mut payload).await.unwrap();
        (header, payload)
    }

    /// Returns the next frame of a kind.
    async fn until(&mut self, kind: FrameKind) -> (FrameHeader, Vec<u8>) {
        loop {
            let frame = self.next().await;
            if frame.0.kind == kind {
                return frame;
            }
        }
    }
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
            let sender = connect(theirs).await;
            let mut bodies = Vec::new();
            for _ in 0..streams {
                let response = sender.clone().send_request(post("/"), true).unwrap().0;
                bodies.push((response.await.unwrap().into_body(), 0_usize));
            }
            // Whatever has arrived of any of them is read, until one is complete.
            let complete = poll_fn(|cx| {
                for (body, received) in &mut bodies {
                    while let std::task::Poll::Ready(data) = body.poll_data(cx) {
                        let Some(data) = data else { return std::task::Poll::Ready(()) };
                        let length = data.unwrap().len();
                        *received += length;
                        body.flow_control().release_capacity(length).unwrap();
                    }
                }
                std::task::Poll::Pending
            });
            complete.await;
            let received: Vec<_> = bodies.iter().map(|(_, received)| *received).collect();
            assert!(received.iter().all(|received| *received > 1 << 19), "{received:?}");
        });
    }
}

#[test]
fn data_that_nothing_reads_does_not_stop_other_streams() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        spawn_local(serve(ours, SETTINGS, hold_or_echo));
        let sender = connect(theirs).await;
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
    run(async {
        let (ours, theirs) = tokio::io::duplex(100_000);
        let mut connection = ServerConnection::new(ours, SETTINGS);
        let mut client = RawClient::new(theirs);
        client.request(1, 0);
        client.flush().await;
        poll_fn(|cx| connection.poll_handshake(cx)).await.unwrap();
        let served = spawn_local(async move {
            let mut is_shutting_down = false;
            poll_fn(move |cx| {
                let mut has_started = false;
                let ended = connection.poll_requests(cx, |request, responder, _| {
                    has_started = true;
                    drop(spawn_local(echo(request, responder)));
                });
                if has_started && !std::mem::replace(&mut is_shutting_down, true) {
                    connection.graceful_shutdown();
                    cx.waker().wake_by_ref();
                }
                ended
            })
            .await
        });
        let (_, ping) = client.until(FrameKind::Ping).await;
        client.frame(FrameKind::Ping, flags::ACK, 0, &ping);
        // The client has opened it before it has read GOAWAY.
        client.request(3, 0);
        client.frame(FrameKind::Data, 0, 3, b"late");
        client.frame(FrameKind::WindowUpdate, 0, 3, &1_u32.to_be_bytes());
        client.frame(FrameKind::ResetStream, 0, 3, &8_u32.to_be_bytes());
        client.frame(FrameKind::Data, flags::END_STREAM, 1, b"in time");
        client.flush().await;
        assert_eq!(client.until(FrameKind::GoAway).await.1[..4], 1_u32.to_be_bytes());
        loop {
            let (header, payload) = client.until(FrameKind::Data).await;
            assert_eq!(header.stream, 1);
            if !payload.is_empty() {
                assert_eq!(payload, b"in time");
                break;
            }
        }
        assert_eq!(served.await.unwrap(), Ok(()));
    });
}

#[test]
fn data_after_the_end_does_not_shorten_what_was_received() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(100_000);
        let (bodies, mut received) = tokio::sync::mpsc::channel(1);
        spawn_local(serve(ours, SETTINGS, move |request, responder| {
            let bodies = bodies.clone();
            async move {
                let _responder = responder;
                let read = read(&mut request.into_body()).await;
                bodies.send(read.map(|(body, _)| body)).await.unwrap();
            }
        }));
        let mut client = RawClient::new(theirs);
        client.request(1, 0);
        client.frame(FrameKind::Data, 0, 1, b"who");
        client.flush().await;
        client.until(FrameKind::Settings).await;
        client.frame(FrameKind::Data, flags::END_STREAM, 1, b"le");
        client.frame(FrameKind::Data, flags::END_STREAM, 1, b"more");
        client.flush().await;
        let (header, reason) = client.until(FrameKind::ResetStream).await;
        assert_eq!((header.stream, &reason[..]), (1, &5_u32.to_be_bytes()[..]));
        match received.recv().await.unwrap() {
            Ok(body) => assert_eq!(body, b"whole"),
            Err(error) => assert!(error.is_violation(), "{error}"),
        }
    });
}

#[test]
fn request_that_the_client_resets_at_once_is_not_started() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(100_000);
        let mut client = RawClient::new(theirs);
        client.request(1, flags::END_STREAM);
        client.frame(FrameKind::ResetStream, 0, 1, &8_u32.to_be_bytes());
        client.request(3, flags::END_STREAM);
        client.flush().await;
        let mut connection = ServerConnection::new(ours, SETTINGS);
        let mut started = 0;
        poll_fn(|cx| {
            std::task::ready!(connection.poll_handshake(cx))?;
            let _ = connection.poll_requests(cx, |_, _, _| started += 1);
            std::task::Poll::Ready(Ok::<_, Http2Error>(()))
        })
        .await
        .unwrap();
        assert_eq!(started, 1);
    });
}
