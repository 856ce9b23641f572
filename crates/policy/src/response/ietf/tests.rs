use std::collections::BTreeMap;

use base64::Engine as _;

use super::*;
use weir_limiter::quota::TimeUnit;

/// A bare item (RFC 9651) of the types that these headers use.
#[derive(Clone, Debug, PartialEq, Eq)]
enum BareItem {
    Integer(u64),
    Text(String),
    Bytes(Vec<u8>),
}

type Members = Vec<(BareItem, BTreeMap<String, BareItem>)>;

/// A strict parser for Lists of Items (RFC 9651 §4.2.1); `None` on a syntax error.
struct ListParser<'a>(&'a [u8]);

impl ListParser<'_> {
    fn parse_list(text: &str) -> Option<Members> {
        let mut reader = ListParser(text.as_bytes());
        let mut members = Vec::new();
        loop {
            members.push(reader.item()?);
            reader.skip_spaces();
            if reader.0.is_empty() {
                return Some(members);
            }
            reader.expect_byte(b',')?;
            reader.skip_spaces();
        }
    }

    fn item(&mut self) -> Option<(BareItem, BTreeMap<String, BareItem>)> {
        let item = self.bare_item()?;
        let mut parameters = BTreeMap::new();
        while self.expect_byte(b';').is_some() {
            let name = self.take_while(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())?;
            self.expect_byte(b'=')?;
            let value = self.bare_item()?;
            assert_eq!(parameters.insert(name, value), None, "a parameter twice");
        }
        Some((item, parameters))
    }

    fn bare_item(&mut self) -> Option<BareItem> {
        match self.0.first()? {
            b'"' => {
                self.expect_byte(b'"')?;
                let text =
                    self.take_while(|byte| (0x20..0x7f).contains(&byte) && byte != b'"' && byte != b'\\')?;
                self.expect_byte(b'"').map(|()| BareItem::Text(text))
            }
            b':' => {
                self.expect_byte(b':')?;
                let text = self.take_while(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte))?;
                self.expect_byte(b':')?;
                Some(BareItem::Bytes(STANDARD.decode(text).ok()?))
            }
            _ => {
                let digits = self.take_while(|byte| byte.is_ascii_digit())?;
                (digits.len() <= 15).then(|| BareItem::Integer(digits.parse().unwrap()))
            }
        }
    }

    fn take_while(&mut self, is_part: impl Fn(u8) -> bool) -> Option<String> {
        let length = self.0.iter().take_while(|byte| is_part(**byte)).count();
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        (length > 0).then(|| String::from_utf8(taken.to_vec()).unwrap())
    }

    fn expect_byte(&mut self, byte: u8) -> Option<()> {
        self.0 = self.0.strip_prefix(&[byte])?;
        Some(())
    }

    fn skip_spaces(&mut self) {
        while self.expect_byte(b' ').is_some() {}
    }
}

fn limit(policy: &QuotaPolicy, remaining: u32, more: Option<u64>) -> ServiceLimit<'_> {
    let until_more = more.map(Duration::from_millis);
    ServiceLimit { policy, in_force: None, remaining, time_until_more: until_more, partition: None }
}

fn written(limits: &[ServiceLimit<'_>]) -> [String; 2] {
    let mut headers = Headers::default();
    write(&mut headers, limits);
    let headers = headers.into_map();
    [RATELIMIT, RATELIMIT_POLICY].map(|name| {
        let text = headers[name].to_str().unwrap().to_owned();
        assert!(ListParser::parse_list(&text).is_some(), "no List: {text}");
        text
    })
}

fn seconds(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

#[test]
fn ratelimit_headers_list_every_limit() {
    let fast = QuotaPolicy::new("fast", 10, QuotaUnit::Requests, seconds(1));
    let slow = QuotaPolicy::new("slow", 1000, QuotaUnit::Requests, seconds(3600));
    let [state, policies] = written(&[limit(&fast, 9, Some(100)), limit(&slow, 3, Some(3601))]);
    assert_eq!(state, "\"fast\";r=9;t=1, \"slow\";r=3;t=4");
    assert_eq!(policies, "\"fast\";q=10;w=1, \"slow\";q=1000;w=3600");
}

#[test]
fn ratelimit_policy_omits_windows_of_fractional_seconds() {
    for millis in [1, 100, 1500] {
        let policy = QuotaPolicy::new("a", 5, QuotaUnit::Requests, Some(Duration::from_millis(millis)));
        assert_eq!(written(&[limit(&policy, 4, Some(20))]), ["\"a\";r=4;t=1", "\"a\";q=5"]);
    }
}

#[test]
fn ratelimit_policy_names_its_quota_units() {
    let kibibyte = QuotaUnit::ContentBytes(NonZeroU64::new(1024).unwrap());
    let uploads = QuotaPolicy::new("uploads", 100, kibibyte, seconds(60));
    let exports = QuotaPolicy::new("exports/in_flight", 2, QuotaUnit::ConcurrentRequests, None);
    let [state, policies] = written(&[limit(&uploads, 30, Some(600)), limit(&exports, 1, None)]);
    assert_eq!(state, "\"uploads\";r=30720;t=1, \"exports/in_flight\";r=1");
    assert_eq!(
        policies,
        "\"uploads\";q=102400;qu=\"content-bytes\";w=60, \"exports/in_flight\";q=2;qu=\"concurrent-requests\""
    );
}

#[test]
fn ratelimit_numbers_fit_structured_field_integers() {
    let unit = QuotaUnit::ContentBytes(NonZeroU64::MAX);
    let policy = QuotaPolicy::new("a", u32::MAX, unit, seconds(u64::MAX));
    let [state, policies] = written(&[limit(&policy, 3, Some(u64::MAX))]);
    for text in [state, policies] {
        for (_, parameters) in ListParser::parse_list(&text).unwrap() {
            let most =
                |value: &BareItem| !matches!(value, BareItem::Integer(number) if *number > MAX_INTEGER);
            assert!(parameters.values().all(most), "{text}");
        }
    }
}

#[test]
fn ratelimit_partition_key_is_a_byte_sequence() {
    let policy = QuotaPolicy::new("a", 5, QuotaUnit::Requests, seconds(1));
    let partition = [0, 1, 2, 250, 251, 252, 253, 255];
    let texts = written(&[ServiceLimit { partition: Some(partition), ..limit(&policy, 4, None) }]);
    for text in texts {
        let members = ListParser::parse_list(&text).unwrap();
        assert_eq!(members[0].1["pk"], BareItem::Bytes(partition.to_vec()), "{text}");
    }
}

#[test]
fn ratelimit_policy_reports_the_current_elastic_limit() {
    let policy = QuotaPolicy::new("a", 10, QuotaUnit::Requests, seconds(1));
    let [_, policies] = written(&[ServiceLimit {
        in_force: Some(LimitInForce { count: 25, window: None }),
        ..limit(&policy, 4, None)
    }]);
    assert_eq!(policies, "\"a\";q=25;w=1");
}

#[test]
fn ratelimit_policy_names_include_the_period() {
    assert_eq!(QuotaPolicy::name_of("api", Period::one(TimeUnit::Second)), "api/s");
    assert_eq!(QuotaPolicy::name_of("api", Period::one(TimeUnit::Day)), "api/d");
}

#[test]
fn no_ratelimit_headers_without_a_limit() {
    let mut headers = Headers::default();
    write(&mut headers, &[]);
    let headers = headers.into_map();
    assert!(headers.is_empty());
}
