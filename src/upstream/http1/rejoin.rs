//! A connection whose answer has begun before its request has ended.
//!
//! Then neither may wait for the other: a client may send all of its request before it reads a byte of the
//! answer, or the other way round. So the rest of the request gets a task of its own. What is left when both have
//! ended cleanly is a connection like any other.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};

use bytes::Bytes;
use hyper::body::Body;
use tokio::io::AsyncWrite as _;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::connection::{Connection, Open};
use crate::http1::client::conn::Conn;
use crate::http1::client::upload::Upload;
use crate::http1::read_buf::ReadBuf;
use crate::upstream::halves::Half;
use crate::upstream::in_flight::InFlight;
use crate::upstream::pool::Pool;

/// The half that reads the answer.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) half: Half,
    pub(super) read_buf: ReadBuf,
    open: Open,
}

/// The half that sends the request.
#[derive(Debug)]
struct Writing {
    half: Half,
    buffer: Vec<u8>,
}

/// The upload that goes on beside an answer. Dropped before the answer has ended, it is broken off.
#[derive(Debug)]
pub(super) struct UploadTask {
    sending: Option<JoinHandle<()>>,
    rejoin: Rc<Rejoin>,
}

/// Where the half that ends first waits for the other.
#[derive(Debug)]
pub(super) struct Rejoin {
    arrived: RefCell<RejoinState>,
    pool: Rc<Pool>,
    /// The request is in flight until both halves have ended: a response that comes early does not free the connection.
    held: RefCell<Option<InFlight>>,
}

#[derive(Debug)]
enum RejoinState {
    Pending,
    Sent(Writing),
    Answered(Reading),
    /// The request could not be sent to its end.
    Broken,
}

/// Lets the rest of a request go on by itself.
pub(super) fn part<B>(connection: Connection, mut upload: Upload<B>, pool: Rc<Pool>) -> (Reading, UploadTask)
where
    B: Body<Data = Bytes> + Unpin + 'static,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let Connection { conn: Conn { stream, read_buf, buffer: _ }, open } = connection;
    let (read, mut write) = Half::split(stream);
    let rejoin =
        Rc::new(Rejoin { arrived: RefCell::new(RejoinState::Pending), pool, held: RefCell::default() });
    let shared = Rc::clone(&rejoin);
    let sending = tokio::task::spawn_local(async move {
        if send(&mut upload, &mut write, &shared).await {
            shared.sent(Writing { half: write, buffer: upload.into_buffer() });
            return;
        }
        // The upstream is told that no more will come, and may go on with its answer.
        let mut told = pin!(poll_fn(|cx| Pin::new(&mut write).poll_shutdown(cx)));
        while timeout(shared.pool.keep_for(), &mut told).await.is_err() && !shared.is_answered() {}
        *shared.arrived.borrow_mut() = RejoinState::Broken;
    });
    (Reading { half: read, read_buf, open }, UploadTask { sending: Some(sending), rejoin })
}

/// Sends what is left; whether it could. While the answer is under way, whoever reads it watches over the upload, too.
/// Afterwards nobody does, and an upload of which nothing goes out for as long as a connection may stay unused, for want
/// of a reader or a sender, is given up.
async fn send<B>(upload: &mut Upload<B>, write: &mut Half, rejoin: &Rejoin) -> bool
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    loop {
        let (is_alone, out) = (rejoin.is_answered(), upload.out());
        match timeout(rejoin.pool.keep_for(), poll_fn(|cx| upload.poll(write, cx))).await {
            Ok(sent) => return sent.is_ok(),
            Err(_) if is_alone && upload.out() == out => return false,
            Err(_) => {}
        }
    }
}

impl UploadTask {
    /// The answer has ended; the connection is given back when the request has, too. Where they meet.
    pub(super) fn answered(mut self, reading: Reading) -> Weak<Rejoin> {
        // From now on the upload has only itself and its client to end it.
        self.sending = None;
        self.rejoin.answered(reading);
        Rc::downgrade(&self.rejoin)
    }

    /// Where both halves meet.
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
    /// Keeps `held` until both halves have ended.
    pub(super) fn hold(&self, held: InFlight) {
        self.held.replace(Some(held));
    }

    /// Whether the answer has ended, and its half waits.
    fn is_answered(&self) -> bool {
        matches!(*self.arrived.borrow(), RejoinState::Answered(_))
    }

    fn sent(&self, writing: Writing) {
        match self.arrived.replace(RejoinState::Broken) {
            RejoinState::Answered(reading) => self.meet(reading, writing),
            RejoinState::Pending => *self.arrived.borrow_mut() = RejoinState::Sent(writing),
            RejoinState::Sent(_) | RejoinState::Broken => {}
        }
    }

    fn answered(&self, reading: Reading) {
        match self.arrived.replace(RejoinState::Broken) {
            RejoinState::Sent(writing) => self.meet(reading, writing),
            RejoinState::Pending => *self.arrived.borrow_mut() = RejoinState::Answered(reading),
            RejoinState::Answered(_) | RejoinState::Broken => {}
        }
    }

    fn meet(&self, reading: Reading, writing: Writing) {
        let Reading { half, read_buf, open } = reading;
        // They are of one connection, so they fit.
        if let Some(stream) = half.reunite(writing.half) {
            self.pool.give_back(Box::new(Connection {
                conn: Conn { stream, read_buf, buffer: writing.buffer },
                open,
            }));
        }
    }
}
