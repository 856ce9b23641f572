//! The engine on a virtual clock: one set of rules, its counters, and what they did with the requests of a log.
//!
//! A request takes the same steps as in the proxy: it is identified, the rules select its limits, the limiter decides,
//! and its charges are settled when it ends. Time is that of the log.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue};
use smallvec::SmallVec;

use super::arrival::{LoggedArrival, RecordedParts, fetch_texts};
use super::bodies::LoggedBodies;
use super::collected::CollectedNames;
use super::endings::Endings;
use super::needs::{LoggedLine, Needs, recorded_header};
use super::tally::{DecidedLimits, DecidedRequest, Fate, Tally};
use super::timeline::BATCH_SIZE;
use weir_limiter::elastic::Headroom;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Check, Limiter, LimiterSettings};
use weir_limits::{self as limits, AppliedLimits};
use weir_policy::engine::{Policy, PolicySpec};
use weir_policy::identify::body::{BodyFields, RequestFields};
use weir_policy::identify::forwarded::X_FORWARDED_FOR;
use weir_policy::identify::recorded::RecordedAddress;
use weir_policy::rules::cost::Cost;
use weir_policy::rules::rule::{Action, LimitSource};
use weir_policy::rules::selection::{SelectedCheck, Selection};
use weir_policy::throttle::{self, ThrottleAction};

/// One of something for each request of a batch.
pub(super) type ArrivalBatch<T> = SmallVec<[T; BATCH_SIZE]>;

/// Secret of the hashes of keys. Fixed, so that a replay has the same result every time.
const SECRET: [u64; 2] = [0x7765_6972, 0x7265_706c_6179];

/// What a set of rules did with a request.
pub(super) struct DecidedArrival {
    pub(super) fate: Fate,
    /// The client, if the request was rejected and the log has it.
    pub(super) client: Option<IpAddr>,
}

/// What the rules select for a request.
#[derive(Default)]
struct ArrivalSelection {
    /// Whether it is a request that the proxy would accept.
    is_request: bool,
    limits: Selection,
}

/// One set of rules and its state.
pub(super) struct Simulation {
    policy: Arc<Policy>,
    limiter: Limiter,
    headroom: Headroom,
    needs: Needs,
    /// What the parsers of the log were told to collect.
    collected: Arc<CollectedNames>,
    bodies: LoggedBodies,
    /// Whether a rule measures request bodies by their announced length.
    reads_length: bool,
    /// Whether requests of any rule wait in a queue.
    has_waits: bool,
    endings: Endings,
    /// The recorded headers of each request of a batch.
    headers: Vec<HeaderMap>,
    /// The recorded fields of the body of each request of a batch.
    fields: Vec<BodyFields>,
    /// What the rules select for each request of a batch. Kept for the next one, because it is large.
    selections: Vec<ArrivalSelection>,
    pub(super) tally: Tally,
}

impl Simulation {
    /// Creates a simulation of `spec` with room for `max_keys` counters.
    pub(super) fn new(spec: &PolicySpec, max_keys: usize, headroom: Headroom) -> Self {
        let limiter = Limiter::new(LimiterSettings { max_keys, secret: SECRET });
        let policy = without_fleet(spec).install(1, &limiter, Timestamp::EPOCH);
        let has_waits = policy.rules.rules().iter().any(|rule| rule.wait().is_some());
        let reads_length = policy.rules.rules().iter().any(|rule| {
            matches!(&rule.action, Action::Limit(limiting) if matches!(limiting.cost_model.cost, Cost::RequestBytes(_)))
        });
        Self {
            needs: Needs::of(&policy),
            tally: Tally::new(&policy, &limiter, max_keys),
            policy,
            limiter,
            headroom,
            collected: Arc::default(),
            bodies: LoggedBodies::default(),
            reads_length,
            has_waits,
            endings: Endings::default(),
            headers: Vec::new(),
            fields: Vec::new(),
            selections: Vec::new(),
        }
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns what its rules need of a log.
    pub(super) fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Sets what the parsers of the log collect.
    pub(super) fn set_collected(&mut self, collected: &Arc<CollectedNames>) {
        self.collected = Arc::clone(collected);
        self.bodies = LoggedBodies::new(&self.policy, collected);
    }

    /// Decides requests in order of arrival.
    ///
    /// What does not depend on earlier requests is done first for all of them, so that their counters can be fetched from
    /// memory at the same time.
    pub(super) fn decide(&mut self, arrivals: &[LoggedArrival<'_>]) -> ArrivalBatch<DecidedArrival> {
        fetch_texts(arrivals);
        let policy = Arc::clone(&self.policy);
        let mut headers = std::mem::take(&mut self.headers);
        headers.resize_with(arrivals.len().max(headers.len()), HeaderMap::new);
        let mut fields = std::mem::take(&mut self.fields);
        fields.resize_with(arrivals.len().max(fields.len()), BodyFields::absent);
        let mut selections = std::mem::take(&mut self.selections);
        selections.resize_with(arrivals.len().max(selections.len()), Default::default);
        let parts_of_batch = headers.iter_mut().zip(&mut fields).zip(&mut selections);
        for (arrival, ((headers, fields), selection)) in arrivals.iter().zip(parts_of_batch) {
            self.collect_headers(arrival, headers);
            let parts = RecordedParts::new(arrival);
            selection.is_request = false;
            let Some(parts) = &parts else { continue };
            // By reference, because attributes are large.
            if let Ok(attributes) = &parts.attributes(arrival, headers, &policy) {
                selection.is_request = true;
                if policy.bodies.is_some() {
                    *fields = self.bodies.of_request(arrival, attributes, &policy);
                    attributes.body.set(fields_of(fields));
                }
                let line = LoggedLine {
                    request: arrival.request,
                    block: arrival.block,
                    headers: &self.collected.headers,
                    bodies: &self.bodies,
                    body: attributes.body.get(),
                };
                self.needs.count_missing(line, attributes);
                policy.rules.select_into(&mut selection.limits, attributes, self.headroom);
            }
        }
        let selected = selections.iter().take(arrivals.len()).filter(|selection| selection.is_request);
        self.limiter.warm(selected.flat_map(|selection| checks_of(&selection.limits)));
        let mut decided = ArrivalBatch::new();
        let parts_of_batch = headers.iter().zip(&fields).zip(&mut selections);
        for (arrival, ((headers, fields), selection)) in arrivals.iter().zip(parts_of_batch) {
            self.endings.settle_until(arrival.now, &self.limiter);
            decided.push(match selection.is_request {
                true => {
                    let request =
                        DecidedRequest { policy: &policy, arrival, headers, body: fields_of(fields) };
                    self.decide_one(request, &mut selection.limits)
                }
                false => DecidedArrival { fate: Fate::Malformed, client: None },
            });
        }
        (self.headers, self.fields, self.selections) = (headers, fields, selections);
        decided
    }

    /// Decides a request for which the rules have selected these limits.
    fn decide_one(&mut self, request: DecidedRequest<'_>, selection: &mut Selection) -> DecidedArrival {
        let now = request.now();
        let (selected, effects) = match selection {
            Selection::Exempt(rule) => {
                self.tally.exempt(*rule, now);
                return DecidedArrival { fate: Fate::Passed, client: None };
            }
            Selection::Denied(rule, _) => {
                self.tally.denied(*rule, request);
                return DecidedArrival { fate: Fate::Rejected(*rule), client: request.client() };
            }
            Selection::Limited(selected, effects) => (selected, effects),
        };
        if self.has_waits {
            self.policy.rules.replace_waits(selected);
        }
        effects.queries.iter().for_each(|query| self.tally.not_simulated(query.rule));
        let decision = limits::check(&self.limiter, selected, now);
        let (fate, delay) = match throttle::resolve(&decision) {
            ThrottleAction::Forward => (Fate::Passed, Duration::ZERO),
            ThrottleAction::Delay(delay) => (Fate::Passed, delay),
            ThrottleAction::Reject { position, .. } => {
                (Fate::Rejected(selected[position].rule), Duration::ZERO)
            }
        };
        let limits = DecidedLimits { selected, decision: &decision, shadow_rules: &effects.shadow_rules };
        self.tally.decided(limits, fate, delay, request);
        if fate != Fate::Passed {
            return DecidedArrival { fate, client: request.client() };
        }
        if selected.iter().any(SelectedCheck::may_be_settled) {
            let limits = AppliedLimits::decided(std::mem::take(selected), decision, now);
            if let Some(settlement) = limits.settlement(&self.policy) {
                let LoggedArrival { block, request, .. } = request.arrival;
                let stated = self.bodies.of_response(block, request, &self.policy);
                self.endings.add(request, stated, settlement, now.saturating_add(delay));
            }
        }
        DecidedArrival { fate, client: None }
    }

    /// Fills in the headers that rules need and the log has.
    #[inline]
    fn collect_headers(
        &self,
        &LoggedArrival { block, request, .. }: &LoggedArrival<'_>,
        headers: &mut HeaderMap,
    ) {
        if !headers.is_empty() {
            headers.clear();
        }
        for name in self.needs.headers() {
            if let Some(Some(text)) = recorded_header(name, request, block, &self.collected.headers)
                && let Ok(value) = HeaderValue::from_bytes(text)
            {
                headers.insert(name, value);
            }
        }
        if self.reads_length
            && let Some(received) = request.received.filter(|bytes| *bytes > 0)
            && let Ok(value) = HeaderValue::from_str(itoa::Buffer::new().format(received))
        {
            headers.insert(CONTENT_LENGTH, value);
        }
        if let RecordedAddress::Peer(peer) = request.address
            && self.policy.identify.trusted_proxies.contains(peer)
            && !headers.contains_key(X_FORWARDED_FOR)
            && let Some(hops) = request.forwarded_for.text(&block.data)
            && let Ok(value) = HeaderValue::from_bytes(hops)
        {
            headers.insert(X_FORWARDED_FOR, value);
        }
    }
}

/// Returns what rules know of the body of a request.
fn fields_of(fields: &BodyFields) -> RequestFields<'_> {
    fields.of_elements().next().unwrap_or_default()
}

/// Returns the checks that a request must pass.
fn checks_of(selection: &Selection) -> impl Iterator<Item = &Check> {
    let selected = match selection {
        Selection::Exempt(_) | Selection::Denied(..) => &[][..],
        Selection::Limited(selected, _) => &selected[..],
    };
    selected.iter().map(|selected| &selected.check)
}

/// Returns `spec` with shared limits counted here: a fleet admits no more than one instance would.
fn without_fleet(spec: &PolicySpec) -> PolicySpec {
    let mut spec = spec.clone();
    for rule in Arc::make_mut(&mut spec.rules) {
        let Action::Limit(limiting) = &mut rule.action else { continue };
        if let LimitSource::Shared(_) = limiting.source {
            limiting.source = LimitSource::Local;
        }
        // The upstream would have responded otherwise to what is admitted here, so only the maximum is certain.
        limiting.adaptive = None;
    }
    spec
}
