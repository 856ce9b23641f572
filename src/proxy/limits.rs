//! The limits of one request: checked once, then counted and shown.

use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::View;
use crate::headers::{Headers, RawHeaders};
use crate::limiter::algorithm::Usage;
use crate::limiter::decision::{Decision, Enforcement, Verdict};
use crate::limiter::reservation::{Reservation, Settled};
use crate::limiter::timestamp::Timestamp;
use crate::limiter::{Check, Limiter};
use crate::response::ietf::{self, Policy, ServiceLimit};
use crate::response::rate_limit_headers::{
    self, Notation, Standing, X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING, X_RATELIMIT_RESET, X_WEIR_OVER_LIMIT,
};
use crate::response::refusal::{Prepared, X_ENVOY_RATELIMITED, limited_headers};
use crate::response::{Settings, Visibility};
use crate::rules::RuleIndex;
use crate::rules::elsewhere::Ask;
use crate::rules::selection::{Aside, Part, Selected};
use crate::telemetry::metrics::DecisionOutcome;

/// Fields that an answer has once, or it means nothing.
const SAID_ONCE: [HeaderName; 6] = [
    CONTENT_TYPE,
    RETRY_AFTER,
    X_ENVOY_RATELIMITED,
    X_RATELIMIT_LIMIT,
    X_RATELIMIT_REMAINING,
    X_RATELIMIT_RESET,
];

/// The checks a request had to pass and the limiter's decision about them, and what is kept elsewhere.
#[derive(Debug)]
pub(super) struct Limits {
    selected: SmallVec<[Selected; 2]>,
    aside: Aside,
    decision: Decision,
    at: Timestamp,
    /// What other services have said.
    told: Option<Box<Told>>,
}

/// What other services have said of a request.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// They refuse it, or nobody knows whether they would.
    pub(super) refused: bool,
    /// How the client stands with them.
    pub(super) standings: Vec<(Notation, Policy, Usage)>,
    /// What they have the client told.
    pub(super) headers: HeaderMap,
}

impl Limits {
    /// No limit applies.
    pub(super) fn none(at: Timestamp) -> Self {
        let (selected, decision) = (SmallVec::new(), Decision::default());
        Self { selected, aside: Aside::default(), decision, at, told: None }
    }

    /// Has the limiter decide.
    pub(super) fn check(
        limiter: &Limiter,
        selected: SmallVec<[Selected; 2]>,
        aside: Aside,
        now: Timestamp,
    ) -> Self {
        let decision = match &*selected {
            // Nearly always; a list of one would only be filled to be read once.
            [only] => limiter.check(std::slice::from_ref(&only.check), now),
            several => {
                let checks: SmallVec<[_; 2]> = several.iter().map(|selected| selected.check).collect();
                limiter.check(&checks, now)
            }
        };
        Self { selected, aside, decision, at: now, told: None }
    }

    /// Whether other services are still to be asked.
    pub(super) fn is_asking(&self) -> bool {
        !self.aside.asks.is_empty()
    }

    /// What is to be asked of them.
    pub(super) fn asks(&self) -> &[Ask] {
        &self.aside.asks
    }

    /// They have been asked, and that is what they say.
    pub(super) fn note_told(&mut self, told: Told) {
        self.aside.asks.clear();
        self.told = Some(Box::new(told));
    }

    /// Has the limiter decide `more`, too: what holds where somebody else has not answered.
    pub(super) fn check_more(&mut self, limiter: &Limiter, more: SmallVec<[Selected; 2]>, now: Timestamp) {
        let Self { selected, decision, .. } = Self::check(limiter, more, Aside::default(), now);
        self.selected.extend(selected);
        self.decision.extend(&decision);
        self.at = now;
    }

    /// Whether it is refused here or elsewhere.
    pub(super) fn is_refused(&self) -> bool {
        self.decision.is_refused() || self.told.as_ref().is_some_and(|told| told.refused)
    }

    /// When it was last decided or settled.
    pub(super) const fn at(&self) -> Timestamp {
        self.at
    }

    pub(super) fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The rule of the check at `position`.
    pub(super) fn rule(&self, position: usize) -> RuleIndex {
        self.selected[position].rule
    }

    /// The rules that limit it, each as often as it has limits.
    pub(super) fn rules(&self) -> impl Iterator<Item = RuleIndex> + '_ {
        self.selected.iter().map(|selected| selected.rule).chain(self.asks().iter().map(|ask| ask.rule))
    }

    /// What the request reserved that is to be settled, with the place of the check. Only what
    /// conformed has been charged or held, and only if the request passed. As long as somebody else may refuse it, all
    /// of it may be given back.
    pub(super) fn reservations(&self) -> impl Iterator<Item = (usize, &Selected, Reservation)> + '_ {
        let is_open = |selected: &Selected| match selected.part {
            Part::Ban | Part::Permit => false,
            Part::Limit(_) | Part::Margin(_) | Part::Mark(_) => selected.settles || self.is_asking(),
        };
        let checked = self.selected.iter().zip(self.decision.verdicts()).enumerate();
        checked.filter(move |(_, (selected, verdict))| is_open(selected) && !verdict.exceeds()).map(
            |(position, (selected, verdict))| {
                let reservation = Reservation::new(&selected.check, self.at);
                (position, selected, verdict.quota().map_or(reservation, |quota| reservation.under(quota)))
            },
        )
    }

    /// What the request holds as long as it is served, if it passed.
    pub(super) fn permits(&self) -> impl Iterator<Item = Reservation> + '_ {
        let checked = self.selected.iter().zip(self.decision.verdicts());
        checked
            .filter(|(selected, verdict)| selected.part == Part::Permit && !verdict.exceeds())
            .map(|(selected, _)| Reservation::new(&selected.check, self.at))
    }

    /// The check at `position` was settled at `now`: that is how the client stands.
    pub(super) fn note_settled(&mut self, position: usize, settled: Settled, now: Timestamp) {
        self.decision.note_settled(position, settled);
        if let Some(last) = self.last_of_counter(position) {
            self.decision.note_settled(last, settled);
        }
        self.at = now;
    }

    /// The last check of the same counter after `position`, which is how the counter stands; `None` if there is none.
    fn last_of_counter(&self, position: usize) -> Option<usize> {
        let Check { meter, key, .. } = self.selected.get(position)?.check;
        let mut later = self.selected.get(position + 1..)?.iter();
        let last = later.rposition(|it| it.check.meter == meter && it.check.key == key)?;
        Some(position + 1 + last)
    }

    /// Counts what is decided, unless others are still to be asked whether the request passes: [`Recording`] does it then.
    pub(super) fn record_unless_asking(&self, view: &View) {
        if !self.is_asking() || self.decision.is_refused() {
            self.record(view);
        }
    }

    /// Counts one decision per rule: what its strictest limit said. A request that another rule refused was
    /// not decided by the rules that would have let it pass.
    pub(super) fn record(&self, view: &View) {
        self.aside.onlookers.iter().for_each(|rule| view.record(*rule, DecisionOutcome::Shadow));
        let refused = self.is_refused();
        let mut rest = self.selected.as_slice();
        let mut verdicts = self.decision.verdicts();
        while let Some(first) = rest.first() {
            let checks = rest.iter().take_while(|selected| selected.rule == first.rule).count();
            let (of_rule, others) = verdicts.split_at(checks);
            if let Some(outcome) = DecisionOutcome::of(&rest[..checks], of_rule, refused) {
                view.record(first.rule, outcome);
            }
            rest = &rest[checks..];
            verdicts = others;
        }
    }

    /// The rules over whose limits the request passes all the same, marked.
    pub(super) fn marking(&self) -> impl Iterator<Item = RuleIndex> + '_ {
        let mut last = None;
        let marks = self.selected.iter().zip(self.decision.verdicts()).filter(|(_, verdict)| verdict.marks());
        // A rule with several limits marks once.
        marks.map(|(selected, _)| selected.rule).filter(move |rule| last.replace(*rule) != Some(*rule))
    }

    /// The headers of the refusal by the check at `position`.
    pub(super) fn refusal_headers(&self, view: &View, position: usize, retry_after: Duration) -> Headers {
        match self.prepared(view, position) {
            Some((prepared, usage)) => prepared.fill(retry_after, &usage).into(),
            None => self.told_headers(view, &view.refusal(self.rule(position)).headers, retry_after),
        }
    }

    /// The same as HTTP/1.1 writes them, where they can be had ready.
    pub(super) fn raw_refusal_headers(
        &self,
        view: &View,
        position: usize,
        retry_after: Duration,
    ) -> Option<RawHeaders> {
        let (prepared, usage) = self.prepared(view, position)?;
        Some(prepared.raw(retry_after, &usage))
    }

    fn prepared<'a>(&self, view: &'a View, position: usize) -> Option<(&'a Prepared, Usage)> {
        let [verdict] = self.decision.verdicts() else { return None };
        let prepared = view.prepared(self.rule(position)).filter(|_| self.told.is_none())?;
        Some((prepared, verdict.usage(self.at)?))
    }

    /// The headers of a rejection with those `configured`, and with what other services have said.
    pub(super) fn told_headers(&self, view: &View, configured: &HeaderMap, retry_after: Duration) -> Headers {
        let mut headers = Headers::from(limited_headers(configured, retry_after));
        self.write_headers(&mut headers, view, Some(retry_after));
        self.write_told(&mut headers);
        headers
    }

    /// Says of what type the body is that another service has for a refusal, if that says so.
    pub(super) fn write_type(&self, headers: &mut Headers) {
        let told = self.told.as_ref().and_then(|told| told.headers.get(CONTENT_TYPE));
        if let Some(told) = told {
            headers.set(CONTENT_TYPE, told);
        }
    }

    /// The names of the rules over whose limits the request is; none for one that is within all.
    pub(super) fn marks(&self, view: &View) -> impl Iterator<Item = HeaderValue> {
        // Names are visible ASCII (the configuration sees to it), so the value is valid.
        self.marking().filter_map(|rule| HeaderValue::from_str(view.rule_name(rule)).ok())
    }

    /// All that the client is told with the upstream's answer.
    pub(super) fn write_all(&self, headers: &mut Headers, view: &View) {
        self.write_headers(headers, view, None);
        for mark in self.marks(view) {
            headers.append(X_WEIR_OVER_LIMIT, &mark);
        }
        self.write_told(headers);
    }

    /// What other services have the client told, but for what we have said ourselves.
    fn write_told(&self, headers: &mut Headers) {
        let Some(told) = &self.told else { return };
        let headers = headers.map_mut();
        let is_said: Vec<_> = SAID_ONCE.into_iter().filter(|name| headers.contains_key(name)).collect();
        for (name, value) in told.headers.iter().filter(|(name, _)| !is_said.contains(name)) {
            headers.append(name, value.clone());
        }
    }

    /// Tells the client how it stands, as far as the configuration wants it told; one that is rejected, beside when to
    /// come again.
    pub(super) fn write_headers(&self, headers: &mut Headers, view: &View, retry_after: Option<Duration>) {
        let Settings { ratelimit_headers, ietf_headers } = view.policy.response;
        if self.selected.is_empty() && self.told.is_none() {
            return;
        }
        let visible = match ratelimit_headers {
            Visibility::Full => true,
            Visibility::Limited => self.is_refused(),
            Visibility::Off => false,
        };
        if visible {
            self.write_envoy(headers, view);
        }
        if ietf_headers {
            self.write_ietf(headers, view, retry_after);
        }
    }

    /// The checks that responses tell about: of several checks of one counter the last.
    fn shown(&self) -> impl Iterator<Item = (&Selected, &Verdict)> + '_ {
        let checked = self.selected.iter().zip(self.decision.verdicts()).enumerate();
        let shown = checked.filter(|(position, (_, verdict))| {
            verdict.enforcement != Enforcement::Shadow && self.last_of_counter(*position).is_none()
        });
        shown.map(|(_, checked)| checked)
    }

    fn write_envoy(&self, headers: &mut Headers, view: &View) {
        let told = self.told.iter().flat_map(|told| &told.standings);
        let told = told.map(|(notation, _, usage)| Standing { notation, grown: None, usage: *usage });
        let standings: SmallVec<[Standing<'_>; 4]> = self
            .shown()
            .filter_map(|(selected, verdict)| {
                let usage = verdict.usage(self.at)?.at_price(selected.price);
                Some(Standing { notation: view.notation(selected)?, grown: grown(selected, verdict), usage })
            })
            .chain(told)
            .collect();
        rate_limit_headers::write_envoy(headers, &standings);
    }

    /// `retry-after` must not be earlier than a `t` beside it (the draft, "Server Behavior"): that of a limit that
    /// rejects is at most as long, as with a queue, and that of another is left out where it is longer.
    fn write_ietf(&self, headers: &mut Headers, view: &View, retry_after: Option<Duration>) {
        let fitting = |more: Option<Duration>, rejects: bool| match retry_after {
            Some(most) if rejects => more.map(|more| more.min(most)),
            Some(most) => more.filter(|more| *more <= most),
            None => more,
        };
        let told = self.told.iter().flat_map(|told| &told.standings).map(|(_, policy, usage)| ServiceLimit {
            policy,
            grown: None,
            remaining: usage.remaining,
            until_more: fitting(Some(usage.reset), usage.remaining == 0),
            partition: None,
        });
        let limits: SmallVec<[ServiceLimit<'_>; 4]> = self
            .shown()
            .filter_map(|(selected, verdict)| {
                Some(ServiceLimit {
                    policy: view.policies.policy(selected)?,
                    grown: grown(selected, verdict),
                    remaining: verdict.usage(self.at)?.at_price(selected.price).remaining,
                    until_more: fitting(verdict.until_more(selected.price, self.at), verdict.refuses()),
                    partition: view.policies.partition(selected),
                })
            })
            .chain(told)
            .collect();
        ietf::write(headers, &limits);
    }
}

/// Limits of a request that others are still asked about: what is decided is counted when that is over, however it ends.
pub(super) struct Recording<'a> {
    view: &'a View,
    limits: &'a mut Limits,
}

impl<'a> Recording<'a> {
    pub(super) fn of(view: &'a View, limits: &'a mut Limits) -> Self {
        Self { view, limits }
    }

    pub(super) fn limits(&mut self) -> &mut Limits {
        self.limits
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.limits.record(self.view);
    }
}

/// The count of an elastic limit at what requests cost now, where that is more than what was written.
fn grown(selected: &Selected, verdict: &Verdict) -> Option<u32> {
    let quota = verdict.quota()?;
    let (shares, price) = (u32::from(quota.shares().get()), selected.price.get());
    if price >= shares {
        return None;
    }
    let count = u64::from(quota.limit().count.get()) * u64::from(shares) / u64::from(price);
    Some(u32::try_from(count).unwrap_or(u32::MAX))
}
