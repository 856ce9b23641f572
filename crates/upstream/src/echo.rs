//! `upstream: echo`: responds with the received request, so that Weir can be tried without a service.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use hyper::body::Body;

use super::outgoing::OutgoingRequest;
use super::response_body::UpstreamResponseBody;
use weir_http::headers::Response;

/// Responds with the request's header section as text, followed by its body.
pub(super) fn respond<B: Body<Data = Bytes> + Unpin + 'static>(
    request: &OutgoingRequest,
    body: B,
) -> Response<UpstreamResponseBody<B>> {
    let head = &request.head;
    let mut text = format!("{} {} {:?}\n", head.method, head.uri, head.version).into_bytes();
    for (name, value) in &request.headers() {
        text.extend_from_slice(name.as_str().as_bytes());
        text.extend_from_slice(b": ");
        text.extend_from_slice(value.as_bytes());
        text.push(b'\n');
    }
    text.push(b'\n');
    let mut response = Response::new(StatusCode::OK, UpstreamResponseBody::echo(Bytes::from(text), body));
    response.headers.set(&CONTENT_TYPE, &HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
