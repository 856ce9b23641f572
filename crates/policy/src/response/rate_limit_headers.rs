//! Envoy's `x-ratelimit-limit`, `-remaining` and `-reset` headers.
//!
//! As in Envoy, these follow draft-polli-ratelimit-headers-03. `-limit` is the limit of the counter with the fewest
//! units left (the first of equals), followed by every limit as a quota policy with its window. `-remaining` and
//! `-reset` are of that one counter.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use super::{LimitForm, LimitHeaderNames};
use weir_http::headers::Headers;
use weir_limiter::algorithm::CounterUsage;
use weir_limiter::quota::Quota;

pub const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// Header with the remaining units.
pub const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// Header with the time until the quota is whole, in seconds.
pub const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// Header with the rules whose limits a request exceeds although it is admitted, one per line. It is sent to the
/// upstream and to the client.
pub const X_WEIR_OVER_LIMIT: HeaderName = HeaderName::from_static("x-weir-over-limit");
/// Header with the rule of a group that a request is charged to. It is sent to the upstream.
pub const X_WEIR_CHARGED: HeaderName = HeaderName::from_static("x-weir-charged");

/// A limit's notation in headers, computed once because it does not depend on the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notation {
    name: Box<str>,
    count: u32,
    /// Window in seconds.
    window: u64,
    /// Value of `x-ratelimit-limit` if this is the only limit.
    alone: HeaderValue,
    /// A list of quota policies, each with a separator before it.
    policies: Arc<[u8]>,
    /// Where the configured limit is in the list.
    span: Range<usize>,
}

impl Notation {
    /// Creates the notation of a limit of the rule `name`, which must be visible ASCII without quotes.
    pub fn new(name: &str, quota: &Quota) -> Self {
        Self::from_count(name, quota.limit().count.get(), quota.limit().period.duration())
    }

    /// Creates the notation of a limit of `count` units per `window`.
    pub fn from_count(name: &str, count: u32, window: Duration) -> Self {
        let mut notation = Self {
            name: name.into(),
            count,
            window: whole_seconds(window),
            alone: HeaderValue::from_static(""),
            policies: Arc::default(),
            span: 0..0,
        };
        let mut text = Vec::new();
        notation.push_policy(notation.count, notation.window, &mut text);
        (notation.policies, notation.span) = (text.as_slice().into(), 0..text.len());
        text.clear();
        push_number(&mut text, notation.count.into());
        text.extend_from_slice(notation.policy());
        notation.alone = HeaderValue::from_bytes(&text).unwrap_or(notation.alone);
        notation
    }

    /// Joins the quota policies of `notations` to one list, in this order. Those of neighbours are then copied at once.
    pub fn join<'a>(notations: impl Iterator<Item = &'a mut Self>) {
        let (mut text, mut joined) = (Vec::new(), Vec::new());
        for notation in notations {
            let start = text.len();
            text.extend_from_slice(notation.policy());
            notation.span = start..text.len();
            joined.push(notation);
        }
        let policies: Arc<[u8]> = text.into();
        joined.into_iter().for_each(|notation| notation.policies = Arc::clone(&policies));
    }

    /// Returns the configured limit as a quota policy, with the separator before it.
    fn policy(&self) -> &[u8] {
        &self.policies[self.span.clone()]
    }

    /// Returns the value of `x-ratelimit-limit` if this is the only limit.
    pub fn alone(&self) -> &HeaderValue {
        &self.alone
    }

    /// Returns the number of units of the limit.
    pub const fn count(&self) -> u32 {
        self.count
    }

    fn push_policy(&self, count: u32, window: u64, text: &mut Vec<u8>) {
        text.extend_from_slice(b", ");
        push_number(text, count.into());
        text.extend_from_slice(b";w=");
        push_number(text, window);
        text.extend_from_slice(b";name=\"");
        text.extend_from_slice(self.name.as_bytes());
        text.push(b'"');
    }
}

/// An elastic limit, one that follows a provider, or one that an operator has raised for a key, at its present size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitInForce {
    /// Units per window.
    pub count: u32,
    /// The window, if it is another than configured.
    pub window: Option<Duration>,
}

/// State of a limit after a decision.
#[derive(Clone, Copy, Debug)]
pub struct LimitStatus<'a> {
    pub notation: &'a Notation,
    /// The present limit, if it differs from the configured one.
    pub in_force: Option<LimitInForce>,
    /// Used and remaining requests, and the time until the quota is whole.
    pub usage: CounterUsage,
}

impl LimitStatus<'_> {
    fn count(&self) -> u32 {
        self.in_force.map_or(self.notation.count, |limit| limit.count)
    }

    /// Whether the policy of `next` follows in the same list, and both are as configured.
    fn is_followed_by(&self, next: &Self) -> bool {
        let (own, other) = (self.notation, next.notation);
        own.span.end == other.span.start
            && Arc::ptr_eq(&own.policies, &other.policies)
            && self.in_force.is_none()
            && next.in_force.is_none()
    }

    fn window(&self) -> u64 {
        self.in_force.and_then(|limit| limit.window).map_or(self.notation.window, whole_seconds)
    }
}

/// Sets the three headers, by their `names`; does nothing if `standings` is empty.
pub fn write_envoy(headers: &mut Headers, standings: &[LimitStatus<'_>], names: &LimitHeaderNames) {
    // `min_by_key` returns the first of equal elements, as Envoy does.
    let Some(least) = standings.iter().min_by_key(|standing| standing.usage.remaining) else { return };
    match standings {
        _ if names.form == LimitForm::Plain => headers.set_number(&names.limit, least.count().into()),
        [only] if only.in_force.is_none() => {
            headers.set(&names.limit, &only.notation.alone);
        }
        standings => {
            let length: usize = standings.iter().map(|standing| standing.notation.span.len()).sum();
            let mut text = Vec::with_capacity(length + 16);
            push_number(&mut text, least.count().into());
            for run in standings.chunk_by(LimitStatus::is_followed_by) {
                push_policies(run, &mut text);
            }
            headers.set_text(&names.limit, text);
        }
    }
    headers.set_number(&names.remaining, least.usage.remaining.into());
    headers.set_number(&names.reset, whole_seconds(least.usage.reset));
}

/// Appends the policies of limits that follow each other in one list, or the policy of one limit.
fn push_policies(run: &[LimitStatus<'_>], text: &mut Vec<u8>) {
    let [first, .., last] = run else {
        return run.iter().for_each(|only| match only.in_force {
            None => text.extend_from_slice(only.notation.policy()),
            Some(_) => only.notation.push_policy(only.count(), only.window(), text),
        });
    };
    text.extend_from_slice(&first.notation.policies[first.notation.span.start..last.notation.span.end]);
}

/// Returns a duration in seconds, rounded up so that clients do not retry too early.
pub fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}

/// Returns a number as a header value. Small numbers need no allocation.
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
    use weir_limiter::algorithm::Algorithm;
    use weir_limiter::quota::{Limit, Period, TimeUnit};

    fn quota(count: u32, unit: TimeUnit) -> Quota {
        let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(unit));
        Quota::new(Algorithm::Gcra, limit, None).unwrap()
    }

    fn usage(remaining: u32, reset: Duration) -> CounterUsage {
        CounterUsage { used: 0, remaining, reset }
    }

    fn names() -> LimitHeaderNames {
        LimitHeaderNames::default()
    }

    #[test]
    fn plain_limit_is_that_of_the_tightest_limit() {
        let notations = [("a", quota(10, TimeUnit::Second)), ("b", quota(1000, TimeUnit::Hour))]
            .map(|(name, quota)| Notation::new(name, &quota));
        let standings = [&notations[0], &notations[1]].map(|notation| LimitStatus {
            notation,
            in_force: None,
            usage: usage(notation.count() / 100, Duration::from_secs(9)),
        });
        let limit = HeaderName::from_static("x-limit");
        let names = LimitHeaderNames { limit, form: LimitForm::Plain, ..names() };
        let mut headers = Headers::default();
        write_envoy(&mut headers, &standings, &names);
        let headers = headers.into_map();
        assert_eq!((&headers["x-limit"], &headers[X_RATELIMIT_REMAINING]), (&number(10), &number(0)));
        assert!(!headers.contains_key(X_RATELIMIT_LIMIT));
    }

    #[test]
    fn x_ratelimit_headers_lead_with_the_tightest_limit() {
        let (fast, slow) = (
            Notation::new("fast", &quota(10, TimeUnit::Second)),
            Notation::new("slow", &quota(1000, TimeUnit::Hour)),
        );
        let standings = [
            LimitStatus { notation: &fast, in_force: None, usage: usage(9, Duration::from_millis(100)) },
            LimitStatus {
                notation: &slow,
                in_force: None,
                usage: usage(3, Duration::from_millis(1_804_001)),
            },
        ];
        let mut headers = Headers::default();
        write_envoy(&mut headers, &standings, &names());
        let headers = headers.into_map();
        assert_eq!(headers[X_RATELIMIT_LIMIT], "1000, 10;w=1;name=\"fast\", 1000;w=3600;name=\"slow\"");
        assert_eq!(headers[X_RATELIMIT_REMAINING], "3");
        assert_eq!(headers[X_RATELIMIT_RESET], "1805");
    }

    #[test]
    fn x_ratelimit_headers_lead_with_the_first_of_equal_limits() {
        let notations = [("a", quota(10, TimeUnit::Second)), ("b", quota(20, TimeUnit::Millisecond))]
            .map(|(n, q)| Notation::new(n, &q));
        let standings = notations.each_ref().map(|notation| LimitStatus {
            notation,
            in_force: None,
            usage: usage(0, Duration::from_secs(1)),
        });
        let mut headers = Headers::default();
        write_envoy(&mut headers, &standings, &names());
        let headers = headers.into_map();
        assert_eq!(headers[X_RATELIMIT_LIMIT], "10, 10;w=1;name=\"a\", 20;w=1;name=\"b\"");
    }

    #[test]
    fn x_ratelimit_headers_are_the_same_for_limits_of_one_list() {
        let names = ["a", "b", "c", "d", "e"];
        let apart = names.map(|name| Notation::new(name, &quota(10, TimeUnit::Second)));
        let mut joined = apart.clone();
        Notation::join(joined.iter_mut());
        let raised = LimitInForce { count: 20, window: None };
        for (shown, raised_at) in [
            (&[0, 1, 2, 3, 4][..], None),
            (&[0, 1, 3, 4], None),
            (&[1, 0, 2], None),
            (&[2, 2, 3], None),
            (&[0, 1, 2, 3, 4], Some(2)),
            (&[0, 1], Some(0)),
            (&[3, 4], Some(4)),
        ] {
            let text = |notations: &[Notation]| {
                let status = |&index: &usize| LimitStatus {
                    notation: &notations[index],
                    in_force: (Some(index) == raised_at).then_some(raised),
                    usage: usage(1, Duration::ZERO),
                };
                let mut headers = Headers::default();
                write_envoy(
                    &mut headers,
                    &shown.iter().map(status).collect::<Vec<_>>(),
                    &LimitHeaderNames::default(),
                );
                headers.into_map()[X_RATELIMIT_LIMIT].clone()
            };
            assert_eq!(text(&joined), text(&apart), "{shown:?} {raised_at:?}");
        }
    }

    #[test]
    fn x_ratelimit_headers_of_a_single_limit_have_the_same_form() {
        let notation = Notation::new("per-ip", &quota(10, TimeUnit::Second));
        let mut headers = Headers::default();
        write_envoy(
            &mut headers,
            &[LimitStatus { notation: &notation, in_force: None, usage: usage(11, Duration::ZERO) }],
            &names(),
        );
        let headers = headers.into_map();
        assert_eq!(headers[X_RATELIMIT_LIMIT], "10, 10;w=1;name=\"per-ip\"");
        assert_eq!((&headers[X_RATELIMIT_REMAINING], &headers[X_RATELIMIT_RESET]), (&number(11), &number(0)));
        assert_eq!((number(11), number(0)), (HeaderValue::from(11), HeaderValue::from(0)));
    }

    #[test]
    fn x_ratelimit_headers_report_the_current_elastic_limit() {
        let notation = Notation::new("per-ip", &quota(10, TimeUnit::Second));
        let standing = LimitStatus {
            notation: &notation,
            in_force: Some(LimitInForce { count: 25, window: None }),
            usage: usage(7, Duration::ZERO),
        };
        let mut headers = Headers::default();
        write_envoy(&mut headers, &[standing], &names());
        let headers = headers.into_map();
        assert_eq!(headers[X_RATELIMIT_LIMIT], "25, 25;w=1;name=\"per-ip\"");
        let raised = LimitInForce { count: 500, window: Some(Duration::from_secs(60)) };
        let mut headers = Headers::default();
        write_envoy(&mut headers, &[LimitStatus { in_force: Some(raised), ..standing }], &names());
        assert_eq!(headers.into_map()[X_RATELIMIT_LIMIT], "500, 500;w=60;name=\"per-ip\"");
    }

    #[test]
    fn no_x_ratelimit_headers_without_a_limit() {
        let mut headers = Headers::default();
        write_envoy(&mut headers, &[], &names());
        let headers = headers.into_map();
        assert!(headers.is_empty());
    }
}
