use proptest::prelude::*;

use super::*;

fn rate_error(text: &str) -> String {
    rate(text).unwrap_err().message
}

#[test]
fn rate_formats_are_accepted() {
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
fn invalid_rates_are_rejected() {
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
fn rate_error_names_the_mistake() {
    assert_eq!(rate_error("fast"), "expected a rate such as `100/s`, got \"fast\"");
    assert_eq!(rate_error("/s"), "missing count before the period in \"/s\"");
    assert_eq!(rate_error("10/30"), "missing unit after the count in \"10/30\"");
    assert_eq!(rate_error("0/s"), "count must be at least 1, got \"0\"");
    assert_eq!(rate_error("1/0s"), "count of the period must be at least 1, got \"0\"");
    assert_eq!(rate_error("5000000000/s"), "count is above 4294967295, got \"5000000000\"");
    assert_eq!(rate_error("x/s"), "expected a whole number before the period, got \"x\"");
    let hint = |text: &str| rate(text).unwrap_err().hint;
    assert_eq!(hint("1.5/s"), Some("write `15/10s`".to_owned()));
    assert_eq!(hint("100"), Some("add the period, as in `100/s`".to_owned()));
    assert_eq!(hint("1/Hour"), Some("write `h`".to_owned()));
    assert_eq!(hint("1/secs"), Some("write `s`".to_owned()));
    assert_eq!(hint("1/M"), Some("write `min` or `month`".to_owned()));
    assert_eq!(hint("1/fortnight"), None);
}

#[test]
fn duration_requires_a_unit() {
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
fn formatted_duration_parses_back() {
    for text in ["0s", "250ms", "1500ms", "5s", "620s", "5m", "2h", "24h"] {
        assert_eq!(format_duration(duration(text).unwrap()), text);
    }
}

#[test]
fn size_units_are_powers_of_1024() {
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
fn nearest_name_suggests_only_similar_names() {
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
        assert_eq!(nearest_name(given, known), name, "{given}");
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
    fn value_parsers_never_panic_on_any_text(text in ".{0,40}") {
        let _ = (rate(&text), duration(&text), size(&text), network(&text));
        let _ = (listen_address(&text), upstream_address(&text));
    }

    #[test]
    fn value_parsers_never_panic_on_rate_like_text(text in "[0-9]{0,30} ?(/|per| )? ?[0-9]{0,30} ?[a-zA-Zäµ]{0,8}") {
        let _ = (rate(&text), duration(&text), size(&text));
    }

    #[test]
    fn value_parsers_never_panic_on_address_like_text(text in "(http://)?[\\[\\]:.0-9a-f*/%]{0,30}(:[0-9]{0,7})?") {
        let _ = (network(&text), listen_address(&text), upstream_address(&text));
    }
}

#[test]
fn requests_state_rates_in_the_notation_of_configuration() {
    for text in [
        "100/s",
        "10/30s",
        "10 per minute",
        " 5 per 2 hours ",
        "7/d",
        "1/month",
        "1/ms",
        "3/ 7 min",
        "3 / m",
        "0/s",
        "007/s",
        "4294967295/s",
        "4294967296/s",
        "-1/s",
        "+1/s",
        "1.5/s",
        "1/0s",
        "1/1.5s",
        "1/S",
        "1/M",
        "1/",
        "/s",
        "1",
        "",
        "1 per",
        "1 perhour",
        "one/s",
        "1/s/s",
        "1//s",
        "1/30",
        "unlimited",
        "5/fortnight",
        "١/s",
    ] {
        assert_eq!(Limit::from_text(text), rate(text).ok(), "{text:?}");
    }
}
