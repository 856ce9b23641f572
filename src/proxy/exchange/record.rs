//! What the access log and spans want to know of a request, copied before it goes on; made only where there is either.

use std::net::IpAddr;
use std::time::Duration;

use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version, request};

use super::Flag;
use crate::engine::Policy;
use crate::identify::Attributes;
use crate::identify::forwarded::X_FORWARDED_FOR;
use crate::proxy::connection::Connection;
use crate::proxy::headers::X_REQUEST_ID;
use crate::rules::RuleIndex;
use crate::rules::matcher::Match;
use crate::telemetry::access_log::Entry;
use crate::telemetry::spans::context::Context;
use crate::telemetry::spans::{Decision, Notes};

#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) method: Method,
    pub(super) target: String,
    pub(super) protocol: Version,
    pub(super) authority: Option<HeaderValue>,
    pub(super) user_agent: Option<HeaderValue>,
    pub(super) forwarded_for: Option<HeaderValue>,
    pub(super) request_id: Option<HeaderValue>,
    pub(super) upstream: Option<Box<str>>,
    pub(super) upstream_time: Option<Duration>,
    pub(super) rule: Option<Box<str>>,
    pub(super) client: Option<IpAddr>,
    /// Its place in a trace, unless somebody has decided that it has none.
    trace: Option<Box<Context>>,
    route: Option<Box<str>>,
}

impl Record {
    /// `None` where nobody wants to know.
    pub(super) fn begin(connection: &Connection, head: &request::Parts) -> Option<Box<Self>> {
        let worker = &connection.worker;
        let (log, tracer) = (&worker.shared.access_log, &worker.shared.tracer);
        if log.is_none() && tracer.is_none() {
            return None;
        }
        let random = || (worker.random(), worker.random() as u64);
        let trace = tracer.as_ref().and_then(|tracer| tracer.begin(&head.headers, random()));
        (log.is_some() || trace.is_some()).then(|| {
            Box::new(Self {
                method: head.method.clone(),
                target: head.uri.path_and_query().map_or_else(|| head.uri.to_string(), ToString::to_string),
                protocol: head.version,
                trace,
                ..Self::default()
            })
        })
    }

    pub(super) fn note_headers(&mut self, headers: &HeaderMap) {
        let copy = |name: HeaderName| headers.get(name).cloned();
        self.authority = copy(HOST);
        self.user_agent = copy(USER_AGENT);
        self.forwarded_for = copy(X_FORWARDED_FOR);
        self.request_id = copy(X_REQUEST_ID);
    }

    /// Has `headers` lead on from our span.
    pub(super) fn lead_on(&self, headers: &mut HeaderMap) {
        if let Some(trace) = &self.trace {
            trace.write(headers);
        }
    }

    /// The route of a span is that of the first of the rules that has one.
    pub(super) fn note_route(
        &mut self,
        policy: &Policy,
        mut rules: impl Iterator<Item = RuleIndex>,
        request: &Attributes<'_>,
    ) {
        if !self.trace.as_ref().is_some_and(|trace| trace.is_sampled()) {
            return;
        }
        self.route = rules.find_map(|rule| match policy.rules.get(rule)?.applies_to(request) {
            Match::Yes(route) | Match::Unclear(route, _) if !route.0.is_empty() => Some(route.0.into()),
            _ => None,
        });
    }

    /// The request has ended, why it was answered as it was, and after it was held back for so long.
    pub(super) fn end(&self, connection: &Connection, entry: &Entry<'_>, (flag, delay): (Flag, Duration)) {
        let shared = &connection.worker.shared;
        if let Some(log) = &shared.access_log {
            log.log(entry);
        }
        let Some((tracer, trace)) = shared.tracer.as_ref().zip(self.trace.as_ref()) else { return };
        let decision = match flag {
            Flag::RateLimited => Some(Decision::Limited),
            Flag::Denied => Some(Decision::Denied),
            _ if !delay.is_zero() => Some(Decision::Delayed(delay)),
            // The rules are asked as soon as it is known who the client is.
            _ => self.client.map(|_| Decision::Allowed),
        };
        let notes = Notes {
            is_secure: connection.secured.is_some(),
            route: self.route.as_deref(),
            decision,
            peer: connection.peer,
        };
        tracer.end(trace, entry, &notes);
    }
}
