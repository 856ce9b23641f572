//! Sends a request to an endpoint over one of its connections, up to the head of the response.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use http::uri::Scheme;
use http::{Method, StatusCode};

use super::{ConnectionKind, Endpoint, PooledConnection};
use crate::echo;
use crate::error::{SendError, UpstreamError};
use crate::http1::connection::Http1Connection;
use crate::http1::response_body::Http1ResponseBody;
use crate::http2;
use crate::outgoing::OutgoingRequest;
use crate::response_body::UpstreamResponseBody;
use weir_http::headers::Response;
use weir_http::http1::client::conn::{NoResponse, ResponseHeadReader};
use weir_http::http1::client::response_head::ResponseHead;
use weir_http::http1::client::upload::Http1Upload;
use weir_http::http1::decoder::BodyDecoder;
use weir_http::http1::head::ReceivedHead;
use weir_http::http1::interim::InterimResponses;
use weir_http::message_body::MessageBody;
use weir_net::in_place;

impl Endpoint {
    /// Sends a request and waits for the response's header section; the body is streamed. Names of headers are spelt as in
    /// `received`. Interim responses are appended to `interims`; `was_sent` is set while the endpoint may process some of the request.
    /// Dropping the future closes the connection or, over HTTP/2, resets the stream.
    ///
    /// # Errors
    /// [`SendError`] if no response arrived, or it was malformed.
    // Not async functions here: the future of one has room for its parameters twice.
    pub fn send<B>(
        &self,
        line: PooledConnection,
        request: &OutgoingRequest,
        received: &ReceivedHead,
        body: B,
        interims: &InterimResponses,
        was_sent: &Cell<bool>,
    ) -> impl Future<Output = Result<Response<UpstreamResponseBody<B>>, SendError<B>>>
    where
        B: MessageBody + 'static,
    {
        let PooledConnection { in_flight, kind } = line;
        async move {
            let mut response = match kind {
                ConnectionKind::Echo => {
                    was_sent.set(true);
                    echo::respond(request, body)
                }
                ConnectionKind::Http1 { connection, is_reused } => {
                    let upload = Http1Upload::new(&request.head, received, &request.added_headers, body);
                    let waiting = ResponseHeadReader::new(request.head.method == Method::HEAD, interims);
                    self.send_by_http1(connection, is_reused, upload, waiting, was_sent).await?
                }
                // Boxed, because its future is large and HTTP/1.1 requests do not need it.
                ConnectionKind::Http2(permit) => {
                    let sending = self.send_by_http2(permit, request, body, interims, was_sent);
                    Box::into_pin(in_place::boxed!(sending)).await?
                }
            };
            response.body.hold_in_flight(in_flight);
            Ok(response)
        }
    }

    async fn send_by_http2<B>(
        &self,
        permit: http2::pool::StreamPermit,
        request: &OutgoingRequest,
        body: B,
        interims: &InterimResponses,
        was_sent: &Cell<bool>,
    ) -> Result<Response<UpstreamResponseBody<B>>, SendError<B>>
    where
        B: MessageBody + 'static,
    {
        let scheme = if self.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
        let request = http2::head::Http2Request {
            outgoing: request,
            scheme: &scheme,
            default_authority: &self.host.name,
        };
        let open = async || self.open_http2().await;
        http2::send(permit, &self.http2_pool, open, request, interims, body, was_sent).await
    }

    fn send_by_http1<B>(
        &self,
        mut connection: Box<Http1Connection>,
        is_reused: bool,
        mut upload: Http1Upload<B>,
        mut waiting: ResponseHeadReader<'_>,
        was_sent: &Cell<bool>,
    ) -> impl Future<Output = Result<Response<UpstreamResponseBody<B>>, SendError<B>>>
    where
        B: MessageBody + 'static,
    {
        // A request that cannot be repeated must not be sent on a connection that has been closed without notice yet.
        let is_gone = is_reused && !upload.is_repeatable() && !connection.conn.stream.peek_has_no_input();
        async move {
            let sent = match is_gone {
                true => Err(NoResponse::Reset(io::ErrorKind::UnexpectedEof.into())),
                false => {
                    poll_fn(|cx| poll_head(&mut connection, &mut upload, &mut waiting, was_sent, cx)).await
                }
            };
            let is_lost = matches!(sent, Err(NoResponse::Reset(_))) && is_reused && upload.may_retry();
            if is_lost {
                // The upstream had closed the connection already, or was about to. Boxed, because that is rare.
                drop((sent, connection));
                waiting.reset();
                return Box::pin(self.send_again_by_http1(upload, waiting, was_sent)).await;
            }
            let head = sent.map_err(UpstreamError::from)?;
            Ok(self.build_response(head, connection, upload))
        }
    }

    /// Sends a request on a new connection, after its first one has turned out to be closed.
    async fn send_again_by_http1<B>(
        &self,
        mut upload: Http1Upload<B>,
        mut waiting: ResponseHeadReader<'_>,
        was_sent: &Cell<bool>,
    ) -> Result<Response<UpstreamResponseBody<B>>, SendError<B>>
    where
        B: MessageBody + 'static,
    {
        self.metrics.request_retried();
        upload.rewind();
        was_sent.set(false);
        let mut connection = match self.open_http1().await {
            Ok((connection, _)) => connection,
            Err(error) => return Err(SendError { error, body: upload.into_body() }),
        };
        let sent = poll_fn(|cx| poll_head(&mut connection, &mut upload, &mut waiting, was_sent, cx)).await;
        Ok(self.build_response(sent.map_err(UpstreamError::from)?, connection, upload))
    }

    fn build_response<B>(
        &self,
        head: ResponseHead,
        mut connection: Box<Http1Connection>,
        upload: Http1Upload<B>,
    ) -> Response<UpstreamResponseBody<B>>
    where
        B: MessageBody + 'static,
    {
        let ResponseHead { status, headers, decoder: length, keep_alive: keeps } = head;
        let body = match length {
            _ if status == StatusCode::SWITCHING_PROTOCOLS => {
                UpstreamResponseBody::upgraded(connection.into())
            }
            BodyDecoder::Length(bytes) if connection.conn.has_buffered(bytes) && upload.is_complete() => {
                let content = connection.conn.take_buffered(bytes);
                if keeps {
                    self.http1_pool.return_connection(connection);
                }
                UpstreamResponseBody::full(content)
            }
            length => UpstreamResponseBody::http1(Http1ResponseBody::new(
                connection,
                upload,
                length,
                keeps,
                &self.http1_pool,
            )),
        };
        Response { status, headers, body }
    }
}

/// Sends the request and reads the head of the response; records whether any of the request was sent.
fn poll_head<B>(
    connection: &mut Http1Connection,
    upload: &mut Http1Upload<B>,
    waiting: &mut ResponseHeadReader<'_>,
    was_sent: &Cell<bool>,
    cx: &mut Context<'_>,
) -> Poll<Result<ResponseHead, NoResponse>>
where
    B: MessageBody + 'static,
{
    let polled = connection.conn.poll_head(upload, waiting, cx);
    was_sent.set(upload.bytes_written() > 0);
    polled
}
