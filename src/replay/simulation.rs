//! The engine on a virtual clock: one set of rules, its counters, and what they did with the requests of a log.
//!
//! A request takes the same steps as in the proxy: it is identified, the rules select its limits, the limiter decides,
//! and its charges are settled when it ends. Time is that of the log.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::endings::Endings;
use super::format::scan::find;
use super::needs::{Needs, recorded_header};
use super::record::{LoggedRequest, ParsedBlock};
use super::tally::{DecidedRequest, Fate, Tally};
use crate::engine::{Policy, PolicySpec};
use crate::identify::forwarded::X_FORWARDED_FOR;
use crate::identify::recorded::{RecordedAddress, RecordedRequest};
use crate::limiter::elastic::Headroom;
use crate::limiter::timestamp::Timestamp;
use crate::limiter::{Limiter, LimiterSettings};
use crate::limits::{Admission, PendingLimits};
use crate::rules::cost::Cost;
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
    endings: Endings,
    headers: HeaderMap,
    pub(super) tally: Tally,
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
            endings: Endings::default(),
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
        self.endings.settle_until(now, &self.limiter);
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
        let decided = DecidedRequest { policy: &self.policy, logged: request, attributes: &attributes, now };
        let (selected, effects) = match self.policy.rules.select(&attributes, self.headroom) {
            Selection::Exempt(rule) => {
                self.tally.exempt(rule, now);
                return (Fate::Passed, None);
            }
            Selection::Denied(rule, _) => {
                self.tally.denied(rule, decided);
                return (Fate::Rejected(rule), decided.client());
            }
            Selection::Limited(mut selected, effects) => {
                self.policy.rules.replace_waits(&mut selected);
                (selected, effects)
            }
        };
        effects.queries.iter().for_each(|query| self.tally.not_simulated(query.rule));
        let mut pending = PendingLimits::check_recorded(&self.limiter, selected, effects.shadow_rules, now);
        let (fate, delay) = match pending.admission() {
            Admission::Pass(delay) => (Fate::Passed, delay.unwrap_or_default()),
            Admission::Reject(rejection) => (Fate::Rejected(rejection.rule), Duration::ZERO),
            // Only for limits of the store, of which there are none.
            Admission::Held => (Fate::Passed, Duration::ZERO),
        };
        self.tally.decided(pending.limits(), fate, delay, decided);
        let client = if fate == Fate::Passed { None } else { decided.client() };
        if fate == Fate::Passed
            && let Some(settlement) = pending.settlement_of(&self.policy)
        {
            self.endings.add(request, settlement, now.saturating_add(delay));
        }
        (fate, client)
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
        if target.iter().any(|byte| *byte <= b' ' || *byte == 0x7f) {
            return None;
        }
        let text = str::from_utf8(target).ok()?;
        let (host, origin) = match target {
            [b'/', ..] | b"*" => (None, text),
            _ => {
                let (_, rest) = text.split_once("://")?;
                let (host, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
                (Some(host), if path.is_empty() { "/" } else { path })
            }
        };
        let before = |byte| find(origin.as_bytes(), byte);
        let origin = before(b'#').map_or(origin, |end| &origin[..end]);
        let (path, query) = match before(b'?').filter(|end| *end < origin.len()) {
            Some(end) => (&origin[..end], Some(&origin[end + 1..])),
            None => (origin, None),
        };
        Some(Self { host, path, query })
    }
}
