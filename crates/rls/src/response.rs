//! Responses: `RateLimitResponse` as plain data, with the values for statistics.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::request::{LimitOverride, MAX_DESCRIPTORS, MAX_ENTRIES, RlsDescriptor, RlsRequest};
use super::settings::HeaderNames;
use super::stats::RlsRequestStats;
use super::unit::RlsUnit;
use weir_policy::rules::outcome::DecisionOutcome;

/// Whether a request, or one of its descriptors, is over its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Code {
    /// Within the limit, or no limit applies.
    #[default]
    Ok,
    OverLimit,
}

/// The response to one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RlsResponse {
    /// Overall code of the request.
    pub overall_code: Code,
    /// One status per descriptor, in order.
    pub statuses: Vec<RlsDescriptorStatus>,
    /// `response_headers_to_add`; empty unless enabled.
    pub headers: Vec<(Arc<str>, String)>,
    /// `dynamic_metadata`, if enabled.
    pub metadata: Option<Map<String, Value>>,
    /// Values for statistics.
    pub stats: RlsRequestStats,
}

impl RlsResponse {
    /// Returns what the rules did with the request, however many of them apply to its descriptors.
    pub(super) fn outcome(&self) -> DecisionOutcome {
        let strictest =
            self.stats.rule_decisions.iter().map(|decision| decision.outcome).max_by_key(|it| it.weight());
        let is_shadow = || {
            self.stats.global_shadow_mode || self.stats.descriptors.iter().any(|hits| hits.shadow_mode > 0)
        };
        match (self.overall_code, strictest) {
            (Code::OverLimit, Some(outcome)) if outcome.is_rejection() => outcome,
            (Code::OverLimit, _) => DecisionOutcome::Limited,
            // The whole service is in shadow mode.
            (Code::Ok, Some(outcome)) if outcome.is_rejection() => DecisionOutcome::Shadow,
            (Code::Ok, None | Some(DecisionOutcome::Allowed)) if is_shadow() => DecisionOutcome::Shadow,
            (Code::Ok, outcome) => outcome.unwrap_or(DecisionOutcome::Allowed),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RlsDescriptorStatus {
    pub code: Code,
    /// The limit that applied, if any.
    pub current_limit: Option<CurrentLimit>,
    /// Remaining hits.
    pub limit_remaining: u32,
    /// Time until the window ends, in whole seconds, if a limit applied.
    pub duration_until_reset: Option<Duration>,
}

impl RlsDescriptorStatus {
    pub fn is_over_limit(&self) -> bool {
        self.code == Code::OverLimit
    }

    /// Replaces this status by another one of the same descriptor if that is stricter: over the limit, or with fewer
    /// hits left.
    pub(super) fn keep_stricter(&mut self, other: Self) {
        // A limit is stricter than none, and no limit is stricter than an unlimited one.
        let rank = |status: &Self| {
            let left = status.current_limit.as_ref().map(|_| status.limit_remaining);
            (!status.is_over_limit(), left.is_none(), left)
        };
        if rank(&other) < rank(self) {
            *self = other;
        }
    }
}

/// A limit, as responses show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentLimit {
    /// Hits per unit.
    pub requests_per_unit: u32,
    /// Unit of time; `None` if the protocol has no unit for the period, which is then UNKNOWN.
    pub unit: Option<RlsUnit>,
    /// Name of the rule; may be empty.
    pub name: Arc<str>,
}

/// Why a request has no response. The first three texts are the reference's, because clients and dashboards match on
/// them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RlsError {
    /// The request has no domain.
    #[error("rate limit domain must not be empty")]
    NoDomain,
    /// The request has no descriptors.
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    /// No rules have been loaded yet.
    #[error("no rate limit configuration loaded")]
    NoRules,
    /// A limit in the request has the unit UNKNOWN, for which the reference panics.
    #[error("rate limit override of descriptor {0} has no unit")]
    NoUnit(usize),
    /// The request has too many descriptors. The reference has no maximum.
    #[error("too many rate limit descriptors in one request, at most {MAX_DESCRIPTORS}: {0}")]
    TooManyDescriptors(usize),
    /// A descriptor of the request has too many entries. The reference has no maximum.
    #[error("too many entries in rate limit descriptor {0}, at most {MAX_ENTRIES}: {1}")]
    TooManyEntries(usize, usize),
}

/// Returns the headers that the service itself adds, in addition to those that Envoy derives from the statuses. They
/// are of a descriptor for which `rejects` holds, or else of the one with the fewest hits left.
pub(super) fn rate_limit_headers(
    names: &HeaderNames,
    statuses: &[RlsDescriptorStatus],
    rejects: impl Fn(usize) -> bool,
) -> Vec<(Arc<str>, String)> {
    let limited = || statuses.iter().enumerate().filter(|(_, status)| status.current_limit.is_some());
    // The last rejecting one, or the first one of those with the fewest hits left.
    let rejecting = limited().rfind(|(index, _)| rejects(*index));
    let Some((_, status)) = rejecting.or_else(|| limited().min_by_key(|(_, status)| status.limit_remaining))
    else {
        return Vec::new();
    };
    let limit = status.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
    let reset = status.duration_until_reset.unwrap_or_default().as_secs();
    vec![
        (Arc::clone(&names.limit), limit.to_string()),
        (Arc::clone(&names.remaining), status.limit_remaining.to_string()),
        (Arc::clone(&names.reset), reset.to_string()),
    ]
}

/// Builds the dynamic metadata: the request, and the metadata of the limits that were not exceeded (`passed`, in
/// order).
pub(super) fn dynamic_metadata<'a>(
    request: &RlsRequest,
    passed: impl Iterator<Item = &'a Map<String, Value>>,
) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("domain".to_owned(), Value::String(request.domain.clone()));
    fields.insert("descriptors".to_owned(), request.descriptors.iter().map(descriptor_metadata).collect());
    if request.hits_addend != 0 {
        fields.insert("hitsAddend".to_owned(), request.hits_addend.into());
    }
    let mut merged = Map::new();
    passed.for_each(|metadata| merge_metadata(&mut merged, metadata));
    if !merged.is_empty() {
        fields.insert("metadata".to_owned(), Value::Object(merged));
    }
    fields
}

fn descriptor_metadata(descriptor: &RlsDescriptor) -> Value {
    let mut fields = Map::new();
    let entries = descriptor.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value));
    fields.insert("entries".to_owned(), entries.collect());
    if let Some(limit) = descriptor.limit {
        fields.insert("limit".to_owned(), json!(override_text(limit)));
    }
    if let Some(hits) = descriptor.hits_addend {
        fields.insert("hitsAddend".to_owned(), json!(hits));
    }
    Value::Object(fields)
}

/// Returns the text form of the Protobuf message, which omits zero values.
fn override_text(limit: LimitOverride) -> String {
    let count =
        (limit.requests_per_unit > 0).then(|| format!("requests_per_unit:{}", limit.requests_per_unit));
    let unit = limit.unit.map(|unit| format!("unit:{}", unit.as_str()));
    count.into_iter().chain(unit).collect::<Vec<_>>().join(" ")
}

/// Merges `from` into `into` recursively; existing values take precedence. The size of documents bounds the depth.
fn merge_metadata(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (None, value) => drop(into.insert(key.clone(), value.clone())),
            (Some(Value::Object(into)), Value::Object(from)) => merge_metadata(into, from),
            (Some(_), _) => {}
        }
    }
}
