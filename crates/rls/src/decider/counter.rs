//! The counter of one descriptor, for operators: to show it, and to free it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::RlsDecider;
use super::preview::request_without_hits;
use super::resolved_request::DescriptorLimit;
use crate::descriptor_match::{self, MatchedLimit};
use crate::rules::DocumentLimit;
use crate::unit::RlsUnit;
use weir_limiter::key::KeyHash;
use weir_limiter::{LimitHandle, Limiter};
use weir_telemetry::observe::key_writer::KeyWriter;

/// The counter of a descriptor under a limit of the documents.
#[derive(Clone, Debug)]
pub struct DocumentCounter {
    /// Name of the limit, as in statistics.
    pub name: Arc<str>,
    pub key: KeyHash,
    /// The descriptor as operators may see it; `None` if only the key is known.
    pub text: Option<String>,
    /// Whether the limit is shared with other instances.
    pub is_shared: bool,
    /// Where the key is counted; the second is for a store that is unreachable.
    limits: SmallVec<[LimitHandle; 2]>,
}

/// Why a descriptor has no counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownLimit {
    /// No document has the domain.
    Domain,
    /// No limit of the domain applies.
    Descriptor,
    /// The limit that applies is unlimited.
    Unlimited,
}

impl DocumentCounter {
    /// Frees the counter; returns how many there were.
    pub fn reset(&self, limiter: &Limiter) -> usize {
        self.limits.iter().filter(|limit| limiter.reset_counter(**limit, self.key)).count()
    }
}

impl RlsDecider {
    /// Returns the counter of a descriptor, which `writer` writes.
    ///
    /// # Errors
    /// [`UnknownLimit`] if nothing is counted for it.
    pub fn counter(
        &self,
        domain: &str,
        entries: &[(String, String)],
        limiter: &Limiter,
        writer: &KeyWriter,
    ) -> Result<DocumentCounter, UnknownLimit> {
        let rules = self.rules.as_ref().ok_or(UnknownLimit::Domain)?;
        let level = rules.domain(domain).ok_or(UnknownLimit::Domain)?;
        let request = request_without_hits(domain, entries);
        let resolved = self.resolve_descriptors(Some(level), &request, limiter);
        // An error is about limits that come with a request.
        let (limits, operations) = resolved.map_err(|_| UnknownLimit::Descriptor)?;
        let counted = match limits.first() {
            None | Some(DescriptorLimit::NoLimit) => return Err(UnknownLimit::Descriptor),
            Some(DescriptorLimit::Unlimited) => return Err(UnknownLimit::Unlimited),
            Some(DescriptorLimit::Counted(counted)) => counted,
        };
        let entries = request.descriptors.first().map_or(&[][..], |descriptor| &descriptor.entries);
        let text = match descriptor_match::find_limit(level, entries) {
            MatchedLimit::Rule { path, .. } => {
                Some(writer.write_entries(descriptor_match::key_entries(entries, &path)))
            }
            MatchedLimit::NoLimit | MatchedLimit::Override(_) => None,
        };
        let mut counter = self.counter_of_key(domain, counted.rate.unit, counted.key);
        counter.name = counted.rule.map_or_else(Arc::default, |rule| Arc::clone(&rule.stat_key));
        counter.text = text;
        debug_assert!(operations.iter().all(|operation| counter.limits.contains(&operation.handle)));
        Ok(counter)
    }

    /// Returns the counter with this key under `limit`; `None` if that is unlimited.
    pub fn counter_with_key(&self, limit: &DocumentLimit, key: KeyHash) -> Option<DocumentCounter> {
        let counter = self.counter_of_key(&limit.domain, limit.rate?.unit, key);
        Some(DocumentCounter { name: Arc::clone(&limit.name), ..counter })
    }

    fn counter_of_key(&self, domain: &str, unit: RlsUnit, key: KeyHash) -> DocumentCounter {
        let smoothing = self.settings.smoothing_of(domain);
        let shared = self.shared_limits.iter().map(|shared| shared.unit_limits);
        let all = shared.chain([self.unit_limits]);
        let limits = all.map(|limits| limits.handle_for(unit, smoothing)).collect();
        let is_shared = self.shared_limits.is_some();
        DocumentCounter { name: Arc::default(), key, text: None, is_shared, limits }
    }
}
