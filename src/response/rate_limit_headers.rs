//! `x-ratelimit-limit`, `-remaining` and `-reset` as Envoy writes them.
//!
//! Envoy follows draft-polli-ratelimit-headers-03: the limit of the counter with the least left (the first on
//! ties), then every limit as a quota policy with its window; remaining and reset are of that one counter.

use std::time::Duration;

use http::{HeaderName, HeaderValue};

use crate::headers::Headers;
use crate::limiter::algorithm::Usage;
use crate::limiter::quota::Quota;

/// The headers' names.
pub const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// Units left.
pub const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// Seconds to a whole quota.
pub const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// The rules over whose limits a request has passed, one per line: for the upstream and the client.
pub const X_WEIR_OVER_LIMIT: HeaderName = HeaderName::from_static("x-weir-over-limit");

/// How a limit is written, worked out once: nothing about it changes from answer to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notation {
    name: Box<str>,
    count: u32,
    /// Seconds.
    window: u64,
    /// The value of `x-ratelimit-limit` where this limit is the only one.
    alone: HeaderValue,
}

impl Notation {
    /// How a limit of the rule `name` is written. Names are visible ASCII without quotes.
    pub fn new(name: &str, quota: &Quota) -> Self {
        Self::of(name, quota.limit().count.get(), quota.limit().period.duration())
    }

    /// The same of a limit of so many in so long.
    pub fn of(name: &str, count: u32, window: Duration) -> Self {
        let mut notation = Self {
            name: name.into(),
            count,
            window: whole_seconds(window),
            alone: HeaderValue::from_static(""),
        };
        let mut text = Vec::new();
        push_number(&mut text, notation.count.into());
        notation.push_policy(notation.count, &mut text);
        notation.alone = HeaderValue::from_bytes(&text).unwrap_or(notation.alone);
        notation
    }

    /// The value of `x-ratelimit-limit` where this limit is the only one.
    pub fn alone(&self) -> &HeaderValue {
        &self.alone
    }

    fn push_policy(&self, count: u32, text: &mut Vec<u8>) {
        text.extend_from_slice(b", ");
        push_number(text, count.into());
        text.extend_from_slice(b";w=");
        push_number(text, self.window);
        text.extend_from_slice(b";name=\"");
        text.extend_from_slice(self.name.as_bytes());
        text.push(b'"');
    }
}

/// One limit as it stands after a decision.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    /// How it is written.
    pub notation: &'a Notation,
    /// What an elastic limit has grown to, where that is not what was written.
    pub grown: Option<u32>,
    /// What is left of it, in requests.
    pub usage: Usage,
}

impl Standing<'_> {
    fn count(&self) -> u32 {
        self.grown.unwrap_or(self.notation.count)
    }
}

/// Sets Envoy's three headers; does nothing where no limit applies.
pub fn write_envoy(headers: &mut Headers, standings: &[Standing<'_>]) {
    // The first of those with the least left: `min_by_key` answers the first of equals.
    let Some(least) = standings.iter().min_by_key(|standing| standing.usage.remaining) else { return };
    match standings {
        [only] if only.grown.is_none() => {
            headers.set(&X_RATELIMIT_LIMIT, &only.notation.alone);
        }
        standings => {
            let mut text = Vec::with_capacity(32 * standings.len());
            push_number(&mut text, least.count().into());
            for standing in standings {
                standing.notation.push_policy(standing.count(), &mut text);
            }
            headers.set_text(&X_RATELIMIT_LIMIT, text);
        }
    }
    headers.set_number(&X_RATELIMIT_REMAINING, least.usage.remaining.into());
    headers.set_number(&X_RATELIMIT_RESET, whole_seconds(least.usage.reset));
}

/// A duration in seconds, rounded up: a client told to wait must not come too early.
pub fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}

/// A number as a header's value. Most are small: those need no memory of their own.
pub fn number(number: u64) -> HeaderValue {
    const SMALL: [&str; 11] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"];
    let small = usize::try_from(number).ok().and_then(|number| SMALL.get(number));
    small.map_or_else(|| HeaderValue::from(number), |text| HeaderValue::from_static(text))
}

pub(super) fn push_number(text: &mut Vec<u8>, number: u64) {
    text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
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
        let (fast, slow) = (
            Notation::new("fast", &quota(10, Unit::Second)),
            Notation::new("slow", &quota(1000, Unit::Hour)),
        );
        let standings = [
            Standing { notation: &fast, grown: None, usage: usage(9, Duration::from_millis(100)) },
            Standing { notation: &slow, grown: None, usage: usage(3, Duration::from_millis(1_804_001)) },
        ];
        let mut headers = Headers::default();
        write_envoy(&mut headers, &standings);
        let headers = headers.into_map();
        assert_eq!(headers[X_RATELIMIT_LIMIT], "1000, 10;w=1;name=\"fast\", 1000;w=3600;name=\"slow\"");
        assert_eq!(headers[X_RATELIMIT_REMAINING], "3");
        assert_eq!(headers[X_RATELIMIT_RESET], "1805");
    }

    #[test]
    fn the_first_of_equals_leads() {
        let notations = [("a", quota(10, Unit::Second)), ("b", quota(20, Unit::Millisecond))]
            .map(|(n, q)| Notation::new(n, &q));
        let standings = notations.each_ref().map(|notation| Standing {
            notation,
            grown: None,
            usage: usage(0, Duration::from_secs(1)),
        });
        let mut headers = Headers::default();
        write_envoy(&mut headers, &standings);
        let headers = headers.into_map();
        assert_eq!(headers[X_RATELIMIT_LIMIT], "10, 10;w=1;name=\"a\", 20;w=1;name=\"b\"");
    }

    #[test]
    fn a_limit_alone_is_written_the_same_way() {
        let notation = Notation::new("per-ip", &quota(10, Unit::Second));
        let mut headers = Headers::default();
        write_envoy(
            &mut headers,
            &[Standing { notation: &notation, grown: None, usage: usage(11, Duration::ZERO) }],
        );
        let headers = headers.into_map();
        assert_eq!(headers[X_RATELIMIT_LIMIT], "10, 10;w=1;name=\"per-ip\"");
        assert_eq!((&headers[X_RATELIMIT_REMAINING], &headers[X_RATELIMIT_RESET]), (&number(11), &number(0)));
        assert_eq!((number(11), number(0)), (HeaderValue::from(11), HeaderValue::from(0)));
    }

    #[test]
    fn an_elastic_limit_is_written_as_large_as_it_is_now() {
        let notation = Notation::new("per-ip", &quota(10, Unit::Second));
        let standing = Standing { notation: &notation, grown: Some(25), usage: usage(7, Duration::ZERO) };
        let mut headers = Headers::default();
        write_envoy(&mut headers, &[standing]);
        let headers = headers.into_map();
        assert_eq!(headers[X_RATELIMIT_LIMIT], "25, 25;w=1;name=\"per-ip\"");
    }

    #[test]
    fn no_limit_no_headers() {
        let mut headers = Headers::default();
        write_envoy(&mut headers, &[]);
        let headers = headers.into_map();
        assert!(headers.is_empty());
    }
}
