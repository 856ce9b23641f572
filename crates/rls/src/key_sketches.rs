//! The heaviest keys of each limit of the documents, and of each native rule, counted as the proxy counts them.

use std::cell::LazyCell;
use std::sync::Arc;

use super::decider::RlsDecider;
use super::descriptor_match::{self, MatchedLimit};
use super::request::{RlsEntry, RlsRequest};
use super::stats::{KeyDecision, RlsRequestStats, RuleDecision};
use weir_limiter::timestamp::Timestamp;
use weir_policy::identify::descriptor::ParsedDescriptor;
use weir_policy::rules::rule::Rule;
use weir_policy::rules::{RuleIndex, key};
use weir_telemetry::observe::key_writer::{KeyWriter, LogKeys};
use weir_telemetry::observe::top_keys::{TopKeys, WorkerId, WorkerSketch};

/// Sketches of all limits and rules, by worker.
#[derive(Clone, Debug)]
pub(super) struct KeySketches {
    by_worker: Arc<[SketchTable]>,
    writer: KeyWriter,
}

/// Sketches on one worker.
#[derive(Clone, Debug)]
struct SketchTable {
    /// By the position of the limit of the documents.
    limits: Arc<[Arc<WorkerSketch>]>,
    /// By rule; `None` for those without a key or without a domain.
    rules: Arc<[Option<Arc<WorkerSketch>>]>,
}

impl KeySketches {
    /// Returns the sketches of the documents' and the policy's limits on all workers so far. Takes a lock for each of them,
    /// so call it at configuration time. Sketches whose keys are written differently start anew. Those of limits that have
    /// not changed since `before` are kept.
    pub(super) fn new(
        decider: &RlsDecider,
        top_keys: &TopKeys,
        writer: KeyWriter,
        before: Option<(&RlsDecider, &Self)>,
    ) -> Self {
        let before = before.filter(|(_, sketches)| sketches.writer.visibility == writer.visibility);
        let kept = |are_same: fn(&RlsDecider, &RlsDecider) -> bool| {
            before
                .filter(|(before, _)| are_same(before, decider))
                .map_or(&[][..], |(_, kept)| &kept.by_worker)
        };
        let kept_limits = kept(|before, now| is_same(before.rules.as_ref(), now.rules.as_ref()));
        // Otherwise documents that are reloaded while the workers begin with a new policy, and this service has the old
        // one, would replace the sketches of the workers.
        let kept_rules =
            kept(|before, now| is_same(before.native_policy.as_ref(), now.native_policy.as_ref()));
        let limit_names = LazyCell::new(|| limit_names(decider));
        let meaning = format!("{:?}", writer.visibility);
        let limits = |worker| {
            limit_names.iter().map(|name| top_keys.document_sketch(worker, name, &meaning)).collect()
        };
        let of_worker = |worker: WorkerId| {
            let kept_limits = kept_limits.get(worker.index()).map(|kept| Arc::clone(&kept.limits));
            let kept_rules = kept_rules.get(worker.index()).map(|kept| Arc::clone(&kept.rules));
            SketchTable {
                limits: kept_limits.unwrap_or_else(|| limits(worker)),
                rules: kept_rules
                    .unwrap_or_else(|| rule_sketches(decider, top_keys, worker, writer.visibility)),
            }
        };
        Self { by_worker: top_keys.workers().map(of_worker).collect(), writer }
    }

    /// Returns what writes keys for operators.
    pub(super) const fn writer(&self) -> &KeyWriter {
        &self.writer
    }

    /// Counts the decisions of `decider` about `request` on a worker.
    pub(super) fn record(
        &self,
        worker: WorkerId,
        decider: &RlsDecider,
        request: &RlsRequest,
        stats: &RlsRequestStats,
        now: Timestamp,
    ) {
        let Some(sketches) = self.by_worker.get(worker.index()) else { return };
        let mut locked = None;
        for KeyDecision { limit, descriptor, key, outcome } in &stats.key_decisions {
            let Some(sketch) = sketches.limits.get(*limit) else { continue };
            let locked = locked.get_or_insert_with(|| sketch.lock_worker(now));
            locked.record(sketch, *key, *outcome, || self.limit_key(decider, request, *descriptor).into());
        }
        let decisions = stats.rule_decisions.iter().filter(|decision| decision.has_hits);
        for RuleDecision { rule, descriptor, key, outcome, has_hits: _ } in decisions {
            let Some(Some(sketch)) = sketches.rules.get(rule.0) else { continue };
            let locked = locked.get_or_insert_with(|| sketch.lock_worker(now));
            let counted = key.unwrap_or_else(|| key::incomplete_key(self.writer.hasher));
            locked.record(sketch, counted, *outcome, || match key {
                Some(_) => self.rule_key(decider, *rule, request, *descriptor, now).into(),
                None => self.writer.incomplete_key().into(),
            });
        }
    }

    fn limit_key(&self, decider: &RlsDecider, request: &RlsRequest, descriptor: usize) -> String {
        let entries = entries(request, descriptor);
        let level = decider.rules.as_ref().and_then(|rules| rules.domain(&request.domain));
        match level.map(|level| descriptor_match::find_limit(level, entries)) {
            Some(MatchedLimit::Rule { path, .. }) => {
                self.writer.write_entries(descriptor_match::key_entries(entries, &path))
            }
            Some(MatchedLimit::NoLimit | MatchedLimit::Override(_)) | None => String::new(),
        }
    }

    fn rule_key(
        &self,
        decider: &RlsDecider,
        rule: RuleIndex,
        request: &RlsRequest,
        descriptor: usize,
        now: Timestamp,
    ) -> String {
        let Some(policy) = &decider.native_policy else { return String::new() };
        let entries = entries(request, descriptor).iter().map(|entry| (&*entry.key, &*entry.value));
        let parsed = ParsedDescriptor::new(entries);
        let attributes = parsed.attributes(&policy.identify, now);
        self.writer.request_key(&policy.rules, rule, &attributes).unwrap_or_default()
    }
}

fn is_same<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    one.map(Arc::as_ptr) == other.map(Arc::as_ptr)
}

/// Returns the names of the documents' limits, by their positions.
fn limit_names(decider: &RlsDecider) -> Vec<String> {
    let mut limits = decider.rules.as_ref().map(|rules| rules.limits()).unwrap_or_default();
    limits.sort_by_key(|limit| limit.position);
    limits.iter().map(|limit| limit.sketch_name()).collect()
}

fn rule_sketches(
    decider: &RlsDecider,
    top_keys: &TopKeys,
    worker: WorkerId,
    log_keys: Option<LogKeys>,
) -> Arc<[Option<Arc<WorkerSketch>>]> {
    let rules = decider.native_policy.as_ref().map_or(&[][..], |policy| policy.rules.rules());
    let has_domain = |rule: &&Rule| rule.domain.is_some();
    let rule_sketch =
        |rule| Some(rule).filter(has_domain).and_then(|rule| top_keys.rule_sketch(worker, rule, log_keys));
    rules.iter().map(rule_sketch).collect()
}

fn entries(request: &RlsRequest, descriptor: usize) -> &[RlsEntry] {
    request.descriptors.get(descriptor).map_or(&[][..], |descriptor| &descriptor.entries)
}

#[cfg(test)]
mod tests;
