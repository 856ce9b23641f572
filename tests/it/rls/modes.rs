//! Matching and modes, with the expectations of the reference's integration tests and scripts.

use super::{Code, RlsService, descriptor};

fn codes(answer: &super::client::CheckResponse) -> (Code, Vec<Code>) {
    (answer.overall_code(), answer.statuses.iter().map(|status| status.code()).collect())
}

#[test]
fn wildcard_values_share_a_counter_only_with_share_threshold() {
    let rules = "\
domain: d
descriptors:
  - key: shared
    value: files/*
    share_threshold: true
    rate_limit: { unit: year, requests_per_unit: 10 }
  - key: apart
    value: files/*
    rate_limit: { unit: year, requests_per_unit: 10 }
";
    let service = RlsService::start(&[("d.yaml", rules)]);
    for _ in 0..10 {
        assert_eq!(service.client.check("d", "shared=files/a.pdf").overall_code(), Code::Ok);
    }
    assert_eq!(service.client.check("d", "shared=files/b.csv").overall_code(), Code::OverLimit);
    for value in ["files/a.pdf", "files/b.csv"] {
        assert_eq!(service.client.check("d", &format!("apart={value}")).statuses[0].limit_remaining, 9);
    }
    assert_eq!(service.stat("ratelimit.service.rate_limit.d.shared_files/*.total_hits"), 11);
}

#[test]
fn wildcards_match_in_the_order_of_the_file_and_after_exact_values() {
    let rules = "\
domain: d
descriptors:
  - { key: w, value: 'foo*', rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: w, value: 'bar*b', rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: w, value: 'food', rate_limit: { unit: year, requests_per_unit: 3 } }
  - key: nested
    value: 'a*'
    descriptors:
      - { key: sub, value: '*z', rate_limit: { unit: year, requests_per_unit: 4 } }
";
    let service = RlsService::start(&[("d.yaml", rules)]);
    let limit = |entries: &str| {
        let limit = service.client.check("d", entries).statuses[0].current_limit.clone();
        limit.map(|limit| limit.requests_per_unit)
    };
    assert_eq!((limit("w=foo"), limit("w=foo1"), limit("w=food")), (Some(1), Some(1), Some(3)));
    assert_eq!((limit("w=barb"), limit("w=barab")), (Some(2), Some(2)));
    assert_eq!((limit("w=bara"), limit("w=xbarb")), (None, None));
    assert_eq!((limit("nested=abc,sub=xyz"), limit("nested=abc,sub=x")), (Some(4), None));
}

#[test]
fn limit_applies_only_at_the_depth_of_its_descriptor() {
    let rules = "\
domain: d
descriptors:
  - { key: key2, value: value2, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: key2, value: value3 }
  - { key: key2, rate_limit: { unit: year, requests_per_unit: 5 } }
  - key: key5
    rate_limit: { unit: year, requests_per_unit: 1 }
    descriptors:
      - { key: sub, value: right, rate_limit: { unit: year, requests_per_unit: 3 } }
";
    let service = RlsService::start(&[("d.yaml", rules)]);
    let limit = |entries: &str| {
        let limit = service.client.check("d", entries).statuses[0].current_limit.clone();
        limit.map(|limit| limit.requests_per_unit)
    };
    assert_eq!((limit("key2=value2"), limit("key2=value2,sub=x")), (Some(2), None));
    assert_eq!((limit("key2=value3"), limit("key2=other")), (None, Some(5)), "this value is unlimited");
    assert_eq!(
        (limit("key5=x"), limit("key5=x,sub=right"), limit("key5=x,sub=wrong")),
        (Some(1), Some(3), None)
    );
}

const SHADOWED: &str = "\
domain: d
descriptors:
  - { key: looks, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: holds, rate_limit: { unit: year, requests_per_unit: 1 } }
";

#[test]
fn shadow_rule_neither_rejects_nor_hides_other_rejections() {
    let service = RlsService::start(&[("d.yaml", SHADOWED)]);
    service.client.check("d", "looks=x");
    let over = service.client.check("d", "looks=x");
    assert_eq!(codes(&over), (Code::Ok, vec![Code::Ok]));
    assert_eq!(over.statuses[0].limit_remaining, 0);
    assert_eq!(service.stat("ratelimit.service.rate_limit.d.looks.shadow_mode"), 1);
    service.client.check("d", "holds=x");
    let mixed = service.client.check_all("d", vec![descriptor("looks=x"), descriptor("holds=x")]);
    assert_eq!(codes(&mixed), (Code::OverLimit, vec![Code::Ok, Code::OverLimit]));
}

#[test]
fn shadow_statistics_have_only_the_hits_above_the_limit() {
    let rules = "domain: d\ndescriptors:\n  \
        - { key: looks, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 3 } }\n";
    let service = RlsService::start(&[("d.yaml", rules)]);
    let hit = |hits_addend: u32| {
        let descriptors = vec![descriptor("looks=x")];
        let request = super::RateLimitRequest { domain: "d".to_owned(), descriptors, hits_addend };
        service.client.try_check(request).unwrap();
    };
    let stat = |name: &str| service.stat(&format!("ratelimit.service.rate_limit.d.looks.{name}"));
    hit(5);
    let counted = (
        stat("total_hits"),
        stat("over_limit"),
        stat("near_limit"),
        stat("within_limit"),
        stat("shadow_mode"),
    );
    assert_eq!(counted, (5, 2, 1, 0, 2));
    hit(4);
    assert_eq!((stat("over_limit"), stat("shadow_mode")), (6, 6));
}

#[test]
fn detailed_statistics_of_an_empty_value_are_named_as_in_the_reference() {
    let rules = "domain: d\ndescriptors:\n  \
        - { key: k, detailed_metric: true, rate_limit: { unit: year, requests_per_unit: 3 } }\n  \
        - { key: v, value_to_metric: true, rate_limit: { unit: year, requests_per_unit: 3 } }\n";
    let service = RlsService::start(&[("d.yaml", rules)]);
    service.client.check_all("d", vec![descriptor("k="), descriptor("k=a"), descriptor("v=")]);
    for name in ["k_", "k_a", "v"] {
        assert_eq!(service.stat(&format!("ratelimit.service.rate_limit.d.{name}.total_hits")), 1, "{name}");
    }
}

#[test]
fn global_shadow_mode_reports_over_limit_and_admits() {
    let service = RlsService::start_with(&[("d.yaml", SHADOWED)], "  shadow_mode: true\n");
    service.client.check("d", "holds=x");
    assert_eq!(codes(&service.client.check("d", "holds=x")), (Code::Ok, vec![Code::OverLimit]));
    assert_eq!(service.stat("ratelimit.service.global_shadow_mode"), 1);
}

#[test]
fn quota_mode_rejects_only_when_all_quotas_are_exhausted() {
    let rules = "\
domain: d
descriptors:
  - { key: small, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: large, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: limit, rate_limit: { unit: year, requests_per_unit: 3 } }
";
    let service = RlsService::start(&[("d.yaml", rules)]);
    let quotas = || vec![descriptor("small=x"), descriptor("large=x")];
    let ask = |descriptors| service.client.check_all("d", descriptors).overall_code();
    assert_eq!(ask(quotas()), Code::Ok);
    assert_eq!(ask(quotas()), Code::Ok, "one quota is exceeded, the other is not");
    assert_eq!(ask(quotas()), Code::OverLimit);
    for _ in 0..3 {
        ask(vec![descriptor("limit=x")]);
    }
    assert_eq!(ask(vec![descriptor("limit=x"), descriptor("large=fresh")]), Code::OverLimit);
    let all_quotas = RlsService::start_with(&[("d.yaml", rules)], "  quota_mode: true\n");
    let both = || vec![descriptor("limit=x"), descriptor("small=x")];
    let ask = |descriptors| all_quotas.client.check_all("d", descriptors).overall_code();
    assert_eq!(
        (ask(both()), ask(both()), ask(both()), ask(both())),
        (Code::Ok, Code::Ok, Code::Ok, Code::OverLimit)
    );
}

#[test]
fn replaced_limit_is_not_counted() {
    let rules = "\
domain: d
descriptors:
  - { key: usual, rate_limit: { name: usual, unit: year, requests_per_unit: 1 } }
  - { key: bought, rate_limit: { name: bought, replaces: [{ name: usual }], unit: year, requests_per_unit: 5 } }
";
    let service = RlsService::start(&[("d.yaml", rules)]);
    let both = || vec![descriptor("usual=x"), descriptor("bought=x")];
    for turn in 1..=5_u32 {
        let answer = service.client.check_all("d", both());
        assert_eq!(answer.overall_code(), Code::Ok);
        assert!(answer.statuses[0].current_limit.is_none());
        assert_eq!(answer.statuses[1].limit_remaining, 5 - turn);
    }
    assert_eq!(service.client.check_all("d", both()).overall_code(), Code::OverLimit);
    assert_eq!(service.client.check("d", "usual=x").statuses[0].limit_remaining, 0, "counted only now");
}

#[test]
fn metadata_of_admitted_descriptors_is_merged() {
    let rules = "\
domain: d
descriptors:
  - { key: a, metadata: { who: first, a: 1 }, rate_limit: { unit: year, requests_per_unit: 9 } }
  - { key: b, metadata: { who: second, b: [true] }, rate_limit: { unit: year, requests_per_unit: 9 } }
  - { key: none, metadata: { none: 1 }, rate_limit: { unit: year, requests_per_unit: 0 } }
";
    let service = RlsService::start_with(&[("d.yaml", rules)], "  dynamic_metadata: true\n");
    let answer =
        service.client.check_all("d", vec![descriptor("a=x"), descriptor("b=x"), descriptor("none=x")]);
    let metadata = answer.dynamic_metadata.unwrap();
    let text = format!("{metadata:?}");
    assert!(text.contains("first") && !text.contains("second"), "{text}");
    assert!(text.contains("\"a=x\"") && !text.contains("\"none\""), "{text}");
    assert_eq!(metadata.fields.len(), 3, "domain, descriptors, metadata: {text}");
}

#[test]
fn statistics_have_values_only_with_value_to_metric_or_detailed_metric() {
    let rules = "\
domain: d
descriptors:
  - { key: plain, rate_limit: { unit: year, requests_per_unit: 9 } }
  - { key: valued, value_to_metric: true, rate_limit: { unit: year, requests_per_unit: 9 } }
  - key: outer
    value: 'o*'
    descriptors:
      - { key: inner, detailed_metric: true, rate_limit: { unit: year, requests_per_unit: 9 } }
";
    let service = RlsService::start(&[("d.yaml", rules)]);
    for entries in ["plain=10.0.0.1", "valued=10.0.0.1", "outer=ox,inner=y"] {
        service.client.check("d", entries);
    }
    for name in ["plain", "valued_10_0_0_1", "outer_ox.inner_y"] {
        assert_eq!(service.stat(&format!("ratelimit.service.rate_limit.d.{name}.total_hits")), 1, "{name}");
    }
    let labels = [("domain", "d"), ("key1", "outer_ox"), ("key2", "inner_y")];
    assert_eq!(service.weir.metric("ratelimit_service_rate_limit_within_limit", &labels), 1.0);
}
