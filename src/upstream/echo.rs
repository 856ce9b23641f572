//! `upstream: echo`: answers with the request it got, so that Weir can be tried without a service.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use hyper::body::Body;

use super::answer::Answer;
use super::outgoing::Outgoing;
use crate::headers::Response;

/// The request's head as text, then its body as it comes.
pub(super) fn answer<B: Body<Data = Bytes> + Unpin + 'static>(
    request: &Outgoing,
    body: B,
) -> Response<Answer<B>> {
    let head = &request.head;
    let mut text = format!("{} {} {:?}\n", head.method, head.uri, head.version).into_bytes();
    for (name, value) in &request.headers() {
        text.extend_from_slice(name.as_str().as_bytes());
        text.extend_from_slice(b": ");
        text.extend_from_slice(value.as_bytes());
        text.push(b'\n');
    }
    text.push(b'\n');
    let mut response = Response::new(StatusCode::OK, Answer::echo(Bytes::from(text), body));
    response.headers.set(&CONTENT_TYPE, &HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
