//! One client's connection, whatever it speaks: HTTP/1.1 or HTTP/2, until either side has had enough.

mod http1;
mod http2;
mod opening;

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use http::{HeaderValue, Version};
use hyper_util::rt::TokioIo;

use self::opening::Opening;
use super::Worker;
use super::activity::Activity;
use super::headers;
use super::stream::Downstream;
use super::tunnel::Switched;
use crate::listener::Accepted;

/// A request's head may take this much (Envoy's default); above it the answer is 431.
const LARGEST_HEAD: u32 = 60 * 1024;
/// What a connection may buffer of what it reads and of what it writes.
const BUFFER: usize = 64 * 1024;

/// What all requests of a connection share. It counts as open as long as one of them needs it.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) worker: Rc<Worker>,
    pub(super) listener: usize,
    pub(super) peer: IpAddr,
    pub(super) peer_text: HeaderValue,
    activity: Rc<Activity>,
    /// The notes of the stream opened last, until its task has them.
    newest: RefCell<Option<Rc<Activity>>>,
    /// What the connection is to become when its last answer is out.
    switched: RefCell<Option<Switched>>,
}

impl Connection {
    fn new(worker: Rc<Worker>, listener: usize, activity: Rc<Activity>, peer: IpAddr) -> Self {
        worker.metrics.downstream_connection_opened(listener);
        let peer_text = headers::address(peer);
        Self {
            worker,
            listener,
            peer,
            peer_text,
            activity,
            newest: RefCell::default(),
            switched: RefCell::default(),
        }
    }

    /// The notes for another exchange: the connection's, or where several go on at once, those of its stream.
    pub(super) fn begin_exchange(&self, version: Version) -> Rc<Activity> {
        if version != Version::HTTP_2 {
            return Rc::clone(&self.activity);
        }
        let stream = self.activity.open_stream();
        self.newest.replace(Some(Rc::clone(&stream)));
        stream
    }
}

impl Connection {
    /// The answer under way is the last of HTTP.
    pub(super) fn switch(&self, switched: Switched) {
        self.switched.replace(Some(switched));
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.worker.metrics.downstream_connection_closed(self.listener);
    }
}

/// Serves a connection to its end.
pub(super) async fn serve(worker: Rc<Worker>, listener: usize, activity: Rc<Activity>, accepted: Accepted) {
    accepted.stream.set_nodelay();
    let peer = accepted.peer.ip().to_canonical();
    let connection = Rc::new(Connection::new(worker, listener, Rc::clone(&activity), peer));
    let mut stream = Downstream::new(accepted.stream, Rc::clone(&activity));
    match opening::read(&mut stream, &activity).await {
        Opening::Http1 => http1::serve(connection, TokioIo::new(stream)).await,
        Opening::Http2 => http2::serve(connection, TokioIo::new(stream)).await,
        Opening::TimedOut => http1::time_out(&connection, &mut stream),
        Opening::Unused => {}
    }
}
