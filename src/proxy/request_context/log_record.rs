//! Data of a request for the access log and spans, copied before the request is changed. Only created if either is
//! enabled.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version, request};
use smallvec::SmallVec;

use super::RequestContext;
use crate::engine::Policy;
use crate::identify::Attributes;
use crate::identify::forwarded::X_FORWARDED_FOR;
use crate::limits::{AppliedLimits, DecisionSummary};
use crate::proxy::headers::X_REQUEST_ID;
use crate::proxy::view::GenerationView;
use crate::rules::RuleIndex;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::spans::Tracer;
use crate::telemetry::spans::context::TraceContext;

#[derive(Debug)]
pub(in crate::proxy) struct LogRecord {
    /// The generation with which the request began: its rules and its access log.
    pub(in crate::proxy) view: Rc<GenerationView>,
    /// Whether the request is in the sample of the access log.
    pub(in crate::proxy) is_logged: bool,
    pub(in crate::proxy) method: Method,
    pub(in crate::proxy) target: String,
    pub(in crate::proxy) protocol: Version,
    pub(in crate::proxy) authority: Option<HeaderValue>,
    pub(in crate::proxy) user_agent: Option<HeaderValue>,
    pub(in crate::proxy) forwarded_for: Option<HeaderValue>,
    pub(in crate::proxy) request_id: Option<HeaderValue>,
    /// Headers that only a custom format contains, in the order of the format.
    pub(in crate::proxy) other_headers: Vec<Option<HeaderValue>>,
    pub(in crate::proxy) upstream: Option<Box<str>>,
    pub(in crate::proxy) upstream_time: Option<Duration>,
    pub(in crate::proxy) decision: Option<LoggedDecision>,
    pub(in crate::proxy) client: Option<IpAddr>,
    /// Trace context, unless the tracer does not sample the request.
    pub(in crate::proxy) trace: Option<Box<TraceContext>>,
    pub(in crate::proxy) route: Option<Box<str>>,
}

/// What the rules decided.
#[derive(Debug)]
pub(in crate::proxy) struct LoggedDecision {
    pub(in crate::proxy) summary: DecisionSummary,
    /// Key of the request under the rule, as operators may see it.
    pub(in crate::proxy) key: Option<Box<str>>,
    /// Rules in shadow mode whose limits the request exceeds.
    pub(in crate::proxy) shadow_rules: SmallVec<[RuleIndex; 2]>,
}

/// Records for the log how `limits` decided the request: rejected by `rejecting`, or admitted. Without `request`, its
/// key is the one that was copied before the decision.
pub(in crate::proxy) fn log_decision(
    context: &mut RequestContext,
    limits: &AppliedLimits,
    rejecting: Option<RuleIndex>,
    request: Option<&Attributes<'_>>,
) {
    let Some(log) = &mut context.log else { return };
    let Some(summary) = limits.summary(rejecting) else { return };
    let is_key_logged = log.is_logged && log.view.limits.shows_keys();
    let key = is_key_logged.then(|| match request {
        Some(request) => log.view.limits.key_text(summary.rule, request).map(String::into_boxed_str),
        None => limits.copied_key_text(summary.rule).map(Box::from),
    });
    let shadow_rules = limits.rules_in_shadow().collect();
    log.decision = Some(LoggedDecision { summary, key: key.flatten(), shadow_rules });
}

impl LogRecord {
    /// Creates the record of a request with this head; `None` if it is neither logged nor traced.
    pub(in crate::proxy) fn new(
        head: &request::Parts,
        view: &Rc<GenerationView>,
        tracer: Option<&Tracer>,
        random: impl Fn() -> u128,
    ) -> Option<Box<Self>> {
        let trace = tracer.and_then(|tracer| tracer.start_span(&head.headers, random(), random() as u64));
        let is_logged = view.access_log.as_ref().is_some_and(|log| log.is_sampled(|| random() as u64));
        (is_logged || trace.is_some()).then(|| {
            Box::new(Self {
                view: Rc::clone(view),
                is_logged,
                method: head.method.clone(),
                target: head.uri.path_and_query().map_or_else(|| head.uri.to_string(), ToString::to_string),
                protocol: head.version,
                authority: None,
                user_agent: None,
                forwarded_for: None,
                request_id: None,
                other_headers: Vec::new(),
                upstream: None,
                upstream_time: None,
                decision: None,
                client: None,
                trace,
                route: None,
            })
        })
    }

    pub(in crate::proxy) fn copy_headers(&mut self, headers: &HeaderMap) {
        let copy = |name: HeaderName| headers.get(name).cloned();
        self.authority = copy(HOST);
        self.user_agent = copy(USER_AGENT);
        self.forwarded_for = copy(X_FORWARDED_FOR);
        self.request_id = copy(X_REQUEST_ID);
        if let Some(log) = self.access_log() {
            self.other_headers = log.other_headers().iter().map(|name| headers.get(name).cloned()).collect();
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

    /// Makes Weir's span the parent of the upstream's.
    pub(in crate::proxy) fn inject_trace_context(&self, headers: &mut HeaderMap) {
        if let Some(trace) = &self.trace {
            trace.write_headers(headers);
        }
    }

    /// Sets the route of a span to that of the first rule that has one.
    pub(in crate::proxy) fn set_route(
        &mut self,
        policy: &Policy,
        mut rules: impl Iterator<Item = RuleIndex>,
        request: &Attributes<'_>,
    ) {
        if !self.trace.as_ref().is_some_and(|trace| trace.is_sampled) {
            return;
        }
        self.route = rules.find_map(|rule| {
            let route = policy.rules.get(rule)?.applies_to(request).route()?;
            (!route.0.is_empty()).then(|| route.0.into())
        });
    }
}
