//! Counts of what each rule did with the requests of a log.

pub(super) mod histogram;
pub(super) mod keys;
pub(super) mod periods;
pub(super) mod series;

use std::net::IpAddr;
use std::time::Duration;

use http::HeaderMap;

use self::histogram::CountHistogram;
use self::keys::KeyTable;
use self::periods::DemandPeriods;
use self::series::OutcomeSeries;
use super::arrival::{LoggedArrival, RecordedParts};
use super::endings::request_end;
use weir_http::headers::Headers;
use weir_limiter::Limiter;
use weir_limiter::decision::{Decision, Verdict};
use weir_limiter::key::KeyHasher;
use weir_limiter::timestamp::Timestamp;
use weir_policy::engine::Policy;
use weir_policy::identify::Attributes;
use weir_policy::identify::body::RequestFields;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::attribute::IncompleteKey;
use weir_policy::rules::cost::{FinalCharge, Refunds};
use weir_policy::rules::grpc::CallStatus;
use weir_policy::rules::outcome::{self, DecisionOutcome};
use weir_policy::rules::pattern::Route;
use weir_policy::rules::rule::{Action, Rule};
use weir_policy::rules::selection::{CheckRole, SelectedCheck};

/// Period by which keys of rules without a limit are counted.
const DEFAULT_PERIOD: Duration = Duration::from_secs(60);

/// Maximum length of a key in a list, in characters. A longer one ends with an ellipsis.
const MAX_KEY_LENGTH: usize = 200;

/// What the rules did with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It passed, at once or after a delay.
    Passed,
    Rejected(RuleIndex),
    /// It is not a request that the proxy would accept.
    Malformed,
}

/// A request that has been decided, as the counts see it.
#[derive(Clone, Copy)]
pub(super) struct DecidedRequest<'a> {
    pub(super) policy: &'a Policy,
    pub(super) arrival: &'a LoggedArrival<'a>,
    /// The headers that the log recorded.
    pub(super) headers: &'a HeaderMap,
    /// The fields of its body that the log recorded.
    pub(super) body: RequestFields<'a>,
}

/// The limits of a request, and their decision.
#[derive(Clone, Copy)]
pub(super) struct DecidedLimits<'a> {
    pub(super) selected: &'a [SelectedCheck],
    pub(super) decision: &'a Decision,
    /// Rules in shadow mode that would have rejected the request before any limit.
    pub(super) shadow_rules: &'a [RuleIndex],
}

/// What all rules did.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) rules: Box<[RuleTally]>,
    hasher: KeyHasher,
    /// Requests that passed, and those that were rejected.
    pub(super) passed: u64,
    pub(super) rejected: u64,
    /// Requests that passed after a delay.
    pub(super) delayed: u64,
}

/// What one rule did.
#[derive(Debug)]
pub(super) struct RuleTally {
    /// Requests by outcome, in the order of [`DecisionOutcome::ALL`].
    pub(super) outcomes: [u64; DecisionOutcome::ALL.len()],
    /// Requests that it would have admitted, and that another rule rejected.
    pub(super) rejected_by_others: u64,
    /// Requests that another service would have decided.
    pub(super) not_simulated: u64,
    /// Sum and maximum of the delays.
    pub(super) delays: Duration,
    pub(super) max_delay: Duration,
    pub(super) series: OutcomeSeries,
    /// The keys of the first limit, and the list of those on which the rule acted.
    pub(super) keys: KeyTable,
    /// The keys of the other limits.
    pub(super) further: Box<[KeyTable]>,
    /// Whether it depends on the response if a request counts.
    is_conditional: bool,
}

impl RuleTally {
    fn new(rule: &Rule, max_keys: usize) -> Self {
        let mut tables =
            rule.limits().iter().map(|limit| KeyTable::new(max_keys, DemandPeriods::of(&limit.quota)));
        let default = || KeyTable::new(max_keys, DemandPeriods::of_length(DEFAULT_PERIOD));
        let is_conditional = matches!(
            &rule.action,
            Action::Limit(limiting)
                if limiting.cost_model.counts.is_some() || limiting.cost_model.refunds != Refunds::default()
        );
        Self {
            outcomes: [0; DecisionOutcome::ALL.len()],
            rejected_by_others: 0,
            not_simulated: 0,
            delays: Duration::ZERO,
            max_delay: Duration::ZERO,
            series: OutcomeSeries::default(),
            keys: tables.next().unwrap_or_else(default),
            further: tables.collect(),
            is_conditional,
        }
    }

    /// Ends the present period of every key. Returns the distribution of the peaks for each limit.
    pub(super) fn finish(&mut self) -> Vec<CountHistogram> {
        std::iter::once(&mut self.keys).chain(&mut self.further).map(KeyTable::finish).collect()
    }

    #[inline]
    fn count(&mut self, outcome: DecisionOutcome, now: Timestamp) {
        self.outcomes[outcome as usize] += 1;
        self.series.add(outcome, now);
    }

    /// Counts a request by its keys, which are those of the rule's `checks`.
    #[inline]
    fn count_keys(
        &mut self,
        checks: &[SelectedCheck],
        outcome: Option<DecisionOutcome>,
        request: DecidedRequest<'_>,
    ) {
        let Some(first) = checks.first() else { return };
        let text = || request.key_text(first.rule);
        if self.is_conditional && !request.counts(first.rule) {
            return self.keys.list_uncounted(first.check.key, outcome, request.now(), text);
        }
        self.keys.count(first.check.key, outcome, request.now(), text);
        if self.further.is_empty() {
            return;
        }
        for check in checks {
            let position = match check.role {
                CheckRole::Limit(position) | CheckRole::Margin(position) => usize::from(position),
                CheckRole::Mark(_)
                | CheckRole::Ban
                | CheckRole::Permit
                | CheckRole::Seen
                | CheckRole::Stream(_) => continue,
            };
            let table = position.checked_sub(1).and_then(|index| self.further.get_mut(index));
            if let Some(table) = table {
                table.count(check.check.key, None, request.now(), String::new);
            }
        }
    }
}

impl Tally {
    /// Creates empty counts for the rules of `policy`, of at most `max_keys` keys each.
    pub(super) fn new(policy: &Policy, limiter: &Limiter, max_keys: usize) -> Self {
        let rules = policy.rules.rules().iter();
        Self {
            rules: rules.map(|rule| RuleTally::new(rule, max_keys)).collect(),
            hasher: limiter.hasher(),
            passed: 0,
            rejected: 0,
            delayed: 0,
        }
    }

    /// Counts a request that a rule exempts.
    pub(super) fn exempt(&mut self, rule: RuleIndex, now: Timestamp) {
        self.passed += 1;
        if let Some(tally) = self.rules.get_mut(rule.0) {
            tally.count(DecisionOutcome::Exempt, now);
        }
    }

    /// Counts a request that a rule rejects before any limit. It is listed under its client.
    pub(super) fn denied(&mut self, rule: RuleIndex, request: DecidedRequest<'_>) {
        self.rejected += 1;
        let Some(tally) = self.rules.get_mut(rule.0) else { return };
        tally.count(DecisionOutcome::Denied, request.now());
        let client = request.client();
        let key = match client {
            Some(IpAddr::V4(v4)) => self.hasher.hash(&v4.octets()),
            Some(IpAddr::V6(v6)) => self.hasher.hash(&v6.octets()),
            None => self.hasher.hash(&[]),
        };
        let text = || client.map_or_else(|| "unknown client".to_owned(), |client| client.to_string());
        tally.keys.count(key, Some(DecisionOutcome::Denied), request.now(), text);
    }

    /// Counts a request whose limit another service would have decided.
    pub(super) fn not_simulated(&mut self, rule: RuleIndex) {
        if let Some(tally) = self.rules.get_mut(rule.0) {
            tally.not_simulated += 1;
        }
    }

    /// Counts a request whose limits have been decided.
    #[inline]
    pub(super) fn decided(
        &mut self,
        DecidedLimits { selected, decision, shadow_rules }: DecidedLimits<'_>,
        fate: Fate,
        delay: Duration,
        request: DecidedRequest<'_>,
    ) {
        if fate == Fate::Passed {
            self.passed += 1;
            self.delayed += u64::from(!delay.is_zero());
        } else {
            self.rejected += 1;
        }
        for rule in shadow_rules {
            if let Some(tally) = self.rules.get_mut(rule.0) {
                tally.count(DecisionOutcome::Shadow, request.now());
            }
        }
        let is_rejected = decision.is_rejected();
        for (checks, verdicts) in outcome::by_rule(selected, decision) {
            let outcome = DecisionOutcome::from_verdicts(checks, verdicts, is_rejected);
            let Some(tally) = self.rules.get_mut(checks[0].rule.0) else { continue };
            if !is_rejected && verdicts.iter().all(Verdict::is_passed_over) {
                continue;
            }
            match outcome {
                Some(outcome) => tally.count(outcome, request.now()),
                None => tally.rejected_by_others += 1,
            }
            if outcome == Some(DecisionOutcome::Delayed) {
                tally.delays = tally.delays.saturating_add(delay);
                tally.max_delay = tally.max_delay.max(delay);
            }
            tally.count_keys(checks, outcome, request);
        }
    }
}

impl DecidedRequest<'_> {
    /// Returns the time of its arrival.
    pub(super) const fn now(&self) -> Timestamp {
        self.arrival.now
    }

    /// Returns the client's address, or its network; `None` if the log does not have it.
    pub(super) fn client(&self) -> Option<IpAddr> {
        self.with_attributes(|attributes| attributes.client_ip().map(|_| attributes.client_network)).flatten()
    }

    /// Whether the request counts under a rule, as far as its logged end shows.
    fn counts(&self, rule: RuleIndex) -> bool {
        let Some(Action::Limit(limiting)) = self.policy.rules.get(rule).map(|rule| &rule.action) else {
            return true;
        };
        let headers = Headers::default();
        let logged = self.arrival.request;
        let end = request_end(logged.recorded_end, logged.status, &headers);
        limiting.cost_model.final_charge(&end, CallStatus::None, false) != FinalCharge::Nothing
    }

    /// Returns the request's key under a rule as text.
    fn key_text(&self, rule: RuleIndex) -> String {
        let Some(rule) = self.policy.rules.get(rule) else { return String::new() };
        let Action::Limit(limiting) = &rule.action else { return String::new() };
        let prefix = self.policy.identify.ipv6_prefix;
        let text = |attributes: &Attributes<'_>| {
            let route = rule.applies_to(attributes).route().unwrap_or(Route(""));
            let parts = limiting.key.0.iter().map(|part| part.text(attributes, route, prefix));
            match parts.collect::<Result<Vec<_>, IncompleteKey>>() {
                Ok(parts) if parts.is_empty() => "all requests".to_owned(),
                // Clients choose parts of it, and terminals interpret control characters.
                Ok(parts) => shortened(parts.join(", ").escape_debug()),
                Err(_) => "incomplete key".to_owned(),
            }
        };
        self.with_attributes(text).unwrap_or_default()
    }

    /// Passes the attributes of the request to `read`. They are identified again, since few requests need them after their
    /// decision.
    fn with_attributes<T>(&self, read: impl FnOnce(&Attributes<'_>) -> T) -> Option<T> {
        let parts = RecordedParts::new(self.arrival)?;
        let attributes = parts.attributes(self.arrival, self.headers, self.policy).ok()?;
        attributes.body.set(self.body);
        Some(read(&attributes))
    }
}

/// Returns the beginning of a text, with an ellipsis if that is not all of it.
fn shortened(mut letters: impl Iterator<Item = char>) -> String {
    let mut text: String = letters.by_ref().take(MAX_KEY_LENGTH).collect();
    if letters.next().is_some() {
        text.push('…');
    }
    text
}
