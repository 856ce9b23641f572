//! What a waiting request leaves in its queue, so that others can decide it.

use smallvec::SmallVec;

use crate::{AppliedLimits, LimitsView};
use weir_limiter::check_options::{CheckOptions, CounterRole};
use weir_limiter::decision::Enforcement;
use weir_limiter::reservation::ChargeTiming;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::wait_queue::{Offer, Ticket};
use weir_policy::rules::selection::{CheckRole, SelectedCheck};

impl AppliedLimits {
    /// Returns what other requests need to decide this one. `None` if only the request itself can be decided.
    pub(super) fn offer(&mut self, view: &LimitsView, now: Timestamp) -> Option<Box<Offer>> {
        self.allow_charge_ahead(now);
        let line = self.wait.as_ref()?;
        let counter = line.ticket().map(Ticket::counter)?;
        let position = self.selected.iter().position(|one| one.check.counter_id() == counter)?;
        if !self.selected.iter().all(|one| can_be_offered(view, one)) {
            return None;
        }
        let mut others = SmallVec::new();
        let elsewhere = self.selected.iter().enumerate().filter(|(other, _)| *other != position);
        for (_, other) in elsewhere.filter(|(_, other)| view.wait_for(other).is_some()) {
            if view.pace_of(&self.selected, other, now).is_some() {
                return None;
            }
            others.push(other.check.counter_id());
        }
        let one = &self.selected[position];
        Some(Box::new(Offer {
            checks: self.selected.iter().map(|one| one.check).collect(),
            position,
            pace: view.pace_of(&self.selected, one, now),
            others,
            until: now.saturating_add(line.time_left(one.rule, now)),
        }))
    }
}

/// Whether a check does not change while its request waits, and needs nothing but a decision.
fn can_be_offered(view: &LimitsView, one: &SelectedCheck) -> bool {
    let is_plain = match one.check.options {
        None => true,
        Some(CheckOptions { role, .. }) => {
            view.wait_for(one).is_some() && matches!(role, CounterRole::Delay(_))
        }
    };
    is_plain
        && matches!(one.role, CheckRole::Limit(_))
        && one.check.enforcement == Enforcement::Enforced
        && one.check.charge_timing == ChargeTiming::OnArrival
        && !one.needs_settlement
        && view.policy.rules.feedback(one.rule).is_none()
}
