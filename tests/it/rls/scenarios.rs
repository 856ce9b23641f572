//! Scenarios and expected numbers of the reference's own integration tests, run over the network. Windows are a year
//! unless the test needs a shorter one, so that none ends during a test.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::google::protobuf::UInt64Value;

use super::{Code, RlsService, descriptor};
use crate::support::wait;

const BASIC: &str = "\
domain: basic
descriptors:
  - key: key1
    rate_limit: { unit: second, requests_per_unit: 50 }
";

const ANOTHER: &str = "\
domain: another
descriptors:
  - key: key2
    rate_limit: { unit: year, requests_per_unit: 20 }
  - key: key3
    rate_limit: { unit: month, requests_per_unit: 10 }
  - key: key4
    rate_limit: { unit: day, requests_per_unit: 20 }
";

#[test]
fn an_unknown_domain_has_no_limits() {
    let service = RlsService::start(&[("basic.yaml", BASIC)]);
    let answer = service.client.check("foo", "hello=world");
    assert_eq!(answer.overall_code(), Code::Ok);
    assert_eq!(answer.statuses.len(), 1);
    assert_eq!(answer.statuses[0].code(), Code::Ok);
    assert!(answer.statuses[0].current_limit.is_none());
}

#[test]
fn status_has_limit_remaining_and_reset() {
    let service = RlsService::start(&[("basic.yaml", BASIC)]);
    let answer = service.client.check_all("basic", vec![descriptor("key1=foo"), descriptor("none=x")]);
    let [status, other] = answer.statuses.as_slice() else { panic!("{answer:?}") };
    let limit = status.current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit), (50, 1));
    assert_eq!(status.limit_remaining, 49);
    assert_eq!(status.duration_until_reset.unwrap().seconds, 1);
    assert!(other.current_limit.is_none());
    assert_eq!(service.stat("ratelimit.service.rate_limit.basic.key1.total_hits"), 1);
}

#[test]
fn limit_is_exact_and_hits_over_it_are_counted() {
    let service = RlsService::start(&[("another.yaml", ANOTHER)]);
    for turn in 1..=25_u32 {
        let answer = service.client.check("another", "key2=rand");
        let wanted = if turn <= 20 { Code::Ok } else { Code::OverLimit };
        assert_eq!((answer.overall_code(), answer.statuses[0].code()), (wanted, wanted), "{turn}");
        assert_eq!(answer.statuses[0].limit_remaining, 20_u32.saturating_sub(turn));
    }
    let stat = |name: &str| service.stat(&format!("ratelimit.service.rate_limit.another.key2.{name}"));
    assert_eq!(
        (stat("total_hits"), stat("over_limit"), stat("near_limit"), stat("within_limit")),
        (25, 5, 4, 20)
    );
}

/// Returns the remaining units of the larger of two limits after 15 requests with both. `rest` is further
/// configuration.
fn remaining_of_larger_limit(rest: &str) -> u32 {
    let service = RlsService::start_with(&[("another.yaml", ANOTHER)], rest);
    let both = || vec![descriptor("key2=rand"), descriptor("key3=rand")];
    let mut left = 0;
    for turn in 1..=15_u32 {
        let answer = service.client.check_all("another", both());
        let wanted = if turn <= 10 { Code::Ok } else { Code::OverLimit };
        assert_eq!(answer.overall_code(), wanted, "{turn}");
        assert_eq!((answer.statuses[0].code(), answer.statuses[1].code()), (Code::Ok, wanted));
        left = answer.statuses[0].limit_remaining;
    }
    left
}

#[test]
fn counting_setting_decides_if_rejected_requests_charge_other_limits() {
    assert_eq!(remaining_of_larger_limit(""), 5);
    assert_eq!(remaining_of_larger_limit("  counting: only_over\n"), 10);
    assert_eq!(remaining_of_larger_limit("  domains: { another: { counting: all_or_nothing } }\n"), 10);
}

#[test]
fn duration_until_reset_decreases() {
    let service = RlsService::start(&[("another.yaml", ANOTHER)]);
    let reset =
        || service.client.check("another", "key4=x").statuses[0].duration_until_reset.unwrap().seconds;
    let first = reset();
    assert!((1..=86_400).contains(&first));
    wait::until_true("the next second", || reset() < first);
}

#[test]
fn limit_override_in_the_request_applies() {
    let service = RlsService::start(&[("basic.yaml", BASIC)]);
    let ask = |domain: &str, count: u32, unit: i32| {
        let limit = Some(RateLimitOverride { requests_per_unit: count, unit });
        let one = envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor {
            limit,
            ..descriptor("key1=v1")
        };
        service.client.check_all(domain, vec![one])
    };
    let day = ask("basic", 10, 4);
    assert_eq!(day.statuses[0].current_limit.as_ref().unwrap().requests_per_unit, 10);
    assert_eq!(day.statuses[0].limit_remaining, 9);
    let year = ask("basic", 42, 6);
    assert_eq!(year.statuses[0].limit_remaining, 41, "each unit has its own counter");
    assert!(ask("unknown", 10, 4).statuses[0].current_limit.is_none());
    assert_eq!(service.stat("ratelimit.service.rate_limit.basic.key1_v1.total_hits"), 2);
    let nonsense = RateLimitRequest {
        domain: "basic".to_owned(),
        descriptors: vec![envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor {
            limit: Some(RateLimitOverride { requests_per_unit: 1, unit: 0 }),
            ..descriptor("key1=v1")
        }],
        hits_addend: 0,
    };
    let error = service.client.try_check(nonsense).unwrap_err();
    assert_eq!(error.code(), tonic::Code::InvalidArgument, "the reference implementation panics");
    assert_eq!(service.client.check("basic", "key1=v1").overall_code(), Code::Ok, "Weir keeps running");
}

#[test]
fn hits_addend_of_a_descriptor_overrides_the_requests() {
    let service = RlsService::start(&[("another.yaml", ANOTHER)]);
    let own = |hits: u64, is_negative_hits: bool| {
        let mut one = descriptor("key2=v");
        one.hits_addend = Some(UInt64Value { value: hits });
        one.is_negative_hits = is_negative_hits;
        one
    };
    let ask = |descriptors: Vec<_>, hits_addend: u32| {
        let request = RateLimitRequest { domain: "another".to_owned(), descriptors, hits_addend };
        service
            .client
            .try_check(request)
            .unwrap()
            .statuses
            .iter()
            .map(|status| status.limit_remaining)
            .collect()
    };
    let left: Vec<u32> = ask(vec![descriptor("key2=v"), descriptor("key3=v")], 3);
    assert_eq!(left, [17, 7]);
    assert_eq!(ask(vec![own(5, false)], 3), [12]);
    assert_eq!(ask(vec![own(0, false)], 3), [12], "zero hits are not counted");
    assert_eq!(ask(vec![own(10, true)], 3), [20], "refunded, at most up to the limit");
}

#[test]
fn missing_domain_or_descriptors_is_the_same_error_as_in_the_reference() {
    let service = RlsService::start(&[("basic.yaml", BASIC)]);
    let error = service.client.try_check(RateLimitRequest::default()).unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (tonic::Code::Unknown, "rate limit domain must not be empty")
    );
    let request = RateLimitRequest { domain: "basic".to_owned(), ..RateLimitRequest::default() };
    let error = service.client.try_check(request).unwrap_err();
    assert_eq!(error.message(), "rate limit descriptor list must not be empty");
    assert_eq!(service.stat("ratelimit.service.call.should_rate_limit.service_error"), 2);
    assert_eq!(
        service.client.check("basic", "").overall_code(),
        Code::Ok,
        "Envoy does send empty descriptors"
    );
}

#[test]
fn response_headers_show_the_nearest_limit_and_may_be_renamed() {
    let rest = "  response_headers: { limit: x-limit, remaining: x-left }\n";
    let service = RlsService::start_with(&[("another.yaml", ANOTHER)], rest);
    let both = vec![descriptor("key2=v"), descriptor("key3=v")];
    let answer = service.client.check_all("another", both);
    let headers: Vec<_> = answer
        .response_headers_to_add
        .iter()
        .map(|header| (header.key.as_str(), header.value.as_str()))
        .collect();
    let reset = answer.statuses[1].duration_until_reset.unwrap().seconds.to_string();
    assert_eq!(headers, [("x-limit", "10"), ("x-left", "9"), ("RateLimit-Reset", reset.as_str())]);
}
