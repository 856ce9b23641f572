//! Limits that instances share: what becomes of a request whose counters are out of units.
//!
//! Nearly all requests spend units that this instance has claimed, and never come here. One that finds none takes what is
//! held back, else waits for the store as long as its rule allows, else is rejected; and while the store is away, what
//! the rule says for that counts in its place.

use std::rc::Rc;
use std::time::Duration;

use super::{Limits, View};
use crate::limiter::decision::Verdict;
use crate::limiter::timestamp::Timestamp;
use crate::rules::RuleIndex;
use crate::rules::rule::{Action, LimitSource};
use crate::rules::selection::Part;
use crate::rules::shared_limit::SharedLimit;
use crate::store::supply::{Supply, Waiting};
use crate::throttle;
use smallvec::SmallVec;

/// A request takes units out of a reserve at most so often before it counts as rejected: others may be quicker.
const MAX_ATTEMPTS: usize = 4;
/// How long clients wait for a store that is away, at least.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The limits of a request that the store has to be asked for.
#[derive(Debug)]
pub struct Short<'a> {
    view: &'a Rc<View>,
    limits: &'a mut Limits,
}

impl<'a> Short<'a> {
    pub(super) const fn new(view: &'a Rc<View>, limits: &'a mut Limits) -> Self {
        Self { view, limits }
    }

    /// Waits for the store, which `hold` does while it holds the request, and decides.
    ///
    /// # Errors
    /// The rule that rejects the request, and how long the client should wait.
    pub async fn resolve(
        self,
        hold: impl AsyncFnOnce(Waiting) -> Timestamp,
    ) -> Result<Option<Duration>, (RuleIndex, Duration)> {
        let Self { view, limits } = self;
        let waiting = std::mem::take(&mut limits.short);
        let now = hold(waiting).await;
        limits.check_again(view, now);
        if limits.decision.is_refused() {
            supply(view, limits, now);
            // Once is enough: who is short again has been waited for.
            limits.short.clear();
        } else {
            supply_observers(view, limits, now);
        }
        limits.record_if_decided(view);
        match throttle::resolve(&limits.decision) {
            throttle::Action::Forward => Ok(None),
            throttle::Action::Delay(delay) => Ok(Some(delay)),
            throttle::Action::Refuse { by, retry_after } => Err((limits.rule(by), retry_after)),
        }
    }
}

impl Limits {
    fn check_again(&mut self, view: &View, now: Timestamp) {
        self.decision = super::check(&view.limiter, &self.selected, now);
        self.at = now;
    }

    fn short(&self) -> SmallVec<[usize; 2]> {
        let verdicts = self.decision.verdicts().iter().enumerate();
        verdicts.filter(|(_, verdict)| verdict.is_short()).map(|(position, _)| position).collect()
    }

    fn is_rejected_otherwise(&self) -> bool {
        self.decision.verdicts().iter().any(|verdict| verdict.refuses() && !verdict.is_short())
    }

    /// The store has no units for these checks, for so long. Their counters know by now, so that a ban begins.
    fn reject(&mut self, view: &View, rejected: &[(usize, Duration)], now: Timestamp) {
        let has_ban = self.selected.iter().any(|selected| selected.part == Part::Ban);
        if !rejected.is_empty() && has_ban {
            self.check_again(view, now);
        }
        for (position, wait) in rejected {
            if self.decision.verdicts().get(*position).is_some_and(Verdict::is_short) {
                self.decision.reject(*position, *wait);
            }
        }
    }

    /// What counts in place of the check at `position` while the store is away.
    fn go_without_store(&mut self, view: &View, position: usize) {
        if !view.policy.rules.go_without_store(&mut self.selected[position].check) {
            self.decision.reject(position, RETRY_AFTER);
        }
    }
}

/// Brings units for the checks that are short, as far as that can be done at once; what has to wait for the store is in
/// `limits.short`.
// Out of line: nearly no request comes here.
#[inline(never)]
pub(super) fn supply(view: &View, limits: &mut Limits, now: Timestamp) {
    for _ in 0..MAX_ATTEMPTS {
        let short = limits.short();
        if short.is_empty() || limits.is_rejected_otherwise() {
            return;
        }
        let mut rejected = SmallVec::<[(usize, Duration); 2]>::new();
        for position in short {
            match supply_one(view, limits, position, now) {
                Supply::There => {}
                Supply::Asked(lacking) => limits.short.add(lacking),
                Supply::Rejected(wait) => rejected.push((position, wait)),
                Supply::Away => limits.go_without_store(view, position),
            }
        }
        limits.reject(view, &rejected, now);
        if limits.is_rejected_otherwise() {
            limits.short.clear();
            return;
        }
        if !limits.short.is_empty() {
            return;
        }
        limits.check_again(view, now);
    }
}

fn supply_one(view: &View, limits: &Limits, position: usize, now: Timestamp) -> Supply {
    let selected = &limits.selected[position];
    let store = view.store.as_ref().filter(|store| !store.is_away());
    let (Some(store), Some(shared)) = (store, shared_limit(view, selected.rule)) else {
        return Supply::Away;
    };
    let (counter, claimed) =
        (view.limiter.shared_counter(&selected.check), view.limiter.claim(&selected.check, now));
    let wait = if limits.decision.verdicts()[position].refuses() { shared.wait } else { Duration::ZERO };
    store.supply(counter, claimed, wait)
}

/// Decides again what is not enforced, such as a rule in shadow mode, and lacks units: alone, since the other checks of a request that
/// passes have been charged. No request waits for a rule that only looks on. Where the store has to be asked first, it counts
/// as within the limit: the store has not said otherwise.
#[inline(never)]
pub(super) fn supply_observers(view: &View, limits: &mut Limits, now: Timestamp) {
    for position in 0..limits.selected.len() {
        for _ in 0..MAX_ATTEMPTS {
            if !limits.decision.verdicts()[position].lacks_units() {
                break;
            }
            match supply_one(view, limits, position, now) {
                Supply::There => {}
                Supply::Rejected(wait) if !wait.is_zero() => {
                    limits.decision.reject(position, wait);
                    break;
                }
                Supply::Rejected(_) | Supply::Asked(_) => {
                    limits.decision.allow(position);
                    break;
                }
                Supply::Away => limits.go_without_store(view, position),
            }
            let decided = view.limiter.check(&[limits.selected[position].check], now);
            limits.decision.replace(position, decided.verdicts()[0]);
        }
    }
}

fn shared_limit(view: &View, rule: RuleIndex) -> Option<&SharedLimit> {
    let Action::Limit(limiting) = &view.policy.rules.get(rule)?.action else { return None };
    match &limiting.source {
        LimitSource::Shared(shared) => Some(shared),
        LimitSource::Local | LimitSource::Remote(_) => None,
    }
}
