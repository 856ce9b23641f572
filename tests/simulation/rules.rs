//! Rules as people write and change them: limits are added, taken away, raised, lowered, counted otherwise.

use std::num::NonZeroU32;

use fastrand::Rng;
use weir::limiter::algorithm::Algorithm;
use weir::limiter::algorithm::conversion::OnChange;
use weir::limiter::quota::{Limit as Rate, Period, Quota, Unit};
use weir::limiter::{Lineage, MeterSpec};

const MOST_RULES: usize = 6;
const MOST_LIMITS: usize = 3;

/// Windows of these are multiples of their length since the epoch.
const UNITS: [Unit; 4] = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day];

/// One limit, which stays the same one as long as its counters are to be kept.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    pub(crate) id: u64,
    pub(crate) quota: Quota,
    pub(crate) shadow: bool,
    pub(crate) on_answer: bool,
}

impl Limit {
    /// Whether it bounds what is under way.
    pub(crate) fn is_permit(&self) -> bool {
        self.quota.algorithm() == Algorithm::InFlight
    }
}

#[derive(Clone, Debug)]
struct Rule {
    name: u64,
    key: &'static str,
    /// No two of the same period, or nobody could tell which is which after a change.
    limits: Vec<Limit>,
}

/// All rules of one configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    rules: Vec<Rule>,
    /// Never given twice.
    next_id: u64,
}

impl Rules {
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let mut rules = Self::default();
        for _ in 0..rng.usize(1..=3) {
            rules.add_rule(rng);
        }
        rules
    }

    pub(crate) fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.rules.iter().flat_map(|rule| &rule.limits)
    }

    pub(crate) fn specs(&self) -> Vec<MeterSpec> {
        let of_rule = |rule: &Rule| {
            let lineage = Lineage { rule: rule.name.to_string().into(), key: rule.key.into() };
            let spec = |limit: &Limit| MeterSpec {
                lineage: lineage.clone(),
                quota: limit.quota,
                on_change: OnChange::Keep,
            };
            rule.limits.iter().map(spec).collect::<Vec<_>>()
        };
        self.rules.iter().flat_map(of_rule).collect()
    }

    /// What somebody may do to the file between two readings.
    pub(crate) fn change(&mut self, rng: &mut Rng) {
        if self.rules.is_empty() || (rng.u32(..6) == 0 && self.rules.len() < MOST_RULES) {
            return self.add_rule(rng);
        }
        if rng.u32(..8) == 0 {
            self.rules.swap_remove(rng.usize(..self.rules.len()));
            return;
        }
        rng.shuffle(&mut self.rules);
        for index in 0..self.rules.len() {
            match rng.u32(..6) {
                0 => self.change_key(index),
                1 => self.add_limit(index, rng),
                2 => self.remove_limit(index, rng),
                3 => self.change_period(index, rng),
                4 => self.change_limits(index, rng),
                _ => {}
            }
        }
    }

    fn add_rule(&mut self, rng: &mut Rng) {
        let name = self.id();
        self.rules.push(Rule { name, key: "[client_ip]", limits: Vec::new() });
        let index = self.rules.len() - 1;
        for _ in 0..rng.usize(1..=2) {
            self.add_limit(index, rng);
        }
    }

    /// Another key is another rule as far as counters go.
    fn change_key(&mut self, index: usize) {
        let rule = &mut self.rules[index];
        rule.key = if rule.key == "[client_ip]" { "[header x-key]" } else { "[client_ip]" };
        for limit in 0..self.rules[index].limits.len() {
            self.rules[index].limits[limit].id = self.id();
        }
    }

    fn add_limit(&mut self, index: usize, rng: &mut Rng) {
        let period = random_period(rng);
        let id = self.id();
        let rule = &mut self.rules[index];
        if rule.limits.len() < MOST_LIMITS && rule.limits.iter().all(|limit| limit.quota.window() != period) {
            let (shadow, on_answer) = (rng.u32(..5) == 0, rng.u32(..4) == 0);
            let quota = if rng.u32(..6) == 0 { random_permit(rng) } else { random_quota(rng, period) };
            let is_alone = rule.limits.iter().all(|limit| limit.quota.window() != quota.window());
            let place = rng.usize(..=rule.limits.len());
            if is_alone {
                rule.limits.insert(place, Limit { id, quota, shadow, on_answer });
            }
        }
    }

    fn remove_limit(&mut self, index: usize, rng: &mut Rng) {
        let limits = &mut self.rules[index].limits;
        if limits.len() > 1 {
            limits.remove(rng.usize(..limits.len()));
        }
    }

    /// The only limit of a rule stays the same one.
    fn change_period(&mut self, index: usize, rng: &mut Rng) {
        if let [limit] = &mut *self.rules[index].limits
            && !limit.is_permit()
        {
            let period = random_period(rng);
            limit.quota = random_quota(rng, period);
        }
    }

    fn change_limits(&mut self, index: usize, rng: &mut Rng) {
        for limit in &mut self.rules[index].limits {
            limit.quota = match limit.is_permit() {
                true => random_permit(rng),
                false => random_quota(rng, limit.quota.window()),
            };
        }
        rng.shuffle(&mut self.rules[index].limits);
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

fn random_period(rng: &mut Rng) -> Period {
    Period::new(NonZeroU32::new(rng.u32(1..4)).expect("at least one"), UNITS[rng.usize(..UNITS.len())])
}

fn random_quota(rng: &mut Rng, period: Period) -> Quota {
    let number = |number| NonZeroU32::new(number).expect("at least one");
    let algorithm = Algorithm::ALL[rng.usize(..Algorithm::ALL.len())];
    let rate = Rate::new(number(rng.u32(1..20)), period);
    let burst = (algorithm.has_burst() && rng.bool()).then(|| number(rng.u32(1..30)));
    Quota::new(algorithm, rate, burst).expect("a quota that can be")
}

/// Permits never continue rates, nor rates permits.
fn random_permit(rng: &mut Rng) -> Quota {
    Quota::in_flight(NonZeroU32::new(rng.u32(1..8)).expect("at least one"))
}
