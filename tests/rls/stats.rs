//! Effect of each decision on the statistics, and their names.

use weir_telemetry::metrics::sanitized;

use crate::fixture::{RlsFixture, with_hits};

fn fixture_with_limit(count: u32) -> RlsFixture {
    let limit = format!("{{unit: day, requests_per_unit: {count}}}");
    RlsFixture::new(&format!("{{domain: d, descriptors: [{{key: k, rate_limit: {limit}}}]}}"))
}

/// Each row: limit, units counted before and hits; then the hits over the limit, near it and within it.
#[test]
fn near_limit_hits_start_at_80_percent_of_the_limit() {
    let rows = [
        ((15, 10, 1), (0, 0, 1)),
        ((15, 12, 1), (0, 1, 1)),
        ((15, 15, 1), (1, 0, 0)),
        ((20, 15, 7), (2, 4, 0)),
        ((20, 18, 7), (5, 2, 0)),
        ((20, 14, 3), (0, 1, 3)),
        ((20, 0, 30), (10, 4, 0)),
        ((20, 30, 3), (3, 0, 0)),
        ((20, 16, 4), (0, 4, 4)),
        ((10, 0, 8), (0, 0, 8)),
        ((0, 0, 3), (3, 0, 0)),
    ];
    for ((limit, before, asked), expected) in rows {
        let desk = fixture_with_limit(limit);
        desk.decide("d", vec![with_hits("k=v", before)]);
        let answer = desk.decide("d", vec![with_hits("k=v", asked)]);
        let stats = &answer.stats.descriptors[0];
        let found = (stats.over_limit, stats.near_limit, stats.within_limit);
        assert_eq!(found, expected, "{limit}: {before} and {asked}");
        assert_eq!(stats.total_hits, asked);
    }
}

#[test]
fn stat_names_include_configured_values() {
    let limit = "rate_limit: {unit: day, requests_per_unit: 9}";
    let desk = RlsFixture::new(&format!(
        "domain: d\ndescriptors:\n- {{key: bare, {limit}}}\n- {{key: exact, value: v, {limit}}}\n\
         - {{key: wild, value: 'foo*', {limit}}}\n- {{key: metric, value_to_metric: true, {limit}}}\n\
         - {{key: both, value: 'x*', value_to_metric: true, share_threshold: true, {limit}}}\n\
         - key: top\n  descriptors:\n  - {{key: leaf, detailed_metric: true, {limit}}}\n  - {{key: plain, {limit}}}\n\
         - key: share\n  value: 's*'\n  share_threshold: true\n  descriptors: [{{key: leaf, detailed_metric: true, \
         {limit}}}]\n- key: mid\n  value_to_metric: true\n  descriptors: [{{key: leaf, {limit}}}]"
    ));
    let rows = [
        ("bare=v", "d.bare"),
        ("exact=v", "d.exact_v"),
        ("wild=foobar", "d.wild_foo*"),
        ("metric=v", "d.metric_v"),
        ("metric=", "d.metric"),
        ("both=xy", "d.both_x*"),
        ("top=1,leaf=2", "d.top_1.leaf_2"),
        ("top=1,plain=2", "d.top.plain"),
        ("share=s1,leaf=2", "d.share_s*.leaf_2"),
        ("mid=1,leaf=2", "d.mid_1.leaf"),
    ];
    for (entries, key) in rows {
        assert_eq!(&*desk.decide_one(entries).stats.descriptors[0].key, key, "{entries}");
    }
}

#[test]
fn stat_names_are_sanitized_for_statsd() {
    assert_eq!(sanitized("d.a:b|c_d.e"), "d.a_b_c_d.e");
    assert_eq!(sanitized("d.ip_10.0.0.255.path_1.2.3"), "d.ip_10_0_0_255.path_1.2.3");
    assert_eq!(sanitized("d.ip_256.0.0.1"), "d.ip_256.0.0.1");
    assert_eq!(sanitized("d.ip_10.0.0.1.2"), "d.ip_10_0_0_1.2");
    assert_eq!(sanitized("ä.1.2.3.4"), "ä.1_2_3_4");
}
