//! The body of an answer, read as it is asked for.

use std::io;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame};

use super::connection::Connection;
use super::rejoin::{self, Reading, Rejoin, UploadTask};
use crate::http1::client::upload::Upload;
use crate::http1::decoder::{Decoder, Piece};
use crate::upstream::in_flight::InFlight;
use crate::upstream::pool::Pool;

/// A body that is still to be read, and the connection it comes by.
#[derive(Debug)]
pub(in crate::upstream) struct Streaming {
    source: Source,
    length: Decoder,
    /// Whether the connection can be used again afterwards.
    keeps: bool,
}

#[derive(Debug)]
enum Source {
    /// The request is out.
    Whole(Box<Connection>, Rc<Pool>),
    /// The request is still being sent.
    Parted(Reading, UploadTask),
    /// All of the answer is here, and the request may still be being sent.
    Uploading(Weak<Rejoin>),
    /// The connection is gone.
    Gone,
}

impl Streaming {
    /// The body that is to be read from `connection`.
    pub(in crate::upstream) fn new<B>(
        mut connection: Box<Connection>,
        upload: Upload<B>,
        length: Decoder,
        keeps: bool,
        pool: &Rc<Pool>,
    ) -> Self
    where
        B: Body<Data = Bytes> + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let pool = Rc::clone(pool);
        if let Some(octets) = length.left() {
            connection
                .conn
                .read_buf
                .expect(octets.saturating_sub(connection.conn.read_buf.bytes.len() as u64));
        }
        let source = if upload.is_over() {
            connection.conn.buffer = upload.into_buffer();
            Source::Whole(connection, pool)
        } else {
            let (reading, upload) = rejoin::part(*connection, upload, pool);
            Source::Parted(reading, upload)
        };
        let mut streaming = Self { source, length, keeps };
        streaming.settle();
        streaming
    }

    /// The next frame.
    ///
    /// # Errors
    /// If the connection fails or ends before the body, or the body's grammar is broken.
    pub(in crate::upstream) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let polled = ready!(self.poll_piece(cx));
        match polled {
            Ok(Some(_)) => self.settle(),
            Ok(None) => self.end(),
            Err(_) => self.source = Source::Gone,
        }
        Poll::Ready(polled.transpose())
    }

    /// Where the body ends.
    pub(in crate::upstream) fn length(&self) -> &Decoder {
        &self.length
    }

    /// Keeps `held` as long as the request is still being sent; gives it back where all of it is out.
    pub(in crate::upstream) fn hold(&self, held: InFlight) -> Option<InFlight> {
        match self.uploading() {
            Some(rejoin) => {
                rejoin.hold(held);
                None
            }
            None => Some(held),
        }
    }

    /// Whether the request may still be being sent, or has been until the answer ended.
    pub(in crate::upstream) fn is_uploading(&self) -> bool {
        self.uploading().is_some()
    }

    fn uploading(&self) -> Option<Rc<Rejoin>> {
        match &self.source {
            Source::Parted(_, upload) => upload.rejoin().upgrade(),
            Source::Uploading(rejoin) => rejoin.upgrade(),
            Source::Whole(..) | Source::Gone => None,
        }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Frame<Bytes>>>> {
        loop {
            let read_buf = match &mut self.source {
                Source::Whole(connection, _) => &mut connection.conn.read_buf,
                Source::Parted(reading, _) => &mut reading.read_buf,
                Source::Uploading(_) | Source::Gone => return Poll::Ready(Ok(None)),
            };
            match self.length.decode(&mut read_buf.bytes)? {
                Piece::Data(data) => return Poll::Ready(Ok(Some(Frame::data(data)))),
                Piece::Trailers(fields) => return Poll::Ready(Ok(Some(Frame::trailers(fields)))),
                Piece::End => return Poll::Ready(Ok(None)),
                Piece::More => {}
            }
            let read = match &mut self.source {
                Source::Whole(connection, _) => {
                    let conn = &mut connection.conn;
                    conn.read_buf.poll_read(&mut conn.stream, cx)
                }
                Source::Parted(reading, _) => reading.read_buf.poll_read(&mut reading.half, cx),
                Source::Uploading(_) | Source::Gone => return Poll::Ready(Ok(None)),
            };
            if ready!(read)? == 0 {
                let ended = self.length.ends_with_connection();
                return Poll::Ready(if ended { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) });
            }
        }
    }

    /// Lets go of the connection as soon as the last piece is read, before anybody asks for more.
    fn settle(&mut self) {
        if self.length.is_over() {
            self.end();
        }
    }

    fn end(&mut self) {
        let source = std::mem::replace(&mut self.source, Source::Gone);
        match source {
            Source::Whole(connection, pool) if self.keeps => pool.give_back(connection),
            Source::Parted(reading, upload) if self.keeps => {
                self.source = Source::Uploading(upload.answered(reading));
            }
            // Asked for again after its end.
            Source::Uploading(_) => self.source = source,
            Source::Whole(..) | Source::Parted(..) | Source::Gone => {}
        }
    }
}
