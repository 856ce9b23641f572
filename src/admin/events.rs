//! `GET /events`: server-sent events with the last two minutes of the process, and a snapshot of it every second.
//!
//! All streams share one task, which builds the snapshot once and runs only while there is a stream. A client that does
//! not keep up loses its stream: its queue is short, and nothing waits for it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::{MissedTickBehavior, interval};

use super::AdminState;
use super::authorization::is_own_site;
use super::query::Query;
use super::response::{self, FullResponse};
use super::snapshot::snapshot;
use crate::drain::DrainPhase;

/// Maximum number of streams.
const MAX_STREAMS: usize = 16;
/// Maximum number of events that wait for a client.
const MAX_QUEUED_EVENTS: usize = 4;
/// Time between two events.
const INTERVAL: Duration = Duration::from_secs(1);
/// Begins every stream: the time in milliseconds after which a browser reconnects. The last two minutes follow.
const GREETING: &str = "retry: 1000\n\n";

/// The open streams.
#[derive(Debug, Default)]
pub struct EventHub(Mutex<OpenStreams>);

#[derive(Debug, Default)]
struct OpenStreams {
    queues: Vec<Sender<Bytes>>,
    /// Whether the task that builds snapshots runs.
    is_publishing: bool,
}

/// Marks a response that is to be completed with a stream.
#[derive(Clone, Copy, Debug)]
struct StreamRequested;

/// Body of a response of the admin interface.
#[derive(Debug)]
pub(super) enum AdminBody {
    Full(Full<Bytes>),
    Events(EventStream),
}

/// Events as a body, until the queue's sender is dropped.
#[derive(Debug)]
pub(super) struct EventStream {
    greeting: Option<Bytes>,
    queue: Receiver<Bytes>,
}

/// `GET /events[?once]`
pub(super) fn events(state: &AdminState, query: &Query<'_>) -> FullResponse {
    if query.get("once").is_some() {
        return response::json(&snapshot(state));
    }
    let mut response = response::event_stream();
    response.extensions_mut().insert(StreamRequested);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Attaches a stream to a response that asks for one.
pub(super) fn with_stream(mut response: FullResponse, state: &Arc<AdminState>) -> Response<AdminBody> {
    if response.extensions_mut().remove::<StreamRequested>().is_none() {
        return response.map(AdminBody::Full);
    }
    match open(state) {
        Some(stream) => response.map(|_| AdminBody::Events(stream)),
        None => {
            let problem = format!("there are {MAX_STREAMS} streams already\n");
            response::text(StatusCode::SERVICE_UNAVAILABLE, problem).map(AdminBody::Full)
        }
    }
}

/// Opens a stream, and starts the task that serves it; `None` if there are too many.
fn open(state: &Arc<AdminState>) -> Option<EventStream> {
    let mut streams = state.events.0.lock();
    streams.queues.retain(|queue| !queue.is_closed());
    if streams.queues.len() >= MAX_STREAMS {
        return None;
    }
    let (sender, queue) = mpsc::channel(MAX_QUEUED_EVENTS);
    streams.queues.push(sender);
    if !std::mem::replace(&mut streams.is_publishing, true) {
        tokio::spawn(publish(Publisher { state: Arc::clone(state), has_ended: false }));
    }
    let greeting = format!("{GREETING}event: history\ndata: {}\n\n", state.recent.history());
    Some(EventStream { greeting: Some(greeting.into()), queue })
}

/// Rejects the request of a web page of another origin, which could take all streams. Such a page cannot read a stream,
/// but its browser would open it (Fetch Metadata, `Sec-Fetch-Site`). Programs do not send the header.
pub(super) fn check_site<B>(request: &Request<B>) -> Option<FullResponse> {
    let rejected = "requests of web pages of another origin are rejected\n";
    (!is_own_site(request)).then(|| response::text(StatusCode::FORBIDDEN, rejected))
}

/// The running task. If it ends while there are streams, also by a panic, they end with it.
struct Publisher {
    state: Arc<AdminState>,
    /// Whether it has ended because there was no stream.
    has_ended: bool,
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if !self.has_ended {
            *self.state.events.0.lock() = OpenStreams::default();
        }
    }
}

/// Sends an event every second until there is no stream, or the process ends.
async fn publish(mut publisher: Publisher) {
    let state = Arc::clone(&publisher.state);
    let ended = state.drain.wait_for_phase(DrainPhase::Terminated);
    tokio::pin!(ended);
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = &mut ended => return,
            _ = ticks.tick() => {}
        }
        let event = Bytes::from(format!("event: snapshot\ndata: {}\n\n", snapshot(&state)));
        let mut streams = state.events.0.lock();
        // A full queue belongs to a client that does not read.
        streams.queues.retain(|queue| queue.try_send(event.clone()).is_ok());
        if streams.queues.is_empty() {
            // Under the lock, so that a stream that opens now starts another task.
            streams.is_publishing = false;
            publisher.has_ended = true;
            return;
        }
    }
}

impl From<Full<Bytes>> for AdminBody {
    fn from(body: Full<Bytes>) -> Self {
        Self::Full(body)
    }
}

impl Body for AdminBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Full(body) => Pin::new(body).poll_frame(cx),
            Self::Events(stream) => match stream.greeting.take() {
                Some(greeting) => Poll::Ready(Some(Ok(Frame::data(greeting)))),
                None => stream.queue.poll_recv(cx).map(|event| Some(Ok(Frame::data(event?)))),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(body) => body.is_end_stream(),
            Self::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(body) => body.size_hint(),
            Self::Events(_) => SizeHint::default(),
        }
    }
}
