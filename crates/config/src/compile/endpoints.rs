//! Settings of an upstream's endpoints: health checks, outlier detection and circuit breaker.

use std::num::NonZeroU32;

use crate::at::At;
use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use crate::raw::{self, OrOff};
use crate::{defaults, parse};
use weir_upstream::settings::{CircuitBreakerLimits, ClientShare, HealthCheck, Outliers};

/// Maximum of `min_client_rate`, in bytes per second; only fast clients reach more.
const MAX_CLIENT_RATE: u64 = 1 << 20;

/// Compiles the active health check of endpoints.
pub(super) fn compile_health_check(raw: &raw::HealthCheck, at: At<'_>) -> HealthCheck {
    if let Some(path) = &raw.path {
        at.key("path").ok(check_request_target(path));
    }
    if let Some(host) = &raw.host {
        let is_host = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_host {
            at.key("host").error(format!("not a host, got {}", quoted(host)));
        } else if raw.path.is_none() {
            at.inapplicable_key("host", "without `path`: the check only opens a connection");
        }
    }
    HealthCheck {
        path: raw.path.as_deref().map(Into::into),
        host: raw.host.as_deref().map(Into::into),
        interval: at.key("interval").timeout(&raw.interval, defaults::HEALTH_CHECK_INTERVAL),
        timeout: at.key("timeout").timeout(&raw.timeout, defaults::HEALTH_CHECK_TIMEOUT),
        healthy: raw.healthy.unwrap_or(defaults::HEALTHY_THRESHOLD),
        unhealthy: raw.unhealthy.unwrap_or(defaults::UNHEALTHY_THRESHOLD),
    }
}

/// Checks a request target, which is sent as written.
fn check_request_target(path: &str) -> Result<(), ValueError> {
    let error = |what: &str| ValueError::new(format!("{what}, got {}", quoted(path)));
    match path.bytes().find(|byte| !byte.is_ascii_graphic()) {
        _ if !path.starts_with('/') => Err(error("a path starts with `/`")),
        Some(_) => Err(error("only visible ASCII can be sent").with_hint("percent-encode the rest")),
        None => Ok(()),
    }
}

/// Compiles outlier detection; `None` if it is turned off.
pub(super) fn compile_outlier_detection(
    raw: Option<&OrOff<raw::OutlierMap>>,
    at: At<'_>,
) -> Option<Outliers> {
    let empty = raw::OutlierMap::default();
    let error = ValueError::new("expected a map or `false`, got true")
        .with_hint("outlier detection is on by default");
    let raw = raw.map_or(Some(&empty), |raw| at.unless_off(raw, error))?;
    let ejection = at.key("ejection").timeout(&raw.ejection, defaults::BASE_EJECTION_TIME);
    let max_ejection = at.key("ejection_max").nonzero_duration(raw.ejection_max.as_ref());
    if let Some(max) = max_ejection.filter(|max| *max < ejection) {
        let [max, ejection] = [max, ejection].map(parse::format_duration);
        at.key("ejection_max").error(format!("shorter than `ejection`, {max} < {ejection}"));
    }
    Some(Outliers {
        failures: raw.failures.unwrap_or(defaults::OUTLIER_CONSECUTIVE_FAILURES),
        ejection,
        ejection_max: max_ejection.unwrap_or(defaults::MAX_EJECTION_TIME).max(ejection),
        max_ejected: read_percent(
            raw.max_ejected.as_ref(),
            defaults::MAX_EJECTION_PERCENT,
            at.key("max_ejected"),
        ),
    })
}

/// Compiles the circuit breaker's limits and those of clients.
pub(super) fn compile_circuit_breaker(raw: Option<&raw::UpstreamLimits>, at: At<'_>) -> CircuitBreakerLimits {
    let empty = raw::UpstreamLimits::default();
    let raw = raw.unwrap_or(&empty);
    let limits = CircuitBreakerLimits {
        requests_per_client: compile_client_share(raw.requests_per_client, at.key("requests_per_client")),
        min_client_rate: read_min_client_rate(raw.min_client_rate.as_ref(), at.key("min_client_rate")),
        connections: raw.connections.unwrap_or(defaults::CIRCUIT_BREAKER_MAX),
        pending: raw.pending.unwrap_or(defaults::CIRCUIT_BREAKER_MAX),
        requests: raw.requests.unwrap_or(defaults::CIRCUIT_BREAKER_MAX),
        retries: raw.retries.unwrap_or(defaults::MAX_CONCURRENT_RETRIES),
    };
    if let ClientShare::Fixed(each) = limits.requests_per_client
        && each.get() > limits.requests
    {
        let error = format!("above `requests`, {each} > {}", limits.requests);
        at.key("requests_per_client").error(ValueError::new(error).with_hint("`false` disables this limit"));
    }
    limits
}

/// Reads the maximum number of requests of one client.
fn compile_client_share(raw: Option<raw::PerClient>, at: At<'_>) -> ClientShare {
    match raw {
        None | Some(raw::PerClient::Auto(_)) => ClientShare::Auto,
        Some(raw::PerClient::Count(max)) => ClientShare::Fixed(max),
        Some(raw::PerClient::Switch(is_on)) => {
            if is_on {
                at.error("expected a number, `auto` or `false`, got true");
            }
            ClientShare::All
        }
    }
}

/// Reads a rate in bytes per second; `None` for no minimum.
fn read_min_client_rate(raw: Option<&OrOff<raw::Size>>, at: At<'_>) -> Option<NonZeroU32> {
    let Some(raw) = raw else { return Some(defaults::MIN_CLIENT_RATE) };
    let size = at.unless_off(raw, "expected a size or `false`, got true".into())?;
    let bytes = at.ok(parse::size(&size.0))?;
    let rate = u32::try_from(bytes).ok().and_then(NonZeroU32::new).filter(|_| bytes <= MAX_CLIENT_RATE);
    if rate.is_none() {
        at.error(format!("expected a size from 1B to 1MiB, got {bytes} bytes"));
    }
    rate
}

/// Reads a whole percentage.
pub(super) fn read_percent(raw: Option<&raw::Percentage>, default: u8, at: At<'_>) -> u8 {
    let Some(raw) = raw else { return default };
    let number = raw.0.trim().strip_suffix('%').and_then(|number| number.trim_end().parse::<u8>().ok());
    match number.filter(|number| *number <= 100) {
        Some(number) => number,
        None => {
            let error = format!("expected a whole percentage from 0% to 100%, got {}", quoted(&raw.0));
            at.error(error);
            default
        }
    }
}
