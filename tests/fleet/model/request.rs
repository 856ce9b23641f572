//! A request about a rate limit, and what the script computes of it.

pub(super) const SECOND: f64 = 1_000_000.0;
pub(super) const PRIORITIES: usize = 4;

/// Demand by priority, followed by the number of instances that call.
pub(super) type Demand = [f64; PRIORITIES + 1];

/// Units of buckets, by their outcome.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UnitFlow {
    /// Granted units, without those that were returned in time.
    pub(crate) granted: f64,
    /// Units returned in time.
    pub(crate) returned: f64,
    /// Units returned after they had already drained.
    pub(crate) late: f64,
    /// Capacity that expired while a bucket was empty.
    pub(crate) idle: f64,
}

/// Last fields of a request about a rate limit.
pub(super) struct StoreRequest {
    pub(super) priority: usize,
    pub(super) weight: f64,
    pub(super) needed: f64,
    pub(super) wanted: f64,
    pub(super) demanded: f64,
    pub(super) elapsed: f64,
    pub(super) returned: f64,
    pub(super) granted_at: f64,
    pub(super) owed: f64,
    pub(super) period: f64,
    pub(super) instances: f64,
    pub(super) least: f64,
}

impl StoreRequest {
    /// Reads the fields; the last two are `tail`.
    pub(super) fn new(priority: f64, weight: f64, rest: &[f64], tail: &[f64]) -> Self {
        Self {
            priority: priority as usize,
            weight,
            needed: rest[0],
            wanted: rest[1],
            demanded: rest[2],
            elapsed: rest[3],
            returned: rest[4],
            granted_at: rest[5],
            owed: rest[6],
            period: rest[7],
            instances: tail.first().copied().unwrap_or(1.0),
            least: tail.get(1).copied().unwrap_or(rest[0]),
        }
    }

    /// Returns the time for which `units` must last an instance that gets the fraction `part` of the units it wants in
    /// advance; zero if it wants none in advance.
    pub(super) fn paced_duration(&self, units: f64, part: f64) -> f64 {
        if self.wanted <= self.needed {
            return 0.0;
        }
        SECOND.min(units.max(1.0) * self.period / (self.wanted * part))
    }

    pub(super) fn poll(&self) -> f64 {
        (SECOND / 2.0).min((SECOND / 40.0).max(SECOND / 200.0 * self.instances))
    }

    pub(super) fn stock_share(&self, room: f64, left: f64) -> f64 {
        let most = (left / 2.0).min(left * self.weight / (2.0 * self.instances.min(32.0)));
        room.min(self.needed.max(self.wanted.min(most).floor()))
    }

    pub(super) fn last_units(&self, room: f64) -> f64 {
        if self.least <= room { room } else { 0.0 }
    }
}

pub(super) fn record_demand(demand: &mut Demand, elapsed: f64, over: f64, q: &StoreRequest) {
    let fading = (-elapsed / over).exp();
    demand.iter_mut().for_each(|of| *of *= fading);
    demand[q.priority] += q.demanded * q.weight * SECOND / over;
    demand[PRIORITIES] += q.elapsed.min(over) / over;
}

pub(super) fn share(demand: &Demand, rate: f64, slack: f64, q: &StoreRequest) -> f64 {
    let higher: f64 = demand[..q.priority].iter().fold(rate, |left, of| left - of);
    let left = higher.max(rate / 100.0);
    let competing = demand[q.priority];
    if competing <= left { 1.0 } else { ((0.7 + 1.2 * slack) * left * q.weight / competing).min(1.0) }
}

/// Returns the cap of max-min fairness and the part of its wanted units that an instance gets. `elapsed` is a part of the
/// time constant.
pub(super) fn max_min_share(
    (rate, cap): (f64, f64),
    elapsed: f64,
    slack: f64,
    q: &StoreRequest,
) -> (f64, f64) {
    let cap = rate.min((rate / 10000.0).max(cap * (elapsed * (2.0 * slack - 1.0)).exp()));
    let part = if q.wanted > 0.0 { (cap * q.weight * q.period / SECOND / q.wanted).min(1.0) } else { 1.0 };
    (cap, part)
}

/// Part of the burst that is reserved for higher priorities while they have demand.
pub(super) fn reserved(
    demand: &Demand,
    (rate, interval): (f64, f64),
    tolerance: f64,
    q: &StoreRequest,
) -> f64 {
    let higher: f64 = demand[..q.priority].iter().sum();
    if higher <= rate / 100.0 {
        return 0.0;
    }
    (tolerance / 8.0 * q.priority as f64).min((tolerance - interval).max(0.0))
}

pub(super) fn prefetch_fraction(slack: f64) -> f64 {
    (8.0 * slack).min(1.0)
}
