//! Body of an upstream's response, which returns its connection to the pool when it ends.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::http1::response_body::Http1ResponseBody;
use super::http2::response_body::Http2ResponseBody as Http2Streaming;
use super::in_flight::InFlightRequest;
use super::tunnel::{Tunnel, TunnelTransport};
use weir_http::http1::splice::Spliced;
use weir_http::message_body::MessageBody;

#[derive(Debug)]
pub struct UpstreamResponseBody<B> {
    source: BodySource<B>,
    /// Keeps the request in flight until dropped.
    in_flight: Option<InFlightRequest>,
}

#[derive(Debug)]
enum BodySource<B> {
    /// The complete body, which has arrived with the head.
    Full(Option<Bytes>),
    /// Closes its connection if dropped before the response has ended.
    Http1(Box<Http1ResponseBody>),
    /// The connection or stream after an upgrade.
    Upgraded(TunnelTransport),
    /// Resets its stream if dropped before the response has ended.
    Http2(Box<Http2Streaming>),
    Echo(Box<EchoBody<B>>),
}

/// The request, sent back as the response (`upstream: echo`).
#[derive(Debug)]
struct EchoBody<B> {
    head: Option<Bytes>,
    body: B,
}

impl<B> UpstreamResponseBody<B> {
    pub(super) fn full(content: Bytes) -> Self {
        Self::new(BodySource::Full((!content.is_empty()).then_some(content)))
    }

    pub(super) fn http1(streaming: Http1ResponseBody) -> Self {
        Self::new(BodySource::Http1(Box::new(streaming)))
    }

    pub(super) fn upgraded(way: TunnelTransport) -> Self {
        Self::new(BodySource::Upgraded(way))
    }

    /// Returns the tunnel after a response of 101 (RFC 9110 section 15.2.2), or after one of 200 to CONNECT; `None` for
    /// any other response.
    pub fn into_tunnel(self) -> Option<Tunnel> {
        match self.source {
            BodySource::Upgraded(way) => Some(Tunnel::new(way, self.in_flight)),
            _ => None,
        }
    }

    pub(super) fn http2(streaming: Http2Streaming) -> Self {
        Self::new(BodySource::Http2(Box::new(streaming)))
    }

    pub(super) fn echo(head: Bytes, body: B) -> Self {
        Self::new(BodySource::Echo(Box::new(EchoBody { head: Some(head), body })))
    }
}

impl<B> UpstreamResponseBody<B> {
    fn new(source: BodySource<B>) -> Self {
        Self { source, in_flight: None }
    }

    /// Keeps `held` until the response has been received from the upstream and the request has been sent. The
    /// time that the client takes to read the response does not count.
    pub(super) fn hold_in_flight(&mut self, held: Option<InFlightRequest>) {
        let held = match &self.source {
            BodySource::Http1(streaming) => held.and_then(|held| streaming.hold_in_flight(held)),
            _ => held,
        };
        self.in_flight = held.filter(|_| !self.is_received());
    }

    /// Whether the request is still in flight to the upstream.
    pub fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
            || matches!(&self.source, BodySource::Http1(streaming) if streaming.is_uploading())
    }

    /// Whether the body ends where its connection ends, so that one that is cut off looks complete.
    pub fn ends_with_connection(&self) -> bool {
        matches!(&self.source, BodySource::Http1(streaming) if streaming.decoder().ends_with_connection())
    }

    /// Ends the request's time in flight if its response has ended, or some of it has been read and it is received.
    fn end_in_flight_if_over(&mut self, has_ended: bool, has_read: bool) {
        if has_ended || (has_read && self.is_received()) {
            self.in_flight = None;
        }
    }

    /// Whether the whole response has been received from the upstream.
    fn is_received(&self) -> bool {
        match &self.source {
            BodySource::Full(_) => true,
            BodySource::Http1(streaming) => streaming.decoder().is_complete(),
            BodySource::Http2(streaming) => streaming.is_complete() && !streaming.is_uploading(),
            BodySource::Upgraded(_) | BodySource::Echo(_) => false,
        }
    }
}

/// Why a response body is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamBodyError {
    /// The upstream's connection failed or ended too early, or the body is malformed.
    #[error("incomplete response from the upstream")]
    Upstream(#[source] io::Error),
    /// The request's body failed while it was echoed.
    #[error("incomplete request body")]
    Request,
}

impl<B> MessageBody for UpstreamResponseBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    fn poll_splice(&mut self, max: usize, cx: &mut Context<'_>) -> Spliced<UpstreamBodyError> {
        let BodySource::Http1(streaming) = &mut self.source else { return None };
        let spliced = streaming.poll_splice(max, cx)?.map_err(UpstreamBodyError::Upstream);
        self.end_in_flight_if_over(matches!(spliced, Poll::Ready(Err(_))), spliced.is_ready());
        Some(spliced)
    }
}

impl<B> Body for UpstreamResponseBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = UpstreamBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamBodyError>>> {
        let polled = match &mut self.source {
            BodySource::Upgraded(_) => Poll::Ready(None),
            BodySource::Full(content) => Poll::Ready(content.take().map(|content| Ok(Frame::data(content)))),
            BodySource::Http1(streaming) => streaming.poll_frame(cx).map_err(UpstreamBodyError::Upstream),
            BodySource::Http2(streaming) => streaming.poll_frame(cx).map_err(UpstreamBodyError::Upstream),
            BodySource::Echo(echo) => match echo.head.take() {
                Some(head) => Poll::Ready(Some(Ok(Frame::data(head)))),
                None => Pin::new(&mut echo.body).poll_frame(cx).map_err(|_| UpstreamBodyError::Request),
            },
        };
        self.end_in_flight_if_over(matches!(polled, Poll::Ready(None | Some(Err(_)))), polled.is_ready());
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::Upgraded(_) => true,
            BodySource::Full(content) => content.is_none(),
            BodySource::Http1(streaming) => streaming.decoder().is_complete(),
            BodySource::Http2(streaming) => streaming.is_complete(),
            BodySource::Echo(echo) => echo.head.is_none() && echo.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Upgraded(_) => exactly(0),
            BodySource::Full(content) => exactly(content.as_ref().map_or(0, |content| content.len() as u64)),
            BodySource::Http1(streaming) => {
                streaming.decoder().left().map_or_else(SizeHint::default, exactly)
            }
            BodySource::Http2(streaming) => streaming.left().map_or_else(SizeHint::default, exactly),
            BodySource::Echo(echo) => {
                let head = echo.head.as_ref().map_or(0, |head| head.len() as u64);
                let rest = echo.body.size_hint().exact();
                rest.map_or_else(SizeHint::default, |rest| exactly(head.saturating_add(rest)))
            }
        }
    }
}

fn exactly(bytes: u64) -> SizeHint {
    SizeHint::with_exact(bytes)
}
