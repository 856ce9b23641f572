//! `x-ratelimit-limit`, `-remaining` and `-reset` as Envoy writes them, and the IETF draft's two headers.
//!
//! Envoy follows draft-polli-ratelimit-headers-03: the limit of the counter with the least left (the first on
//! ties), then every limit as a quota policy with its window; remaining and reset are of that one counter.
//! The IETF form is draft-ietf-httpapi-ratelimit-headers-10: structured lists with a member per limit.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::limiter::algorithm::Usage;
use crate::limiter::quota::Quota;

/// The headers' names.
pub const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// Units left.
pub const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// Seconds to a whole quota.
pub const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// The IETF draft's state header.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// The IETF draft's policy header.
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// One limit as it stands after a decision.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    /// The rule's name.
    pub name: &'a str,
    /// What it allows.
    pub quota: &'a Quota,
    /// What is left of it.
    pub usage: Usage,
}

/// Sets Envoy's three headers; does nothing where no limit applies.
pub fn write_envoy<'a>(headers: &mut HeaderMap, standings: impl Iterator<Item = Standing<'a>> + Clone) {
    let mut least: Option<Standing<'a>> = None;
    for standing in standings.clone() {
        if least.is_none_or(|least| standing.usage.remaining < least.usage.remaining) {
            least = Some(standing);
        }
    }
    let Some(least) = least else { return };
    let mut text = Vec::with_capacity(48);
    push_number(&mut text, least.quota.limit().count.get().into());
    for standing in standings {
        text.extend_from_slice(b", ");
        push_number(&mut text, standing.quota.limit().count.get().into());
        text.extend_from_slice(b";w=");
        push_number(&mut text, window(standing.quota));
        text.extend_from_slice(b";name=\"");
        text.extend_from_slice(standing.name.as_bytes());
        text.push(b'"');
    }
    insert(headers, X_RATELIMIT_LIMIT, text);
    headers.insert(X_RATELIMIT_REMAINING, HeaderValue::from(least.usage.remaining));
    headers.insert(X_RATELIMIT_RESET, HeaderValue::from(whole_seconds(least.usage.reset)));
}

/// Sets the IETF draft's two headers; does nothing where no limit applies.
pub fn write_ietf<'a>(headers: &mut HeaderMap, standings: impl Iterator<Item = Standing<'a>>) {
    let (mut state, mut policy) = (Vec::new(), Vec::new());
    for standing in standings {
        for text in [&mut state, &mut policy] {
            if !text.is_empty() {
                text.extend_from_slice(b", ");
            }
            text.push(b'"');
            text.extend_from_slice(standing.name.as_bytes());
            text.push(b'"');
        }
        state.extend_from_slice(b";r=");
        push_number(&mut state, standing.usage.remaining.into());
        state.extend_from_slice(b";t=");
        push_number(&mut state, whole_seconds(standing.usage.reset));
        policy.extend_from_slice(b";q=");
        push_number(&mut policy, standing.quota.limit().count.get().into());
        policy.extend_from_slice(b";w=");
        push_number(&mut policy, window(standing.quota));
    }
    if !state.is_empty() {
        insert(headers, RATELIMIT, state);
        insert(headers, RATELIMIT_POLICY, policy);
    }
}

/// A duration in seconds, rounded up: a client told to wait must not come too early.
pub fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}

/// The window of a quota in seconds; the syntax knows none shorter than one.
fn window(quota: &Quota) -> u64 {
    whole_seconds(quota.limit().period.duration())
}

fn push_number(text: &mut Vec<u8>, number: u64) {
    text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Rule names are visible ASCII without quotes (the configuration sees to it), so the value is valid.
fn insert(headers: &mut HeaderMap, name: HeaderName, text: Vec<u8>) {
    if let Ok(value) = HeaderValue::from_maybe_shared(bytes::Bytes::from(text)) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::limiter::algorithm::Algorithm;
    use crate::limiter::quota::{Limit, Period, Unit};

    fn quota(count: u32, unit: Unit) -> Quota {
        let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(unit));
        Quota::new(Algorithm::Gcra, limit, None).unwrap()
    }

    fn usage(remaining: u32, reset: Duration) -> Usage {
        Usage { used: 0, remaining, reset }
    }

    #[test]
    fn the_tightest_limit_leads_and_all_are_listed() {
        let (second, hour) = (quota(10, Unit::Second), quota(1000, Unit::Hour));
        let standings = [
            Standing { name: "fast", quota: &second, usage: usage(9, Duration::from_millis(100)) },
            Standing { name: "slow", quota: &hour, usage: usage(3, Duration::from_millis(1_804_001)) },
        ];
        let mut headers = HeaderMap::new();
        write_envoy(&mut headers, standings.iter().copied());
        assert_eq!(headers[X_RATELIMIT_LIMIT], "1000, 10;w=1;name=\"fast\", 1000;w=3600;name=\"slow\"");
        assert_eq!(headers[X_RATELIMIT_REMAINING], "3");
        assert_eq!(headers[X_RATELIMIT_RESET], "1805");
        write_ietf(&mut headers, standings.iter().copied());
        assert_eq!(headers[RATELIMIT], "\"fast\";r=9;t=1, \"slow\";r=3;t=1805");
        assert_eq!(headers[RATELIMIT_POLICY], "\"fast\";q=10;w=1, \"slow\";q=1000;w=3600");
    }

    #[test]
    fn the_first_of_equals_leads() {
        let (a, b) = (quota(10, Unit::Second), quota(20, Unit::Millisecond));
        let standings = [("a", &a), ("b", &b)].map(|(name, quota)| Standing {
            name,
            quota,
            usage: usage(0, Duration::from_secs(1)),
        });
        let mut headers = HeaderMap::new();
        write_envoy(&mut headers, standings.iter().copied());
        assert_eq!(headers[X_RATELIMIT_LIMIT], "10, 10;w=1;name=\"a\", 20;w=1;name=\"b\"");
    }

    #[test]
    fn no_limit_no_headers() {
        let mut headers = HeaderMap::new();
        write_envoy(&mut headers, std::iter::empty());
        write_ietf(&mut headers, std::iter::empty());
        assert!(headers.is_empty());
    }
}
