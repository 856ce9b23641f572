//! Body of an HTTP/1.1 response, read on demand.

use std::io;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::Frame;

use super::connection::Http1Connection;
use super::rejoin::{self, ReadHalf, Rejoin, UploadTask};
use crate::http1_pool::Http1Pool;
use crate::in_flight::InFlightRequest;
use weir_http::http1::client::conn::ClientConn;
use weir_http::http1::client::upload::Http1Upload;
use weir_http::http1::decoder::{BodyDecoder, Piece};
use weir_http::http1::read_buf::ReadSource as _;
use weir_http::http1::splice::Spliced;
use weir_http::message_body::MessageBody;

/// A body that is being received, and its connection.
#[derive(Debug)]
pub(crate) struct Http1ResponseBody {
    connection: StreamingConnection,
    decoder: BodyDecoder,
    /// Whether the connection is reused afterwards.
    keep_alive: bool,
}

#[derive(Debug)]
enum StreamingConnection {
    /// The request has been sent.
    Unsplit(Box<Http1Connection>, Rc<Http1Pool>),
    /// The request is still being sent.
    Split(ReadHalf, UploadTask),
    /// The response has been received, and the request may not have been sent completely.
    Uploading(Weak<Rejoin>),
    /// The connection has been returned or closed.
    Closed,
}

impl Http1ResponseBody {
    /// Creates a body that is read from `connection`.
    pub(crate) fn new<B>(
        mut connection: Box<Http1Connection>,
        upload: Http1Upload<B>,
        length: BodyDecoder,
        keep_alive: bool,
        pool: &Rc<Http1Pool>,
    ) -> Self
    where
        B: MessageBody + 'static,
    {
        let pool = Rc::clone(pool);
        if let Some(bytes) = length.left() {
            connection
                .conn
                .read_buf
                .expect_body(bytes.saturating_sub(connection.conn.read_buf.bytes.len() as u64));
        }
        let source = if upload.is_complete() {
            StreamingConnection::Unsplit(connection, pool)
        } else {
            let (reading, upload) = rejoin::split(*connection, upload, pool);
            StreamingConnection::Split(reading, upload)
        };
        let mut streaming = Self { connection: source, decoder: length, keep_alive };
        streaming.finish_if_complete();
        streaming
    }

    /// Returns the next frame.
    ///
    /// # Errors
    /// If the connection fails or ends before the body, or the body is malformed.
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let polled = ready!(self.poll_piece(cx));
        match polled {
            Ok(Some(_)) => self.finish_if_complete(),
            Ok(None) => self.finish(),
            Err(_) => self.connection = StreamingConnection::Closed,
        }
        Poll::Ready(polled.transpose())
    }

    /// Moves at most `max` of the next bytes into a pipe, which is never empty.
    pub(crate) fn poll_splice(&mut self, max: usize, cx: &mut Context<'_>) -> Spliced<io::Error> {
        let max = self.decoder.at_most_left(max)?;
        let (read_buf, spliced) = match &mut self.connection {
            StreamingConnection::Unsplit(connection, _) if connection.conn.is_drained() => {
                let ClientConn { stream, read_buf } = &mut connection.conn;
                (read_buf, stream.poll_splice(max, cx)?)
            }
            StreamingConnection::Split(ReadHalf { half, read_buf, .. }, _) if read_buf.is_empty() => {
                (read_buf, half.poll_splice(max, cx)?)
            }
            _ => return None,
        };
        let taken = spliced.map(|spliced| self.decoder.take_spliced(spliced));
        read_buf.bypass(self.decoder.left().unwrap_or_default());
        match &taken {
            Poll::Ready(Ok(_)) => self.finish_if_complete(),
            Poll::Ready(Err(_)) => self.connection = StreamingConnection::Closed,
            Poll::Pending => {}
        }
        Some(taken)
    }

    /// Returns the decoder, which finds the end of the body.
    pub(crate) fn decoder(&self) -> &BodyDecoder {
        &self.decoder
    }

    /// Keeps `held` while the request is being sent; returns it if the request has been sent completely.
    pub(crate) fn hold_in_flight(&self, held: InFlightRequest) -> Option<InFlightRequest> {
        match self.rejoin() {
            Some(rejoin) => {
                rejoin.hold_in_flight(held);
                None
            }
            None => Some(held),
        }
    }

    /// Whether the request may not have been sent completely.
    pub(crate) fn is_uploading(&self) -> bool {
        self.rejoin().is_some()
    }

    fn rejoin(&self) -> Option<Rc<Rejoin>> {
        match &self.connection {
            StreamingConnection::Split(_, upload) => upload.rejoin().upgrade(),
            StreamingConnection::Uploading(rejoin) => rejoin.upgrade(),
            StreamingConnection::Unsplit(..) | StreamingConnection::Closed => None,
        }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Frame<Bytes>>>> {
        loop {
            let read_buf = match &mut self.connection {
                StreamingConnection::Unsplit(connection, _) => &mut connection.conn.read_buf,
                StreamingConnection::Split(reading, _) => &mut reading.read_buf,
                StreamingConnection::Uploading(_) | StreamingConnection::Closed => {
                    return Poll::Ready(Ok(None));
                }
            };
            match self.decoder.decode(&mut read_buf.bytes)? {
                Piece::Data(data) => return Poll::Ready(Ok(Some(Frame::data(data)))),
                Piece::Trailers(fields) => return Poll::Ready(Ok(Some(Frame::trailers(fields)))),
                Piece::End => return Poll::Ready(Ok(None)),
                Piece::NeedMore => {}
            }
            let read = match &mut self.connection {
                StreamingConnection::Unsplit(connection, _) => {
                    let conn = &mut connection.conn;
                    conn.read_buf.poll_read(&mut conn.stream, cx)
                }
                StreamingConnection::Split(reading, _) => reading.read_buf.poll_read(&mut reading.half, cx),
                StreamingConnection::Uploading(_) | StreamingConnection::Closed => {
                    return Poll::Ready(Ok(None));
                }
            };
            if ready!(read)? == 0 {
                let ended = self.decoder.ends_with_connection();
                return Poll::Ready(if ended { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) });
            }
        }
    }

    /// Releases the connection as soon as the last piece has been read, without another poll.
    fn finish_if_complete(&mut self) {
        if self.decoder.is_complete() {
            self.finish();
        }
    }

    fn finish(&mut self) {
        let source = std::mem::replace(&mut self.connection, StreamingConnection::Closed);
        match source {
            StreamingConnection::Unsplit(connection, pool) if self.keep_alive => {
                pool.return_connection(connection)
            }
            StreamingConnection::Split(reading, upload) if self.keep_alive => {
                self.connection = StreamingConnection::Uploading(upload.response_ended(reading));
            }
            // Polled again after its end.
            StreamingConnection::Uploading(_) => self.connection = source,
            StreamingConnection::Unsplit(..)
            | StreamingConnection::Split(..)
            | StreamingConnection::Closed => {}
        }
    }
}
