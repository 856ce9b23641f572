//! Requests that wait in a queue for room in the limits of their rules.
//!
//! A request that finds room, and no other request before it, does not get further than
//! [`AppliedLimits::decide_on_arrival`]. Otherwise it joins the queue of a counter without room, and the proxy holds it.
//! It is charged nothing until it is the first of the queue and all its limits have room. A request that cannot be
//! admitted in time is rejected at once.

mod offer;
mod request;
mod room;
pub(super) mod turn;

use std::time::Duration;

use smallvec::SmallVec;

pub(super) use self::request::WaitingRequest;
pub use self::request::{QueueArrival, waiting_size};
use self::room::Room;
use self::turn::{Turn, TurnEvent};
use super::progress::{HeldDelay, HeldProgress, NotAdmitted, Wait};
use super::{AppliedLimits, LimitsView, leases};
use weir_limiter::check_options::{CheckOptions, CounterRole, DelayPolicy, WithoutRoom};
use weir_limiter::decision::{Enforcement, Verdict};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::wait_queue::pace::{LOOKAHEAD, Pace, PaceSlot};
use weir_limiter::wait_queue::{CHARGE_AHEAD, Ticket};
use weir_policy::identify::Attributes;
use weir_policy::rules::selection::{CheckRole, SelectedCheck};
use weir_policy::rules::wait::WaitPolicy;
use weir_telemetry::metrics::WaitRejection;

/// Time after which the first request of a queue tries again, if it is unknown when there will be room. It is notified
/// when units come back; this is for changes without a notification.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl LimitsView {
    /// Returns how requests wait for the limit of a check; `None` if they do not, or if the rule is not enforced.
    fn wait_for(&self, selected: &SelectedCheck) -> Option<&WaitPolicy> {
        let is_enforced = selected.check.enforcement == Enforcement::Enforced;
        self.policy.rules.get(selected.rule).filter(|_| is_enforced)?.wait()
    }

    /// Whether requests wait for the limit of a check, and the current configuration does not have it.
    fn is_gone(&self, one: &SelectedCheck) -> bool {
        self.wait_for(one).is_some() && !self.limiter.queues().is_installed(one.check.handle)
    }

    /// Whether a request with these checks may have to wait.
    pub(super) fn may_wait(&self, selected: &[SelectedCheck]) -> bool {
        self.tables.has_queues && selected.iter().any(|one| self.wait_for(one).is_some())
    }

    /// Returns the pace of the limit of a check, if its rule has one and no shorter limit.
    fn pace_of(&self, all: &[SelectedCheck], one: &SelectedCheck, now: Timestamp) -> Option<Pace> {
        let mode = self.wait_for(one)?.pace?;
        let quota_of = |one: &SelectedCheck| {
            let is_rate = matches!(one.role, CheckRole::Limit(_));
            let in_force = self.limiter.quota_in_force(one.check.handle, one.check.key, now);
            in_force.filter(|_| is_rate)
        };
        let quota = quota_of(one)?;
        let others = all.iter().filter(|other| other.rule == one.rule && other.role != one.role);
        let is_shortest =
            others.filter_map(quota_of).all(|other| quota.window().nanos() <= other.window().nanos());
        let cost = one.check.cost.saturating_add(one.surcharge);
        is_shortest.then(|| Pace::new(mode, &quota, self.limiter.fleet().instances, cost))
    }
}

impl AppliedLimits {
    /// Decides the limits of a request that may have to wait. Afterwards it is decided, or waits, or leases are pending.
    pub(super) fn decide_on_arrival(
        &mut self,
        view: &LimitsView,
        request: &Attributes<'_>,
        arrival: Option<QueueArrival>,
    ) {
        let now = self.decided_at;
        let new_waiting = |limits: &Self| WaitingRequest::new(view, &limits.selected, request, arrival, now);
        let mut waiting = None;
        if !view.limiter.queues().is_empty() {
            let new = waiting.insert(new_waiting(self));
            if let Some(position) = new.position_behind(view, &self.selected) {
                self.peek(view, now);
                if !self.is_rejected_by_another(view) {
                    let waiting = waiting.unwrap_or_else(|| new_waiting(self));
                    return self.start_waiting(view, waiting, position);
                }
            }
        }
        // The time that the request may wait in the queue is part of its wait for the store.
        let before_store = |limits: &mut Self| {
            limits.wait = Some(Box::new(waiting.take().unwrap_or_else(|| new_waiting(limits))));
        };
        let position = match self.attempt(view, now, before_store) {
            Some((position, _)) => {
                self.peek(view, now);
                if self.is_rejected_by_another(view) {
                    // It cannot be paced, and is not to wait for a rejection.
                    return self.check_again(view, now);
                }
                Some(position)
            }
            None => self.position_without_room(view),
        };
        let created = self.wait.take().map(|waiting| *waiting).or(waiting);
        if let Some(position) = position {
            let waiting = created.unwrap_or_else(|| new_waiting(self));
            self.start_waiting(view, waiting, position);
        }
    }

    /// Joins the queue of the check at `position`. A response of the store for which the request waits is that of its turn.
    fn start_waiting(&mut self, view: &LimitsView, waiting: WaitingRequest, position: usize) {
        let now = self.decided_at;
        self.wait = Some(Box::new(waiting));
        if self.join(view, position, now).is_none() {
            self.wait = None;
            self.lease_waits.stop();
        }
    }

    /// Decides without charging anything.
    fn peek(&mut self, view: &LimitsView, now: Timestamp) {
        self.decision = view.limiter.peek(self.selected.iter().map(|one| one.check), now);
    }

    /// Takes a place in the pace of the limits, and decides. `before_store` is called if units have to come from the store.
    /// Returns the position of a check whose pace has no room, and the time until it has.
    fn attempt(
        &mut self,
        view: &LimitsView,
        now: Timestamp,
        before_store: impl FnOnce(&mut Self),
    ) -> Option<(usize, Duration)> {
        if self.wait.is_some() {
            view.policy.rules.refresh(&mut self.selected);
        }
        let (queues, mut reserved) = (view.limiter.queues(), SmallVec::<[(usize, Duration); 1]>::new());
        for (position, one) in self.selected.iter().enumerate() {
            let Some(pace) = view.pace_of(&self.selected, one, now) else { continue };
            match queues.reserve_pace(one.check.counter_id(), &pace, now) {
                PaceSlot::Taken(delay) => reserved.push((position, delay)),
                PaceSlot::After(wait) => {
                    let counter_at = |position: usize| self.selected[position].check.counter_id();
                    reserved.iter().for_each(|(at, _)| queues.cancel_pace(counter_at(*at), false, now));
                    return Some((position, wait));
                }
            }
        }
        self.check_again(view, now);
        if view.policy.rules.is_shared() && self.decision.verdicts().iter().any(Verdict::needs_lease) {
            before_store(self);
            leases::acquire_leases(view, self);
        } else {
            self.lease_waits.stop();
        }
        let is_rejected = self.decision.is_rejected();
        for (position, delay) in reserved {
            if is_rejected {
                let verdict = &self.decision.verdicts()[position];
                let is_reached = verdict.exceeds() && !verdict.awaits_lease();
                queues.cancel_pace(self.selected[position].check.counter_id(), is_reached, now);
            } else if delay > self.decision.verdicts()[position].delay() {
                self.decision.set_delay(position, delay);
            }
        }
        None
    }

    /// Whether a rule for which the request does not wait rejects it.
    fn is_rejected_by_another(&self, view: &LimitsView) -> bool {
        let checked = self.selected.iter().zip(self.decision.verdicts());
        checked
            .filter(|(_, verdict)| verdict.rejects() && !verdict.awaits_lease())
            .any(|(one, verdict)| verdict.is_banned() || view.wait_for(one).is_none())
    }

    /// Returns the position of the check for which the request has to wait longest; `None` if it is admitted, or rejected
    /// for good.
    fn position_without_room(&self, view: &LimitsView) -> Option<usize> {
        if self.is_rejected_by_another(view) {
            return None;
        }
        let checked = self.selected.iter().zip(self.decision.verdicts()).enumerate();
        let waits = checked.filter(|(_, (one, verdict))| verdict.rejects() && view.wait_for(one).is_some());
        waits.max_by_key(|(_, (_, verdict))| verdict.retry_after()).map(|(position, _)| position)
    }

    /// Joins the queue of the check at `position`, unless the request is in it. Rejects the request and returns `None` if
    /// that is not possible.
    fn join(&mut self, view: &LimitsView, position: usize, now: Timestamp) -> Option<()> {
        let is_there = self.wait.as_ref()?.is_in_queue_of(&self.selected[position]);
        let pace = if is_there { Duration::ZERO } else { self.min_pace_wait(view, position, now) };
        let (one, verdict) = (&self.selected[position], &self.decision.verdicts()[position]);
        let joined = self.wait.as_mut()?.join(view, one, verdict, pace, now);
        match joined {
            Ok(()) => Some(()),
            Err(reason) => {
                self.reject_waiting(view, position, reason, now);
                None
            }
        }
    }

    /// Returns a lower bound of the time until the pace of its limits has a place for the request, in the queue of the
    /// check at `position`.
    fn min_pace_wait(&self, view: &LimitsView, position: usize, now: Timestamp) -> Duration {
        let Some(waiting) = &self.wait else { return Duration::ZERO };
        let queue = &self.selected[position];
        let bound = |one: &SelectedCheck| {
            let pace = view.pace_of(&self.selected, one, now)?;
            // Requests before this one in its queue take places of the same pace, if they have the same key.
            let is_same = one.rule == queue.rule && one.check.key == queue.check.key;
            let in_queue = if is_same { waiting.ahead(view, queue) } else { 0 };
            let ahead = waiting.ahead(view, one).max(in_queue);
            Some(view.limiter.queues().min_pace_wait(one.check.counter_id(), &pace, ahead, now))
        };
        self.selected.iter().filter_map(bound).max().unwrap_or_default()
    }

    /// Rejects the request, because it cannot wait for the limit of the check at `position`.
    fn reject_waiting(&mut self, view: &LimitsView, position: usize, reason: WaitRejection, now: Timestamp) {
        self.peek(view, now);
        self.decided_at = now;
        let pace = self.min_pace_wait(view, position, now);
        let one = &self.selected[position];
        let verdict = &self.decision.verdicts()[position];
        let time = self
            .wait
            .as_ref()
            .map_or(Duration::ZERO, |waiting| waiting.time_until_place(view, one, verdict, pace, now));
        if let Some(metrics) = view.wait_metrics(one.rule) {
            metrics.record_rejection(reason);
        }
        self.decision.reject(position, time);
    }
}

impl AppliedLimits {
    /// Ends the wait of a decided request. Returns the time for which it is still to be delayed. It is not awaited here,
    /// because the request is charged already: the caller first takes over what must be settled if the client leaves
    /// meanwhile.
    pub(super) fn end_wait(&mut self, view: &LimitsView, now: Timestamp) -> HeldDelay {
        self.lease_waits.stop();
        let Some(mut waiting) = self.wait.take().filter(|_| !self.decision.is_rejected()) else {
            return HeldDelay { time: Duration::ZERO, memory: None };
        };
        let memory = Some(waiting.leave_admitted(&view.limiter, now));
        // Another request may have decided this one a little earlier.
        let delay = self.decision.delay().saturating_sub(now.since(self.decided_at));
        let waited = now.since(waiting.since()).saturating_add(delay);
        for (position, one) in
            self.selected.iter().enumerate().filter(|(_, one)| waiting.has_waited(one.rule))
        {
            self.decision.set_delay(position, waited);
            if let Some(metrics) = view.wait_metrics(one.rule) {
                metrics.record_wait(waited);
            }
        }
        HeldDelay { time: delay, memory }
    }

    /// Decides a waiting request. Returns its state if it is still undecided.
    pub(super) fn decide_waiting(&mut self, view: &LimitsView, now: Timestamp) -> Option<HeldProgress> {
        let grant = self.wait.as_ref().and_then(|waiting| waiting.ticket()).and_then(Ticket::take_grant);
        if let Some(grant) = grant {
            (self.decision, self.decided_at) = (grant.decision, grant.at);
            return None;
        }
        if self.selected.iter().any(|one| view.is_gone(one)) {
            return Some(HeldProgress::NotAdmitted(NotAdmitted::Superseded));
        }
        let mut wait = self.next_wait(view, now)?;
        if let Wait::Turn(turn) = &mut wait {
            turn.offer = self.offer(view, now);
        }
        Some(HeldProgress::Wait(wait))
    }

    /// Decides a waiting request whose limits are installed. Returns what it waits for, unless the decision is final.
    fn next_wait(&mut self, view: &LimitsView, now: Timestamp) -> Option<Wait> {
        if let Some(position) = self.wait.as_ref()?.position_behind(view, &self.selected) {
            self.lease_waits.stop();
            return self.wait_turn(view, position, TurnEvent::First, None, now);
        }
        self.allow_charge_ahead(now);
        if let Some((position, wait)) = self.attempt(view, now, |_| {}) {
            let room = Room { retry: wait, ahead: LOOKAHEAD };
            return self.wait_turn(view, position, TurnEvent::Notified, Some(room), now);
        }
        let Some(position) = self.position_without_room(view) else {
            // A shared limit of a rule without a queue may still be pending.
            return self.lease_waits.is_pending().then_some(Wait::Lease);
        };
        let room = Room::of(&self.decision.verdicts()[position], self.selected[position].check.options);
        match self.wait_turn(view, position, TurnEvent::Notified, room, now) {
            Some(Wait::Turn(Turn { event: TurnEvent::Notified, .. })) if self.lease_waits.is_pending() => {
                Some(Wait::Lease)
            }
            wait => {
                self.lease_waits.stop();
                wait
            }
        }
    }

    /// Makes the request wait in the queue of the check at `position`. `room`: when the limit is expected to have room, if
    /// that is known. Returns what it waits for, or `None` if it is rejected.
    fn wait_turn(
        &mut self,
        view: &LimitsView,
        position: usize,
        event: TurnEvent,
        room: Option<Room>,
        now: Timestamp,
    ) -> Option<Wait> {
        self.join(view, position, now)?;
        let waiting = self.wait.as_mut()?;
        let left = waiting.time_left(self.selected[position].rule, now);
        if left.is_zero() {
            self.reject_waiting(view, position, WaitRejection::Expired, now);
            return None;
        }
        let is_first = waiting.ticket()?.is_first();
        if event == TurnEvent::First || !is_first {
            return Some(Wait::Turn(Turn { event: TurnEvent::First, timeout: left, offer: None }));
        }
        if room.is_some_and(|room| room.retry.saturating_add(room.ahead) > left) {
            self.reject_waiting(view, position, WaitRejection::NoTime, now);
            return None;
        }
        let retry = room.map_or(MAX_RETRY_INTERVAL, |room| room.retry);
        let timeout = retry.min(MAX_RETRY_INTERVAL).min(left);
        Some(Wait::Turn(Turn { event: TurnEvent::Notified, timeout, offer: None }))
    }

    /// Lets the limiter charge the request up to [`CHARGE_AHEAD`] before its unit is there. The request is then delayed
    /// until that time, and the next one is decided at once. Not beyond the end of its wait.
    fn allow_charge_ahead(&mut self, now: Timestamp) {
        let Some(waiting) = &self.wait else { return };
        let Some(counter) = waiting.ticket().map(Ticket::counter) else { return };
        let Some(position) = self.selected.iter().position(|one| one.check.counter_id() == counter) else {
            return;
        };
        let one = &mut self.selected[position];
        if one.check.without_room() != WithoutRoom::Reject {
            return;
        }
        let quota = self.decision.verdicts().get(position).and_then(Verdict::quota);
        let can_delay = quota.is_some_and(|quota| quota.algorithm().can_delay());
        if can_delay && matches!(one.role, CheckRole::Limit(_)) {
            let group = u32::try_from(one.rule.0).unwrap_or(u32::MAX);
            let ahead = CHARGE_AHEAD.min(waiting.time_left(one.rule, now));
            let role = CounterRole::Delay(DelayPolicy::new(ahead, None));
            one.check.options = Some(CheckOptions::new(group, role));
        }
    }

    /// Rejects a request that has lost its place.
    pub(super) fn evict(&mut self, view: &LimitsView, now: Timestamp) {
        let counter = self.wait.as_ref().and_then(|waiting| waiting.ticket()).map(Ticket::counter);
        let position = self.selected.iter().position(|one| Some(one.check.counter_id()) == counter);
        self.reject_waiting(view, position.unwrap_or_default(), WaitRejection::Evicted, now);
    }

    /// Removes the limits that a reload has removed; they no longer hold the request.
    pub(super) fn remove_uninstalled_limits(&mut self, view: &LimitsView) {
        self.selected.retain(|one| !view.is_gone(one));
        self.lease_waits.stop();
        if let Some(waiting) = &mut self.wait {
            waiting.leave();
        }
        self.peek(view, self.decided_at);
    }
}

#[cfg(test)]
mod tests;
