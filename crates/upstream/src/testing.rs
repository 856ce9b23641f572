//! Upstreams for tests.

use std::time::Duration;

use super::settings::{Balance, CircuitBreakerLimits, ClientShare, HeadRewrite, Outliers, Retries, RetryOn};
use super::*;

/// Outlier detection of the settings.
pub const OUTLIERS: Outliers = Outliers {
    failures: 2,
    ejection: Duration::from_millis(300),
    ejection_max: Duration::from_millis(500),
    max_ejected: 50,
};

/// Returns the settings of an upstream with these endpoints.
pub fn settings(addresses: &[(&str, u16)]) -> UpstreamSettings {
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
        has_adaptive_throttle: false,
        concurrency: None,
        rewrite: HeadRewrite::default(),
        server_name_from_host: false,
        retries: Retries {
            attempts: 0,
            on: RetryOn::default(),
            backoff: (Duration::ZERO, Duration::ZERO),
            budget: 0,
            per_try_timeout: None,
            attempt_count: false,
            idempotency_key: true,
            max_wait: Duration::from_secs(5),
        },
    }
}

/// Returns an upstream with a minimum transfer rate for clients.
pub fn with_min_client_rate(rate: u32) -> Upstream {
    let mut settings = settings(&[("10.0.0.1", 1)]);
    settings.limits.min_client_rate = NonZeroU32::new(rate);
    upstream(settings)
}

/// Returns an upstream without connections.
pub fn upstream(settings: UpstreamSettings) -> Upstream {
    let metrics = Metrics::new(&[]);
    Upstream::new(&Cluster::new(settings, None, None, &metrics), &metrics)
}
