//! What a provider has seen since its record was last cleared.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::enforcement::SECOND;

/// Maximum number of recorded arrivals.
const MAX_ARRIVALS: usize = 20_000_000;
/// Length of the buckets of [`Stats::arrivals`], in microseconds.
const BUCKET: u64 = 10_000;
/// Length of the buckets of [`Stats::admissions`] and [`Stats::rejections`], in microseconds.
const STEP: u64 = 500_000;

/// One call.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    at: u64,
    is_admitted: bool,
}

/// Calls of a tenant.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TenantCount {
    pub(crate) admitted: u64,
    pub(crate) rejected: u64,
}

/// Calls that have arrived.
#[derive(Debug)]
pub(crate) struct Record {
    began: u64,
    arrivals: Vec<Arrival>,
    tenants: BTreeMap<String, TenantCount>,
    order: Order,
}

/// Comparison of the order of arrival with the order of sending.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Highest number so far.
    highest: u64,
    pub(crate) numbered: u64,
    /// Calls that arrived after one with a higher number.
    pub(crate) overtaken: u64,
    /// Largest difference between the number of an overtaken call and the highest number before it.
    pub(crate) displacement: u64,
}

/// Summary of a [`Record`], as `GET /stats` returns it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Stats {
    pub(crate) limit: u64,
    pub(crate) seconds: f64,
    pub(crate) admitted: u64,
    pub(crate) rejected: u64,
    pub(crate) tenants: BTreeMap<String, TenantCount>,
    /// Maximum number of calls that arrived within any second.
    pub(crate) most_in_a_second: u64,
    /// Calls in every 10 ms, from the first full second of the wall clock.
    pub(crate) arrivals: Vec<u32>,
    /// Admitted calls in every half second since the record was cleared.
    pub(crate) admissions: Vec<u32>,
    /// Rejected calls in every half second since the record was cleared.
    pub(crate) rejections: Vec<u32>,
    pub(crate) order: Order,
}

impl Record {
    pub(crate) fn new(now: u64) -> Self {
        Self { began: now, arrivals: Vec::new(), tenants: BTreeMap::new(), order: Order::default() }
    }

    pub(crate) fn add(&mut self, at: u64, tenant: &str, is_admitted: bool) {
        if self.arrivals.len() < MAX_ARRIVALS {
            self.arrivals.push(Arrival { at, is_admitted });
        }
        if !self.tenants.contains_key(tenant) {
            self.tenants.insert(tenant.to_owned(), TenantCount::default());
        }
        let Some(count) = self.tenants.get_mut(tenant) else { return };
        if is_admitted {
            count.admitted += 1;
        } else {
            count.rejected += 1;
        }
    }

    /// Records the number of a call in the order of sending.
    pub(crate) fn add_sequence(&mut self, number: u64) {
        let order = &mut self.order;
        order.numbered += 1;
        order.overtaken += u64::from(number < order.highest);
        order.displacement = order.displacement.max(order.highest.saturating_sub(number));
        order.highest = order.highest.max(number);
    }

    pub(crate) fn stats(&self, limit: u64, now: u64) -> Stats {
        let first_second = self.began.div_ceil(SECOND) * SECOND;
        let of_kind = |is_admitted: bool| {
            let times = self.arrivals.iter().filter(move |arrival| arrival.is_admitted == is_admitted);
            histogram(times.map(|arrival| arrival.at), self.began..now, STEP)
        };
        let whole_seconds = first_second..(now / SECOND * SECOND).max(first_second);
        Stats {
            limit,
            seconds: (now - self.began) as f64 / SECOND as f64,
            admitted: self.tenants.values().map(|count| count.admitted).sum(),
            rejected: self.tenants.values().map(|count| count.rejected).sum(),
            tenants: self.tenants.clone(),
            most_in_a_second: self.most_in_a_second(),
            arrivals: histogram(self.arrivals.iter().map(|arrival| arrival.at), whole_seconds, BUCKET),
            admissions: of_kind(true),
            rejections: of_kind(false),
            order: self.order,
        }
    }

    fn most_in_a_second(&self) -> u64 {
        let mut first = 0;
        let within = self.arrivals.iter().enumerate().map(|(index, arrival)| {
            while self.arrivals[first].at + SECOND <= arrival.at {
                first += 1;
            }
            index - first + 1
        });
        within.max().unwrap_or_default() as u64
    }
}

fn histogram(times: impl Iterator<Item = u64>, span: std::ops::Range<u64>, width: u64) -> Vec<u32> {
    let mut counts = vec![0; ((span.end - span.start) / width) as usize];
    for at in times.filter(|at| span.contains(at)) {
        if let Some(count) = counts.get_mut(((at - span.start) / width) as usize) {
            *count += 1;
        }
    }
    counts
}
