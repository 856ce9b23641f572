use std::net::Ipv4Addr;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::*;
use crate::identify::IdentifySettings;
use crate::identify::recorded::{RecordedAddress, RecordedRequest};
use crate::rules::membership::MembersBuilder;
use weir_limiter::algorithm::Algorithm;
use weir_limiter::quota::Period;
use weir_limiter::timestamp::Timestamp;

const QUOTA: HeaderName = HeaderName::from_static("x-quota");

fn limit(text: &str) -> Limit {
    Limit::from_text(text).unwrap()
}

fn quota(algorithm: Algorithm, text: &str) -> Quota {
    Quota::new(algorithm, limit(text), None).unwrap()
}

fn from_header() -> StatedLimit {
    let source = LimitValueSource::Attribute(Attribute::Header(QUOTA));
    StatedLimit { source, max: Some(limit("1000/min")), burst: None }
}

fn read_lines(stated: &StatedLimit, quota: &Quota, lines: &[&str], address: RecordedAddress) -> StatedValue {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(QUOTA, HeaderValue::from_str(line).unwrap());
    }
    let settings = IdentifySettings {
        trusted_proxies: ["10.0.0.0/8".parse::<ipnet::IpNet>().unwrap()].into_iter().collect(),
        ..IdentifySettings::default()
    };
    let request =
        RecordedRequest { method: None, host: b"a", path: "/", query: None, headers: &headers, address };
    let attributes = request.attributes(&settings, Timestamp::from_secs(1)).unwrap();
    stated.read(quota, &attributes)
}

fn read(stated: &StatedLimit, quota: &Quota, lines: &[&str]) -> StatedValue {
    read_lines(stated, quota, lines, RecordedAddress::Peer(Ipv4Addr::new(10, 0, 0, 1).into()))
}

#[track_caller]
fn assert_limit(value: StatedValue, expected: &str, burst: u32) {
    let StatedValue::Limit(found) = value else { panic!("expected {expected}, got {value:?}") };
    assert_eq!((found.limit, found.burst.get()), (limit(expected), burst));
}

#[test]
fn value_is_a_rate_or_a_count_in_the_period_of_the_default() {
    let gcra = quota(Algorithm::Gcra, "100/min");
    let read = |line| read(&from_header(), &gcra, &[line]);
    assert_limit(read("500"), "500/min", 500);
    assert_limit(read(" 500 "), "500/min", 500);
    assert_limit(read("5/s"), "5/s", 5);
    assert_limit(read("10 per hour"), "10/h", 10);
    assert_eq!(read("100"), StatedValue::Absent, "the configured limit");
}

#[test]
fn maximum_bounds_rate_and_burst() {
    let gcra = quota(Algorithm::Gcra, "100/min");
    let read_one = |line| read(&from_header(), &gcra, &[line]);
    assert_limit(read_one("1001"), "1000/min", 1000);
    assert_limit(read_one("99999999999999999999"), "1000/min", 1000);
    assert_limit(read_one("20/s"), "1000/min", 1000);
    assert_limit(read_one("4000/h"), "4000/h", 1000);
    let fixed_burst = StatedLimit { burst: NonZeroU32::new(7), ..from_header() };
    assert_limit(read(&fixed_burst, &gcra, &["500"]), "500/min", 7);
}

#[test]
fn what_is_not_a_limit_is_unreadable() {
    let gcra = quota(Algorithm::Gcra, "100/min");
    for line in ["0", "-5", "0/min", "1.5", "5/fortnight", "many", "", "5/", "/min", "+5", "1e3", "5/0s"] {
        assert_eq!(read(&from_header(), &gcra, &[line]), StatedValue::Unreadable, "{line:?}");
    }
    assert_eq!(read(&from_header(), &gcra, &["5", "6"]), StatedValue::Unreadable);
    assert_limit(read(&from_header(), &gcra, &["5", "5"]), "5/min", 5);
    assert_eq!(read(&from_header(), &gcra, &[]), StatedValue::Absent);
}

#[test]
fn windows_keep_their_length() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        let quota = quota(algorithm, "100/min");
        assert_limit(read(&from_header(), &quota, &["500"]), "500/min", 500);
        assert_limit(read(&from_header(), &quota, &["500/60s"]), "500/min", 500);
        assert_eq!(read(&from_header(), &quota, &["500/h"]), StatedValue::Unreadable);
        assert_eq!(read(&from_header(), &quota, &["500/s"]), StatedValue::Unreadable);
    }
}

#[test]
fn header_is_believed_from_trusted_peers_only() {
    let gcra = quota(Algorithm::Gcra, "100/min");
    let untrusted = RecordedAddress::Peer(Ipv4Addr::new(192, 0, 2, 1).into());
    assert_eq!(read_lines(&from_header(), &gcra, &["500"], untrusted), StatedValue::Absent);
    assert_eq!(read_lines(&from_header(), &gcra, &["many"], untrusted), StatedValue::Absent);
}

#[test]
fn member_has_its_own_limit_or_none() {
    let mut builder = MembersBuilder::new([1, 2]);
    builder.add("gold", "pro", Some(limit("500/min"))).unwrap();
    builder.add("plain", "pro", None).unwrap();
    let plans = Arc::new(Plans {
        attribute: Attribute::Header(QUOTA),
        members: Arc::new(builder.close().unwrap()),
        default: None,
    });
    let stated = StatedLimit { source: LimitValueSource::Member(plans), max: None, burst: None };
    let gcra = quota(Algorithm::Gcra, "100/min");
    assert_limit(read(&stated, &gcra, &["gold"]), "500/min", 500);
    assert_eq!(read(&stated, &gcra, &["plain"]), StatedValue::Absent);
    assert_eq!(read(&stated, &gcra, &["other"]), StatedValue::Absent);
    assert_eq!(read(&stated, &gcra, &[]), StatedValue::Absent);
    assert_eq!(read(&stated, &gcra, &["gold", "plain"]), StatedValue::Unreadable);
    let hourly = quota(Algorithm::FixedWindow, "100/h");
    assert_eq!(read(&stated, &hourly, &["gold"]), StatedValue::Unreadable, "a window of another length");
    assert_eq!(Period::one(TimeUnit::Hour), hourly.window());
}
