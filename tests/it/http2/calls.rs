//! gRPC calls with its real framing: one message or many in either direction, with HTTP/2 on both sides.
//!
//! Client and server are the `h2` crate, with the five-byte prefix of gRPC before each message. A gRPC library would
//! add nothing that concerns a proxy, and would hide details that do.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::RecvStream;
use http::{HeaderMap, HeaderValue, Response};
use tokio::sync::Semaphore;

use crate::support::h2::H2;
use crate::support::h2_origin::H2Origin;
use crate::support::{Weir, config};

/// Returns a message with its prefix: uncompressed, and the length.
fn framed(message: &str) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap());
    frame.put_slice(message.as_bytes());
    frame.freeze()
}

/// Messages of a stream, independent of the boundaries of DATA frames.
struct Messages {
    stream: RecvStream,
    read: BytesMut,
}

impl Messages {
    fn of(stream: RecvStream) -> Self {
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

fn ok() -> HeaderMap {
    HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))])
}

fn head() -> Response<()> {
    Response::builder().header("content-type", "application/grpc+proto").body(()).unwrap()
}

/// Returns an upstream that responds to `/Unary` with one message, to `/Many` with one for each permit of `pace`, and
/// to `/Fails` with a status alone.
fn service(pace: &Arc<Semaphore>) -> H2Origin {
    let pace = Arc::clone(pace);
    H2Origin::start(None, move |request, mut respond| {
        let pace = Arc::clone(&pace);
        async move {
            let path = request.uri().path().to_owned();
            let timeout = request.headers().get("grpc-timeout").cloned();
            let mut messages = Messages::of(request.into_body());
            if path == "/Fails" {
                let failed = Response::builder().header("content-type", "application/grpc");
                let failed = failed.header("grpc-status", "9").header("grpc-message", "not now");
                return respond.send_response(failed.body(()).unwrap(), true).map(drop);
            }
            let mut answers = respond.send_response(head(), false)?;
            let mut heard = Vec::new();
            while let Some(message) = messages.next().await? {
                heard.push(message);
            }
            match path.as_str() {
                "/Many" => {
                    for number in 0..3 {
                        pace.acquire().await.unwrap().forget();
                        answers.send_data(framed(&format!("{} {number}", heard.concat())), false)?;
                    }
                }
                _ => answers.send_data(framed(&format!("{heard:?} {timeout:?}")), false)?,
            }
            answers.send_trailers(ok())
        }
    })
}

fn unpaced() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(0))
}

fn call(client: &H2, path: &str) -> http::request::Builder {
    client.request("POST", path).header("content-type", "application/grpc+proto").header("te", "trailers")
}

#[test]
fn one_message_is_answered_with_one_and_a_status() {
    let origin = service(&unpaced());
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = H2::connect(weir.address());
    let request = call(&client, "/Unary").header("grpc-timeout", "20S");
    let (response, mut sending) = client.begin(request, false);
    sending.send_data(framed("hello"), true).unwrap();
    let answer = client.head(response).unwrap();
    assert_eq!(answer.headers()["content-type"], "application/grpc+proto");
    let mut messages = Messages::of(answer.into_body());
    let heard = client.within(messages.next()).unwrap();
    assert_eq!(heard.as_deref(), Some("[\"hello\"] Some(\"20S\")"), "the deadline is forwarded");
    assert_eq!(client.within(messages.next()).unwrap(), None);
    assert_eq!(client.within(messages.stream.trailers()).unwrap().unwrap(), ok());
}

#[test]
fn many_messages_arrive_one_by_one_as_they_are_sent() {
    let pace = unpaced();
    let origin = service(&pace);
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = H2::connect(weir.address());
    let (response, mut sending) = client.begin(call(&client, "/Many"), false);
    sending.send_data(framed("tell me"), true).unwrap();
    let mut messages = Messages::of(client.head(response).unwrap().into_body());
    for number in 0..3 {
        // The next message is sent only after this one has arrived.
        pace.add_permits(1);
        assert_eq!(client.within(messages.next()).unwrap(), Some(format!("tell me {number}")));
    }
    assert_eq!(client.within(messages.next()).unwrap(), None);
    assert_eq!(client.within(messages.stream.trailers()).unwrap().unwrap(), ok());
}

#[test]
fn many_messages_are_heard_whole_wherever_their_frames_are_cut() {
    let origin = service(&unpaced());
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = H2::connect(weir.address());
    let (response, mut sending) = client.begin(call(&client, "/Unary"), false);
    let all = [framed("one"), framed(""), framed("three")].concat();
    let (last, others) = all.split_last().unwrap();
    for octet in others {
        sending.send_data(Bytes::copy_from_slice(&[*octet]), false).unwrap();
    }
    sending.send_data(Bytes::copy_from_slice(&[*last]), true).unwrap();
    let mut messages = Messages::of(client.head(response).unwrap().into_body());
    let heard = client.within(messages.next()).unwrap();
    assert_eq!(heard.as_deref(), Some("[\"one\", \"\", \"three\"] None"));
}

#[test]
fn what_a_call_failed_with_is_passed_on_and_told_from_a_refusal() {
    let origin = service(&unpaced());
    let weir = Weir::start(&config(origin.address(), "rules: [{ name: one, key: [], limit: 1/d }]"));
    let mut client = H2::connect(weir.address());
    let failed = client.ask(call(&client, "/Fails"));
    assert!(failed.is_head_only);
    assert_eq!((failed.header("grpc-status"), failed.header("grpc-message")), ("9", "not now"));
    let refused = client.ask(call(&client, "/Fails"));
    assert!(refused.is_head_only);
    assert_eq!((refused.header("grpc-status"), refused.header("grpc-message")), ("8", "too many requests"));
    assert_eq!(refused.header("content-type"), "application/grpc");
    assert_eq!(origin.streams(), 1);
}
