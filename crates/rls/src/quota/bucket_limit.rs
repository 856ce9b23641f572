//! The limit of the rules for a whole bucket.

use std::time::Duration;

use super::{AssignedStrategy, BucketId, BucketUsage};
use crate::rules::{DescriptorLevel, DescriptorRules, UnitRate};

/// Maximum entries of a bucket, and their total size in bytes; larger buckets get no assignment.
const MAX_BUCKET_ENTRIES: usize = 8;
const MAX_BUCKET_BYTES: usize = 1024;

/// Maximum nodes visited for one bucket: all orders of eight entries could lead to 100 000 nodes.
const MAX_VISITED_NODES: usize = 1_000;

/// The limit that all clients of a bucket share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BucketLimit {
    Unlimited,
    Rate(UnitRate),
}

impl BucketLimit {
    /// Returns the total number of tokens.
    pub(super) fn tokens(self) -> u64 {
        match self {
            Self::Unlimited => u64::MAX,
            Self::Rate(rate) => rate.requests_per_unit.into(),
        }
    }

    pub(super) fn period(self) -> Duration {
        match self {
            Self::Unlimited => Duration::from_secs(1),
            Self::Rate(rate) => rate.unit.period().duration(),
        }
    }

    /// Returns the demand in `usage` in requests per unit; `None` for a first report, which covers no time.
    pub(super) fn demand(self, usage: &BucketUsage) -> Option<f64> {
        let requests = usage.allowed.saturating_add(usage.denied) as f64;
        let elapsed = usage.elapsed.as_secs_f64();
        (elapsed > 0.0).then(|| requests / elapsed * self.period().as_secs_f64())
    }

    /// Returns the assignment of this many tokens.
    pub(super) fn strategy(self, tokens: u64) -> AssignedStrategy {
        match (self, u32::try_from(tokens).unwrap_or(u32::MAX)) {
            (Self::Unlimited, _) => AssignedStrategy::AllowAll,
            (Self::Rate(_), 0) => AssignedStrategy::DenyAll,
            (Self::Rate(_), count) => AssignedStrategy::TokenBucket { tokens: count, period: self.period() },
        }
    }
}

/// Returns the limit of the rule for a bucket. The entries of a bucket have no order, so any order in which they lead
/// to a limit is valid; the first one found in sorted order is used.
pub(super) fn find_bucket_limit(
    rules: &DescriptorRules,
    domain: &str,
    bucket: &BucketId,
) -> Option<BucketLimit> {
    let bytes: usize = bucket.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bucket.is_empty() || bucket.len() > MAX_BUCKET_ENTRIES || bytes > MAX_BUCKET_BYTES {
        return None;
    }
    let entries: Vec<_> = bucket.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let mut remaining_visits = MAX_VISITED_NODES;
    find_limit_below(rules.domain(domain)?, &entries, &mut remaining_visits)
}

fn find_limit_below(
    level: &DescriptorLevel,
    entries: &[(&str, &str)],
    remaining_visits: &mut usize,
) -> Option<BucketLimit> {
    for (index, (key, value)) in entries.iter().enumerate() {
        *remaining_visits = remaining_visits.checked_sub(1)?;
        let Some(node) = level.find_node(key, &format!("{key}_{value}")) else { continue };
        let others: Vec<_> = entries[..index].iter().chain(&entries[index + 1..]).copied().collect();
        let found = match (&node.rule, others.is_empty()) {
            (Some(rule), true) => Some(match rule.rate {
                Some(rate) if !rule.shadow_mode => BucketLimit::Rate(rate),
                // A limit in shadow mode rejects nothing.
                Some(_) | None => BucketLimit::Unlimited,
            }),
            (None, true) => None,
            (_, false) => find_limit_below(&node.children, &others, remaining_visits),
        };
        if found.is_some() {
            return found;
        }
    }
    None
}
