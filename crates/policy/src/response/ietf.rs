//! The `RateLimit` and `RateLimit-Policy` headers of draft-ietf-httpapi-ratelimit-headers-11.
//!
//! Both are Lists (RFC 9651) with a member per limit: a String with the policy's name, and parameters. `t` is the time
//! until *additional* quota becomes available, not until all of it is. Parameters that cannot be exact are omitted: `w`
//! if a window is not a whole number of seconds, and `t` if the time is unknown.

use std::num::NonZeroU64;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderName;

use super::rate_limit_headers::{LimitInForce, push_number, whole_seconds};
use weir_http::headers::Headers;
use weir_limiter::quota::Period;

/// Header with the remaining quota of each policy.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Maximum Integer (RFC 9651 §3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Quota unit of a policy, from the draft's registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaUnit {
    /// `requests`, the default.
    Requests,
    /// `content-bytes`; the number of bytes per unit of the limit.
    ContentBytes(NonZeroU64),
    ConcurrentRequests,
}

/// A limit as a quota policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaPolicy {
    name: Box<str>,
    quota: u32,
    unit: QuotaUnit,
    /// Window in seconds.
    window: Option<u64>,
}

/// Partition key: opaque, and different in every process.
pub type PartitionKey = [u8; 8];

/// State of one policy for the client of a response.
#[derive(Clone, Copy, Debug)]
pub struct ServiceLimit<'a> {
    pub policy: &'a QuotaPolicy,
    /// The present limit, if it differs from the configured one.
    pub in_force: Option<LimitInForce>,
    /// Remaining units.
    pub remaining: u32,
    /// Time until more units are available, if known.
    pub time_until_more: Option<Duration>,
    /// The partition, if the policy has several.
    pub partition: Option<PartitionKey>,
}

impl QuotaPolicy {
    /// Creates a policy of `quota` units per window. `name` must be visible ASCII without quotes.
    pub fn new(name: &str, quota: u32, unit: QuotaUnit, window: Option<Duration>) -> Self {
        Self { name: name.into(), quota, unit, window: window.and_then(in_whole_seconds) }
    }

    /// Returns the policy's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a name that distinguishes the policies of one rule by their period.
    pub fn name_of(rule: &str, period: Period) -> String {
        format!("{rule}/{period}")
    }

    fn in_units(&self, units: u32) -> u64 {
        let size = match self.unit {
            QuotaUnit::Requests | QuotaUnit::ConcurrentRequests => 1,
            QuotaUnit::ContentBytes(size) => size.get(),
        };
        u64::from(units).saturating_mul(size).min(MAX_INTEGER)
    }
}

/// Returns a window in seconds; `None` if that is not exact.
fn in_whole_seconds(window: Duration) -> Option<u64> {
    (window.subsec_nanos() == 0 && !window.is_zero()).then_some(window.as_secs())
}

/// Sets both headers; does nothing if `limits` is empty.
pub fn write(headers: &mut Headers, limits: &[ServiceLimit<'_>]) {
    let (mut state, mut policy) = (Vec::new(), Vec::new());
    for limit in limits {
        push_policy(&mut policy, limit);
        push_limit(&mut state, limit);
    }
    if !limits.is_empty() {
        headers.set_text(&RATELIMIT, state);
        headers.set_text(&RATELIMIT_POLICY, policy);
    }
}

fn push_policy(text: &mut Vec<u8>, limit: &ServiceLimit<'_>) {
    let policy = limit.policy;
    push_name(text, &policy.name);
    push_parameter(text, b"q", policy.in_units(limit.in_force.map_or(policy.quota, |limit| limit.count)));
    match policy.unit {
        QuotaUnit::Requests => {}
        QuotaUnit::ContentBytes(_) => text.extend_from_slice(b";qu=\"content-bytes\""),
        QuotaUnit::ConcurrentRequests => text.extend_from_slice(b";qu=\"concurrent-requests\""),
    }
    let window = match limit.in_force.and_then(|limit| limit.window) {
        Some(window) => in_whole_seconds(window),
        None => policy.window,
    };
    if let Some(window) = window {
        push_parameter(text, b"w", window);
    }
    push_partition(text, limit.partition);
}

fn push_limit(text: &mut Vec<u8>, limit: &ServiceLimit<'_>) {
    push_name(text, &limit.policy.name);
    push_parameter(text, b"r", limit.policy.in_units(limit.remaining));
    if let Some(more) = limit.time_until_more {
        push_parameter(text, b"t", whole_seconds(more));
    }
    push_partition(text, limit.partition);
}

fn push_name(text: &mut Vec<u8>, name: &str) {
    if !text.is_empty() {
        text.extend_from_slice(b", ");
    }
    text.push(b'"');
    text.extend_from_slice(name.as_bytes());
    text.push(b'"');
}

fn push_parameter(text: &mut Vec<u8>, name: &[u8], value: u64) {
    text.push(b';');
    text.extend_from_slice(name);
    text.push(b'=');
    push_number(text, value.min(MAX_INTEGER));
}

/// Appends the partition as a Byte Sequence (RFC 9651 §3.3.5).
fn push_partition(text: &mut Vec<u8>, partition: Option<PartitionKey>) {
    if let Some(partition) = partition {
        text.extend_from_slice(b";pk=:");
        text.extend_from_slice(STANDARD.encode(partition).as_bytes());
        text.push(b':');
    }
}

#[cfg(test)]
mod tests;
