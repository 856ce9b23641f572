mod reuse;

use std::time::Duration;

use super::host::{ConnectTarget, EJECTED, FAILED_CHECK};
use super::settings::{Balance, CircuitBreakerLimits, ClientShare, Outliers, Retries, RetryOn};
use super::*;

const OUTLIERS: Outliers = Outliers {
    failures: 2,
    ejection: Duration::from_millis(300),
    ejection_max: Duration::from_millis(500),
    max_ejected: 50,
};

pub(super) fn settings(addresses: &[(&str, u16)]) -> UpstreamSettings {
    let limits = CircuitBreakerLimits {
        connections: 1,
        pending: 1,
        requests: 1,
        retries: 1,
        requests_per_client: ClientShare::Auto,
        min_client_rate: None,
    };
    let address = |(host, port): &(&str, u16)| UpstreamAddress::Tcp { host: (*host).into(), port: *port };
    UpstreamSettings {
        name: "api".into(),
        addresses: addresses.iter().map(address).collect(),
        http2: false,
        upgrades: Box::default(),
        connect_timeout: Duration::from_secs(1),
        timeout: Duration::from_secs(1),
        idle_timeout: Duration::from_secs(1),
        dns_refresh: Duration::from_secs(1),
        balance: Balance::RoundRobin,
        health_check: None,
        outliers: Some(OUTLIERS),
        panic_threshold: 50,
        limits,
        retries: Retries {
            attempts: 0,
            on: RetryOn::default(),
            backoff: (Duration::ZERO, Duration::ZERO),
            budget: 0,
            per_try_timeout: None,
            attempt_count: false,
        },
    }
}

/// Returns an upstream with a minimum transfer rate for clients.
pub(crate) fn with_min_client_rate(rate: u32) -> Upstream {
    let mut settings = settings(&[("10.0.0.1", 1)]);
    settings.limits.min_client_rate = NonZeroU32::new(rate);
    upstream(settings)
}

fn upstream(settings: UpstreamSettings) -> Upstream {
    let metrics = Metrics::new(&[]);
    Upstream::new(&Cluster::new(settings, None, None, &metrics), &metrics)
}

fn four() -> Upstream {
    upstream(settings(&[("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.0.3", 1), ("10.0.0.4", 1)]))
}

/// Returns the last digits of the endpoints that receive the next requests, sorted and without duplicates.
fn taking(upstream: &Upstream) -> Vec<char> {
    let mut octets: Vec<_> =
        (0..8).filter_map(|_| upstream.pick(&[])?.name().strip_suffix(":1")?.chars().last()).collect();
    octets.sort_unstable();
    octets.dedup();
    octets
}

fn fail(upstream: &Upstream, host: usize) {
    let host = &upstream.cluster.hosts()[host];
    (0..OUTLIERS.failures).for_each(|_| upstream.cluster.record_outcome(host, false));
}

fn pass(upstream: &Upstream, time: Duration) {
    (0..time.as_millis() / outlier_detection::TICK.as_millis())
        .for_each(|_| upstream.cluster.tick_ejections());
}

#[test]
fn a_bounded_share_is_ejected() {
    let upstream = four();
    (0..4).for_each(|host| fail(&upstream, host));
    assert_eq!(taking(&upstream), ['3', '4']);
}

#[test]
fn one_good_answer_ends_a_row_of_failures() {
    let upstream = four();
    let host = &upstream.cluster.hosts()[0];
    for is_good in [false, true, false, true, false] {
        upstream.cluster.record_outcome(host, is_good);
    }
    assert_eq!(taking(&upstream).len(), 4);
    upstream.cluster.record_outcome(host, false);
    assert_eq!(taking(&upstream), ['2', '3', '4']);
}

#[test]
fn ejections_grow_up_to_the_longest_and_shrink_while_all_is_well() {
    let upstream = four();
    let ejected_for = || {
        fail(&upstream, 0);
        assert_eq!(taking(&upstream).len(), 3);
        let tick = outlier_detection::TICK;
        (1..100_u32).find(|_| {
            pass(&upstream, tick);
            taking(&upstream).len() == 4
        })
    };
    assert_eq!((ejected_for(), ejected_for(), ejected_for()), (Some(3), Some(5), Some(5)));
    pass(&upstream, OUTLIERS.ejection * 3);
    assert_eq!(ejected_for(), Some(3));
}

#[test]
fn an_endpoint_that_fails_its_check_and_is_ejected_needs_both_to_pass() {
    let upstream = four();
    fail(&upstream, 1);
    let host = &upstream.cluster.hosts()[1];
    host.set_flag(FAILED_CHECK);
    host.clear_flag(EJECTED);
    upstream.cluster.bump_epoch();
    assert_eq!(taking(&upstream), ['1', '3', '4']);
    host.clear_flag(FAILED_CHECK);
    upstream.cluster.bump_epoch();
    assert_eq!(taking(&upstream).len(), 4);
}

#[test]
fn below_the_panic_threshold_all_are_used() {
    let upstream = four();
    let ill = |count: usize| {
        for (index, host) in upstream.cluster.hosts().iter().enumerate() {
            let _ = if index < count { host.set_flag(FAILED_CHECK) } else { host.clear_flag(FAILED_CHECK) };
        }
        upstream.cluster.bump_epoch();
        taking(&upstream).len()
    };
    assert_eq!([0, 1, 2, 3, 4].map(ill), [4, 3, 2, 4, 4]);
}

#[test]
fn another_endpoint_than_those_tried_is_picked_while_there_is_one() {
    for balance in [Balance::RoundRobin, Balance::LeastRequest] {
        let upstream = upstream(UpstreamSettings {
            balance,
            ..settings(&[("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.0.3", 1)])
        });
        for _ in 0..20 {
            let mut tried = Vec::new();
            while upstream.has_other(&tried) {
                let endpoint = upstream.pick(&tried).unwrap();
                assert!(!tried.iter().any(|host| Arc::ptr_eq(host, endpoint.host())));
                tried.push(Arc::clone(endpoint.host()));
            }
            assert_eq!(tried.len(), 3);
            assert!(upstream.pick(&tried).is_some());
        }
    }
}

#[test]
fn an_upstream_that_moves_keeps_the_endpoints_it_still_has() {
    let upstream = upstream(settings(&[("app.test", 1)]));
    assert!(upstream.pick(&[]).is_none(), "no address is known yet");
    let at = |octets: &[u8]| {
        let target = |octet: &u8| (ConnectTarget::Ip(([10, 0, 0, *octet], 1).into()), "app.test:1".into());
        upstream.cluster.set_hosts(octets.iter().map(target).collect(), true);
    };
    at(&[1, 2]);
    assert_eq!(taking(&upstream), ['1', '2']);
    let kept = upstream.pick(&[]).map(|_| upstream.cluster.hosts()[1].clone()).unwrap();
    at(&[2, 3]);
    assert_eq!(taking(&upstream), ['2', '3']);
    assert!(Arc::ptr_eq(&kept, &upstream.cluster.hosts()[0]));
    at(&[]);
    assert!(upstream.pick(&[]).is_none());
}

/// Returns a successor of the upstream with other settings.
fn followed(upstream: &Upstream, settings: UpstreamSettings) -> Upstream {
    let metrics = Metrics::new(&[]);
    Upstream::new(&Cluster::new(settings, None, Some(&upstream.cluster), &metrics), &metrics)
}

#[test]
fn an_upstream_with_other_settings_keeps_what_is_known_of_its_endpoints() {
    let before = four();
    fail(&before, 0);
    fail(&before, 1);
    let timeout = Duration::from_secs(7);
    let after = followed(
        &before,
        UpstreamSettings {
            timeout,
            ..settings(&[("10.0.0.4", 1), ("10.0.0.3", 1), ("10.0.0.1", 1), ("10.0.0.5", 1)])
        },
    );
    assert_eq!(taking(&after), ['3', '4', '5'], "ejected endpoints that remain are still ejected");
    pass(&before, OUTLIERS.ejection);
    assert_eq!(taking(&after), ['3', '4', '5'], "ejections of the two generations are independent");
    pass(&after, OUTLIERS.ejection);
    assert_eq!(taking(&after), ['1', '3', '4', '5']);
    fail(&after, 2);
    pass(&after, OUTLIERS.ejection);
    assert_eq!(taking(&after), ['3', '4', '5'], "the number of earlier ejections is kept");
}

#[test]
fn what_the_new_settings_do_not_allow_is_not_kept() {
    let before = four();
    fail(&before, 0);
    before.cluster.hosts()[1].set_flag(FAILED_CHECK);
    let unchecked = followed(&before, UpstreamSettings { outliers: None, ..before.settings().clone() });
    assert_eq!(taking(&unchecked), ['1', '2', '3', '4'], "no outlier detection, no ejection");
    let alone = followed(&before, settings(&[("10.0.0.1", 1)]));
    assert_eq!(taking(&alone), ['1'], "the last endpoint is never ejected");
}

#[test]
fn a_name_keeps_its_addresses_through_a_reload_until_it_is_heard_of_again() {
    let before = upstream(settings(&[("app.test", 1)]));
    before.cluster.set_hosts(vec![(ConnectTarget::Ip(([10, 0, 0, 7], 1).into()), "app.test:1".into())], true);
    let timeout = Duration::from_secs(7);
    let after = followed(&before, UpstreamSettings { timeout, ..before.settings().clone() });
    assert_eq!(taking(&after), ['7']);
}

#[tokio::test]
async fn a_name_that_is_looked_up_in_vain_is_no_endpoint_and_not_waited_for() {
    let upstream = upstream(settings(&[("name.invalid", 1)]));
    upstream.cluster.start_background_tasks(&tokio::runtime::Handle::current());
    let found = tokio::time::timeout(Duration::from_secs(30), upstream.pick_when_resolved()).await;
    assert!(found.is_ok_and(|found| found.is_none()));
}
