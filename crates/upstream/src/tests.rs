mod http2_settings;
mod reuse;

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::host::{ConnectTarget, EJECTED, FAILED_CHECK};
use super::in_flight::EndpointRequests;
use super::settings::{Balance, CircuitBreakerLimits};
use super::testing::{OUTLIERS, settings, upstream};
use super::*;

fn upstream_of_four() -> Upstream {
    upstream(settings(&[("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.0.3", 1), ("10.0.0.4", 1)]))
}

/// Returns the last digits of the endpoints that receive the next requests, sorted and without duplicates.
fn used_endpoints(upstream: &Upstream) -> Vec<char> {
    let mut last_octets: Vec<_> =
        (0..8).filter_map(|_| upstream.pick(&[])?.name().strip_suffix(":1")?.chars().last()).collect();
    last_octets.sort_unstable();
    last_octets.dedup();
    last_octets
}

fn fail(upstream: &Upstream, host: usize) {
    let host = &upstream.cluster.hosts()[host];
    (0..OUTLIERS.failures).for_each(|_| upstream.cluster.record_outcome(host, false));
}

fn advance(upstream: &Upstream, time: Duration) {
    (0..time.as_millis() / outlier_detection::TICK.as_millis())
        .for_each(|_| upstream.cluster.tick_ejections());
}

#[test]
fn outlier_detection_ejects_at_most_the_maximum_share() {
    let upstream = upstream_of_four();
    (0..4).for_each(|host| fail(&upstream, host));
    assert_eq!(used_endpoints(&upstream), ['3', '4']);
}

#[test]
fn success_resets_consecutive_failures() {
    let upstream = upstream_of_four();
    let host = &upstream.cluster.hosts()[0];
    for is_good in [false, true, false, true, false] {
        upstream.cluster.record_outcome(host, is_good);
    }
    assert_eq!(used_endpoints(&upstream).len(), 4);
    upstream.cluster.record_outcome(host, false);
    assert_eq!(used_endpoints(&upstream), ['2', '3', '4']);
}

#[test]
fn ejection_time_grows_to_its_maximum_and_shrinks_without_failures() {
    let upstream = upstream_of_four();
    let ejected_for = || {
        fail(&upstream, 0);
        assert_eq!(used_endpoints(&upstream).len(), 3);
        let tick = outlier_detection::TICK;
        (1..100_u32).find(|_| {
            advance(&upstream, tick);
            used_endpoints(&upstream).len() == 4
        })
    };
    assert_eq!((ejected_for(), ejected_for(), ejected_for()), (Some(3), Some(5), Some(5)));
    advance(&upstream, OUTLIERS.ejection * 3);
    assert_eq!(ejected_for(), Some(3));
}

#[test]
fn endpoint_is_used_only_if_neither_ejected_nor_unhealthy() {
    let upstream = upstream_of_four();
    fail(&upstream, 1);
    let host = &upstream.cluster.hosts()[1];
    host.set_flag(FAILED_CHECK);
    host.clear_flag(EJECTED);
    upstream.cluster.bump_epoch();
    assert_eq!(used_endpoints(&upstream), ['1', '3', '4']);
    host.clear_flag(FAILED_CHECK);
    upstream.cluster.bump_epoch();
    assert_eq!(used_endpoints(&upstream).len(), 4);
}

#[test]
fn all_endpoints_are_used_below_the_panic_threshold() {
    let upstream = upstream_of_four();
    let ill = |count: usize| {
        for (index, host) in upstream.cluster.hosts().iter().enumerate() {
            let _ = if index < count { host.set_flag(FAILED_CHECK) } else { host.clear_flag(FAILED_CHECK) };
        }
        upstream.cluster.bump_epoch();
        used_endpoints(&upstream).len()
    };
    assert_eq!([0, 1, 2, 3, 4].map(ill), [4, 3, 2, 4, 4]);
}

#[test]
fn retry_picks_an_untried_endpoint_while_there_is_one() {
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
fn endpoint_with_a_request_in_flight_receives_no_other_while_one_has_none() {
    let settings =
        UpstreamSettings { balance: Balance::LeastRequest, ..settings(&[("10.0.0.1", 1), ("10.0.0.2", 1)]) };
    let upstream = upstream(settings);
    let hosts = upstream.cluster.hosts();
    let requests = EndpointRequests::new(&upstream.cluster, &hosts[0]);
    let in_flight = || hosts[0].in_flight.load(Ordering::Relaxed);
    // Equal endpoints are picked at random.
    let is_used = || (0..64).any(|_| upstream.pick(&[]).unwrap().name() == "10.0.0.1:1");
    assert_eq!((in_flight(), is_used()), (0, true));
    let client = IpAddr::from([192, 0, 2, 1]);
    let request = requests.start(client, true).unwrap();
    assert!(request.is_some());
    assert_eq!((in_flight(), is_used()), (1, false));
    assert!(requests.start(client, true).is_err(), "the circuit breaker permits one");
    assert_eq!(in_flight(), 1);
    drop(request);
    assert_eq!((in_flight(), is_used()), (0, true));
}

#[test]
fn dns_change_keeps_endpoints_that_remain() {
    let upstream = upstream(settings(&[("app.test", 1)]));
    assert!(upstream.pick(&[]).is_none(), "no address is known yet");
    let at = |last_octets: &[u8]| {
        let target = |octet: &u8| (ConnectTarget::Ip(([10, 0, 0, *octet], 1).into()), "app.test:1".into());
        upstream.cluster.set_hosts(last_octets.iter().map(target).collect(), true);
    };
    at(&[1, 2]);
    assert_eq!(used_endpoints(&upstream), ['1', '2']);
    let kept = upstream.pick(&[]).map(|_| upstream.cluster.hosts()[1].clone()).unwrap();
    at(&[2, 3]);
    assert_eq!(used_endpoints(&upstream), ['2', '3']);
    assert!(Arc::ptr_eq(&kept, &upstream.cluster.hosts()[0]));
    at(&[]);
    assert!(upstream.pick(&[]).is_none());
}

/// Returns a successor of the upstream with other settings.
fn reloaded(upstream: &Upstream, settings: UpstreamSettings) -> Upstream {
    let metrics = Metrics::new(&[]);
    Upstream::new(&Cluster::new(settings, None, Some(&upstream.cluster), &metrics), &metrics)
}

#[test]
fn reload_keeps_ejections_of_remaining_endpoints() {
    let before = upstream_of_four();
    fail(&before, 0);
    fail(&before, 1);
    let timeout = Duration::from_secs(7);
    let after = reloaded(
        &before,
        UpstreamSettings {
            timeout,
            ..settings(&[("10.0.0.4", 1), ("10.0.0.3", 1), ("10.0.0.1", 1), ("10.0.0.5", 1)])
        },
    );
    assert_eq!(used_endpoints(&after), ['3', '4', '5'], "ejected endpoints that remain are still ejected");
    advance(&before, OUTLIERS.ejection);
    assert_eq!(used_endpoints(&after), ['3', '4', '5'], "ejections of the two generations are independent");
    advance(&after, OUTLIERS.ejection);
    assert_eq!(used_endpoints(&after), ['1', '3', '4', '5']);
    fail(&after, 2);
    advance(&after, OUTLIERS.ejection);
    assert_eq!(used_endpoints(&after), ['3', '4', '5'], "the number of earlier ejections is kept");
}

#[test]
fn reload_drops_ejections_that_the_new_settings_do_not_allow() {
    let before = upstream_of_four();
    fail(&before, 0);
    before.cluster.hosts()[1].set_flag(FAILED_CHECK);
    let unchecked = reloaded(&before, UpstreamSettings { outliers: None, ..before.settings().clone() });
    assert_eq!(used_endpoints(&unchecked), ['1', '2', '3', '4'], "no outlier detection, no ejection");
    let alone = reloaded(&before, settings(&[("10.0.0.1", 1)]));
    assert_eq!(used_endpoints(&alone), ['1'], "the last endpoint is never ejected");
}

#[test]
fn reload_keeps_resolved_addresses_until_the_next_lookup() {
    let before = upstream(settings(&[("app.test", 1)]));
    before.cluster.set_hosts(vec![(ConnectTarget::Ip(([10, 0, 0, 7], 1).into()), "app.test:1".into())], true);
    let timeout = Duration::from_secs(7);
    let after = reloaded(&before, UpstreamSettings { timeout, ..before.settings().clone() });
    assert_eq!(used_endpoints(&after), ['7']);
}

#[tokio::test]
async fn unresolvable_name_yields_no_endpoint_without_waiting() {
    let upstream = upstream(settings(&[("name.invalid", 1)]));
    upstream.cluster.start_background_tasks(&tokio::runtime::Handle::current());
    let found = tokio::time::timeout(Duration::from_secs(30), upstream.pick_when_resolved()).await;
    assert!(found.is_ok_and(|found| found.is_none()));
}
