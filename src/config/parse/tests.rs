use proptest::prelude::*;

use super::*;

fn said(text: &str) -> String {
    rate(text).unwrap_err().message
}

#[test]
fn a_rate_may_be_written_in_many_ways() {
    for (text, canonical) in [
        ("100/s", "100/s"),
        ("10/30s", "10/30s"),
        ("10 / 30 seconds", "10/30s"),
        ("5/min", "5/min"),
        ("5/m", "5/min"),
        ("10 per minute", "10/min"),
        ("10 per 2 minutes", "10/2min"),
        ("  7  per   day ", "7/d"),
        ("1/ms", "1/ms"),
        ("1 per millisecond", "1/ms"),
        ("3/hours", "3/h"),
        ("1/week", "1/w"),
        ("1000/month", "1000/month"),
        ("1000/12months", "1000/12month"),
        ("9/year", "9/year"),
        ("0100/s", "100/s"),
        ("4294967295/4294967295s", "4294967295/4294967295s"),
    ] {
        assert_eq!(rate(text).map(|rate| rate.to_string()), Ok(canonical.to_owned()), "{text}");
    }
}

#[test]
fn a_rate_that_is_none_is_refused() {
    for text in [
        "",
        " ",
        "/",
        "s",
        "100",
        "100/",
        "/s",
        "per",
        "1 per",
        "per s",
        "1 pers",
        "1perS",
        "10s",
        "1/s/s",
        "1//s",
        "-1/s",
        "+1/s",
        "1.5/s",
        "1e3/s",
        "0x10/s",
        "1 000/s",
        "1,000/s",
        "１/s",
        "1/٣s",
        "1/-2s",
        "1/2.5s",
        "1/S",
        "1/M",
        "1/mo",
        "1/sec",
        "1/0s",
        "0/s",
        "4294967296/s",
        "1/4294967296s",
        "∞/s",
        "1/s\0",
        "1/ss",
        "1/mss",
    ] {
        assert!(rate(text).is_err(), "{text:?}");
    }
}

#[test]
fn a_refused_rate_says_what_is_wrong_with_it() {
    assert_eq!(said("fast"), "expected a rate such as `100/s`, got \"fast\"");
    assert_eq!(said("/s"), "missing count before the period in \"/s\"");
    assert_eq!(said("10/30"), "missing unit after the count in \"10/30\"");
    assert_eq!(said("0/s"), "count must be at least 1, got \"0\"");
    assert_eq!(said("1/0s"), "count of the period must be at least 1, got \"0\"");
    assert_eq!(said("5000000000/s"), "count is above 4294967295, got \"5000000000\"");
    assert_eq!(said("x/s"), "expected a whole number before the period, got \"x\"");
    let hint = |text: &str| rate(text).unwrap_err().hint;
    assert_eq!(hint("1.5/s"), Some("write `15/10s`".to_owned()));
    assert_eq!(hint("100"), Some("add the period, as in `100/s`".to_owned()));
    assert_eq!(hint("1/Hour"), Some("write `h`".to_owned()));
    assert_eq!(hint("1/secs"), Some("write `s`".to_owned()));
    assert_eq!(hint("1/M"), Some("write `min` or `month`".to_owned()));
    assert_eq!(hint("1/fortnight"), None);
}

#[test]
fn a_duration_has_a_unit() {
    for (text, millis) in [
        ("250ms", 250),
        ("5s", 5_000),
        ("1m", 60_000),
        ("1 min", 60_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("0s", 0),
        ("90 seconds", 90_000),
        ("365d", 31_536_000_000),
    ] {
        assert_eq!(duration(text).map(|duration| duration.as_millis()), Ok(millis), "{text}");
    }
    for text in [
        "",
        "5",
        "s",
        "-5s",
        "1.5s",
        "1m30s",
        "366d",
        "1month",
        "1year",
        "5 parsecs",
        "99999999999999999999d",
    ] {
        assert!(duration(text).is_err(), "{text}");
    }
}

#[test]
fn a_duration_is_written_as_it_is_read() {
    for text in ["0s", "250ms", "1500ms", "5s", "620s", "5m", "2h", "24h"] {
        assert_eq!(duration_text(duration(text).unwrap()), text);
    }
}

#[test]
fn a_size_is_in_powers_of_1024() {
    for (text, bytes) in [("64KiB", 65_536), ("512B", 512), ("1 MiB", 1 << 20), ("2GiB", 2 << 30), ("0B", 0)]
    {
        assert_eq!(size(text), Ok(bytes), "{text}");
    }
    for text in
        ["", "64", "KiB", "64kb", "64KB", "1.5KiB", "-1B", "99999999999999999999B", "18446744073709551615KiB"]
    {
        assert!(size(text).is_err(), "{text}");
    }
}

#[test]
fn the_nearest_name_is_near() {
    let known = ["limit", "limits", "burst", "client_ip", "connect_timeout"];
    for (given, name) in [
        ("limt", Some("limit")),
        ("LIMIT", Some("limit")),
        ("connect-timeout", Some("connect_timeout")),
        ("conecttimeout", Some("connect_timeout")),
        ("ip", Some("client_ip")),
        ("colour", None),
        ("", None),
    ] {
        assert_eq!(nearest(given, known), name, "{given}");
    }
}

fn rates() -> impl Strategy<Value = Limit> {
    (1..=u32::MAX, 1..=u32::MAX, 0..TimeUnit::ALL.len()).prop_map(|(count, periods, unit)| {
        let number = |number| NonZeroU32::new(number).unwrap();
        Limit::new(number(count), Period::new(number(periods), TimeUnit::ALL[unit]))
    })
}

proptest! {
    #[test]
    fn a_formatted_rate_parses_back(limit in rates()) {
        prop_assert_eq!(rate(&limit.to_string()), Ok(limit));
    }

    #[test]
    fn whatever_is_written_is_read_or_refused(text in ".{0,40}") {
        let _ = (rate(&text), duration(&text), size(&text), network(&text));
        let _ = (listen_address(&text), upstream_address(&text));
    }

    #[test]
    fn whatever_looks_like_a_rate_is_read_or_refused(text in "[0-9]{0,30} ?(/|per| )? ?[0-9]{0,30} ?[a-zA-Zäµ]{0,8}") {
        let _ = (rate(&text), duration(&text), size(&text));
    }

    #[test]
    fn whatever_looks_like_an_address_is_read_or_refused(text in "(http://)?[\\[\\]:.0-9a-f*/%]{0,30}(:[0-9]{0,7})?") {
        let _ = (network(&text), listen_address(&text), upstream_address(&text));
    }
}
