//! Where the units of a request come from, and what becomes of it by them.
//!
//! Each rule's limit has a source ([`LimitSource`]). What is counted here is checked at once, by
//! [`Pending::check`]; what another service counts is asked for next ([`Undecided`]), while the caller holds the
//! request. Only then are there [`Limits`]: decided, counted in the metrics, to be settled and shown. What a request was
//! charged before it was rejected is given back through its [`Settlement`]. This module knows nothing of connections,
//! requests in transit or bodies.
//!
//! [`LimitSource`]: crate::rules::rule::LimitSource

mod headers;
mod quota_policies;
mod remote;
mod settlement;
mod shared;
mod view;

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;

pub use self::remote::{Query, Responses, Undecided};
use self::remote::{Remote, RemoteVerdicts};
pub use self::settlement::Settlement;
pub use self::shared::Short;
pub use self::view::{Resources, View};
use crate::limiter::decision::{Decision, Verdict};
use crate::limiter::reservation::{Reservation, Settled};
use crate::limiter::timestamp::Timestamp;
use crate::limiter::{Check, Limiter};
use crate::rules::RuleIndex;
use crate::rules::outcome::DecisionOutcome;
use crate::rules::selection::{Part, Selected, SideEffects};
pub use crate::store::supply::Waiting;
use crate::throttle;

/// The limits of a request as far as they are decided here. Another service may have to be asked.
#[derive(Debug)]
pub struct Pending(Limits);

/// What the limits that are counted here make of a request.
#[derive(Debug)]
pub enum Admission<'a> {
    /// It passes them, after this delay.
    Pass(Option<Duration>),
    /// One of them rejects it.
    Reject(Rejected<'a>),
    /// One of them is out of units, and the store may have some: [`Pending::short`] has the rest.
    Short,
}

/// Who has the last word.
#[derive(Debug)]
pub enum Sources<'a> {
    /// The limits that are counted here: they are decided.
    Local(&'a mut Limits),
    /// Other services, too.
    Remote(Undecided<'a>),
}

/// The limits of a request that is rejected, and why.
#[derive(Debug)]
pub struct Rejected<'a> {
    /// All of them.
    pub limits: &'a mut Limits,
    /// The rule that rejects it.
    pub rule: RuleIndex,
    /// How long the client should wait.
    pub retry_after: Duration,
    /// Why.
    pub reason: Reason,
}

/// Why a rule rejects a request.
#[derive(Clone, Debug)]
pub enum Reason {
    /// Its limit is reached.
    Limit,
    /// Another service says that its limit is reached, with this body; empty where it leaves that to the rule.
    Remote(Bytes),
    /// The other service did not respond, and the rule then rejects.
    Unanswered,
}

/// The limits of a request, decided.
#[derive(Debug)]
pub struct Limits {
    selected: SmallVec<[Selected; 2]>,
    /// Rules that would have rejected it before any limit, and are not in force.
    shadow_rules: Vec<RuleIndex>,
    decision: Decision,
    /// When it was last decided or settled.
    at: Timestamp,
    remote: Remote,
    /// The checks that wait for units of the store.
    short: Waiting,
}

impl Pending {
    /// No limit applies.
    pub fn none(at: Timestamp) -> Self {
        Self(Limits::none(at))
    }

    /// Has the limiter decide, and counts that unless another service has the last word.
    pub fn check(
        view: &View,
        selected: SmallVec<[Selected; 2]>,
        SideEffects { shadow_rules, queries }: SideEffects,
        now: Timestamp,
    ) -> Self {
        let decision = check(&view.limiter, &selected, now);
        let remote = if queries.is_empty() { Remote::None } else { Remote::Pending(queries) };
        let short = Waiting::default();
        let mut limits = Limits { selected, shadow_rules, decision, at: now, remote, short };
        if view.policy.rules.is_shared() {
            if limits.decision.is_refused() {
                shared::supply(view, &mut limits, now);
            } else if limits.decision.verdicts().iter().any(Verdict::lacks_units) {
                shared::supply_observers(view, &mut limits, now);
            }
        }
        limits.record_if_decided(view);
        Self(limits)
    }

    /// What the limits that are counted here make of the request.
    pub fn admission(&mut self) -> Admission<'_> {
        if !self.0.short.is_empty() {
            return Admission::Short;
        }
        match throttle::resolve(&self.0.decision) {
            throttle::Action::Forward => Admission::Pass(None),
            throttle::Action::Delay(delay) => Admission::Pass(Some(delay)),
            throttle::Action::Refuse { by, retry_after } => {
                let rule = self.0.rule(by);
                Admission::Reject(Rejected { limits: &mut self.0, rule, retry_after, reason: Reason::Limit })
            }
        }
    }

    /// The limits that the store has to be asked for units of, if there are any: to be resolved before [`Self::sources`].
    pub fn short<'a>(&'a mut self, view: &'a Rc<View>) -> Option<Short<'a>> {
        self.is_short().then(|| Short::new(view, &mut self.0))
    }

    /// Whether the store has to be asked for units.
    pub fn is_short(&self) -> bool {
        !self.0.short.is_empty()
    }

    /// Who has the last word about a request that has passed the limits here.
    pub fn sources<'a>(&'a mut self, view: &'a Rc<View>) -> Sources<'a> {
        let limits = &mut self.0;
        if limits.is_pending() {
            Sources::Remote(Undecided::new(view, limits))
        } else {
            Sources::Local(limits)
        }
    }

    /// Whether another service or the store is to be asked.
    pub fn is_undecided(&self) -> bool {
        self.0.is_pending() || self.is_short()
    }

    /// The rules that may reject the request yet.
    pub fn undecided_rules(&self) -> impl Iterator<Item = RuleIndex> + '_ {
        let of_store = if self.0.short.is_empty() { &[][..] } else { &self.0.selected };
        of_store.iter().map(|selected| selected.rule).chain(self.remote_rules())
    }

    /// The rules whose limits another service counts.
    fn remote_rules(&self) -> impl Iterator<Item = RuleIndex> + '_ {
        self.0.remote.queries().iter().map(|query| query.rule)
    }

    /// The rejection by a rule that [`Short::resolve`] has returned.
    pub fn rejected(&mut self, rule: RuleIndex, retry_after: Duration) -> Rejected<'_> {
        Rejected { limits: &mut self.0, rule, retry_after, reason: Reason::Limit }
    }

    /// The rules that limit it, each as often as it has limits.
    pub fn rules(&self) -> impl Iterator<Item = RuleIndex> + '_ {
        self.0.selected.iter().map(|selected| selected.rule).chain(self.remote_rules())
    }

    /// What a request that passes has to settle when its end is known; `None` if nothing, or if the store has to be asked
    /// first.
    pub fn settlement(&self, view: &View) -> Option<Box<Settlement>> {
        if self.0.short.is_empty() { Settlement::new(&self.0, &view.policy) } else { None }
    }

    /// As far as they are decided.
    pub const fn so_far(&self) -> &Limits {
        &self.0
    }
}

impl Limits {
    /// No limit applies.
    pub fn none(at: Timestamp) -> Self {
        let (selected, shadow_rules) = (SmallVec::new(), Vec::new());
        let (decision, short) = (Decision::default(), Waiting::default());
        Self { selected, shadow_rules, decision, at, remote: Remote::None, short }
    }

    /// When it was last decided or settled.
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// The rules over whose limits the request passes all the same, marked.
    pub fn marking(&self) -> impl Iterator<Item = RuleIndex> + '_ {
        let mut last = None;
        let marks = self.selected.iter().zip(self.decision.verdicts()).filter(|(_, verdict)| verdict.marks());
        // A rule with several limits marks once.
        marks.map(|(selected, _)| selected.rule).filter(move |rule| last.replace(*rule) != Some(*rule))
    }

    /// The check at `position` was settled at `now`: that is how the client stands.
    pub fn note_settled(&mut self, position: usize, settled: Settled, now: Timestamp) {
        self.decision.note_settled(position, settled);
        if let Some(last) = self.last_of_counter(position) {
            self.decision.note_settled(last, settled);
        }
        self.at = now;
    }

    /// Whether another service has to be asked yet.
    fn is_pending(&self) -> bool {
        !self.remote.queries().is_empty()
    }

    fn is_rejected(&self) -> bool {
        self.decision.is_refused() || self.verdicts().is_some_and(|verdicts| verdicts.rejects)
    }

    /// What other services have said.
    fn verdicts(&self) -> Option<&RemoteVerdicts> {
        match &self.remote {
            Remote::Decided(verdicts) => Some(verdicts),
            Remote::None | Remote::Pending(_) => None,
        }
    }

    /// The rule of the check at `position`.
    fn rule(&self, position: usize) -> RuleIndex {
        self.selected[position].rule
    }

    /// Has the limiter decide `more`, too.
    fn check_more(&mut self, limiter: &Limiter, more: SmallVec<[Selected; 2]>, now: Timestamp) {
        let decision = check(limiter, &more, now);
        self.selected.extend(more);
        self.decision.extend(&decision);
        self.at = now;
    }

    /// What the request reserved that is to be settled, with the place of the check. Only what
    /// conformed has been charged or held, and only if the request passed. As long as another service may reject it, all
    /// of it may be given back.
    fn reservations(&self) -> impl Iterator<Item = (usize, &Selected, Reservation)> + '_ {
        let is_open = |selected: &Selected| match selected.part {
            Part::Ban | Part::Permit => false,
            Part::Limit(_) | Part::Margin(_) | Part::Mark(_) => selected.settles || self.is_pending(),
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
    fn permits(&self) -> impl Iterator<Item = Reservation> + '_ {
        let checked = self.selected.iter().zip(self.decision.verdicts());
        checked
            .filter(|(selected, verdict)| selected.part == Part::Permit && !verdict.exceeds())
            .map(|(selected, _)| Reservation::new(&selected.check, self.at))
    }

    /// The last check of the same counter after `position`, which is how the counter stands; `None` if there is none.
    fn last_of_counter(&self, position: usize) -> Option<usize> {
        let Check { meter, key, .. } = self.selected.get(position)?.check;
        let mut later = self.selected.get(position + 1..)?.iter();
        let last = later.rposition(|it| it.check.meter == meter && it.check.key == key)?;
        Some(position + 1 + last)
    }

    /// Counts the decision, unless others have the last word.
    fn record_if_decided(&self, view: &View) {
        if self.short.is_empty() && (!self.is_pending() || self.decision.is_refused()) {
            self.record(view);
        }
    }

    /// Counts one decision per rule: what its strictest limit said. A request that another rule rejected was
    /// not decided by the rules that would have let it pass.
    fn record(&self, view: &View) {
        self.shadow_rules.iter().for_each(|rule| view.record(*rule, DecisionOutcome::Shadow));
        let rejected = self.is_rejected();
        let mut rest = self.selected.as_slice();
        let mut verdicts = self.decision.verdicts();
        while let Some(first) = rest.first() {
            let checks = rest.iter().take_while(|selected| selected.rule == first.rule).count();
            let (of_rule, others) = verdicts.split_at(checks);
            if let Some(outcome) = DecisionOutcome::of(&rest[..checks], of_rule, rejected) {
                view.record(first.rule, outcome);
            }
            rest = &rest[checks..];
            verdicts = others;
        }
    }
}

#[inline]
fn check(limiter: &Limiter, selected: &[Selected], now: Timestamp) -> Decision {
    match selected {
        // Nearly always; a list of one would only be filled to be read once.
        [only] => limiter.check(std::slice::from_ref(&only.check), now),
        several => {
            let checks: SmallVec<[_; 2]> = several.iter().map(|selected| selected.check).collect();
            limiter.check(&checks, now)
        }
    }
}
