//! What a response of a provider signals about its limits: when to retry, and that its quota is used up.
//!
//! The headers differ between providers and versions of the drafts. Each reader is total: text that does not have one of
//! its forms signals nothing, and numbers saturate. Times are relative to the arrival of the response.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};

use weir_http::headers::Headers;
use weir_limiter::timestamp::Timestamp;

static RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
static GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
static RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Headers about one quota.
struct QuotaHeaders {
    /// Units left.
    remaining: HeaderName,
    /// Time until there are more.
    reset: HeaderName,
    /// The limit, if it is one of requests.
    limit: Option<HeaderName>,
}

static QUOTA_HEADERS: [QuotaHeaders; 5] = {
    const fn quota(
        remaining: &'static str,
        reset: &'static str,
        limit: Option<&'static str>,
    ) -> QuotaHeaders {
        let limit = match limit {
            Some(limit) => Some(HeaderName::from_static(limit)),
            None => None,
        };
        let remaining = HeaderName::from_static(remaining);
        QuotaHeaders { remaining, reset: HeaderName::from_static(reset), limit }
    }
    [
        quota("x-ratelimit-remaining", "x-ratelimit-reset", Some("x-ratelimit-limit")),
        quota(
            "x-ratelimit-remaining-requests",
            "x-ratelimit-reset-requests",
            Some("x-ratelimit-limit-requests"),
        ),
        quota("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens", None),
        quota("x-rate-limit-remaining", "x-rate-limit-reset", Some("x-rate-limit-limit")),
        quota("ratelimit-remaining", "ratelimit-reset", Some("ratelimit-limit")),
    ]
};

/// Numbers from here on are seconds since the Unix epoch and not a duration; it is in 2001.
const FIRST_EPOCH_SECOND: u64 = 1_000_000_000;
/// Numbers from here on are milliseconds since the Unix epoch.
const FIRST_EPOCH_MILLISECOND: u64 = FIRST_EPOCH_SECOND * 1000;

/// Resolution of times in seconds.
const ROUNDING: Duration = Duration::from_secs(1);

/// What a response signals about the provider's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProviderSignals {
    /// Time after which the provider accepts a retry.
    pub retry_after: Option<Duration>,
    /// Whether `retry_after` is stated in whole seconds or as a date.
    pub is_rounded: bool,
    /// Time until the provider's quota, which is used up, has units again.
    pub used_up_for: Option<Duration>,
    /// Limit that the provider states, in requests. Its period is unknown.
    pub limit: Option<u64>,
    /// Whether the provider rules out a retry (gRFC A6: a negative or malformed pushback).
    pub forbids_retry: bool,
}

impl ProviderSignals {
    /// Reads the headers of a response that arrived at `wall_clock`.
    pub fn from_headers(headers: &Headers, wall_clock: Timestamp) -> Self {
        let mut signals = Self::from_pushback(headers.get(&GRPC_RETRY_PUSHBACK_MS));
        if signals.retry_after.is_none() {
            let millis = headers.get(&RETRY_AFTER_MS).and_then(|value| decimal(value, 1_000_000));
            let after = || headers.get(&RETRY_AFTER).and_then(|value| retry_after(value, wall_clock));
            signals.is_rounded = millis.is_none();
            signals.retry_after = millis.or_else(after);
        }
        for quota in &QUOTA_HEADERS {
            let Some(left) = headers.get(&quota.remaining) else { continue };
            let reset = headers.get(&quota.reset).filter(|_| is_zero(first_item(left)));
            let reset = reset.and_then(|value| reset_time(first_item(value), wall_clock));
            signals.used_up_for = signals.used_up_for.max(reset);
            let limit = || headers.get(quota.limit.as_ref()?).and_then(stated_limit);
            signals.limit = signals.limit.or_else(limit);
        }
        for value in headers.get_all(&RATELIMIT) {
            signals.used_up_for = signals.used_up_for.max(draft_quota(value, wall_clock));
            let policy = || parameter(items(headers.get(&RATELIMIT_POLICY)?).next()?, "q", b';');
            let limit = || parameter(value, "limit", b',').or_else(policy).and_then(whole_number);
            signals.limit = signals.limit.or_else(limit);
        }
        signals
    }

    /// Returns the time for which a provider that has rejected the request rejects others, too. A second that is rounded
    /// up says little: a provider with room for another call in a millisecond states it, too.
    pub fn closed_for(&self) -> Option<Duration> {
        match self.retry_after {
            Some(time) if !self.is_rounded => Some(time),
            stated => stated.or(self.used_up_for).filter(|time| *time > ROUNDING),
        }
    }

    /// Reads the trailers of a response.
    pub fn from_trailers(trailers: &HeaderMap) -> Self {
        Self::from_pushback(trailers.get(&GRPC_RETRY_PUSHBACK_MS).map(HeaderValue::as_bytes))
    }

    fn from_pushback(value: Option<&[u8]>) -> Self {
        match value.map(pushback) {
            None => Self::default(),
            Some(Some(after)) => Self { retry_after: Some(after), ..Self::default() },
            Some(None) => Self { forbids_retry: true, ..Self::default() },
        }
    }
}

/// Parses `grpc-retry-pushback-ms`; `None` if it is negative or not a number.
fn pushback(value: &[u8]) -> Option<Duration> {
    let digits = value.trim_ascii();
    whole_number(digits).map(Duration::from_millis)
}

/// Parses `Retry-After`: seconds, which some providers write with a fraction, or an HTTP date (RFC 9110, section
/// 10.2.3).
fn retry_after(value: &[u8], wall_clock: Timestamp) -> Option<Duration> {
    decimal(value, 1_000_000_000).or_else(|| {
        let text = std::str::from_utf8(value.trim_ascii()).ok()?;
        let at = httpdate::parse_http_date(text).ok()?;
        let since_epoch = at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Some(Timestamp::EPOCH.saturating_add(since_epoch).since(wall_clock))
    })
}

/// Parses the time until a quota has units again: seconds, seconds or milliseconds since the Unix epoch, or a duration
/// such as `6m0s`.
fn reset_time(value: &[u8], wall_clock: Timestamp) -> Option<Duration> {
    match whole_number(value) {
        Some(millis) if millis >= FIRST_EPOCH_MILLISECOND => {
            Some(Timestamp::EPOCH.saturating_add(Duration::from_millis(millis)).since(wall_clock))
        }
        Some(seconds) if seconds >= FIRST_EPOCH_SECOND => {
            Some(Timestamp::from_secs(seconds).since(wall_clock))
        }
        _ => decimal(value, 1_000_000_000).or_else(|| duration(value)),
    }
}

/// Reads a `RateLimit` header that says that nothing is left: `limit=100, remaining=0, reset=30` (drafts 3 to 6), or
/// `"default";r=0;t=30` (draft 8 and later). Of several policies the longest time counts.
fn draft_quota(value: &[u8], wall_clock: Timestamp) -> Option<Duration> {
    let time_of = |item: &[u8], remaining: &str, reset: &str, separator: u8| {
        let left = parameter(item, remaining, separator)?;
        let reset = parameter(item, reset, separator)?;
        reset_time(reset, wall_clock).filter(|_| is_zero(left))
    };
    let of_policies = items(value).filter_map(|item| time_of(item, "r", "t", b';')).max();
    of_policies.or_else(|| time_of(value, "remaining", "reset", b','))
}

/// Returns the value of the parameter `name` in `text`, where a separator is between two of them.
fn parameter<'a>(text: &'a [u8], name: &str, separator: u8) -> Option<&'a [u8]> {
    text.split(|byte| *byte == separator).find_map(|part| {
        let mut sides = part.splitn(2, |byte| *byte == b'=');
        let is_it = sides.next()?.trim_ascii().eq_ignore_ascii_case(name.as_bytes());
        sides.next().filter(|_| is_it).map(<[u8]>::trim_ascii)
    })
}

/// Parses a limit, which may have parameters: `10, 10;w=1`.
fn stated_limit(value: &[u8]) -> Option<u64> {
    whole_number(first_item(value).split(|byte| *byte == b';').next()?.trim_ascii())
}

/// Parses durations as Go writes them: numbers with a unit, such as `1h2m3.5s` or `20ms`.
fn duration(mut text: &[u8]) -> Option<Duration> {
    let mut total = None;
    while !text.is_empty() {
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
        let (number, rest) = text.split_at(digits);
        let letters = rest.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
        let (unit, rest) = rest.split_at(letters);
        let nanos = match unit {
            b"ms" => 1_000_000,
            b"s" => 1_000_000_000,
            b"m" => 60_000_000_000,
            b"h" => 3_600_000_000_000,
            b"d" => 86_400_000_000_000,
            _ => return None,
        };
        total = Some(total.unwrap_or(Duration::ZERO).saturating_add(decimal(number, nanos)?));
        text = rest;
    }
    total
}

/// Parses a number with an optional fraction, in units of `nanos`; saturates, and rounds up to a nanosecond.
fn decimal(text: &[u8], nanos: u64) -> Option<Duration> {
    /// Digits of a fraction that count.
    const MAX_FRACTION: usize = 9;
    let mut parts = text.trim_ascii().splitn(2, |byte| *byte == b'.');
    let whole = whole_number(parts.next()?)?;
    let fraction = parts.next();
    if !fraction.is_none_or(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)) {
        return None;
    }
    let digits = fraction.unwrap_or_default();
    let scaled = digits.iter().chain(std::iter::repeat(&b'0')).take(MAX_FRACTION);
    let billionths = scaled.fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    let part = (u128::from(billionths) * u128::from(nanos)).div_ceil(1_000_000_000);
    let all = u128::from(whole).saturating_mul(nanos.into()).saturating_add(part);
    Some(Duration::from_nanos(u64::try_from(all).unwrap_or(u64::MAX)))
}

/// Parses digits; saturates.
fn whole_number(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let add = |number: u64, digit: &u8| number.saturating_mul(10).saturating_add((digit - b'0').into());
    is_number.then(|| text.iter().fold(0, add))
}

fn is_zero(text: &[u8]) -> bool {
    whole_number(text) == Some(0)
}

fn items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',')
}

fn first_item(value: &[u8]) -> &[u8] {
    items(value).next().unwrap_or_default().trim_ascii()
}

#[cfg(test)]
mod tests;
