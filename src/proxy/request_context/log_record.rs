//! Data of a request for the access log and spans, copied before the request is changed. Only created if either is
//! enabled.

use std::net::IpAddr;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, request};
use smallvec::SmallVec;

use super::RequestContext;
use crate::proxy::headers::X_REQUEST_ID;
use crate::proxy::view::GenerationView;
use weir_http::headers::FieldLines;
use weir_limits::{AppliedLimits, DecisionSummary};
use weir_policy::engine::Policy;
use weir_policy::identify::Attributes;
use weir_policy::identify::forwarded::X_FORWARDED_FOR;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::outcome::DecisionOutcome;
use weir_telemetry::access_log::AccessLog;
use weir_telemetry::spans::Tracer;
use weir_telemetry::spans::context::{TRACEPARENT, TraceContext};
use weir_upstream::endpoint::Endpoint;
use weir_upstream::outgoing::OutgoingRequest;

/// Initial capacity of the texts of a request, enough for most.
const TYPICAL_TEXTS_LENGTH: usize = 320;

#[derive(Debug)]
pub(in crate::proxy) struct LogRecord {
    /// The generation with which the request began: its rules and its access log.
    pub(in crate::proxy) view: Rc<GenerationView>,
    /// Whether the request is in the sample of the access log.
    pub(in crate::proxy) is_logged: bool,
    pub(in crate::proxy) method: Method,
    pub(in crate::proxy) protocol: Version,
    pub(in crate::proxy) texts: RecordedTexts,
    /// Headers that only a custom format contains, in the order of the format.
    pub(in crate::proxy) other_headers: Vec<Option<HeaderValue>>,
    pub(in crate::proxy) upstream: Option<Rc<Endpoint>>,
    pub(in crate::proxy) upstream_time: Option<Duration>,
    pub(in crate::proxy) decision: Option<LoggedDecision>,
    pub(in crate::proxy) client: Option<IpAddr>,
    /// Trace context, if the request gets a span.
    pub(in crate::proxy) trace: Option<Box<TraceContext>>,
    pub(in crate::proxy) route: Option<Box<str>>,
}

/// Texts of a request, in one allocation: the target, and the headers that most lines contain.
#[derive(Debug)]
pub(in crate::proxy) struct RecordedTexts {
    bytes: Vec<u8>,
    target: Range<u32>,
    authority: Option<Range<u32>>,
    user_agent: Option<Range<u32>>,
    forwarded_for: Option<Range<u32>>,
    request_id: Option<Range<u32>>,
}

/// What the rules decided.
#[derive(Debug)]
pub(in crate::proxy) struct LoggedDecision {
    pub(in crate::proxy) summary: DecisionSummary,
    /// Key of the request under the rule, as operators may see it.
    pub(in crate::proxy) key: Option<String>,
    /// Rules in shadow mode whose limits the request exceeds.
    pub(in crate::proxy) shadow_rules: SmallVec<[RuleIndex; 2]>,
}

/// Records how `limits` decided the request: rejected by `rejecting`, or admitted. Without `request`, its key in the log
/// is the one that was copied before the decision.
pub(in crate::proxy) fn record_decision(
    context: &mut RequestContext,
    limits: &AppliedLimits,
    rejecting: Option<RuleIndex>,
    request: Option<&Attributes<'_>>,
) {
    // A request that a rule exempts has no limits.
    let exempted = context.decision.unwrap_or(DecisionOutcome::Allowed);
    context.decision = Some(limits.outcome(rejecting).unwrap_or(exempted));
    let Some(log) = &mut context.log else { return };
    let Some(summary) = limits.summary(rejecting) else { return };
    let is_key_logged = log.access_log().is_some_and(AccessLog::shows_keys) && log.view.limits.shows_keys();
    let key = is_key_logged.then(|| match request {
        Some(request) => log.view.limits.key_text(summary.rule, request),
        None => limits.copied_key_text(summary.rule).map(str::to_owned),
    });
    let shadow_rules = limits.rules_in_shadow().collect();
    log.decision = Some(LoggedDecision { summary, key: key.flatten(), shadow_rules });
}

/// Starts the record of a request with this head, if it is logged or gets a span. Without a span, the trace context
/// that the upstream receives is returned.
pub(in crate::proxy) fn start_log(
    context: &mut RequestContext,
    head: &request::Parts,
    view: &Rc<GenerationView>,
) -> Option<TraceContext> {
    let worker = &context.connection.worker;
    let start_trace = |tracer: &Arc<Tracer>| tracer.start_trace(&head.headers, || worker.random());
    let (sampled, unsampled) = match view.tracer.as_ref().and_then(start_trace) {
        Some(trace) if trace.is_sampled => (Some(Box::new(trace)), None),
        unsampled => (None, unsampled),
    };
    let is_logged = view.access_log.as_ref().is_some_and(|log| log.is_sampled(|| worker.random() as u64));
    if is_logged || sampled.is_some() {
        context.log = Some(LogRecord::new(head, view, is_logged, sampled));
    }
    unsampled
}

/// Passes the trace context on to the upstream: that of the request's span, or `unsampled`.
pub(in crate::proxy) fn propagate_trace(
    context: &RequestContext,
    unsampled: Option<&TraceContext>,
    request: &mut OutgoingRequest,
) {
    let span = context.log.as_ref().and_then(|log| log.trace.as_deref());
    match span.or(unsampled) {
        // Written as raw bytes, because the request has no header to be replaced.
        Some(trace) if trace.starts_trace() => {
            request.added_headers.push(TRACEPARENT.as_str().as_bytes(), &trace.traceparent());
        }
        Some(trace) => trace.write_headers(&mut request.head.headers),
        None => {}
    }
}

impl RecordedTexts {
    fn new(target: &Uri) -> Self {
        let mut texts = Self {
            bytes: Vec::with_capacity(TYPICAL_TEXTS_LENGTH),
            target: 0..0,
            authority: None,
            user_agent: None,
            forwarded_for: None,
            request_id: None,
        };
        texts.target = match target.path_and_query() {
            Some(target) => texts.push(target.as_str().as_bytes()),
            None => texts.push(target.to_string().as_bytes()),
        };
        texts
    }

    fn push(&mut self, text: &[u8]) -> Range<u32> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(text);
        position(start)..position(self.bytes.len())
    }

    fn get(&self, range: &Range<u32>) -> &[u8] {
        self.bytes.get(range.start as usize..range.end as usize).unwrap_or_default()
    }

    pub(in crate::proxy) fn target(&self) -> &str {
        // It was a text when it was recorded.
        std::str::from_utf8(self.get(&self.target)).unwrap_or_default()
    }

    pub(in crate::proxy) fn authority(&self) -> Option<&[u8]> {
        self.authority.as_ref().map(|range| self.get(range))
    }

    pub(in crate::proxy) fn user_agent(&self) -> Option<&[u8]> {
        self.user_agent.as_ref().map(|range| self.get(range))
    }

    /// Returns the X-Forwarded-For that the upstream receives.
    pub(in crate::proxy) fn forwarded_for(&self) -> Option<&[u8]> {
        self.forwarded_for.as_ref().map(|range| self.get(range))
    }

    /// Returns the X-Request-Id that the upstream receives.
    pub(in crate::proxy) fn request_id(&self) -> Option<&[u8]> {
        self.request_id.as_ref().map(|range| self.get(range))
    }
}

fn position(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl LogRecord {
    fn new(
        head: &request::Parts,
        view: &Rc<GenerationView>,
        is_logged: bool,
        trace: Option<Box<TraceContext>>,
    ) -> Box<Self> {
        Box::new(Self {
            view: Rc::clone(view),
            is_logged,
            method: head.method.clone(),
            protocol: head.version,
            texts: RecordedTexts::new(&head.uri),
            other_headers: Vec::new(),
            upstream: None,
            upstream_time: None,
            decision: None,
            client: None,
            trace,
            route: None,
        })
    }

    /// Copies the headers that the upstream receives: `added` ones have precedence over others.
    pub(in crate::proxy) fn copy_headers(&mut self, headers: &HeaderMap, added: &FieldLines) {
        let find =
            |name: &HeaderName| added.get(name).or_else(|| headers.get(name).map(HeaderValue::as_bytes));
        let texts = &mut self.texts;
        texts.authority = headers.get(HOST).map(|value| texts.push(value.as_bytes()));
        texts.user_agent = headers.get(USER_AGENT).map(|value| texts.push(value.as_bytes()));
        texts.forwarded_for = find(&X_FORWARDED_FOR).map(|value| texts.push(value));
        texts.request_id = find(&X_REQUEST_ID).map(|value| texts.push(value));
        if let Some(log) = self.access_log() {
            let copy = |name| find(name).and_then(|value| HeaderValue::from_bytes(value).ok());
            self.other_headers = log.other_headers().iter().map(copy).collect();
        }
    }

    /// Returns the access log to which the request is written.
    pub(in crate::proxy) fn access_log(&self) -> Option<&AccessLog> {
        self.view.access_log.as_ref().filter(|_| self.is_logged)
    }

    /// Records what a rule decided without a limit.
    pub(in crate::proxy) fn set_decision(&mut self, summary: DecisionSummary) {
        self.decision = Some(LoggedDecision { summary, key: None, shadow_rules: SmallVec::new() });
    }

    /// Sets the route of a span to that of the first rule that has one.
    pub(in crate::proxy) fn set_route(
        &mut self,
        policy: &Policy,
        mut rules: impl Iterator<Item = RuleIndex>,
        request: &Attributes<'_>,
    ) {
        if self.trace.is_none() {
            return;
        }
        self.route = rules.find_map(|rule| {
            let route = policy.rules.get(rule)?.applies_to(request).route()?;
            (!route.0.is_empty()).then(|| route.0.into())
        });
    }
}
