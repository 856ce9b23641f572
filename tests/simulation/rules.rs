//! Rules as people write and change them: limits are added, taken away, raised, lowered, counted otherwise.

use std::num::NonZeroU32;
use std::time::Duration;

use fastrand::Rng;
use weir::limiter::algorithm::Algorithm;
use weir::limiter::algorithm::conversion::OnChange;
use weir::limiter::elastic::{Headroom, Prices, Stretch};
use weir::limiter::quota::{Ban, Limit as Rate, Period, Quota, Unit};
use weir::limiter::terms::{OnDenied, Slack};
use weir::limiter::{Lineage, MeterSpec};

const MOST_RULES: usize = 6;
const MOST_LIMITS: usize = 3;

const UNITS: [Unit; 6] = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month];

/// One limit, which stays the same one as long as its counters are to be kept.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    pub(crate) id: u64,
    pub(crate) quota: Quota,
    /// Of an elastic one, what requests cost.
    prices: Option<Prices>,
    /// Of a ban, how long it is.
    pub(crate) ban: Option<Ban>,
}

/// What becomes of requests that are over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Throttle {
    Hard,
    Shadow,
    Soft,
    Delay(Slack),
}

/// When requests are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tariff {
    OnArrival,
    OnAnswer,
    /// On arrival, but what failed is given back.
    Refunds,
}

/// The limits of one rule, and how it goes about them.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    name: u64,
    key: &'static str,
    pub(crate) throttle: Throttle,
    pub(crate) tariff: Tariff,
    pub(crate) on_denied: OnDenied,
    pub(crate) on_change: OnChange,
    pub(crate) ban: Option<Limit>,
    /// No two of the same period, or nobody could tell which is which after a change.
    pub(crate) limits: Vec<Limit>,
}

/// All rules of one configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    rules: Vec<Rule>,
    /// Never given twice.
    next_id: u64,
}

impl Limit {
    /// Whether it bounds what is under way.
    pub(crate) fn is_permit(&self) -> bool {
        self.quota.algorithm() == Algorithm::InFlight
    }

    /// Units of a request that costs so much, at the moment.
    pub(crate) fn price(&self, cost: u32, rng: &mut Rng) -> u32 {
        let at = |prices: Prices| prices.at(Headroom::from_fraction(rng.f64() * 1.2 - 0.1)).get();
        cost * self.prices.map_or(1, at)
    }
}

impl Rule {
    /// Its ban, which stands first, and its limits.
    pub(crate) fn meters(&self) -> impl Iterator<Item = &Limit> {
        self.ban.iter().chain(&self.limits)
    }

    /// Whether a check of it is anything but plain.
    pub(crate) fn has_terms(&self) -> bool {
        self.ban.is_some()
            || self.on_denied == OnDenied::Charge
            || matches!(self.throttle, Throttle::Delay(_))
    }
}

impl Rules {
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let mut rules = Self::default();
        for _ in 0..rng.usize(1..=3) {
            rules.add_rule(rng);
        }
        rules
    }

    pub(crate) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The limit of this id and the rule that it belongs to.
    pub(crate) fn limit(&self, id: u64) -> Option<(&Rule, &Limit)> {
        let all = self.rules.iter().flat_map(|rule| rule.meters().map(move |limit| (rule, limit)));
        all.into_iter().find(|(_, limit)| limit.id == id)
    }

    pub(crate) fn specs(&self) -> Vec<MeterSpec> {
        let of_rule = |rule: &Rule| {
            let lineage = Lineage { rule: rule.name.to_string().into(), key: rule.key.into() };
            let spec = |limit: &Limit| MeterSpec {
                lineage: lineage.clone(),
                quota: limit.quota,
                on_change: rule.on_change,
                sharing: None,
            };
            rule.meters().map(spec).collect::<Vec<_>>()
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
            self.rules[index].on_change = random_change(rng);
            if rng.u32(..6) == 0 {
                self.change_ways(index, rng);
            }
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
        self.rules.push(Rule {
            name,
            key: "[client_ip]",
            throttle: Throttle::Hard,
            tariff: Tariff::OnArrival,
            on_denied: OnDenied::Free,
            on_change: random_change(rng),
            ban: None,
            limits: Vec::new(),
        });
        let index = self.rules.len() - 1;
        self.change_ways(index, rng);
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
        let id = self.id();
        self.rules[index].ban.iter_mut().for_each(|ban| ban.id = id);
    }

    /// Everything but its limits.
    fn change_ways(&mut self, index: usize, rng: &mut Rng) {
        let (id, ban) = (self.id(), random_ban(rng));
        let rule = &mut self.rules[index];
        rule.throttle = match rng.u32(..8) {
            0 => Throttle::Shadow,
            1 => Throttle::Soft,
            2 => {
                let queue = rng.bool().then(|| rng.u32(1..10));
                Throttle::Delay(Slack::new(Duration::from_millis(rng.u64(..20_000)), queue))
            }
            _ => Throttle::Hard,
        };
        rule.tariff = match rng.u32(..4) {
            0 => Tariff::OnAnswer,
            1 => Tariff::Refunds,
            _ => Tariff::OnArrival,
        };
        rule.on_denied = if rng.u32(..5) == 0 { OnDenied::Charge } else { OnDenied::Free };
        rule.ban = match rng.u32(..4) {
            0 => Some(Limit {
                id: rule.ban.as_ref().map_or(id, |ban| ban.id),
                quota: Quota::ban(ban),
                prices: None,
                ban: Some(ban),
            }),
            _ => None,
        };
    }

    fn add_limit(&mut self, index: usize, rng: &mut Rng) {
        let period = random_period(rng);
        let id = self.id();
        let rule = &mut self.rules[index];
        if rule.limits.len() < MOST_LIMITS && rule.limits.iter().all(|limit| limit.quota.window() != period) {
            let (quota, prices) =
                if rng.u32(..6) == 0 { (random_permit(rng), None) } else { random_quota(rng, period) };
            let is_alone = rule.limits.iter().all(|limit| limit.quota.window() != quota.window());
            let place = rng.usize(..=rule.limits.len());
            if is_alone {
                rule.limits.insert(place, Limit { id, quota, prices, ban: None });
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
            (limit.quota, limit.prices) = random_quota(rng, period);
        }
    }

    fn change_limits(&mut self, index: usize, rng: &mut Rng) {
        for limit in &mut self.rules[index].limits {
            match limit.is_permit() {
                true => limit.quota = random_permit(rng),
                // Often only the count, or only how far it may stretch.
                false => (limit.quota, limit.prices) = changed_quota(rng, &limit.quota),
            }
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

fn random_quota(rng: &mut Rng, period: Period) -> (Quota, Option<Prices>) {
    let algorithm = Algorithm::ALL[rng.usize(..Algorithm::ALL.len())];
    let rate = Rate::new(number(rng.u32(1..20)), period);
    let burst = (algorithm.has_burst() && rng.bool()).then(|| number(rng.u32(1..30)));
    let precision = if rng.bool() { 1 } else { rng.u8(2..=60) };
    stretched(rng, quota(algorithm, rate, burst, precision))
}

fn changed_quota(rng: &mut Rng, before: &Quota) -> (Quota, Option<Prices>) {
    let (algorithm, limit) = (before.algorithm(), before.limit());
    let burst = algorithm.has_burst().then(|| before.burst());
    match rng.u32(..4) {
        0 => stretched(rng, quota(algorithm, limit, burst, before.precision())),
        1 => {
            let rate = Rate::new(number(rng.u32(1..20)), limit.period);
            stretched(rng, quota(algorithm, rate, burst, before.precision()))
        }
        _ => random_quota(rng, limit.period),
    }
}

fn quota(algorithm: Algorithm, rate: Rate, burst: Option<NonZeroU32>, precision: u8) -> Quota {
    let quota = Quota::new(algorithm, rate, burst).or_else(|_| Quota::new(algorithm, rate, None));
    let quota = quota.expect("a quota that can be");
    quota.with_precision(precision).unwrap_or(quota)
}

/// Every fourth is elastic.
fn stretched(rng: &mut Rng, quota: Quota) -> (Quota, Option<Prices>) {
    let stretch = Stretch::from_hundredths([150, 200, 300][rng.usize(..3)]).expect("a stretch");
    match quota.stretched(stretch) {
        Ok((finer, prices)) if rng.u32(..4) == 0 => (finer, Some(prices)),
        _ => (quota, None),
    }
}

/// Permits never continue rates, nor rates permits.
fn random_permit(rng: &mut Rng) -> Quota {
    Quota::in_flight(number(rng.u32(1..8)))
}

fn random_ban(rng: &mut Rng) -> Ban {
    let first = Duration::from_secs(rng.u64(1..600));
    Ban { first, most: first * rng.u32(1..20) }
}

fn random_change(rng: &mut Rng) -> OnChange {
    match rng.u32(..4) {
        0 => OnChange::Proportional,
        1 => OnChange::Reset,
        _ => OnChange::Keep,
    }
}

fn number(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).expect("at least one")
}
