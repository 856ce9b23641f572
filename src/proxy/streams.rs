//! Limits inside streams: holds what a body or a tunnel transfers until the limits have room for it.

mod body;
mod tunnel;

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::CONTENT_TYPE;
use smallvec::SmallVec;
use tokio::time::Sleep;

pub(super) use self::body::BodyGate;
pub(super) use self::tunnel::LimitedStream;
use super::Worker;
use super::timeouts::RequestTimer;
use super::view::GenerationView;
use weir_http::headers::Headers;
use weir_http::messages::Framing;
use weir_limits::{LimitsView, StreamLimiter, StreamRoom};
use weir_policy::identify::Attributes;
use weir_policy::rules::stream_limit::StreamDirection;
use weir_policy::rules::streams::SelectedStream;

/// Time after which a stream that is held shows that it is not idle, and notices a reload.
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// The limits inside the stream of one request.
#[derive(Debug)]
pub(super) struct RequestStreams {
    worker: Rc<Worker>,
    timer: Rc<RequestTimer>,
    limits: Rc<LimitsView>,
    selected: SmallVec<[SelectedStream; 2]>,
    /// Whether the body of the request has messages.
    has_messages: bool,
    /// Limits on the body of the response.
    response: Option<BodyGate>,
}

/// Limits on one direction of a stream, and the timer of what they hold.
#[derive(Debug)]
pub(super) struct Gate {
    worker: Rc<Worker>,
    timer: Rc<RequestTimer>,
    /// Number of the request on its connection. The next one may begin before this stream has ended.
    request_number: u32,
    limits: Rc<LimitsView>,
    limiter: Box<StreamLimiter>,
    sleep: Option<Pin<Box<Sleep>>>,
}

/// Whether a body of this type has messages: of gRPC, of gRPC-Web, or of a stream of Connect. The messages of gRPC-Web as
/// text are encoded together, and cannot be told apart.
fn has_messages(content_type: &[u8]) -> bool {
    let begins = |prefix: &[u8]| {
        content_type.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    (begins(b"application/grpc") && !begins(b"application/grpc-web-text")) || begins(b"application/connect+")
}

impl RequestStreams {
    /// Returns the limits inside the stream of an admitted request; `None` if there are none.
    pub(super) fn select(
        worker: &Rc<Worker>,
        timer: &Rc<RequestTimer>,
        view: &GenerationView,
        attributes: &Attributes<'_>,
    ) -> Option<Box<Self>> {
        let selected = view.policy.rules.select_streams(attributes, worker.random());
        if selected.is_empty() {
            return None;
        }
        Some(Box::new(Self {
            worker: Rc::clone(worker),
            timer: Rc::clone(timer),
            limits: Rc::clone(&view.limits),
            selected,
            // A client that sends several types must not choose the one that has no messages.
            has_messages: attributes
                .headers
                .get_all(CONTENT_TYPE)
                .iter()
                .any(|content_type| has_messages(content_type.as_bytes())),
            response: None,
        }))
    }

    /// Returns the limits on the body of the request.
    pub(super) fn of_request(&self) -> Option<Box<BodyGate>> {
        let framing = self.has_messages.then_some(Framing::LengthPrefixed);
        Some(Box::new(BodyGate::new(self.gate(StreamDirection::Request, framing)?)))
    }

    /// Applies the limits to the body of the upstream's response, which has these headers.
    pub(super) fn limit_response(&mut self, headers: &Headers) {
        let content_type = headers.get(&CONTENT_TYPE).unwrap_or_default();
        let framing = has_messages(content_type).then_some(Framing::LengthPrefixedResponse);
        self.response = self.gate(StreamDirection::Response, framing).map(BodyGate::new);
    }

    /// Returns the limits on the body of the response.
    pub(super) const fn of_response(&self) -> Option<&BodyGate> {
        self.response.as_ref()
    }

    pub(super) const fn of_response_mut(&mut self) -> Option<&mut BodyGate> {
        self.response.as_mut()
    }

    fn gate(&self, direction: StreamDirection, framing: Option<Framing>) -> Option<Gate> {
        let limiter = StreamLimiter::new(&self.selected, direction, framing, &self.limits)?;
        Some(Gate {
            worker: Rc::clone(&self.worker),
            timer: Rc::clone(&self.timer),
            request_number: self.timer.number(),
            limits: Rc::clone(&self.limits),
            limiter,
            sleep: None,
        })
    }
}

impl Gate {
    /// Waits until some of `bytes` may pass on, and returns their number. They are all that have arrived and not passed on.
    fn poll_room(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<usize> {
        self.adopt_configuration();
        loop {
            if let Some(sleep) = &mut self.sleep {
                ready!(sleep.as_mut().poll(cx));
                self.sleep = None;
                self.limiter.refresh(&self.limits);
            }
            match self.limiter.room(bytes, &self.limits) {
                StreamRoom::Available(count) => return Poll::Ready(count),
                StreamRoom::After(wait) => self.sleep_for(wait),
            }
        }
    }

    /// Sleeps for a while. The limit holds the stream, and neither of its sides: it is not idle.
    fn sleep_for(&mut self, wait: Duration) {
        let mut longest = MAX_SLEEP;
        if self.timer.number() == self.request_number {
            self.timer.record_progress();
            longest = longest.min(self.timer.stream_idle_timeout() / 2);
        }
        self.sleep = Some(Box::pin(tokio::time::sleep(wait.min(longest))));
    }

    /// Applies the configuration in force. A stream may be open for days.
    fn adopt_configuration(&mut self) {
        let view = self.worker.view();
        if !Rc::ptr_eq(&view.limits, &self.limits) {
            self.limits = Rc::clone(&view.limits);
            self.limiter.reload(&self.limits);
            self.limiter.refresh(&self.limits);
        }
    }

    /// Whether it holds what has arrived.
    const fn holds(&self) -> bool {
        self.sleep.is_some()
    }

    fn passed(&mut self, count: usize) {
        self.limiter.passed(count);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.limiter.abandon(&self.limits);
    }
}
