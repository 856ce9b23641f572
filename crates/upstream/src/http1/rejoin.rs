//! Connections whose response begins before the request has been sent.
//!
//! Neither direction may then wait for the other: a client may send its whole request before it reads the response, or
//! the other way round. So a separate task sends the rest of the request. When both directions have ended cleanly, the
//! halves are reunited and the connection is reused.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};

use tokio::io::AsyncWrite as _;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::connection::{Http1Connection, Http1ConnectionGuard};
use crate::halves::TransportHalf;
use crate::http1_pool::Http1Pool;
use crate::in_flight::InFlightRequest;
use weir_http::http1::client::conn::ClientConn;
use weir_http::http1::client::upload::Http1Upload;
use weir_http::http1::read_buf::ReadBuf;
use weir_http::message_body::MessageBody;

/// The half that reads the response.
#[derive(Debug)]
pub(super) struct ReadHalf {
    pub(super) half: TransportHalf,
    pub(super) read_buf: ReadBuf,
    guard: Http1ConnectionGuard,
}

/// An upload that continues beside a response. Dropping it before the end of the response aborts the upload.
#[derive(Debug)]
pub(super) struct UploadTask {
    sending: Option<JoinHandle<()>>,
    rejoin: Rc<Rejoin>,
}

/// Meeting point of the two halves: the one that ends first is stored for the other.
#[derive(Debug)]
pub(super) struct Rejoin {
    state: RefCell<RejoinState>,
    pool: Rc<Http1Pool>,
    /// The request is in flight until both halves have ended: an early response does not free the connection.
    in_flight: RefCell<Option<InFlightRequest>>,
}

#[derive(Debug)]
enum RejoinState {
    Pending,
    RequestEnded(TransportHalf),
    ResponseEnded(ReadHalf),
    /// The request could not be sent completely.
    Broken,
}

/// Starts a task that sends the rest of a request.
pub(super) fn split<B>(
    connection: Http1Connection,
    mut upload: Http1Upload<B>,
    pool: Rc<Http1Pool>,
) -> (ReadHalf, UploadTask)
where
    B: MessageBody + 'static,
{
    let Http1Connection { conn: ClientConn { stream, read_buf }, guard: open } = connection;
    let (read, mut write) = TransportHalf::split(stream);
    let rejoin =
        Rc::new(Rejoin { state: RefCell::new(RejoinState::Pending), pool, in_flight: RefCell::default() });
    let shared = Rc::clone(&rejoin);
    let sending = tokio::task::spawn_local(async move {
        if send(&mut upload, &mut write, &shared).await {
            shared.request_ended(write);
            return;
        }
        // The shutdown signals the end of the request to the upstream, which may continue its response.
        let mut told = pin!(poll_fn(|cx| Pin::new(&mut write).poll_shutdown(cx)));
        while timeout(shared.pool.max_idle_time(), &mut told).await.is_err() && !shared.has_response_ended() {
        }
        *shared.state.borrow_mut() = RejoinState::Broken;
    });
    (ReadHalf { half: read, read_buf, guard: open }, UploadTask { sending: Some(sending), rejoin })
}

/// Sends the rest of the request; returns whether that succeeded. Until the end of the response, its reader also
/// supervises the upload. After that, an upload without progress for the idle timeout is abandoned, whether the
/// upstream or the client causes the stall.
async fn send<B>(upload: &mut Http1Upload<B>, write: &mut TransportHalf, rejoin: &Rejoin) -> bool
where
    B: MessageBody,
{
    loop {
        let (is_alone, out) = (rejoin.has_response_ended(), upload.bytes_written());
        match timeout(rejoin.pool.max_idle_time(), poll_fn(|cx| upload.poll(write, cx))).await {
            Ok(sent) => return sent.is_ok(),
            Err(_) if is_alone && upload.bytes_written() == out => return false,
            Err(_) => {}
        }
    }
}

impl UploadTask {
    /// Records the end of the response. The connection is returned to the pool when the request has ended too.
    pub(super) fn response_ended(mut self, reading: ReadHalf) -> Weak<Rejoin> {
        // From now on dropping the body does not abort the upload.
        self.sending = None;
        self.rejoin.response_ended(reading);
        Rc::downgrade(&self.rejoin)
    }

    /// Returns the meeting point of both halves.
    pub(super) fn rejoin(&self) -> Weak<Rejoin> {
        Rc::downgrade(&self.rejoin)
    }
}

impl Drop for UploadTask {
    fn drop(&mut self) {
        if let Some(sending) = &self.sending {
            sending.abort();
        }
    }
}

impl Rejoin {
    /// Holds `held` until both halves have ended.
    pub(super) fn hold_in_flight(&self, held: InFlightRequest) {
        self.in_flight.replace(Some(held));
    }

    /// Whether the response has ended, and its half waits.
    fn has_response_ended(&self) -> bool {
        matches!(*self.state.borrow(), RejoinState::ResponseEnded(_))
    }

    fn request_ended(&self, writing: TransportHalf) {
        match self.state.replace(RejoinState::Broken) {
            RejoinState::ResponseEnded(reading) => self.reunite(reading, writing),
            RejoinState::Pending => *self.state.borrow_mut() = RejoinState::RequestEnded(writing),
            RejoinState::RequestEnded(_) | RejoinState::Broken => {}
        }
    }

    fn response_ended(&self, reading: ReadHalf) {
        match self.state.replace(RejoinState::Broken) {
            RejoinState::RequestEnded(writing) => self.reunite(reading, writing),
            RejoinState::Pending => *self.state.borrow_mut() = RejoinState::ResponseEnded(reading),
            RejoinState::ResponseEnded(_) | RejoinState::Broken => {}
        }
    }

    fn reunite(&self, reading: ReadHalf, writing: TransportHalf) {
        let ReadHalf { half, read_buf, guard: open } = reading;
        // Both halves are of the same connection, so this cannot fail.
        if let Some(stream) = half.reunite(writing) {
            self.pool.return_connection(Box::new(Http1Connection {
                conn: ClientConn { stream, read_buf },
                guard: open,
            }));
        }
    }
}
