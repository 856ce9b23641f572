//! Data of a request for the access log and spans, copied before the request is changed. Only created if either is
//! enabled.

use std::net::IpAddr;
use std::time::Duration;

use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version, request};

use crate::engine::Policy;
use crate::identify::Attributes;
use crate::identify::forwarded::X_FORWARDED_FOR;
use crate::proxy::headers::X_REQUEST_ID;
use crate::rules::RuleIndex;
use crate::rules::matcher::Match;
use crate::telemetry::spans::Tracer;
use crate::telemetry::spans::context::TraceContext;

#[derive(Debug, Default)]
pub(in crate::proxy) struct LogRecord {
    pub(in crate::proxy) method: Method,
    pub(in crate::proxy) target: String,
    pub(in crate::proxy) protocol: Version,
    pub(in crate::proxy) authority: Option<HeaderValue>,
    pub(in crate::proxy) user_agent: Option<HeaderValue>,
    pub(in crate::proxy) forwarded_for: Option<HeaderValue>,
    pub(in crate::proxy) request_id: Option<HeaderValue>,
    pub(in crate::proxy) upstream: Option<Box<str>>,
    pub(in crate::proxy) upstream_time: Option<Duration>,
    pub(in crate::proxy) rule: Option<Box<str>>,
    pub(in crate::proxy) client: Option<IpAddr>,
    /// Trace context, unless the tracer does not sample the request.
    pub(in crate::proxy) trace: Option<Box<TraceContext>>,
    pub(in crate::proxy) route: Option<Box<str>>,
}

impl LogRecord {
    /// Creates the record of a request with this head; `None` if it is neither logged nor traced.
    pub(in crate::proxy) fn new(
        head: &request::Parts,
        is_logged: bool,
        tracer: Option<&Tracer>,
        random: impl Fn() -> u128,
    ) -> Option<Box<Self>> {
        let trace = tracer.and_then(|tracer| tracer.start_span(&head.headers, random(), random() as u64));
        (is_logged || trace.is_some()).then(|| {
            Box::new(Self {
                method: head.method.clone(),
                target: head.uri.path_and_query().map_or_else(|| head.uri.to_string(), ToString::to_string),
                protocol: head.version,
                trace,
                ..Self::default()
            })
        })
    }

    pub(in crate::proxy) fn copy_headers(&mut self, headers: &HeaderMap) {
        let copy = |name: HeaderName| headers.get(name).cloned();
        self.authority = copy(HOST);
        self.user_agent = copy(USER_AGENT);
        self.forwarded_for = copy(X_FORWARDED_FOR);
        self.request_id = copy(X_REQUEST_ID);
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
        self.route = rules.find_map(|rule| match policy.rules.get(rule)?.applies_to(request) {
            Match::Yes(route) | Match::Unclear(route, _) if !route.0.is_empty() => Some(route.0.into()),
            _ => None,
        });
    }
}
