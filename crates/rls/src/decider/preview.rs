//! What the documents' limits would do to a descriptor, for explanations: nothing is counted.

use std::sync::Arc;
use std::time::Duration;

use super::RlsDecider;
use super::resolved_request::{DescriptorLimit, EMPTY_COUNT_RESULT};
use crate::request::{RlsDescriptor, RlsEntry, RlsRequest};
use crate::response::RlsDescriptorStatus;
use weir_limiter::Limiter;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::unconditional_count::CountSelection;

/// What the documents would do to one descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocumentPreview {
    /// No document has the domain, or none is loaded.
    UnknownDomain,
    /// No limit applies.
    NoLimit,
    /// The limit that applies is unlimited.
    Unlimited,
    /// A limit applies.
    Limited(PreviewedLimit),
}

/// A limit of the documents, before the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviewedLimit {
    /// Name of the limit, as in statistics: the domain and the keys.
    pub name: Arc<str>,
    /// Hits per unit.
    pub requests_per_unit: u32,
    pub unit: &'static str,
    /// Hits that are left.
    pub remaining: u32,
    /// Time until the window ends, or until there is room.
    pub reset: Duration,
    /// Whether it only counts.
    pub is_shadow: bool,
}

impl RlsDecider {
    /// Returns what the documents' limits would do to a descriptor with one hit.
    pub fn preview(
        &self,
        domain: &str,
        entries: &[(String, String)],
        limiter: &Limiter,
        now: Timestamp,
    ) -> DocumentPreview {
        let Some(level) = self.rules.as_ref().and_then(|rules| rules.domain(domain)) else {
            return DocumentPreview::UnknownDomain;
        };
        let request = request_without_hits(domain, entries);
        let Ok((limits, operations)) = self.resolve_descriptors(Some(level), &request, limiter) else {
            return DocumentPreview::NoLimit;
        };
        match limits.first() {
            None | Some(DescriptorLimit::NoLimit) => DocumentPreview::NoLimit,
            Some(DescriptorLimit::Unlimited) => DocumentPreview::Unlimited,
            Some(DescriptorLimit::Counted(counted)) => {
                let results = limiter.count_unconditionally(&operations, |_| CountSelection::Nothing, now);
                let result = results.first().copied().unwrap_or(EMPTY_COUNT_RESULT);
                let RlsDescriptorStatus { limit_remaining: remaining, duration_until_reset, .. } =
                    counted.status(result, now);
                DocumentPreview::Limited(PreviewedLimit {
                    name: Arc::clone(&counted.stat_key),
                    requests_per_unit: counted.rate.requests_per_unit,
                    unit: counted.rate.unit.as_str(),
                    remaining,
                    reset: duration_until_reset.unwrap_or_default(),
                    is_shadow: counted.is_shadow() || self.settings.shadow_mode,
                })
            }
        }
    }
}

/// Returns a request with one descriptor that counts nothing.
pub(super) fn request_without_hits(domain: &str, entries: &[(String, String)]) -> RlsRequest {
    let entry = |(key, value): &(String, String)| RlsEntry { key: key.clone(), value: value.clone() };
    let entries = entries.iter().map(entry).collect();
    let descriptor = RlsDescriptor { entries, hits_addend: Some(0), ..RlsDescriptor::default() };
    RlsRequest { domain: domain.to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}
