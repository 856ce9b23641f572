use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body_util::{Empty, Full};
use hyper::body::Frame;

use super::*;
use crate::headers::RawHeaders;

const GET: RequestInfo = RequestInfo {
    is_head: false,
    is_http11: true,
    keep_alive: true,
    accepts_trailers: false,
    is_connect: false,
};
const HEAD: RequestInfo = RequestInfo { is_head: true, ..GET };
const GET_HTTP_10: RequestInfo = RequestInfo { is_http11: false, keep_alive: false, ..GET };
fn write_date(out: &mut Vec<u8>) {
    out.extend_from_slice(DATED.as_bytes());
}

const DATED: &str = "date: Thu, 01 Jan 1970 00:00:00 GMT\r\n";

/// Returns the head of a response without its date, and how the response continues.
fn written(
    request: RequestInfo,
    status: u16,
    fields: &[(&'static str, &str)],
    body: &impl Body,
) -> (String, WrittenHead) {
    let status = StatusCode::from_u16(status).unwrap();
    let head = |mut headers: Headers| {
        let mut out = Vec::new();
        let course = write(request, status, &mut headers, body, write_date, &mut out);
        (String::from_utf8(out).unwrap().replacen(DATED, "", 1), course)
    };
    let written = head(raw(fields));
    assert_eq!(written, head(mapped(fields)), "raw headers and a map give the same output");
    written
}

fn mapped(fields: &[(&'static str, &str)]) -> Headers {
    let field = |(name, value): &(&'static str, &str)| {
        (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
    };
    fields.iter().map(field).collect::<HeaderMap>().into()
}

fn raw(fields: &[(&'static str, &str)]) -> Headers {
    let mut raw = RawHeaders::default();
    for (name, value) in fields {
        match *name {
            "content-length" => raw.push_content_length(|raw| raw.push(name.as_bytes(), value.as_bytes())),
            _ => raw.push(name.as_bytes(), value.as_bytes()),
        }
    }
    raw.into()
}

fn hello() -> Full<Bytes> {
    Full::new(Bytes::from_static(b"hello"))
}

/// A body of unknown length.
struct Stream;

impl Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

#[test]
fn successful_response_to_connect_has_no_framing() {
    let connect = RequestInfo { is_connect: true, keep_alive: false, ..GET };
    let (text, _) = written(connect, 200, &[], &Full::<Bytes>::default());
    assert!(!text.contains("content-length") && !text.contains("connection"), "{text}");
    let (text, _) = written(connect, 403, &[], &hello());
    assert!(text.contains("content-length: 5") && text.contains("connection: close"), "{text}");
}

#[test]
fn known_length_is_sent_as_normalised_content_length() {
    let (text, course) = written(GET, 200, &[("content-length", "005"), ("x", "1")], &hello());
    assert_eq!(text, "HTTP/1.1 200 OK\r\nx: 1\r\ncontent-length: 5\r\n\r\n");
    assert_eq!(course, WrittenHead { framing: BodyFraming::Length(5), has_body: true, keep_alive: true });
    let (text, course) = written(GET, 429, &[], &Empty::<Bytes>::new());
    assert_eq!(text, "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(course, WrittenHead { framing: BodyFraming::Length(0), has_body: false, keep_alive: true });
    let (text, _) = written(GET, 200, &[("content-length", "7")], &Stream);
    assert_eq!(text, "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n");
}

#[test]
fn added_headers_follow_those_of_the_response() {
    for mut headers in [raw(&[("x", "1")]), mapped(&[("x", "1")])] {
        let mut out = Vec::new();
        headers.set_number(&http::header::AGE, 7);
        write(GET, StatusCode::OK, &mut headers, &hello(), write_date, &mut out);
        let expected = format!("HTTP/1.1 200 OK\r\nx: 1\r\nage: 7\r\ncontent-length: 5\r\n{DATED}\r\n");
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}

#[test]
fn unknown_length_is_framed_by_chunks_or_by_close() {
    let (text, course) = written(GET, 200, &[("trailer", "x-sum")], &Stream);
    assert_eq!(text, "HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n");
    assert_eq!(course.framing, BodyFraming::Chunked(Box::default()), "the request has no `te: trailers`");
    let (_, course) =
        written(RequestInfo { accepts_trailers: true, ..GET }, 200, &[("trailer", "x-sum, host")], &Stream);
    assert_eq!(course.framing, BodyFraming::Chunked(["x-sum".parse().unwrap()].into()));
    let kept = RequestInfo { keep_alive: true, ..GET_HTTP_10 };
    let (text, course) = written(kept, 200, &[("trailer", "x-sum")], &Stream);
    assert_eq!(text, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n");
    assert_eq!(course, WrittenHead { framing: BodyFraming::Close, has_body: true, keep_alive: false });
}

#[test]
fn bodiless_status_codes_have_no_framing_headers() {
    for status in [204, 304] {
        let (text, course) = written(GET, status, &[("content-length", "5")], &hello());
        assert!(!text.contains("content-length") && !text.contains("chunked"), "{text}");
        assert_eq!(
            course,
            WrittenHead { framing: BodyFraming::Length(0), has_body: false, keep_alive: true }
        );
    }
    let (text, course) =
        written(GET, 101, &[("connection", "upgrade"), ("upgrade", "x")], &Empty::<Bytes>::new());
    assert_eq!(text, "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n");
    assert!(!course.has_body && !course.keep_alive);
}

#[test]
fn response_to_head_keeps_content_length() {
    let empty = Empty::<Bytes>::new();
    for (fields, told) in [([("content-length", "7")], "content-length: 7\r\n"), ([("x", "1")], "x: 1\r\n")] {
        let (text, course) = written(HEAD, 200, &fields, &empty);
        assert_eq!(text, format!("HTTP/1.1 200 OK\r\n{told}\r\n"));
        assert_eq!(
            course,
            WrittenHead { framing: BodyFraming::Length(0), has_body: false, keep_alive: true }
        );
    }
    let (text, course) = written(HEAD, 429, &[], &hello());
    assert_eq!(text, "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 5\r\n\r\n");
    assert!(!course.has_body);
}

#[test]
fn connection_header_is_sent_once() {
    let (text, course) = written(GET, 200, &[("connection", "close")], &hello());
    assert_eq!(text, "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\n");
    assert!(!course.keep_alive);
    let (text, course) = written(RequestInfo { keep_alive: false, ..GET }, 200, &[], &hello());
    assert_eq!(text, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\n");
    assert!(!course.keep_alive);
    let (text, course) = written(RequestInfo { keep_alive: true, ..GET_HTTP_10 }, 200, &[], &hello());
    assert_eq!(text, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: keep-alive\r\n\r\n");
    assert!(course.keep_alive);
    let (text, _) = written(GET_HTTP_10, 200, &[], &hello());
    assert_eq!(text, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\n");
}

#[test]
fn date_header_is_added_if_missing() {
    let dated = |fields: &[(&'static str, &'static str)]| {
        let mut out = Vec::new();
        write(GET, StatusCode::OK, &mut raw(fields), &hello(), write_date, &mut out);
        String::from_utf8(out).unwrap()
    };
    assert!(dated(&[]).contains(DATED));
    let theirs = dated(&[("date", "Fri, 02 Jan 1970 00:00:00 GMT")]);
    assert_eq!(theirs.matches("date: ").count(), 1);
    assert!(theirs.contains("02 Jan"));
}

#[test]
fn malformed_request_gets_its_status_code() {
    for (what, status) in [
        (MalformedMessage::ContentLength, "400 Bad Request"),
        (MalformedMessage::FieldsTooLarge, "431 Request Header Fields Too Large"),
        (MalformedMessage::TargetTooLong, "414 URI Too Long"),
    ] {
        let mut out = Vec::new();
        write_error(error_status(what), write_date, &mut out);
        let expected = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n{DATED}\r\n");
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
