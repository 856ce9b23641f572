//! Requests and their ends, and whether the limiter has decided them as the model allows.

use std::ops::Range;

use weir::limiter::Check;
use weir::limiter::algorithm::Usage;
use weir::limiter::decision::{Decision, Enforcement, Verdict};
use weir::limiter::quota::Quota;
use weir::limiter::reservation::{Charging, Debt, Reservation};
use weir::limiter::terms::{OnDenied, Role, Terms};
use weir::limiter::timestamp::Timestamp;

use super::bans::Banned;
use super::model::Counter;
use super::rules::{Limit, Rule, Tariff, Throttle};
use super::{Id, MOST_WAITING, Simulation, Waiting};

/// One check of a request and what the model needs to judge it.
struct Asked {
    id: Id,
    limit: Limit,
    check: Check,
    refunds: bool,
}

impl Asked {
    /// Whether a rejection may be for nothing but units that others hold.
    fn may_meet_only_holds(&self) -> bool {
        self.minds_holds() && self.check.charging != Charging::WhileServed
    }

    fn is_ban(&self) -> bool {
        self.limit.ban.is_some()
    }

    /// Whether what others hold stands in its way: of checks charged on arrival only of those with terms, since such a rule may
    /// share its counter with one that holds.
    fn minds_holds(&self) -> bool {
        self.check.charging != Charging::OnArrival || self.check.terms.is_some()
    }

    fn quota(&self) -> &Quota {
        &self.limit.quota
    }

    fn units(&self) -> u64 {
        self.check.cost.into()
    }
}

impl Simulation {
    /// One request that some of the rules apply to, all or nothing.
    pub(crate) fn request(&mut self) {
        let client = self.rng.u32(..self.clients);
        let cost = if self.rng.u32(..50) == 0 { 40 } else { self.rng.u32(1..4) };
        let asked = self.asked(client, cost);
        if self.waiting.len() + asked.len() > MOST_WAITING {
            return;
        }
        let checks: Vec<_> = asked.iter().map(|asked| asked.check).collect();
        let (before, was_crowded) = (self.usages(&checks), self.is_crowded());
        let decision = self.limiter.check(&checks, Timestamp::from_nanos(self.now));
        let crowded = was_crowded || self.is_crowded();
        for (asked, verdict) in asked.iter().zip(decision.verdicts()) {
            self.judge(asked, verdict, decision.is_refused(), crowded);
        }
        if decision.is_refused() {
            let charged = self.punish(&asked, &decision, crowded);
            let after = self.usages(&checks);
            // A ban that takes a place in a crowded table may take that of an unused counter.
            let made_room = crowded && checks.iter().any(|check| check.terms.is_some());
            for (position, (before, after)) in before.iter().zip(&after).enumerate() {
                let may_change = made_room || asked[position].is_ban() || charged.contains(&position);
                let what = || {
                    let told = asked.iter().zip(decision.verdicts()).map(|(asked, verdict)| {
                        let Check { meter, cost, enforcement, charging, terms, .. } = asked.check;
                        let counter = self.counter(asked);
                        format!(
                            "\n{:?} {cost} {enforcement:?} {charging:?} {terms:?} {:?} {counter:?}",
                            meter.id, verdict.outcome
                        )
                    });
                    format!(
                        "{:?}, {before:?}, {after:?}{}",
                        asked[position].check.meter.id,
                        told.collect::<String>()
                    )
                };
                assert!(may_change || before == after, "{self}: a refused request was charged: {}", what());
            }
            return;
        }
        for (asked, verdict) in asked.iter().zip(decision.verdicts()) {
            if !asked.is_ban() && !verdict.exceeds() {
                self.admit(asked, crowded);
            }
        }
    }

    fn asked(&mut self, client: u32, cost: u32) -> Vec<Asked> {
        let key = self.limiter.hasher().hash(&client.to_be_bytes());
        let mut meters = self.meters.iter();
        let mut all = Vec::new();
        for (group, rule) in (0..).zip(self.shadow.rules.rules()) {
            let applies = self.rng.bool();
            for (limit, meter) in rule.meters().zip(&mut meters) {
                let ways = ways(rule, limit);
                let terms = Terms { group, role: ways.role, on_denied: rule.on_denied };
                let check = Check {
                    meter: *meter,
                    key,
                    cost: if limit.is_permit() || limit.ban.is_some() {
                        1
                    } else {
                        limit.price(cost, &mut self.rng)
                    },
                    enforcement: ways.enforcement,
                    charging: ways.charging,
                    terms: rule.has_terms().then_some(terms),
                };
                let refunds = rule.tariff == Tariff::Refunds && !limit.is_permit();
                let asked = Asked { id: (limit.id, client), limit: limit.clone(), check, refunds };
                all.extend(applies.then_some(asked));
            }
        }
        all
    }

    /// Nothing passes for which there is no room, and nobody is refused for whom there is.
    fn judge(&self, asked: &Asked, verdict: &Verdict, refused: bool, crowded: bool) {
        let (quota, now) = (asked.quota(), self.now);
        if asked.is_ban() {
            let runs = self.shadow.bans.get(&asked.id).is_some_and(|ban| ban.runs(now));
            let is_right = self.bans_lost || verdict.exceeds() == runs;
            assert!(is_right, "{self}: {:?}, {verdict:?}", self.shadow.bans.get(&asked.id));
            return;
        }
        let held = if asked.minds_holds() { self.held(asked.id, quota) } else { 0 };
        let counter = self.counter(asked);
        let what =
            || format!("{self}: {} of {quota:?} beside {held} of {counter:?}: {verdict:?}", asked.units());
        if verdict.exceeds() {
            let is_wrong = !crowded && counter.must_have_room(quota, held + asked.units(), now);
            assert!(!is_wrong, "refused {}", what());
        } else {
            let waits = matches!(asked.check.terms, Some(Terms { role: Role::Delay(_), .. }));
            // Of what was delayed and then refused by another limit it is not said by how long.
            let then = now + u64::try_from(verdict.delay().as_nanos()).unwrap_or(u64::MAX);
            let is_right = (refused && waits) || counter.has_room(quota, held + asked.units(), then);
            assert!(is_right, "passed {}", what());
        }
    }

    fn admit(&mut self, asked: &Asked, crowded: bool) {
        let (quota, now) = (asked.quota(), self.now);
        let reservation = Reservation::new(&asked.check, Timestamp::from_nanos(now)).under(quota);
        let debt = if self.rng.bool() { Debt::OneBurst } else { Debt::AsTold };
        let waiting = Waiting {
            id: asked.id,
            reservation: reservation.owing(debt),
            debt,
            charging: asked.check.charging,
            shares: quota.shares().get().into(),
            at: now,
            gives_back: true,
        };
        match asked.check.charging {
            Charging::OnArrival => {
                let mut counter = self.counter(asked);
                counter.charge(quota, asked.units(), now);
                if crowded {
                    counter.spoil(quota, now);
                }
                self.shadow.counters.insert(asked.id, counter);
                self.waiting.extend(asked.refunds.then_some(waiting));
            }
            Charging::OnAnswer | Charging::WhileServed => {
                self.shadow.counters.entry(asked.id).or_insert_with(|| Counter::new(quota));
                self.waiting.push(waiting);
            }
        }
    }

    /// What a refusal brings upon those that refused; answers which positions were charged.
    fn punish(&mut self, asked: &[Asked], decision: &Decision, crowded: bool) -> Vec<usize> {
        let group_of = |asked: &Asked| asked.check.terms.map(|terms| terms.group);
        let (mut from, mut charged) = (0, Vec::new());
        for group in asked.chunk_by(|a, b| group_of(a) == group_of(b)) {
            let range = from..from + group.len();
            from = range.end;
            let verdicts = &decision.verdicts()[range.clone()];
            let refusing = || group.iter().zip(verdicts).filter(|(_, verdict)| verdict.refuses());
            let is_banned = refusing().any(|(asked, _)| asked.is_ban());
            if group_of(&group[0]).is_none() || is_banned || refusing().next().is_none() {
                continue;
            }
            if self
                .is_over(&refusing().map(|(asked, verdict)| (asked, *verdict)).collect::<Vec<_>>(), crowded)
            {
                charged.extend(self.charge_denied(group, range.clone(), crowded));
                if let Some(ban) = group.iter().find(|asked| asked.is_ban()) {
                    self.begin_ban(ban, crowded);
                }
            }
        }
        charged
    }

    /// Whether those that refuse do so for what has counted, and not only for what may yet come to nothing.
    fn is_over(&self, refusing: &[(&Asked, Verdict)], crowded: bool) -> bool {
        let fits = |asked: &Asked, fits: fn(&Counter, &Quota, u64, u64) -> bool| {
            asked.may_meet_only_holds() && fits(&self.counter(asked), asked.quota(), asked.units(), self.now)
        };
        let over =
            refusing.iter().any(|(asked, verdict)| !asked.may_meet_only_holds() || !verdict.wait().is_zero());
        let must = refusing.iter().any(|(asked, _)| !fits(asked, Counter::has_room));
        let may_not = refusing.iter().all(|(asked, _)| fits(asked, Counter::must_have_room));
        // Whatever has begun a ban tells that as its wait.
        assert!(over || !must, "{self}: nothing comes of a refusal");
        assert!(crowded || !over || !may_not, "{self}: reservations count");
        over
    }

    fn charge_denied(&mut self, group: &[Asked], range: Range<usize>, crowded: bool) -> Vec<usize> {
        let mut charged = Vec::new();
        for (position, asked) in range.zip(group) {
            let charges = asked.check.terms.is_some_and(|terms| terms.on_denied == OnDenied::Charge);
            let counts = asked.check.enforcement == Enforcement::Enforced
                && asked.check.charging != Charging::WhileServed;
            if charges && counts && !asked.is_ban() {
                let mut counter = self.counter(asked);
                if crowded {
                    counter.spoil(asked.quota(), self.now);
                }
                counter.charge_late(asked.quota(), asked.units(), self.now, Debt::OneBurst);
                self.shadow.counters.insert(asked.id, counter);
                charged.push(position);
            }
        }
        charged
    }

    fn begin_ban(&mut self, asked: &Asked, crowded: bool) {
        let (now, Some(ban)) = (self.now, asked.limit.ban) else { return };
        let next = Banned::begin(self.shadow.bans.get(&asked.id).copied(), ban, now);
        let usage = self.usages(&[asked.check]).remove(0);
        let (runs, rest) = usage.map_or((false, 0), |usage| (usage.used > 0, usage.reset.as_nanos()));
        // In a full table none begins, even before anybody has to share.
        let may_be_full = self.limiter.live_keys() >= self.max_keys / 2;
        assert!(runs || crowded || may_be_full, "{self}: no ban began");
        if runs {
            let begun = next.into_iter().find(|next| rest == u128::from(next.rest(now)));
            assert!(begun.is_some() || self.bans_lost, "{self}: {rest} in place of {next:?} at {now}");
            self.shadow.bans.insert(asked.id, begun.unwrap_or(next[0]));
        }
    }

    fn counter(&self, asked: &Asked) -> Counter {
        let known = self.shadow.counters.get(&asked.id).cloned();
        known.unwrap_or_else(|| Counter::new(asked.quota()))
    }

    /// What others hold, in units of the quota.
    fn held(&self, id: Id, quota: &Quota) -> u64 {
        let mut held: Vec<(u64, u64)> = Vec::new();
        let holding = |waiting: &&Waiting| waiting.id == id && waiting.charging != Charging::OnArrival;
        for waiting in self.waiting.iter().filter(holding) {
            let units = u64::from(waiting.reservation.units());
            match held.iter_mut().find(|(shares, _)| *shares == waiting.shares) {
                Some((_, sum)) => *sum += units,
                None => held.push((waiting.shares, units)),
            }
        }
        let now = u64::from(quota.shares().get());
        held.into_iter().map(|(shares, units)| (units * now).div_ceil(shares)).sum()
    }

    fn usages(&self, checks: &[Check]) -> Vec<Option<Usage>> {
        let now = Timestamp::from_nanos(self.now);
        checks.iter().map(|check| self.limiter.usage(check.meter, check.key, now)).collect()
    }

    /// An answer comes and counts, or does not, or tells what it has cost.
    pub(crate) fn settle(&mut self) {
        if !self.waiting.is_empty() {
            let index = self.rng.usize(..self.waiting.len());
            self.settle_at(index);
        }
    }

    pub(crate) fn settle_at(&mut self, index: usize) {
        let mut waiting = self.waiting.swap_remove(index);
        let units = waiting.reservation.units();
        let limit = self.shadow.rules.limit(waiting.id.0).map(|(_, limit)| limit.clone());
        let is_permit = waiting.charging == Charging::WhileServed;
        let due = match self.rng.u32(..6) {
            _ if is_permit => 0,
            0..3 => 0,
            3 => units * self.rng.u32(1..40),
            _ => units,
        };
        let was_crowded = self.is_crowded();
        let settled = self.limiter.settle(&mut waiting.reservation, due, Timestamp::from_nanos(self.now));
        assert!(settled.is_some() || limit.is_none(), "{self}: a limit without a meter");
        let crowded = was_crowded || self.is_crowded();
        if let (Some(limit), Some(counter)) = (limit, self.shadow.counters.get_mut(&waiting.id)) {
            if crowded {
                counter.spoil(&limit.quota, self.now);
            }
            waiting.settle(counter, &limit.quota, (units.into(), due.into()), self.now);
        }
    }
}

impl Waiting {
    /// What becomes of the counter when `due` units are to be charged in place of those that were reserved.
    fn settle(&self, counter: &mut Counter, quota: &Quota, (units, due): (u64, u64), now: u64) {
        let in_force = u64::from(quota.shares().get());
        let charge = match self.charging {
            Charging::WhileServed => return,
            Charging::OnAnswer => due,
            Charging::OnArrival => due.saturating_sub(units),
        };
        if charge > 0 {
            counter.charge_late(quota, (charge * in_force).div_ceil(self.shares), now, self.debt);
        } else if due < units && self.charging == Charging::OnArrival && self.gives_back {
            counter.refund(quota, (units - due, self.shares), (self.at, now));
        }
    }
}

struct Ways {
    role: Role,
    enforcement: Enforcement,
    charging: Charging,
}

fn ways(rule: &Rule, limit: &Limit) -> Ways {
    let charging = match rule.tariff {
        _ if limit.ban.is_some() => Charging::OnArrival,
        _ if limit.is_permit() => Charging::WhileServed,
        Tariff::OnAnswer => Charging::OnAnswer,
        Tariff::OnArrival | Tariff::Refunds => Charging::OnArrival,
    };
    let (role, enforcement) = match rule.throttle {
        _ if limit.ban.is_some() => (Role::Ban, Enforcement::Enforced),
        Throttle::Hard => (Role::Limit, Enforcement::Enforced),
        Throttle::Shadow => (Role::Limit, Enforcement::Shadow),
        Throttle::Soft => (Role::Limit, Enforcement::Marking),
        Throttle::Delay(slack) if limit.quota.algorithm().can_delay() => {
            (Role::Delay(slack), Enforcement::Enforced)
        }
        Throttle::Delay(_) => (Role::Limit, Enforcement::Enforced),
    };
    Ways { role, enforcement, charging }
}
