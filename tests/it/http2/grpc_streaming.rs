//! gRPC calls with its real framing: one message or many in either direction, with HTTP/2 on both sides.
//!
//! Client and server are the `h2` crate, with the five-byte prefix of gRPC before each message. A gRPC library would
//! add nothing that concerns a proxy, and would hide details that do.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::RecvStream;
use http::{HeaderMap, HeaderValue, Response};
use tokio::sync::Semaphore;

use crate::support::h2::H2Client;
use crate::support::h2_origin::H2Origin;
use crate::support::{Weir, config};

/// Returns a message with its prefix: uncompressed, and the length.
fn encode_message(message: &str) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap());
    frame.put_slice(message.as_bytes());
    frame.freeze()
}

/// Messages of a stream, independent of the boundaries of DATA frames.
struct GrpcMessages {
    stream: RecvStream,
    read: BytesMut,
}

impl GrpcMessages {
    fn new(stream: RecvStream) -> Self {
        Self { stream, read: BytesMut::new() }
    }

    async fn next(&mut self) -> Result<Option<String>, h2::Error> {
        loop {
            if let Some((prefix, rest)) = self.read.split_first_chunk::<5>() {
                let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
                if rest.len() >= length {
                    let message = self.read.split_to(5 + length).split_off(5);
                    return Ok(Some(String::from_utf8(message.to_vec()).unwrap()));
                }
            }
            let Some(data) = self.stream.data().await else { return Ok(None) };
            let data = data?;
            self.stream.flow_control().release_capacity(data.len())?;
            self.read.extend_from_slice(&data);
        }
    }
}

fn ok_trailers() -> HeaderMap {
    HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))])
}

fn response_head() -> Response<()> {
    Response::builder().header("content-type", "application/grpc+proto").body(()).unwrap()
}

/// Returns an upstream that responds to `/Unary` with one message, to `/Many` with one for each permit of `pace`, and
/// to `/Fails` with a status alone.
fn grpc_upstream(pace: &Arc<Semaphore>) -> H2Origin {
    let pace = Arc::clone(pace);
    H2Origin::start(None, move |request, mut respond| {
        let pace = Arc::clone(&pace);
        async move {
            let path = request.uri().path().to_owned();
            let timeout = request.headers().get("grpc-timeout").cloned();
            let mut messages = GrpcMessages::new(request.into_body());
            if path == "/Fails" {
                let failed = Response::builder().header("content-type", "application/grpc");
                let failed = failed.header("grpc-status", "9").header("grpc-message", "not now");
                return respond.send_response(failed.body(()).unwrap(), true).map(drop);
            }
            let mut answers = respond.send_response(response_head(), false)?;
            let mut heard = Vec::new();
            while let Some(message) = messages.next().await? {
                heard.push(message);
            }
            match path.as_str() {
                "/Many" => {
                    for number in 0..3 {
                        pace.acquire().await.unwrap().forget();
                        answers.send_data(encode_message(&format!("{} {number}", heard.concat())), false)?;
                    }
                }
                _ => answers.send_data(encode_message(&format!("{heard:?} {timeout:?}")), false)?,
            }
            answers.send_trailers(ok_trailers())
        }
    })
}

fn new_pace() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(0))
}

fn call_builder(client: &H2Client, path: &str) -> http::request::Builder {
    client.request("POST", path).header("content-type", "application/grpc+proto").header("te", "trailers")
}

#[test]
fn unary_call_gets_a_message_and_a_status() {
    let origin = grpc_upstream(&new_pace());
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = H2Client::connect(weir.address());
    let request = call_builder(&client, "/Unary").header("grpc-timeout", "20S");
    let (response, mut sending) = client.send_request(request, false);
    sending.send_data(encode_message("hello"), true).unwrap();
    let answer = client.response_head(response).unwrap();
    assert_eq!(answer.headers()["content-type"], "application/grpc+proto");
    let mut messages = GrpcMessages::new(answer.into_body());
    let heard = client.block_on(messages.next()).unwrap();
    assert_eq!(heard.as_deref(), Some("[\"hello\"] Some(\"20S\")"), "the deadline is forwarded");
    assert_eq!(client.block_on(messages.next()).unwrap(), None);
    assert_eq!(client.block_on(messages.stream.trailers()).unwrap().unwrap(), ok_trailers());
}

#[test]
fn server_streaming_messages_arrive_as_they_are_sent() {
    let pace = new_pace();
    let origin = grpc_upstream(&pace);
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = H2Client::connect(weir.address());
    let (response, mut sending) = client.send_request(call_builder(&client, "/Many"), false);
    sending.send_data(encode_message("tell me"), true).unwrap();
    let mut messages = GrpcMessages::new(client.response_head(response).unwrap().into_body());
    for number in 0..3 {
        // The next message is sent only after this one has arrived.
        pace.add_permits(1);
        assert_eq!(client.block_on(messages.next()).unwrap(), Some(format!("tell me {number}")));
    }
    assert_eq!(client.block_on(messages.next()).unwrap(), None);
    assert_eq!(client.block_on(messages.stream.trailers()).unwrap().unwrap(), ok_trailers());
}

#[test]
fn client_streaming_messages_may_span_data_frames() {
    let origin = grpc_upstream(&new_pace());
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = H2Client::connect(weir.address());
    let (response, mut sending) = client.send_request(call_builder(&client, "/Unary"), false);
    let all = [encode_message("one"), encode_message(""), encode_message("three")].concat();
    let (last, others) = all.split_last().unwrap();
    for octet in others {
        sending.send_data(Bytes::copy_from_slice(&[*octet]), false).unwrap();
    }
    sending.send_data(Bytes::copy_from_slice(&[*last]), true).unwrap();
    let mut messages = GrpcMessages::new(client.response_head(response).unwrap().into_body());
    let heard = client.block_on(messages.next()).unwrap();
    assert_eq!(heard.as_deref(), Some("[\"one\", \"\", \"three\"] None"));
}

#[test]
fn upstream_error_status_is_forwarded_and_differs_from_a_rejection() {
    let origin = grpc_upstream(&new_pace());
    let weir = Weir::start(&config(origin.address(), "rules: [{ name: one, key: [], limit: 1/d }]"));
    let mut client = H2Client::connect(weir.address());
    let failed = client.fetch(call_builder(&client, "/Fails"));
    assert!(failed.is_head_only);
    assert_eq!((failed.header("grpc-status"), failed.header("grpc-message")), ("9", "not now"));
    let refused = client.fetch(call_builder(&client, "/Fails"));
    assert!(refused.is_head_only);
    assert_eq!((refused.header("grpc-status"), refused.header("grpc-message")), ("8", "too many requests"));
    assert_eq!(refused.header("content-type"), "application/grpc");
    assert_eq!(origin.streams(), 1);
}
