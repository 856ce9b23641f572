//! Headers of providers, and text that has none of their forms.

use proptest::prelude::*;

use super::*;

/// 2026-01-02T03:04:05Z.
const NOW: Timestamp = Timestamp::from_secs(1_767_323_045);

fn signals(fields: &[(&'static str, &str)]) -> ProviderSignals {
    let mut map = HeaderMap::new();
    for (name, value) in fields {
        map.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    }
    ProviderSignals::from_headers(&Headers::from(map), NOW)
}

fn retry_after_of(name: &'static str, value: &str) -> Option<Duration> {
    signals(&[(name, value)]).retry_after
}

fn used_up(fields: &[(&'static str, &str)]) -> Option<Duration> {
    signals(fields).used_up_for
}

const fn seconds(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

#[test]
fn retry_after_is_seconds_or_an_http_date() {
    assert_eq!(retry_after_of("retry-after", "30"), seconds(30));
    assert_eq!(retry_after_of("retry-after", " 1.5 "), Some(Duration::from_millis(1500)));
    assert_eq!(retry_after_of("retry-after", "Fri, 02 Jan 2026 03:04:35 GMT"), seconds(30));
    assert_eq!(retry_after_of("retry-after", "Fri, 02 Jan 2026 03:00:00 GMT"), seconds(0), "in the past");
    for wrong in ["", "-1", "soon", "1e3", "1.", ".5", "0x10", "Fri, 99 Jan 2026 03:04:35 GMT"] {
        assert_eq!(retry_after_of("retry-after", wrong), None, "{wrong:?}");
    }
    assert!(retry_after_of("retry-after", &"9".repeat(400)).unwrap() > Duration::from_secs(1 << 33));
}

#[test]
fn more_precise_of_two_headers_counts() {
    let both = signals(&[("retry-after", "2"), ("retry-after-ms", "1250")]);
    assert_eq!(both.retry_after, Some(Duration::from_millis(1250)));
    assert_eq!(signals(&[("retry-after", "2"), ("retry-after-ms", "x")]).retry_after, seconds(2));
}

#[test]
fn negative_or_malformed_pushback_rules_out_a_retry() {
    let pushback = |value: &str| signals(&[("grpc-retry-pushback-ms", value)]);
    assert_eq!(pushback("250").retry_after, Some(Duration::from_millis(250)));
    assert!(!pushback("0").forbids_retry);
    for wrong in ["-1", "", "soon", "1.5", "+3"] {
        assert!(pushback(wrong).forbids_retry && pushback(wrong).retry_after.is_none(), "{wrong:?}");
    }
    assert!(!signals(&[]).forbids_retry);
}

#[test]
fn used_up_quota_is_read_in_the_forms_of_common_providers() {
    // Envoy and Weir.
    let envoy =
        [("x-ratelimit-limit", "10, 10;w=60"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "42")];
    assert_eq!(used_up(&envoy), seconds(42));
    // GitHub.
    let github = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767323105")];
    assert_eq!(used_up(&github), seconds(60));
    let milliseconds = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767323105500")];
    assert_eq!(used_up(&milliseconds), Some(Duration::from_millis(60_500)));
    // OpenAI and others.
    let tokens = [
        ("x-ratelimit-remaining-requests", "59"),
        ("x-ratelimit-reset-requests", "1s"),
        ("x-ratelimit-remaining-tokens", "0"),
        ("x-ratelimit-reset-tokens", "6m0s"),
    ];
    assert_eq!(used_up(&tokens), seconds(360));
    let fraction = [("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "1m2.5s")];
    assert_eq!(used_up(&fraction), Some(Duration::from_millis(62_500)));
    let short = [("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "20ms")];
    assert_eq!(used_up(&short), Some(Duration::from_millis(20)));
    // Drafts of the IETF, old and new.
    assert_eq!(used_up(&[("ratelimit-remaining", "0"), ("ratelimit-reset", "7")]), seconds(7));
    assert_eq!(used_up(&[("ratelimit", "limit=100, remaining=0, reset=50")]), seconds(50));
    assert_eq!(used_up(&[("ratelimit", "\"default\";r=0;t=30")]), seconds(30));
    assert_eq!(used_up(&[("ratelimit", "\"burst\";r=5;t=1, \"day\";r=0;t=90")]), seconds(90));
}

#[test]
fn quota_with_units_left_or_without_a_time_signals_nothing() {
    assert_eq!(used_up(&[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "42")]), None);
    assert_eq!(used_up(&[("x-ratelimit-remaining", "0")]), None);
    assert_eq!(used_up(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "soon")]), None);
    assert_eq!(used_up(&[("ratelimit", "\"default\";r=50;t=30")]), None);
    assert_eq!(used_up(&[("ratelimit", "limit=100, remaining=1, reset=50")]), None);
    assert_eq!(used_up(&[("ratelimit", "remaining=0")]), None);
}

#[test]
fn stated_limit_is_that_of_requests() {
    let limit = |fields: &[(&'static str, &str)]| signals(fields).limit;
    let left = ("x-ratelimit-remaining", "7");
    assert_eq!(limit(&[("x-ratelimit-limit", "10, 10;w=60"), left]), Some(10));
    assert_eq!(limit(&[("x-ratelimit-limit", "100;w=1"), left]), Some(100));
    let both = [
        ("x-ratelimit-limit-tokens", "150000"),
        ("x-ratelimit-remaining-tokens", "149984"),
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-remaining-requests", "59"),
    ];
    assert_eq!(limit(&both), Some(60));
    assert_eq!(limit(&both[..2]), None);
    assert_eq!(limit(&[("ratelimit-limit", "30"), ("ratelimit-remaining", "1")]), Some(30));
    assert_eq!(limit(&[("ratelimit", "limit=100, remaining=50, reset=5")]), Some(100));
    let policy = ("ratelimit-policy", "\"default\";q=100;w=60, \"day\";q=5000;w=86400");
    assert_eq!(limit(&[("ratelimit", "\"default\";r=50;t=30"), policy]), Some(100));
    assert_eq!(limit(&[("ratelimit", "\"default\";r=50;t=30")]), None);
    assert_eq!(limit(&[("x-ratelimit-limit", "many"), left]), None);
}

proptest! {
    #[test]
    fn readers_accept_any_bytes(value in prop::collection::vec(any::<u8>(), 0..64)) {
        let Ok(value) = HeaderValue::from_bytes(&value) else { return Ok(()) };
        let mut map = HeaderMap::new();
        for QuotaHeaders { remaining, reset, limit } in &QUOTA_HEADERS {
            map.insert(remaining, HeaderValue::from_static("0"));
            for name in [Some(reset), limit.as_ref()].into_iter().flatten() {
                map.insert(name, value.clone());
            }
        }
        for name in
            [&RETRY_AFTER, &RETRY_AFTER_MS, &GRPC_RETRY_PUSHBACK_MS, &RATELIMIT, &RATELIMIT_POLICY]
        {
            map.insert(name, value.clone());
        }
        ProviderSignals::from_headers(&Headers::from(map), NOW);
    }

    #[test]
    fn written_durations_are_read(hours in 0..1000_u64, minutes in 0..60_u64, millis in 0..60_000_u64) {
        let text = format!("{hours}h{minutes}m{}.{:03}s", millis / 1000, millis % 1000);
        let expected = Duration::from_millis((hours * 3600 + minutes * 60) * 1000 + millis);
        prop_assert_eq!(duration(text.as_bytes()), Some(expected));
    }

    #[test]
    fn seconds_of_any_length_saturate(digits in "[0-9]{1,60}") {
        let read = decimal(digits.as_bytes(), 1_000_000_000);
        let expected: u64 = digits.parse::<u128>().map_or(u64::MAX, |number| number.min(u64::MAX.into()) as u64);
        prop_assert_eq!(read, Some(Duration::from_nanos(expected.saturating_mul(1_000_000_000))));
    }
}
