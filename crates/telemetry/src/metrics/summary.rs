//! Totals for live views, which compute rates from them.

use std::time::Duration;

use super::Metrics;
use super::connection_setup::LOAD_SHED_LABELS;
use super::final_outcome::{FinalOutcome, OUTCOMES};
use super::worker::STATUS_CLASSES;
use crate::atomic_counter::AtomicCounter;
use crate::histogram::Histogram;

/// Requests of all listeners and of the rate limit service since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficTotals {
    /// Requests that began, and decided calls of the rate limit service.
    pub requests: u64,
    /// Complete responses by the class of their status code, such as `2xx`.
    pub by_class: Vec<(&'static str, u64)>,
    /// Ended requests by their final outcome, and decided calls of the rate limit service.
    pub by_outcome: Vec<(&'static str, u64)>,
    /// Requests in flight.
    pub in_flight: u64,
    /// Connections and requests that were shed, by the limit of `overload`.
    pub shed: Vec<(&'static str, u64)>,
    /// Connections that could not be accepted.
    pub accept_failures: u64,
}

/// Attempts of one upstream since the start.
#[derive(Clone, Debug)]
pub struct UpstreamTotals {
    pub name: Box<str>,
    /// Attempts that began.
    pub requests: u64,
    /// Attempts that ended, by outcome.
    pub by_outcome: Vec<(&'static str, u64)>,
    /// Time until the response.
    pub response_time: Histogram,
}

impl Metrics {
    /// Returns the requests of all listeners, with the calls of the rate limit service.
    pub fn traffic_totals(&self) -> TrafficTotals {
        let totals = self.totals();
        let mut traffic = TrafficTotals::default();
        let (mut by_class, mut by_outcome) = ([0_u64; STATUS_CLASSES.len()], [0_u64; OUTCOMES]);
        for (_, counts) in totals.listeners() {
            traffic.in_flight = traffic.in_flight.saturating_add(counts.in_flight());
            for (sum, count) in by_outcome.iter_mut().zip(&counts.outcomes) {
                *sum = sum.saturating_add(count.get());
            }
            traffic.requests = traffic.requests.saturating_add(counts.requests_started.get());
            for (sum, count) in by_class.iter_mut().zip(&counts.responses) {
                *sum = sum.saturating_add(count.get());
            }
        }
        if let Some(rls) = self.rls.get() {
            for (sum, (_, count)) in by_outcome.iter_mut().zip(rls.outcomes()) {
                *sum = sum.saturating_add(count);
                traffic.requests = traffic.requests.saturating_add(count);
            }
        }
        traffic.by_outcome = FinalOutcome::all().map(FinalOutcome::as_str).zip(by_outcome).collect();
        let shed = totals.counts.load_shed.iter().map(AtomicCounter::get);
        traffic.shed = LOAD_SHED_LABELS.into_iter().zip(shed).collect();
        traffic.accept_failures = totals.counts.accept_failures.get();
        traffic.by_class = STATUS_CLASSES.into_iter().zip(by_class).collect();
        traffic
    }

    /// Returns the attempts of each upstream.
    pub fn upstream_summaries(&self) -> Vec<UpstreamTotals> {
        let totals = self.upstreams.lock().totals();
        let summary = |(name, counts): (Box<str>, super::UpstreamCounts)| UpstreamTotals {
            name,
            requests: counts.requests_started.get(),
            by_outcome: counts.ended_by_outcome().collect(),
            response_time: counts.response_time,
        };
        totals.into_iter().map(summary).collect()
    }
}

impl UpstreamTotals {
    /// Returns the time within which a share of the responses since `before` arrived; `None` if there were none. It is
    /// interpolated in the histogram's buckets. Beyond the last bucket it is the bound of that bucket.
    pub fn quantile_since(&self, before: Option<&Self>, share: f64) -> Option<Duration> {
        let earlier: Vec<u64> = match before {
            Some(before) => before.response_time.cumulative_buckets().map(|(_, count)| count).collect(),
            None => Vec::new(),
        };
        let since = |count: u64, index: usize| count.saturating_sub(earlier.get(index).copied().unwrap_or(0));
        let count_before = before.map_or(0, |before| before.response_time.count());
        let total = self.response_time.count().saturating_sub(count_before);
        if total == 0 {
            return None;
        }
        let rank = share * total as f64;
        let (mut lower, mut below) = (0, 0);
        for (index, (bound, count)) in self.response_time.cumulative_buckets().enumerate() {
            let count = since(count, index);
            if count as f64 >= rank && count > below {
                let inside = (rank - below as f64).max(0.0) / (count - below) as f64;
                let nanos = lower as f64 + inside * (bound - lower) as f64;
                return Some(Duration::from_nanos(nanos as u64));
            }
            (lower, below) = (bound, count);
        }
        Some(Duration::from_nanos(lower))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(millis: &[u64]) -> UpstreamTotals {
        let response_time = Histogram::default();
        millis.iter().for_each(|it| response_time.record(Duration::from_millis(*it)));
        UpstreamTotals {
            name: "u".into(),
            requests: millis.len() as u64,
            by_outcome: Vec::new(),
            response_time,
        }
    }

    #[test]
    fn quantiles_are_those_of_responses_since_the_earlier_totals() {
        let mut all = totals(&[1; 100]);
        let before = all.clone();
        assert_eq!(all.quantile_since(Some(&before), 0.5), None);
        all.response_time.merge(&totals(&[30; 99]).response_time);
        let p50 = all.quantile_since(Some(&before), 0.5).unwrap();
        assert!((Duration::from_millis(25)..=Duration::from_millis(50)).contains(&p50), "{p50:?}");
        assert!(all.quantile_since(None, 0.5).unwrap() <= Duration::from_millis(1));
    }

    #[test]
    fn responses_beyond_the_last_bucket_have_its_bound() {
        assert_eq!(totals(&[3_600_000]).quantile_since(None, 0.99), Some(Duration::from_secs(60)));
    }
}
