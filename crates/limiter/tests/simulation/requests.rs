//! Requests and their completion, and whether the decisions of the limiter are permitted by the model.

use std::ops::Range;

use weir_limiter::Check;
use weir_limiter::algorithm::CounterUsage;
use weir_limiter::check_options::{CheckOptions, CounterRole, OnDenied};
use weir_limiter::decision::{Decision, Enforcement, Verdict};
use weir_limiter::quota::Quota;
use weir_limiter::reservation::{ChargeTiming, DebtLimit, Reservation};
use weir_limiter::timestamp::Timestamp;

use super::bans::BanModel;
use super::model::CounterModel;
use super::rules::{ChargeRule, Limit, Rule, Throttle};
use super::{Id, MAX_PENDING, PendingRequest, Simulation};

/// One check of a request, with what the model needs to verify the result.
struct CheckedLimit {
    id: Id,
    limit: Limit,
    check: Check,
    refunds: bool,
}

impl CheckedLimit {
    /// Whether a rejection may be due only to units that other requests hold.
    fn may_be_blocked_by_holds(&self) -> bool {
        self.is_affected_by_holds() && self.check.charge_timing != ChargeTiming::WhileInFlight
    }

    fn is_ban(&self) -> bool {
        self.limit.ban.is_some()
    }

    /// Whether units held by other requests count against the check. Of checks charged on arrival, this is so only for
    /// those with options: such a rule may share its counter with one that holds units.
    fn is_affected_by_holds(&self) -> bool {
        self.check.charge_timing != ChargeTiming::OnArrival || self.check.options.is_some()
    }

    fn quota(&self) -> &Quota {
        &self.limit.quota
    }

    fn units(&self) -> u64 {
        self.check.cost.into()
    }
}

impl Simulation {
    /// Sends one request to which some of the rules apply. It is charged for all of them or for none.
    pub(crate) fn request(&mut self) {
        let client = self.rng.u32(..self.clients);
        let cost = if self.rng.u32(..50) == 0 { 40 } else { self.rng.u32(1..4) };
        let checked = self.random_checks(client, cost);
        if self.pending.len() + checked.len() > MAX_PENDING {
            return;
        }
        let checks: Vec<_> = checked.iter().map(|asked| asked.check).collect();
        let (before, was_crowded) = (self.usages(&checks), self.is_overflowing());
        let decision = self.limiter.check(&checks, Timestamp::from_nanos(self.now));
        let crowded = was_crowded || self.is_overflowing();
        for (asked, verdict) in checked.iter().zip(decision.verdicts()) {
            self.assert_verdict(asked, verdict, decision.is_rejected(), crowded);
        }
        if decision.is_rejected() {
            let charged = self.apply_rejection(&checked, &decision, crowded);
            let after = self.usages(&checks);
            // A ban that needs a slot in a crowded table may evict an unused counter.
            let made_room = crowded && checks.iter().any(|check| check.options.is_some());
            for (position, (before, after)) in before.iter().zip(&after).enumerate() {
                let may_change = made_room || checked[position].is_ban() || charged.contains(&position);
                let what = || {
                    let told = checked.iter().zip(decision.verdicts()).map(|(asked, verdict)| {
                        let Check { handle, cost, enforcement, charge_timing: charging, options, .. } =
                            asked.check;
                        let counter = self.counter(asked);
                        format!(
                            "\n{:?} {cost} {enforcement:?} {charging:?} {options:?} {:?} {counter:?}",
                            handle.id, verdict.outcome
                        )
                    });
                    format!(
                        "{:?}, {before:?}, {after:?}{}",
                        checked[position].check.handle.id,
                        told.collect::<String>()
                    )
                };
                assert!(may_change || before == after, "{self}: a rejected request was charged: {}", what());
            }
            return;
        }
        for (asked, verdict) in checked.iter().zip(decision.verdicts()) {
            if !asked.is_ban() && !verdict.exceeds() {
                self.admit(asked, crowded);
            }
        }
    }

    fn random_checks(&mut self, client: u32, cost: u32) -> Vec<CheckedLimit> {
        let key = self.limiter.hasher().hash(&client.to_be_bytes());
        let mut handles = self.handles.iter();
        let mut all = Vec::new();
        for (group, rule) in (0..).zip(self.expected.rules.rules()) {
            let applies = self.rng.bool();
            for (limit, handle) in rule.limits_and_ban().zip(&mut handles) {
                let ways = check_mode(rule, limit);
                let options =
                    CheckOptions { on_denied: rule.on_denied, ..CheckOptions::new(group, ways.role) };
                let check = Check {
                    handle: *handle,
                    key,
                    cost: if limit.is_permit() || limit.ban.is_some() {
                        1
                    } else {
                        limit.units(cost, &mut self.rng)
                    },
                    enforcement: ways.enforcement,
                    charge_timing: ways.charge_timing,
                    options: rule.has_options().then_some(options),
                };
                let refunds = rule.charge_rule == ChargeRule::Refunds && !limit.is_permit();
                let asked = CheckedLimit { id: (limit.id, client), limit: limit.clone(), check, refunds };
                all.extend(applies.then_some(asked));
            }
        }
        all
    }

    /// Verifies one verdict: no admission without room, and no rejection if there is certainly room.
    fn assert_verdict(&self, checked: &CheckedLimit, verdict: &Verdict, rejected: bool, overflowing: bool) {
        let (quota, now) = (checked.quota(), self.now);
        if checked.is_ban() {
            let runs = self.expected.bans.get(&checked.id).is_some_and(|ban| ban.is_active(now));
            let is_right = self.bans_lost || verdict.exceeds() == runs;
            assert!(is_right, "{self}: {:?}, {verdict:?}", self.expected.bans.get(&checked.id));
            return;
        }
        let held = if checked.is_affected_by_holds() { self.held_units(checked.id, quota) } else { 0 };
        let counter = self.counter(checked);
        let what =
            || format!("{self}: {} of {quota:?} beside {held} of {counter:?}: {verdict:?}", checked.units());
        if verdict.exceeds() {
            let is_wrong = !overflowing && counter.must_have_room(quota, held + checked.units(), now);
            assert!(!is_wrong, "wrongly rejected {}", what());
        } else {
            let waits =
                matches!(checked.check.options, Some(CheckOptions { role: CounterRole::Delay(_), .. }));
            // For a request that was delayed and then rejected by another limit, the verdict does not state the delay.
            let then = now + u64::try_from(verdict.delay().as_nanos()).unwrap_or(u64::MAX);
            let is_right = (rejected && waits) || counter.has_room(quota, held + checked.units(), then);
            assert!(is_right, "wrongly admitted {}", what());
        }
    }

    fn admit(&mut self, checked: &CheckedLimit, crowded: bool) {
        let (quota, now) = (checked.quota(), self.now);
        let reservation = Reservation::new(&checked.check, Timestamp::from_nanos(now)).in_units_of(quota);
        let debt = if self.rng.bool() { DebtLimit::OneBurst } else { DebtLimit::Unlimited };
        let waiting = PendingRequest {
            id: checked.id,
            reservation: reservation.with_debt_limit(debt),
            debt_limit: debt,
            charge_timing: checked.check.charge_timing,
            units_per_request: quota.units_per_request().get().into(),
            at: now,
            is_refundable: true,
        };
        match checked.check.charge_timing {
            ChargeTiming::OnArrival => {
                let mut counter = self.counter(checked);
                counter.charge(quota, checked.units(), now);
                if crowded {
                    counter.mark_shared(quota, now);
                }
                self.expected.counters.insert(checked.id, counter);
                self.pending.extend(checked.refunds.then_some(waiting));
            }
            ChargeTiming::OnResponse | ChargeTiming::WhileInFlight => {
                self.expected.counters.entry(checked.id).or_insert_with(|| CounterModel::new(quota));
                self.pending.push(waiting);
            }
        }
    }

    /// Applies the consequences of a rejection to the rejecting rules. Returns the positions of the charged checks.
    fn apply_rejection(
        &mut self,
        checked: &[CheckedLimit],
        decision: &Decision,
        crowded: bool,
    ) -> Vec<usize> {
        let group_of = |asked: &CheckedLimit| asked.check.options.map(|options| options.group);
        let (mut from, mut charged) = (0, Vec::new());
        for group in checked.chunk_by(|a, b| group_of(a) == group_of(b)) {
            let range = from..from + group.len();
            from = range.end;
            let verdicts = &decision.verdicts()[range.clone()];
            let refusing = || group.iter().zip(verdicts).filter(|(_, verdict)| verdict.rejects());
            let is_banned = refusing().any(|(asked, _)| asked.is_ban());
            if group_of(&group[0]).is_none() || is_banned || refusing().next().is_none() {
                continue;
            }
            if self.is_limited_by_charges(
                &refusing().map(|(asked, verdict)| (asked, *verdict)).collect::<Vec<_>>(),
                crowded,
            ) {
                charged.extend(self.charge_denied(group, range.clone(), crowded));
                if let Some(ban) = group.iter().find(|asked| asked.is_ban()) {
                    self.start_ban(ban, crowded);
                }
            }
        }
        charged
    }

    /// Whether the rejection is due to charged units, and not only to held ones that may yet be released.
    fn is_limited_by_charges(&self, refusing: &[(&CheckedLimit, Verdict)], crowded: bool) -> bool {
        let fits = |asked: &CheckedLimit, fits: fn(&CounterModel, &Quota, u64, u64) -> bool| {
            asked.may_be_blocked_by_holds()
                && fits(&self.counter(asked), asked.quota(), asked.units(), self.now)
        };
        let over = refusing
            .iter()
            .any(|(asked, verdict)| !asked.may_be_blocked_by_holds() || !verdict.retry_after().is_zero());
        let must = refusing.iter().any(|(asked, _)| !fits(asked, CounterModel::has_room));
        let may_not = refusing.iter().all(|(asked, _)| fits(asked, CounterModel::must_have_room));
        // A check that has begun a ban reports the ban as its wait.
        assert!(over || !must, "{self}: a rejection due to charged units has no consequences");
        assert!(crowded || !over || !may_not, "{self}: a rejection due to held units has consequences");
        over
    }

    fn charge_denied(&mut self, group: &[CheckedLimit], range: Range<usize>, crowded: bool) -> Vec<usize> {
        let mut charged = Vec::new();
        for (position, asked) in range.zip(group) {
            let charges = asked.check.options.is_some_and(|options| options.on_denied == OnDenied::Charge);
            let counts = asked.check.enforcement == Enforcement::Enforced
                && asked.check.charge_timing != ChargeTiming::WhileInFlight;
            if charges && counts && !asked.is_ban() {
                let mut counter = self.counter(asked);
                if crowded {
                    counter.mark_shared(asked.quota(), self.now);
                }
                counter.charge_late(asked.quota(), asked.units(), self.now, DebtLimit::OneBurst);
                self.expected.counters.insert(asked.id, counter);
                charged.push(position);
            }
        }
        charged
    }

    fn start_ban(&mut self, checked: &CheckedLimit, crowded: bool) {
        let (now, Some(ban)) = (self.now, checked.limit.ban) else { return };
        let next = BanModel::start(self.expected.bans.get(&checked.id).copied(), ban, now);
        let usage = self.usages(&[checked.check]).remove(0);
        let (runs, rest) = usage.map_or((false, 0), |usage| (usage.used > 0, usage.reset.as_nanos()));
        // In a full table no ban begins, even before keys have to share counters.
        let may_be_full = self.limiter.live_keys() >= self.max_keys / 2;
        assert!(runs || crowded || may_be_full, "{self}: no ban began");
        if runs {
            let begun = next.into_iter().find(|next| rest == u128::from(next.remaining(now)));
            assert!(begun.is_some() || self.bans_lost, "{self}: {rest} in place of {next:?} at {now}");
            self.expected.bans.insert(checked.id, begun.unwrap_or(next[0]));
        }
    }

    fn counter(&self, checked: &CheckedLimit) -> CounterModel {
        let known = self.expected.counters.get(&checked.id).cloned();
        known.unwrap_or_else(|| CounterModel::new(checked.quota()))
    }

    /// Returns the units that other requests hold, in units of the quota.
    fn held_units(&self, id: Id, quota: &Quota) -> u64 {
        let mut held: Vec<(u64, u64)> = Vec::new();
        let holding =
            |waiting: &&PendingRequest| waiting.id == id && waiting.charge_timing != ChargeTiming::OnArrival;
        for waiting in self.pending.iter().filter(holding) {
            let units = u64::from(waiting.reservation.units());
            match held.iter_mut().find(|(shares, _)| *shares == waiting.units_per_request) {
                Some((_, sum)) => *sum += units,
                None => held.push((waiting.units_per_request, units)),
            }
        }
        let now = u64::from(quota.units_per_request().get());
        held.into_iter().map(|(shares, units)| (units * now).div_ceil(shares)).sum()
    }

    fn usages(&self, checks: &[Check]) -> Vec<Option<CounterUsage>> {
        let now = Timestamp::from_nanos(self.now);
        checks.iter().map(|check| self.limiter.usage(check.handle, check.key, now)).collect()
    }

    /// Completes a random request: it counts, does not count, or reports its cost.
    pub(crate) fn settle(&mut self) {
        if !self.pending.is_empty() {
            let index = self.rng.usize(..self.pending.len());
            self.settle_at(index);
        }
    }

    pub(crate) fn settle_at(&mut self, index: usize) {
        let mut waiting = self.pending.swap_remove(index);
        let units = waiting.reservation.units();
        let limit = self.expected.rules.limit(waiting.id.0).map(|(_, limit)| limit.clone());
        let is_permit = waiting.charge_timing == ChargeTiming::WhileInFlight;
        let due = match self.rng.u32(..6) {
            _ if is_permit => 0,
            0..3 => 0,
            3 => units * self.rng.u32(1..40),
            _ => units,
        };
        let was_crowded = self.is_overflowing();
        let settled = self.limiter.settle(&mut waiting.reservation, due, Timestamp::from_nanos(self.now));
        assert!(settled.is_some() || limit.is_none(), "{self}: an installed limit is missing");
        let crowded = was_crowded || self.is_overflowing();
        if let (Some(limit), Some(counter)) = (limit, self.expected.counters.get_mut(&waiting.id)) {
            if crowded {
                counter.mark_shared(&limit.quota, self.now);
            }
            waiting.settle(counter, &limit.quota, (units.into(), due.into()), self.now);
        }
    }
}

impl PendingRequest {
    /// Applies the completion to the counter: `due` units are to be charged instead of the reserved ones.
    fn settle(&self, counter: &mut CounterModel, quota: &Quota, (units, due): (u64, u64), now: u64) {
        let in_force = u64::from(quota.units_per_request().get());
        let charge = match self.charge_timing {
            ChargeTiming::WhileInFlight => return,
            ChargeTiming::OnResponse => due,
            ChargeTiming::OnArrival => due.saturating_sub(units),
        };
        if charge > 0 {
            counter.charge_late(
                quota,
                (charge * in_force).div_ceil(self.units_per_request),
                now,
                self.debt_limit,
            );
        } else if due < units && self.charge_timing == ChargeTiming::OnArrival && self.is_refundable {
            counter.refund(quota, (units - due, self.units_per_request), (self.at, now));
        }
    }
}

struct CheckMode {
    role: CounterRole,
    enforcement: Enforcement,
    charge_timing: ChargeTiming,
}

fn check_mode(rule: &Rule, limit: &Limit) -> CheckMode {
    let charging = match rule.charge_rule {
        _ if limit.ban.is_some() => ChargeTiming::OnArrival,
        _ if limit.is_permit() => ChargeTiming::WhileInFlight,
        ChargeRule::OnResponse => ChargeTiming::OnResponse,
        ChargeRule::OnArrival | ChargeRule::Refunds => ChargeTiming::OnArrival,
    };
    let (role, enforcement) = match rule.throttle {
        _ if limit.ban.is_some() => (CounterRole::Ban, Enforcement::Enforced),
        Throttle::Hard => (CounterRole::Limit, Enforcement::Enforced),
        Throttle::Shadow => (CounterRole::Limit, Enforcement::Shadow),
        Throttle::Soft => (CounterRole::Limit, Enforcement::Marking),
        Throttle::Delay(policy) if limit.quota.algorithm().can_delay() => {
            (CounterRole::Delay(policy), Enforcement::Enforced)
        }
        Throttle::Delay(_) => (CounterRole::Limit, Enforcement::Enforced),
    };
    CheckMode { role, enforcement, charge_timing: charging }
}
