//! Head of a response over HTTP/2.

use std::task::Context;

use http::header::{CONTENT_LENGTH, DATE};
use http::{HeaderMap, HeaderValue};
use hyper::body::Body as _;

use crate::proxy::Worker;
use crate::proxy::body::ResponseBody;
use crate::proxy::local_reply::{DownstreamResponse, response_broken_off};
use weir_http::headers::{Headers, Response, WritableHeaders};
use weir_http::http2::{FieldWriter, Http2Error, Responder, SendStream};
use weir_net::transport::SentBody;

/// What remains of a response after its head.
#[derive(Debug)]
pub(super) enum StartedResponse {
    Body(SentBody<ResponseBody>),
    /// The bytes of a tunnel, in both directions.
    Tunnel(SendStream),
}

/// Sends the head of a response, or of 502 if the response has already failed. Once its head is sent, the only
/// remaining option would be to reset the stream. `is_tunnel`: the stream stays open after the head. Returns what remains, if
/// anything.
///
/// # Errors
/// If the stream has ended.
pub(super) fn start(
    worker: &Worker,
    responder: &mut Responder,
    mut reply: DownstreamResponse,
    is_head_request: bool,
    is_tunnel: bool,
    cx: &mut Context<'_>,
) -> Result<Option<StartedResponse>, Http2Error> {
    if let Some(context) = reply.body.prefetch(cx) {
        reply = response_broken_off(context);
    }
    let Response { status, mut headers, mut body } = reply;
    if is_head_request {
        withhold_content(headers.map_mut(), &mut body);
    }
    let has_body = !body.is_end_stream();
    let length = body.size_hint().exact().filter(|_| has_body && !headers.contains(&CONTENT_LENGTH));
    let stream = responder.send_fields(status, !has_body && !is_tunnel, |fields| {
        write_headers(&mut headers, fields);
        if let Some(length) = length {
            fields
                .push_raw(CONTENT_LENGTH.as_str().as_bytes(), itoa::Buffer::new().format(length).as_bytes());
        }
        if !headers.has_date() {
            fields.push_raw(DATE.as_str().as_bytes(), worker.date.value().as_bytes());
        }
    })?;
    Ok(match (is_tunnel, has_body) {
        (true, _) => Some(StartedResponse::Tunnel(stream)),
        (false, true) => Some(StartedResponse::Body(SentBody::new(stream, body))),
        (false, false) => None,
    })
}

fn write_headers(headers: &mut Headers, fields: &mut FieldWriter<'_>) {
    match headers.writable() {
        WritableHeaders::Raw(raw) => {
            raw.lines().for_each_in_lower_case(|name, value| fields.push_raw(name, value));
        }
        WritableHeaders::Lines(lines) => {
            lines.for_each_in_lower_case(|name, value| fields.push_raw(name, value));
        }
        WritableHeaders::Map(map) => map.iter().for_each(|(name, value)| fields.push(name, value)),
    }
}

/// Removes the content of a response to HEAD (RFC 9110 section 9.3.2).
fn withhold_content(headers: &mut HeaderMap, body: &mut ResponseBody) {
    if let Some(length) = body.withhold() {
        headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
}
