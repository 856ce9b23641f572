use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::Waker;

use bytes::Bytes;
use http::{Request, request};
use hyper::body::{Body, Frame, SizeHint};

use super::*;

impl SpliceTarget for Vec<u8> {}

impl MessageBody for Frames {}

/// Body that returns one frame per poll; for `None` among them it is pending once.
struct Frames {
    frames: VecDeque<Option<io::Result<Frame<Bytes>>>>,
    length: Option<u64>,
}

impl Body for Frames {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.frames.pop_front() {
            Some(Some(frame)) => Poll::Ready(Some(frame)),
            Some(None) => Poll::Pending,
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.length == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

fn data(text: &'static str) -> Option<io::Result<Frame<Bytes>>> {
    Some(Ok(Frame::data(Bytes::from_static(text.as_bytes()))))
}

fn trailers(fields: &[(&'static str, &'static str)]) -> Option<io::Result<Frame<Bytes>>> {
    let fields = fields
        .iter()
        .map(|(name, value)| (http::HeaderName::from_static(name), http::HeaderValue::from_static(value)));
    Some(Ok(Frame::trailers(fields.collect())))
}

/// Returns what is sent for a request with these headers and this body, and how that ended.
fn sent(
    request: request::Builder,
    length: Option<u64>,
    frames: impl IntoIterator<Item = Option<io::Result<Frame<Bytes>>>>,
) -> (String, Result<(), String>) {
    let body = Frames { frames: frames.into_iter().collect(), length };
    let (parts, body) = request.body(body).unwrap().into_parts();
    let mut upload = Http1Upload::new(&parts, &ReceivedHead::default(), &FieldLines::default(), body);
    let (mut out, mut cx) = (Vec::new(), Context::from_waker(Waker::noop()));
    let ended = loop {
        match upload.poll(&mut out, &mut cx) {
            Poll::Ready(Ok(())) => break Ok(()),
            Poll::Ready(Err(failure)) => break Err(format!("{failure:?}")),
            Poll::Pending => {}
        }
    };
    (String::from_utf8(out).unwrap(), ended)
}

fn get(target: &str) -> request::Builder {
    Request::get(target).header("host", "a.test")
}

fn post() -> request::Builder {
    Request::post("/").header("host", "a.test")
}

const POST: &str = "POST / HTTP/1.1\r\nhost: a.test\r\n";

#[test]
fn empty_request_body_has_no_framing_headers_except_for_post() {
    let wanted = "GET /a%20b?c=d HTTP/1.1\r\nhost: a.test\r\n\r\n".to_owned();
    assert_eq!(sent(get("/a%20b?c=d"), Some(0), []), (wanted, Ok(())));
    let coded = post().header("transfer-encoding", "chunked").header("content-length", "0");
    assert_eq!(sent(coded, Some(0), []), (format!("{POST}content-length: 0\r\n\r\n"), Ok(())));
}

#[test]
fn targets_are_written_in_origin_form() {
    for (target, line) in [("/", "/"), ("*", "*"), ("http://a.test?q", "/?q"), ("http://a.test", "/")] {
        let (text, _) = sent(get(target), Some(0), []);
        assert_eq!(text.lines().next(), Some(format!("GET {line} HTTP/1.1").as_str()));
    }
}

#[test]
fn body_of_known_length_is_sent_with_content_length() {
    let wanted = format!("{POST}content-length: 10\r\n\r\nhelloworld");
    let frames = || [data("hello"), None, data(""), data("world")];
    assert_eq!(sent(post(), Some(10), frames()), (wanted.clone(), Ok(())));
    assert_eq!(sent(post().header("content-length", "10"), Some(10), frames()), (wanted, Ok(())));
}

#[test]
fn body_of_unknown_length_is_sent_chunked_for_any_method() {
    let head = "GET / HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n\r\n";
    let request = get("/").header("transfer-encoding", "chunked").header("content-length", "5");
    let wanted = format!("{head}5\r\nhello\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n");
    assert_eq!(sent(request, None, [data("hello"), None, data("0123456789abcdef")]), (wanted, Ok(())));
}

#[test]
fn large_pieces_are_sent_as_chunks_of_their_own() {
    let large: &'static str = Box::leak("x".repeat(100_000).into_boxed_str());
    let (text, ended) = sent(post(), None, [data("a"), data(large), data("b"), data(large)]);
    let body = text.split_once("\r\n\r\n").expect("a head").1;
    assert_eq!(body, format!("1\r\na\r\n186A0\r\n{large}\r\n1\r\nb\r\n186A0\r\n{large}\r\n0\r\n\r\n"));
    assert_eq!(ended, Ok(()));
}

#[test]
fn only_announced_trailers_are_sent() {
    let request = || post().header("trailer", "x-sum, Content-Length").header("trailer", "x-b");
    let fields = [("x-sum", "1"), ("x-other", "2"), ("content-length", "3"), ("x-b", "4")];
    let (text, ended) = sent(request(), None, [data("a"), trailers(&fields)]);
    assert!(text.ends_with("1\r\na\r\n0\r\nx-sum: 1\r\nx-b: 4\r\n\r\n"), "{text}");
    assert_eq!(ended, Ok(()));
    let (text, _) = sent(post(), None, [data("a"), trailers(&fields)]);
    assert!(text.ends_with("1\r\na\r\n0\r\n\r\n"), "{text}");
}

#[test]
fn body_of_wrong_length_fails_the_upload() {
    let (text, ended) = sent(post(), Some(10), [data("hello")]);
    assert!(ended.is_err(), "{text}");
    let (text, ended) = sent(post(), Some(3), [data("hello")]);
    assert!(ended.is_err() && !text.contains("hello"), "{text}");
    let broken = [data("hello"), None, Some(Err(io::ErrorKind::BrokenPipe.into()))];
    let (text, ended) = sent(post(), None, broken);
    assert!(ended.is_err() && text.ends_with("5\r\nhello\r\n"), "{text}");
}

#[test]
fn body_that_fails_before_its_first_byte_is_not_retried() {
    let broken = || Some(Err(io::ErrorKind::InvalidData.into()));
    for (length, frames) in [(None, vec![broken()]), (Some(3), vec![data("hello")])] {
        let body = Frames { frames: frames.into(), length };
        let (parts, body) = post().body(body).unwrap().into_parts();
        let mut upload = Http1Upload::new(&parts, &ReceivedHead::default(), &FieldLines::default(), body);
        assert!(upload.may_retry());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(upload.poll(&mut Vec::new(), &mut cx), Poll::Ready(Err(EncodeError::Body(_)))));
        assert!(!upload.may_retry(), "no retry after a body error, although nothing was sent");
    }
}

#[test]
fn only_idempotent_requests_without_body_are_repeatable() {
    for (method, length, repeatable) in
        [("GET", 0, true), ("PUT", 0, true), ("POST", 0, false), ("PATCH", 0, false), ("PUT", 1, false)]
    {
        let body = Frames { frames: VecDeque::new(), length: Some(length) };
        let (parts, body) = Request::builder().method(method).body(body).unwrap().into_parts();
        let upload = Http1Upload::new(&parts, &ReceivedHead::default(), &FieldLines::default(), body);
        assert_eq!(upload.repeatable, repeatable, "{method}");
    }
}

#[test]
fn only_an_unread_body_is_returned_for_retry() {
    let upload = |length, frames: Vec<_>| {
        let (parts, body) =
            Request::post("/").body(Frames { frames: frames.into(), length }).unwrap().into_parts();
        Http1Upload::new(&parts, &ReceivedHead::default(), &FieldLines::default(), body)
    };
    let mut cx = Context::from_waker(Waker::noop());
    assert!(upload(Some(2), vec![data("ab")]).into_body().is_some());
    for (frames, handed_back) in [(vec![data("ab")], false), (vec![None, data("ab")], false)] {
        let mut asked = upload(None, frames);
        let _ = asked.poll(&mut Vec::new(), &mut cx);
        assert_eq!(asked.into_body().is_some(), handed_back);
    }
    let mut empty = upload(Some(0), Vec::new());
    assert!(empty.poll(&mut Vec::new(), &mut cx).is_ready() && empty.is_complete());
    assert!(empty.into_body().is_some());
}
