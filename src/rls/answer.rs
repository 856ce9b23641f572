//! What is answered: `RateLimitResponse` as plain data, and what there is to count about it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::request::{Descriptor, MAX_DESCRIPTORS, MAX_ENTRIES, Override, Request};
use super::settings::HeaderNames;
use super::stats::Stats;
use super::unit::Unit;

/// Whether a request, or one descriptor of it, is over its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Code {
    /// Within the limit, or no limit.
    #[default]
    Ok,
    /// Over the limit.
    OverLimit,
}

/// The answer to one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The verdict.
    pub overall: Code,
    /// One for each descriptor, in their order.
    pub statuses: Vec<Status>,
    /// `response_headers_to_add`: empty unless asked for.
    pub headers: Vec<(Arc<str>, String)>,
    /// `dynamic_metadata`, if asked for.
    pub metadata: Option<Map<String, Value>>,
    /// What there is to count.
    pub stats: Stats,
}

/// The answer to one descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The verdict.
    pub code: Code,
    /// The limit that applied; `None` where none did.
    pub current_limit: Option<CurrentLimit>,
    /// Hits that would still pass.
    pub limit_remaining: u32,
    /// Whole seconds until the window ends; where a limit applied.
    pub duration_until_reset: Option<Duration>,
}

impl Status {
    /// Whether the descriptor is over its limit.
    pub fn is_over(&self) -> bool {
        self.code == Code::OverLimit
    }

    /// Takes over what `other` says of the same descriptor where that is worse: over the limit, or with less left.
    pub(super) fn worsen(&mut self, other: Self) {
        // A limit is worse than none, and none at all than one that is unlimited.
        let rank = |status: &Self| {
            let left = status.current_limit.as_ref().map(|_| status.limit_remaining);
            (!status.is_over(), left.is_none(), left)
        };
        if rank(&other) < rank(self) {
            *self = other;
        }
    }
}

/// A limit as the answer shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentLimit {
    /// Hits per unit.
    pub requests_per_unit: u32,
    /// Over which time; `None` for a limit whose period is none of the protocol's, which is UNKNOWN there.
    pub unit: Option<Unit>,
    /// The rule's name; may be empty.
    pub name: Arc<str>,
}

/// Why there is no answer. The texts of the first three are the reference's, which clients and dashboards match on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecided {
    /// The request names no domain.
    #[error("rate limit domain must not be empty")]
    NoDomain,
    /// The request has no descriptors.
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    /// There have never been rules.
    #[error("no rate limit configuration loaded")]
    NoRules,
    /// A limit in the request is per UNKNOWN, at which the reference breaks down.
    #[error("rate limit override of descriptor {0} has no unit")]
    NoUnit(usize),
    /// The request has more descriptors than are decided at once. The reference has no bound.
    #[error("too many rate limit descriptors in one request, at most {MAX_DESCRIPTORS}: {0}")]
    TooManyDescriptors(usize),
    /// A descriptor of the request has too many entries. The reference has no bound.
    #[error("too many entries in rate limit descriptor {0}, at most {MAX_ENTRIES}: {1}")]
    TooManyEntries(usize, usize),
}

/// The headers that the service itself adds, beside those that Envoy makes from the statuses: of the descriptor that
/// `refused`, or that has the least left.
pub(super) fn headers(
    names: &HeaderNames,
    statuses: &[Status],
    refused: impl Fn(usize) -> bool,
) -> Vec<(Arc<str>, String)> {
    let limited = || statuses.iter().enumerate().filter(|(_, status)| status.current_limit.is_some());
    // The last one of those that refuse, the first one of those with the least left.
    let refusing = limited().rfind(|(index, _)| refused(*index));
    let Some((_, status)) = refusing.or_else(|| limited().min_by_key(|(_, status)| status.limit_remaining))
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

/// Dynamic metadata: what was asked, and what the rules that let it pass have to say. `passed` are those of the limits that were not over, in their order.
pub(super) fn metadata<'a>(
    request: &Request,
    passed: impl Iterator<Item = &'a Map<String, Value>>,
) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("domain".to_owned(), Value::String(request.domain.clone()));
    fields.insert("descriptors".to_owned(), request.descriptors.iter().map(described).collect());
    if request.hits_addend != 0 {
        fields.insert("hitsAddend".to_owned(), request.hits_addend.into());
    }
    let mut merged = Map::new();
    passed.for_each(|metadata| merge(&mut merged, metadata));
    if !merged.is_empty() {
        fields.insert("metadata".to_owned(), Value::Object(merged));
    }
    fields
}

fn described(descriptor: &Descriptor) -> Value {
    let mut fields = Map::new();
    let entries = descriptor.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value));
    fields.insert("entries".to_owned(), entries.collect());
    if let Some(limit) = descriptor.limit {
        fields.insert("limit".to_owned(), json!(written(limit)));
    }
    if let Some(hits) = descriptor.hits_addend {
        fields.insert("hitsAddend".to_owned(), json!(hits));
    }
    Value::Object(fields)
}

/// The text form of the message, in which what is zero is left out.
fn written(limit: Override) -> String {
    let count =
        (limit.requests_per_unit > 0).then(|| format!("requests_per_unit:{}", limit.requests_per_unit));
    let unit = limit.unit.map(|unit| format!("unit:{}", unit.as_str()));
    count.into_iter().chain(unit).collect::<Vec<_>>().join(" ")
}

/// What is there already stays; maps are merged all the way down, which documents bound.
fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (None, value) => drop(into.insert(key.clone(), value.clone())),
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            (Some(_), _) => {}
        }
    }
}
