//! `GET /events`: server-sent events with the last two minutes of the process, and a snapshot of it every second.
//!
//! All streams share the task that samples the process, which builds the snapshot once if there is a stream. A client
//! that does not keep up loses its stream: its queue is short, and nothing waits for it.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

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
use super::recent::{INTERVAL, Sample};
use super::response::{self, FullResponse};
use super::snapshot::snapshot;
use weir_net::drain::DrainPhase;

/// Maximum number of streams.
const MAX_STREAMS: usize = 16;
/// Maximum number of events that wait for a client.
const MAX_QUEUED_EVENTS: usize = 4;
/// Begins every stream: the time in milliseconds after which a browser reconnects. The last two minutes and a snapshot
/// follow.
const GREETING: &str = "retry: 1000\n\n";

/// The queues of the open streams.
#[derive(Debug, Default)]
pub struct EventHub(Mutex<Vec<Sender<Bytes>>>);

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
        return response::json(&snapshot(state, &Sample::now(state)));
    }
    let mut response = response::event_stream();
    response.extensions_mut().insert(StreamRequested);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Attaches a stream to a response that asks for one.
pub(super) fn with_stream(mut response: FullResponse, state: &AdminState) -> Response<AdminBody> {
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

/// Opens a stream; `None` if there are too many.
fn open(state: &AdminState) -> Option<EventStream> {
    let (sender, queue) = mpsc::channel(MAX_QUEUED_EVENTS);
    {
        let mut queues = state.events.0.lock();
        queues.retain(|queue| !queue.is_closed());
        if queues.len() >= MAX_STREAMS {
            return None;
        }
        queues.push(sender);
    }
    let (history, now) = (state.recent.history(), snapshot(state, &Sample::now(state)));
    let greeting = format!("{GREETING}event: history\ndata: {history}\n\nevent: snapshot\ndata: {now}\n\n");
    Some(EventStream { greeting: Some(greeting.into()), queue })
}

/// Rejects the request of a web page of another origin, which could take all streams. Such a page cannot read a stream,
/// but its browser would open it (Fetch Metadata, `Sec-Fetch-Site`). Programs do not send the header.
pub(super) fn check_site<B>(request: &Request<B>) -> Option<FullResponse> {
    let rejected = "requests of web pages of another origin are rejected\n";
    (!is_own_site(request)).then(|| response::text(StatusCode::FORBIDDEN, rejected))
}

/// Samples the process every second until it ends, and sends a snapshot to the open streams.
pub async fn run(state: Arc<AdminState>) {
    let _ending = StreamsGuard(Arc::clone(&state));
    let ended = state.drain.wait_for_phase(DrainPhase::Terminated);
    tokio::pin!(ended);
    state.recent.add(Sample::at_start(&state));
    let mut ticks = interval(INTERVAL);
    ticks.reset();
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = &mut ended => return,
            _ = ticks.tick() => {}
        }
        let sample = Sample::now(&state);
        // A snapshot that panics ends the streams, and not the samples.
        if catch_unwind(AssertUnwindSafe(|| publish(&state, &sample))).is_err() {
            tracing::error!("the snapshot for the streams of events panicked");
            state.events.0.lock().clear();
        }
        state.recent.add(sample);
    }
}

/// Ends the streams together with the task that serves them.
struct StreamsGuard(Arc<AdminState>);

impl Drop for StreamsGuard {
    fn drop(&mut self) {
        self.0.events.0.lock().clear();
    }
}

/// Sends a snapshot to the open streams, if there are any.
fn publish(state: &AdminState, sample: &Sample) {
    if state.events.0.lock().is_empty() {
        return;
    }
    let event = Bytes::from(format!("event: snapshot\ndata: {}\n\n", snapshot(state, sample)));
    // A full queue belongs to a client that does not read.
    state.events.0.lock().retain(|queue| queue.try_send(event.clone()).is_ok());
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
