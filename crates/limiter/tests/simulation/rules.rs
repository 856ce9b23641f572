//! Random rules and the changes that operators make: limits are added, removed, raised, lowered, and get other
//! algorithms.

use std::num::NonZeroU32;
use std::time::Duration;

use fastrand::Rng;
use weir_limiter::algorithm::Algorithm;
use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::check_options::{DelayPolicy, OnDenied};
use weir_limiter::elastic::{ElasticCosts, ElasticRange, Headroom};
use weir_limiter::quota::{Ban, Limit as Rate, Period, Quota, TimeUnit};
use weir_limiter::{LimitIdentity, LimitSpec};

const MAX_RULES: usize = 6;
const MAX_LIMITS: usize = 3;

const UNITS: [TimeUnit; 6] =
    [TimeUnit::Second, TimeUnit::Minute, TimeUnit::Hour, TimeUnit::Day, TimeUnit::Week, TimeUnit::Month];

/// One limit. It keeps its identity as long as its counters are to be kept.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    pub(crate) id: u64,
    pub(crate) quota: Quota,
    /// Prices of requests, if the limit is elastic.
    elastic_costs: Option<ElasticCosts>,
    /// Duration, if the limit is a ban.
    pub(crate) ban: Option<Ban>,
}

/// What happens to requests that exceed the limit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Throttle {
    Hard,
    Shadow,
    Soft,
    Delay(DelayPolicy),
}

/// When requests are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargeRule {
    OnArrival,
    OnResponse,
    /// On arrival, with a refund for failed requests.
    Refunds,
}

/// The limits of one rule, and the settings they share.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    name: u64,
    key: &'static str,
    pub(crate) throttle: Throttle,
    pub(crate) charge_rule: ChargeRule,
    pub(crate) on_denied: OnDenied,
    pub(crate) on_change: OnChange,
    pub(crate) ban: Option<Limit>,
    /// The periods are distinct, since the period identifies a limit after a change.
    pub(crate) limits: Vec<Limit>,
}

/// All rules of one configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    rules: Vec<Rule>,
    /// Never used twice.
    next_id: u64,
}

impl Limit {
    /// Whether it limits requests in flight.
    pub(crate) fn is_permit(&self) -> bool {
        self.quota.algorithm() == Algorithm::InFlight
    }

    /// Returns the units that a request of this cost uses at a random headroom.
    pub(crate) fn units(&self, cost: u32, rng: &mut Rng) -> u32 {
        let at =
            |prices: ElasticCosts| prices.at_headroom(Headroom::from_fraction(rng.f64() * 1.2 - 0.1)).get();
        cost * self.elastic_costs.map_or(1, at)
    }
}

impl Rule {
    /// Returns the ban of the rule, if there is one, and then its limits.
    pub(crate) fn limits_and_ban(&self) -> impl Iterator<Item = &Limit> {
        self.ban.iter().chain(&self.limits)
    }

    /// Whether its checks have options.
    pub(crate) fn has_options(&self) -> bool {
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

    /// Returns the limit with this identity, and its rule.
    pub(crate) fn limit(&self, id: u64) -> Option<(&Rule, &Limit)> {
        let all = self.rules.iter().flat_map(|rule| rule.limits_and_ban().map(move |limit| (rule, limit)));
        all.into_iter().find(|(_, limit)| limit.id == id)
    }

    pub(crate) fn specs(&self) -> Vec<LimitSpec> {
        let specs = |rule: &Rule| {
            let lineage = LimitIdentity { rule: rule.name.to_string().into(), key: rule.key.into() };
            let spec = |limit: &Limit| LimitSpec {
                identity: lineage.clone(),
                quota: limit.quota,
                on_change: rule.on_change,
                lease_policy: None,
            };
            rule.limits_and_ban().map(spec).collect::<Vec<_>>()
        };
        self.rules.iter().flat_map(specs).collect()
    }

    /// Makes a random change, as an operator may between two reloads.
    pub(crate) fn change(&mut self, rng: &mut Rng) {
        if self.rules.is_empty() || (rng.u32(..6) == 0 && self.rules.len() < MAX_RULES) {
            return self.add_rule(rng);
        }
        if rng.u32(..8) == 0 {
            self.rules.swap_remove(rng.usize(..self.rules.len()));
            return;
        }
        rng.shuffle(&mut self.rules);
        for index in 0..self.rules.len() {
            self.rules[index].on_change = random_on_change(rng);
            if rng.u32(..6) == 0 {
                self.change_settings(index, rng);
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
        let name = self.new_id();
        self.rules.push(Rule {
            name,
            key: "[client_ip]",
            throttle: Throttle::Hard,
            charge_rule: ChargeRule::OnArrival,
            on_denied: OnDenied::Free,
            on_change: random_on_change(rng),
            ban: None,
            limits: Vec::new(),
        });
        let index = self.rules.len() - 1;
        self.change_settings(index, rng);
        for _ in 0..rng.usize(1..=2) {
            self.add_limit(index, rng);
        }
    }

    /// Changes the key. The counters of another key are new ones, so all limits get new identities.
    fn change_key(&mut self, index: usize) {
        let rule = &mut self.rules[index];
        rule.key = if rule.key == "[client_ip]" { "[header x-key]" } else { "[client_ip]" };
        for limit in 0..self.rules[index].limits.len() {
            self.rules[index].limits[limit].id = self.new_id();
        }
        let id = self.new_id();
        self.rules[index].ban.iter_mut().for_each(|ban| ban.id = id);
    }

    /// Changes everything except the limits.
    fn change_settings(&mut self, index: usize, rng: &mut Rng) {
        let (id, ban) = (self.new_id(), random_ban(rng));
        let rule = &mut self.rules[index];
        rule.throttle = match rng.u32(..8) {
            0 => Throttle::Shadow,
            1 => Throttle::Soft,
            2 => {
                let queue = rng.bool().then(|| rng.u32(1..10));
                Throttle::Delay(DelayPolicy::new(Duration::from_millis(rng.u64(..20_000)), queue))
            }
            _ => Throttle::Hard,
        };
        rule.charge_rule = match rng.u32(..4) {
            0 => ChargeRule::OnResponse,
            1 => ChargeRule::Refunds,
            _ => ChargeRule::OnArrival,
        };
        rule.on_denied = if rng.u32(..5) == 0 { OnDenied::Charge } else { OnDenied::Free };
        rule.ban = match rng.u32(..4) {
            0 => Some(Limit {
                id: rule.ban.as_ref().map_or(id, |ban| ban.id),
                quota: Quota::ban(ban),
                elastic_costs: None,
                ban: Some(ban),
            }),
            _ => None,
        };
    }

    fn add_limit(&mut self, index: usize, rng: &mut Rng) {
        let period = random_period(rng);
        let id = self.new_id();
        let rule = &mut self.rules[index];
        if rule.limits.len() < MAX_LIMITS && rule.limits.iter().all(|limit| limit.quota.window() != period) {
            let (quota, prices) =
                if rng.u32(..6) == 0 { (random_permit(rng), None) } else { random_quota(rng, period) };
            let is_alone = rule.limits.iter().all(|limit| limit.quota.window() != quota.window());
            let place = rng.usize(..=rule.limits.len());
            if is_alone {
                rule.limits.insert(place, Limit { id, quota, elastic_costs: prices, ban: None });
            }
        }
    }

    fn remove_limit(&mut self, index: usize, rng: &mut Rng) {
        let limits = &mut self.rules[index].limits;
        if limits.len() > 1 {
            limits.remove(rng.usize(..limits.len()));
        }
    }

    /// Changes the period of the only limit of a rule, which keeps its identity.
    fn change_period(&mut self, index: usize, rng: &mut Rng) {
        if let [limit] = &mut *self.rules[index].limits
            && !limit.is_permit()
        {
            let period = random_period(rng);
            (limit.quota, limit.elastic_costs) = random_quota(rng, period);
        }
    }

    fn change_limits(&mut self, index: usize, rng: &mut Rng) {
        for limit in &mut self.rules[index].limits {
            match limit.is_permit() {
                true => limit.quota = random_permit(rng),
                // Often changes only the count, or only the elastic maximum.
                false => (limit.quota, limit.elastic_costs) = changed_quota(rng, &limit.quota),
            }
        }
        rng.shuffle(&mut self.rules[index].limits);
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

fn random_period(rng: &mut Rng) -> Period {
    Period::new(NonZeroU32::new(rng.u32(1..4)).expect("nonzero"), UNITS[rng.usize(..UNITS.len())])
}

fn random_quota(rng: &mut Rng, period: Period) -> (Quota, Option<ElasticCosts>) {
    let algorithm = Algorithm::ALL[rng.usize(..Algorithm::ALL.len())];
    let rate = Rate::new(number(rng.u32(1..20)), period);
    let burst = (algorithm.has_burst() && rng.bool()).then(|| number(rng.u32(1..30)));
    let precision = if rng.bool() { 1 } else { rng.u8(2..=60) };
    maybe_elastic(rng, quota(algorithm, rate, burst, precision))
}

fn changed_quota(rng: &mut Rng, before: &Quota) -> (Quota, Option<ElasticCosts>) {
    let (algorithm, limit) = (before.algorithm(), before.limit());
    let burst = algorithm.has_burst().then(|| before.burst());
    match rng.u32(..4) {
        0 => maybe_elastic(rng, quota(algorithm, limit, burst, before.precision())),
        1 => {
            let rate = Rate::new(number(rng.u32(1..20)), limit.period);
            maybe_elastic(rng, quota(algorithm, rate, burst, before.precision()))
        }
        _ => random_quota(rng, limit.period),
    }
}

fn quota(algorithm: Algorithm, rate: Rate, burst: Option<NonZeroU32>, precision: u8) -> Quota {
    let quota = Quota::new(algorithm, rate, burst).or_else(|_| Quota::new(algorithm, rate, None));
    let quota = quota.expect("a valid quota");
    quota.with_precision(precision).unwrap_or(quota)
}

/// Makes every fourth quota elastic.
fn maybe_elastic(rng: &mut Rng, quota: Quota) -> (Quota, Option<ElasticCosts>) {
    let stretch = ElasticRange::from_hundredths([150, 200, 300][rng.usize(..3)]).expect("a valid range");
    match quota.to_elastic(stretch) {
        Ok((finer, prices)) if rng.u32(..4) == 0 => (finer, Some(prices)),
        _ => (quota, None),
    }
}

/// Returns a concurrency limit. It never replaces a rate limit, nor the other way round.
fn random_permit(rng: &mut Rng) -> Quota {
    Quota::in_flight(number(rng.u32(1..8)))
}

fn random_ban(rng: &mut Rng) -> Ban {
    let first = Duration::from_secs(rng.u64(1..600));
    Ban { initial_duration: first, max_duration: first * rng.u32(1..20) }
}

fn random_on_change(rng: &mut Rng) -> OnChange {
    match rng.u32(..4) {
        0 => OnChange::Proportional,
        1 => OnChange::Reset,
        _ => OnChange::Keep,
    }
}

fn number(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).expect("nonzero")
}
