//! The limit of the rules for a whole bucket.

use std::time::Duration;

use super::{BucketId, Strategy, Usage};
use crate::rls::rules::{Level, Rate, Rules};

/// Maximum entries of a bucket, and their total size in bytes; larger buckets get no assignment.
const MAX_ENTRIES: usize = 8;
const MAX_BYTES: usize = 1024;

/// Maximum nodes visited for one bucket: all orders of eight entries could lead to 100 000 nodes.
const MAX_STEPS: usize = 1_000;

/// The limit that all clients of a bucket share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    Everything,
    Rate(Rate),
}

impl Bound {
    /// Returns the total number of tokens.
    pub(super) fn tokens(self) -> u64 {
        match self {
            Self::Everything => u64::MAX,
            Self::Rate(rate) => rate.requests_per_unit.into(),
        }
    }

    /// Returns the period of the limit.
    pub(super) fn unit(self) -> Duration {
        match self {
            Self::Everything => Duration::from_secs(1),
            Self::Rate(rate) => rate.unit.period().duration(),
        }
    }

    /// Returns the demand in `usage` in requests per unit; `None` for a first report, which covers no time.
    pub(super) fn demand(self, usage: &Usage) -> Option<f64> {
        let seen = usage.allowed.saturating_add(usage.denied) as f64;
        let elapsed = usage.elapsed.as_secs_f64();
        (elapsed > 0.0).then(|| seen / elapsed * self.unit().as_secs_f64())
    }

    /// Returns the assignment of this many tokens.
    pub(super) fn strategy(self, tokens: u64) -> Strategy {
        match (self, u32::try_from(tokens).unwrap_or(u32::MAX)) {
            (Self::Everything, _) => Strategy::AllowAll,
            (Self::Rate(_), 0) => Strategy::DenyAll,
            (Self::Rate(_), count) => Strategy::Tokens { count, per: self.unit() },
        }
    }
}

/// Returns the limit of the rule for a bucket. The entries of a bucket have no order, so any order in which they lead
/// to a limit is valid; the first one found in sorted order is used.
pub(super) fn limit(rules: &Rules, domain: &str, bucket: &BucketId) -> Option<Bound> {
    let bytes: usize = bucket.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bucket.is_empty() || bucket.len() > MAX_ENTRIES || bytes > MAX_BYTES {
        return None;
    }
    let entries: Vec<_> = bucket.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let mut steps = MAX_STEPS;
    descend(rules.domain(domain)?, &entries, &mut steps)
}

fn descend(level: &Level, entries: &[(&str, &str)], steps: &mut usize) -> Option<Bound> {
    for (index, (key, value)) in entries.iter().enumerate() {
        *steps = steps.checked_sub(1)?;
        let Some(node) = level.find(key, &format!("{key}_{value}")) else { continue };
        let rest: Vec<_> = entries[..index].iter().chain(&entries[index + 1..]).copied().collect();
        let found = match (&node.rule, rest.is_empty()) {
            (Some(rule), true) => Some(match rule.rate {
                Some(rate) if !rule.shadow_mode => Bound::Rate(rate),
                // A limit in shadow mode rejects nothing.
                Some(_) | None => Bound::Everything,
            }),
            (None, true) => None,
            (_, false) => descend(&node.below, &rest, steps),
        };
        if found.is_some() {
            return found;
        }
    }
    None
}
