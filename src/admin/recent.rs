//! The last two minutes of the process, sampled every second, so that a view that is opened later has them too.
//!
//! The number of samples, of rules and of upstreams in each is bounded.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::AdminState;
use weir_limiter::timestamp::Timestamp;
use weir_telemetry::metrics::{DecisionCounts, DecisionOutcome, TrafficTotals, UpstreamTotals};
use weir_telemetry::rfc3339;

/// Time between two samples.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of samples: one more than the differences that are shown.
const MAX_SAMPLES: usize = 121;
/// Number of samples over which views compute what is recent: response times, and what needs attention.
const RECENT_SAMPLES: usize = 10;
/// Maximum number of rules and of upstreams in a sample.
const MAX_RULES: usize = 256;
const MAX_UPSTREAMS: usize = 64;

/// Totals of one moment.
#[derive(Debug)]
pub(super) struct Sample {
    at: Timestamp,
    wall_clock: Timestamp,
    pub(super) traffic: TrafficTotals,
    rules: Vec<(Box<str>, [u64; 4])>,
    pub(super) upstreams: Vec<UpstreamTotals>,
    pub(super) table_overflows: u64,
    pub(super) lost_log_lines: u64,
}

/// The samples, oldest first; initially none.
#[derive(Debug, Default)]
pub struct RecentSamples(Mutex<VecDeque<Arc<Sample>>>);

impl Sample {
    /// Reads the totals of this moment.
    pub(super) fn now(state: &AdminState) -> Self {
        let policy = state.process.policy();
        let names = policy.rules.rules().iter().take(MAX_RULES).map(|rule| rule.name.clone());
        let counted = |name: Box<str>| {
            let counts = series(&state.metrics.decisions(&name));
            (name, counts)
        };
        let mut upstreams = state.metrics.upstream_summaries();
        upstreams.truncate(MAX_UPSTREAMS);
        Self {
            at: state.process.now(),
            wall_clock: state.process.wall_clock(),
            traffic: state.metrics.traffic_totals(),
            rules: names.map(counted).collect(),
            upstreams,
            table_overflows: state.limiter.overflows(),
            lost_log_lines: state.access_logs.lost_lines(),
        }
    }

    /// Returns the totals at the start of the process, all zero, so that what happens before the first sample is in the
    /// history.
    pub(super) fn at_start(state: &AdminState) -> Self {
        let mut traffic = state.metrics.traffic_totals();
        (traffic.requests, traffic.in_flight, traffic.accept_failures) = (0, 0, 0);
        let counts = [&mut traffic.by_class, &mut traffic.by_outcome, &mut traffic.shed];
        counts.into_iter().flatten().for_each(|(_, count)| *count = 0);
        Self {
            at: state.start_time,
            wall_clock: state.process.wall_clock(),
            traffic,
            rules: Vec::new(),
            upstreams: Vec::new(),
            table_overflows: 0,
            lost_log_lines: 0,
        }
    }

    /// Returns the time since an earlier sample.
    pub(super) fn since(&self, before: &Self) -> Duration {
        self.at.since(before.at)
    }

    fn rule(&self, name: &str) -> [u64; 4] {
        self.rules.iter().find(|(known, _)| **known == *name).map_or([0; 4], |(_, counts)| *counts)
    }
}

impl RecentSamples {
    /// Adds a sample, and drops the oldest one beyond the maximum.
    pub(super) fn add(&self, sample: Sample) {
        let mut samples = self.0.lock();
        samples.push_back(Arc::new(sample));
        if samples.len() > MAX_SAMPLES {
            samples.pop_front();
        }
    }

    /// Returns the sample of some seconds ago with which the present is compared; `None` right after the start.
    pub(super) fn reference(&self) -> Option<Arc<Sample>> {
        let samples = self.0.lock();
        samples.get(samples.len().saturating_sub(RECENT_SAMPLES)).cloned()
    }

    /// Returns the counts between the samples, oldest first: a point per sample after the first.
    pub(super) fn history(&self) -> Value {
        let samples: Vec<Arc<Sample>> = self.0.lock().iter().cloned().collect();
        let Some(last) = samples.last() else { return json!({ "points": [] }) };
        let points = samples.windows(2).filter_map(|pair| match pair {
            [before, after] => Some(point(before, after)),
            _ => None,
        });
        json!({
            "end": rfc3339(last.wall_clock),
            "points": points.collect::<Vec<_>>(),
        })
    }
}

/// Returns what was counted between two samples. Rules and upstreams without a count are omitted.
fn point(before: &Sample, after: &Sample) -> Value {
    let difference = |now: u64, then: u64| now.saturating_sub(then);
    let rules = after.rules.iter().filter_map(|(name, now)| {
        let then = before.rule(name);
        let counts: Vec<u64> = now.iter().zip(then).map(|(now, then)| difference(*now, then)).collect();
        counts.iter().any(|count| *count > 0).then(|| (name.to_string(), Value::from(counts)))
    });
    let upstreams = after.upstreams.iter().filter_map(|now| {
        let then = before.upstreams.iter().find(|then| then.name == now.name).map_or(0, |then| then.requests);
        let count = difference(now.requests, then);
        (count > 0).then(|| (now.name.to_string(), Value::from(count)))
    });
    let outcomes =
        after.traffic.by_outcome.iter().zip(&before.traffic.by_outcome).filter_map(|(now, then)| {
            let count = difference(now.1, then.1);
            (count > 0).then(|| (now.0.to_owned(), Value::from(count)))
        });
    let failed = |traffic: &TrafficTotals| traffic.by_class.last().map_or(0, |(_, count)| *count);
    json!({
        "seconds": after.since(before).as_secs_f64(),
        "requests": difference(after.traffic.requests, before.traffic.requests),
        "failed": difference(failed(&after.traffic), failed(&before.traffic)),
        "outcomes": outcomes.collect::<Map<_, _>>(),
        "rules": rules.collect::<Map<_, _>>(),
        "upstreams": upstreams.collect::<Map<_, _>>(),
    })
}

/// Returns the decisions of a rule as views plot them: allowed, delayed, shadow, rejected.
fn series(decisions: &DecisionCounts) -> [u64; 4] {
    use DecisionOutcome::{Allowed, Banned, Delayed, Denied, Diverted, Exempt, Limited, Shadow, Soft};
    [&[Allowed, Soft, Exempt, Diverted][..], &[Delayed], &[Shadow], &[Limited, Banned, Denied]]
        .map(|outcomes| decisions.sum_of(outcomes))
}
