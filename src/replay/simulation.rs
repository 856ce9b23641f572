//! The engine on a virtual clock: one set of rules, its counters, and what they did with the requests of a log.
//!
//! A request takes the same steps as in the proxy: it is identified, the rules select its limits, the limiter decides,
//! and its charges are settled when it ends. Time is that of the log.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::needs::{Needs, recorded_header};
use super::record::{LoggedRequest, ParsedBlock, RecordedEnd};
use super::tally::{DecidedRequest, Tally};
use crate::engine::{Policy, PolicySpec};
use crate::headers::Headers;
use crate::identify::forwarded::X_FORWARDED_FOR;
use crate::identify::recorded::{RecordedAddress, RecordedRequest};
use crate::limiter::elastic::Headroom;
use crate::limiter::timestamp::Timestamp;
use crate::limiter::{Limiter, LimiterSettings};
use crate::limits::{Admission, PendingLimits, Settlement};
use crate::rules::RuleIndex;
use crate::rules::cost::{Cost, RequestEnd};
use crate::rules::grpc::CallStatus;
use crate::rules::rule::{Action, LimitSource};
use crate::rules::selection::Selection;

/// Secret of the hashes of keys. Fixed, so that a replay has the same result every time.
const SECRET: [u64; 2] = [0x7765_6972, 0x7265_706c_6179];

/// One set of rules and its state.
pub(super) struct Simulation {
    policy: Arc<Policy>,
    limiter: Limiter,
    headroom: Headroom,
    needs: Needs,
    /// Headers that the parsers of the log were told to collect.
    collected: Box<[HeaderName]>,
    /// Whether a rule measures request bodies by their announced length.
    reads_length: bool,
    /// Ends of requests that have something to settle, the first one on top.
    endings: BinaryHeap<Reverse<Ending>>,
    ended: u64,
    headers: HeaderMap,
    pub(super) tally: Tally,
}

/// End of a request that has something to settle.
struct Ending {
    at: Timestamp,
    /// Order among requests that end at the same time.
    order: u64,
    settlement: Box<Settlement>,
    status: u16,
    recorded_end: RecordedEnd,
    received: u64,
    sent: u64,
}

impl PartialEq for Ending {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Ending {}

impl PartialOrd for Ending {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ending {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// What the rules did with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It passed, at once or after a delay.
    Passed,
    /// This rule rejected it.
    Rejected(RuleIndex),
    /// It is not a request that the proxy would accept.
    Malformed,
}

impl Simulation {
    /// Creates a simulation of `spec` with room for `max_keys` counters.
    pub(super) fn new(spec: &PolicySpec, max_keys: usize, headroom: Headroom) -> Self {
        let limiter = Limiter::new(LimiterSettings { max_keys, secret: SECRET });
        let policy = without_fleet(spec).install(1, &limiter, Timestamp::EPOCH);
        let reads_length = policy.rules.rules().iter().any(|rule| {
            matches!(&rule.action, Action::Limit(limiting) if matches!(limiting.cost_model.cost, Cost::RequestBytes(_)))
        });
        Self {
            needs: Needs::of(&policy),
            tally: Tally::new(&policy, &limiter, max_keys),
            policy,
            limiter,
            headroom,
            collected: Box::default(),
            reads_length,
            endings: BinaryHeap::new(),
            ended: 0,
            headers: HeaderMap::new(),
        }
    }

    /// Returns the policy.
    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns what its rules need of a log.
    pub(super) fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Sets the headers that the parsers of the log collect.
    pub(super) fn set_collected_headers(&mut self, headers: &[HeaderName]) {
        self.collected = headers.into();
    }

    /// Decides a request that arrives at `now`, which never decreases from call to call. Returns its fate, and the client
    /// if it was rejected.
    pub(super) fn decide(
        &mut self,
        block: &ParsedBlock,
        request: &LoggedRequest,
        now: Timestamp,
    ) -> (Fate, Option<IpAddr>) {
        const MALFORMED: (Fate, Option<IpAddr>) = (Fate::Malformed, None);
        self.settle_until(now);
        let Some(target) = request.target.text(&block.data).and_then(TargetParts::new) else {
            return MALFORMED;
        };
        let method = request.method.text(&block.data).map(Method::from_bytes);
        let Ok(method) = method.transpose() else { return MALFORMED };
        self.collect_headers(block, request);
        let host = target.host.or_else(|| str::from_utf8(request.host.text(&block.data)?).ok());
        let recorded = RecordedRequest {
            method: method.as_ref(),
            host: host.unwrap_or_default(),
            path: target.path,
            query: target.query,
            headers: &self.headers,
            address: request.address,
        };
        let Ok(attributes) = recorded.attributes(&self.policy.identify, now) else { return MALFORMED };
        self.needs.count_missing(request, block, &self.collected, &attributes);
        let decided = DecidedRequest { policy: &self.policy, attributes: &attributes, now };
        let (selected, effects) = match self.policy.rules.select(&attributes, self.headroom) {
            Selection::Exempt(rule) => {
                self.tally.exempt(rule, now);
                return (Fate::Passed, None);
            }
            Selection::Denied(rule, _) => {
                self.tally.denied(rule, decided);
                return (Fate::Rejected(rule), decided.client());
            }
            Selection::Limited(selected, effects) => (selected, effects),
        };
        effects.queries.iter().for_each(|query| self.tally.not_simulated(query.rule));
        let mut pending = PendingLimits::check_recorded(&self.limiter, selected, effects.shadow_rules, now);
        let (fate, delay) = match pending.admission() {
            Admission::Pass(delay) => (Fate::Passed, delay.unwrap_or_default()),
            Admission::Reject(rejection) => (Fate::Rejected(rejection.rule), Duration::ZERO),
            // Only for limits of the store, of which there are none.
            Admission::NeedsLease => (Fate::Passed, Duration::ZERO),
        };
        self.tally.decided(pending.limits(), fate, delay, decided);
        if fate == Fate::Passed
            && let Some(settlement) = pending.settlement_of(&self.policy)
        {
            let lasted = request.end.since(request.start);
            self.ended += 1;
            self.endings.push(Reverse(Ending {
                at: now.saturating_add(lasted).saturating_add(delay),
                order: self.ended,
                settlement,
                status: request.status,
                recorded_end: request.recorded_end,
                received: request.received,
                sent: request.sent,
            }));
        }
        let client = if fate == Fate::Passed { None } else { decided.client() };
        (fate, client)
    }

    /// Settles the requests that have ended.
    #[inline]
    fn settle_until(&mut self, now: Timestamp) {
        while self.endings.peek().is_some_and(|Reverse(ending)| ending.at <= now) {
            let Some(Reverse(mut ending)) = self.endings.pop() else { return };
            let headers = Headers::default();
            let status = StatusCode::from_u16(ending.status).unwrap_or(StatusCode::OK);
            let end = match ending.recorded_end {
                RecordedEnd::Response => RequestEnd::Responded { status, headers: &headers },
                RecordedEnd::Failure(failure) => RequestEnd::Failed { status, failure },
                RecordedEnd::Abandoned => RequestEnd::Abandoned,
            };
            let (limiter, at) = (&self.limiter, ending.at);
            ending.settlement.settle(&end, CallStatus::None, limiter, at, |_, _| {});
            ending.settlement.finish(ending.received, ending.sent, limiter, at);
        }
    }

    /// Fills in the headers that rules need and the log has.
    #[inline]
    fn collect_headers(&mut self, block: &ParsedBlock, request: &LoggedRequest) {
        if !self.headers.is_empty() {
            self.headers.clear();
        }
        for name in self.needs.headers() {
            if let Some(Some(text)) = recorded_header(name, request, block, &self.collected)
                && let Ok(value) = HeaderValue::from_bytes(text)
            {
                self.headers.insert(name, value);
            }
        }
        if self.reads_length
            && request.received > 0
            && let Ok(value) = HeaderValue::from_str(itoa::Buffer::new().format(request.received))
        {
            self.headers.insert(CONTENT_LENGTH, value);
        }
        if let RecordedAddress::Peer(peer) = request.address
            && self.policy.identify.trusted_proxies.contains(peer)
            && !self.headers.contains_key(X_FORWARDED_FOR)
            && let Some(hops) = request.forwarded_for.text(&block.data)
            && let Ok(value) = HeaderValue::from_bytes(hops)
        {
            self.headers.insert(X_FORWARDED_FOR, value);
        }
    }
}

/// Returns `spec` with shared limits counted here: a fleet admits no more than one instance would.
fn without_fleet(spec: &PolicySpec) -> PolicySpec {
    let mut spec = spec.clone();
    for rule in &mut spec.rules {
        if let Action::Limit(limiting) = &mut rule.action
            && let LimitSource::Shared(_) = limiting.source
        {
            limiting.source = LimitSource::Local;
        }
    }
    spec
}

/// Parts of a request target.
struct TargetParts<'a> {
    host: Option<&'a str>,
    path: &'a str,
    query: Option<&'a str>,
}

impl<'a> TargetParts<'a> {
    /// Splits a target; `None` if it is not valid.
    #[inline]
    fn new(target: &'a [u8]) -> Option<Self> {
        let text = str::from_utf8(target).ok()?;
        if text.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
            return None;
        }
        let (host, origin) = match text.strip_prefix('/') {
            Some(_) => (None, text),
            None if text == "*" => (None, text),
            None => {
                let (_, rest) = text.split_once("://")?;
                let (host, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
                (Some(host), if path.is_empty() { "/" } else { path })
            }
        };
        let origin = origin.split_once('#').map_or(origin, |(before, _)| before);
        let (path, query) = match origin.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (origin, None),
        };
        Some(Self { host, path, query })
    }
}
