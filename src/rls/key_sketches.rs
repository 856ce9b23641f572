//! The heaviest keys of each limit of the documents, counted as those of rules are.

use std::sync::Arc;

use super::descriptor_match::{self, MatchedLimit};
use super::request::RlsRequest;
use super::rules::DescriptorRules;
use super::stats::KeyDecision;
use crate::limiter::timestamp::Timestamp;
use crate::observe::key_writer::KeyWriter;
use crate::observe::top_keys::{TopKeys, WorkerId, WorkerSketch};

/// Sketches of all limits, by worker and by the position of the limit.
#[derive(Clone, Debug)]
pub(super) struct KeySketches {
    by_worker: Arc<[Box<[Arc<WorkerSketch>]>]>,
    writer: KeyWriter,
}

impl KeySketches {
    /// Returns the sketches of the limits of `rules` on all workers so far. Takes a lock for each of them, so call it at
    /// configuration time. Sketches whose keys are written differently start anew.
    pub(super) fn new(rules: Option<&DescriptorRules>, top_keys: &TopKeys, writer: KeyWriter) -> Self {
        let mut limits = rules.map(DescriptorRules::limits).unwrap_or_default();
        limits.sort_by_key(|limit| limit.position);
        let names: Vec<String> = limits.iter().map(|limit| limit.sketch_name()).collect();
        let meaning = format!("{:?}", writer.visibility);
        let of_worker = |worker| names.iter().map(|name| top_keys.sketch(worker, name, &meaning)).collect();
        Self { by_worker: top_keys.workers().map(of_worker).collect(), writer }
    }

    /// Returns what writes keys for operators.
    pub(super) const fn writer(&self) -> &KeyWriter {
        &self.writer
    }

    /// Counts decisions of `rules` about `request` on a worker.
    pub(super) fn record(
        &self,
        worker: WorkerId,
        rules: &DescriptorRules,
        request: &RlsRequest,
        decisions: &[KeyDecision],
        now: Timestamp,
    ) {
        let Some(sketches) = self.by_worker.get(worker.index()) else { return };
        let mut locked = None;
        for KeyDecision { limit, descriptor, key, outcome } in decisions {
            let Some(sketch) = sketches.get(*limit) else { continue };
            let locked = locked.get_or_insert_with(|| sketch.lock_worker(now));
            locked.record(sketch, *key, *outcome, || self.key_text(rules, request, *descriptor).into());
        }
    }

    fn key_text(&self, rules: &DescriptorRules, request: &RlsRequest, descriptor: usize) -> String {
        let entries = request.descriptors.get(descriptor).map_or(&[][..], |descriptor| &descriptor.entries);
        let found = rules.domain(&request.domain).map(|level| descriptor_match::find_limit(level, entries));
        match found {
            Some(MatchedLimit::Rule { path, .. }) => {
                self.writer.write_entries(descriptor_match::key_entries(entries, &path))
            }
            Some(MatchedLimit::NoLimit | MatchedLimit::Override(_)) | None => String::new(),
        }
    }
}
