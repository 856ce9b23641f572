//! Settings of an upstream's endpoints: health checks, outlier detection and circuit breaker.

use std::num::NonZeroU32;

use super::{on, positive, timeout};
use crate::config::at::At;
use crate::config::problem::{Fault, Report, quoted};
use crate::config::raw::{self, OrOff};
use crate::config::{defaults, parse};
use crate::upstream::settings::{CircuitBreakerLimits, ClientShare, HealthCheck, Outliers};

/// Maximum of `min_client_rate`, in bytes per second; only fast clients reach more.
const MAX_CLIENT_RATE: u64 = 1 << 20;

/// Compiles the active health check of endpoints.
pub(super) fn health_check(raw: &raw::HealthCheck, at: At<'_>, report: &mut Report<'_>) -> HealthCheck {
    if let Some(path) = &raw.path {
        report.take(at.key("path"), target(path));
    }
    if let Some(host) = &raw.host {
        let is_host = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_host {
            report.value(at.key("host"), format!("not a host, got {}", quoted(host)));
        } else if raw.path.is_none() {
            let fault = Fault::new("`host` has no meaning without `path`: the check only opens a connection");
            report.key(at.key("host"), fault);
        }
    }
    HealthCheck {
        path: raw.path.as_deref().map(Into::into),
        host: raw.host.as_deref().map(Into::into),
        interval: timeout(&raw.interval, defaults::CHECK_INTERVAL, at.key("interval"), report),
        timeout: timeout(&raw.timeout, defaults::CHECK_TIMEOUT, at.key("timeout"), report),
        healthy: raw.healthy.unwrap_or(defaults::HEALTHY_AFTER),
        unhealthy: raw.unhealthy.unwrap_or(defaults::UNHEALTHY_AFTER),
    }
}

/// Checks a request target, which is sent as written.
fn target(path: &str) -> Result<(), Fault> {
    let fault = |what: &str| Fault::new(format!("{what}, got {}", quoted(path)));
    match path.bytes().find(|byte| !byte.is_ascii_graphic()) {
        _ if !path.starts_with('/') => Err(fault("a path starts with `/`")),
        Some(_) => Err(fault("only visible ASCII can be sent").hint("percent-encode the rest")),
        None => Ok(()),
    }
}

/// Compiles outlier detection; `None` if it is turned off.
pub(super) fn outliers(
    raw: Option<&OrOff<raw::OutlierMap>>,
    at: At<'_>,
    report: &mut Report<'_>,
) -> Option<Outliers> {
    let unsaid = raw::OutlierMap::default();
    let fault = Fault::new("expected a map or `false`, got true").hint("outlier detection is on by default");
    let raw = raw.map_or(Some(&unsaid), |raw| on(raw, fault, at, report))?;
    let ejection = timeout(&raw.ejection, defaults::EJECTION, at.key("ejection"), report);
    let most = positive(raw.ejection_max.as_ref(), at.key("ejection_max"), report);
    if let Some(most) = most.filter(|most| *most < ejection) {
        let [most, ejection] = [most, ejection].map(parse::duration_text);
        report.value(at.key("ejection_max"), format!("shorter than `ejection`, {most} < {ejection}"));
    }
    Some(Outliers {
        failures: raw.failures.unwrap_or(defaults::OUTLIER_FAILURES),
        ejection,
        ejection_max: most.unwrap_or(defaults::EJECTION_MAX).max(ejection),
        max_ejected: percent(raw.max_ejected.as_ref(), defaults::MAX_EJECTED, at.key("max_ejected"), report),
    })
}

/// Compiles the circuit breaker's limits and those of clients.
pub(super) fn limits(
    raw: Option<&raw::UpstreamLimits>,
    at: At<'_>,
    report: &mut Report<'_>,
) -> CircuitBreakerLimits {
    let unsaid = raw::UpstreamLimits::default();
    let raw = raw.unwrap_or(&unsaid);
    let limits = CircuitBreakerLimits {
        requests_per_client: share(raw.requests_per_client, at.key("requests_per_client"), report),
        min_client_rate: client_rate(raw.min_client_rate.as_ref(), at.key("min_client_rate"), report),
        connections: raw.connections.unwrap_or(defaults::MOST_UNDER_WAY),
        pending: raw.pending.unwrap_or(defaults::MOST_UNDER_WAY),
        requests: raw.requests.unwrap_or(defaults::MOST_UNDER_WAY),
        retries: raw.retries.unwrap_or(defaults::MOST_RETRIES),
    };
    if let ClientShare::Fixed(each) = limits.requests_per_client
        && each.get() > limits.requests
    {
        let fault = format!("above `requests`, {each} > {}", limits.requests);
        report.value(at.key("requests_per_client"), Fault::new(fault).hint("`false` disables this limit"));
    }
    limits
}

/// Reads the maximum number of requests of one client.
fn share(raw: Option<raw::PerClient>, at: At<'_>, report: &mut Report<'_>) -> ClientShare {
    match raw {
        None | Some(raw::PerClient::Auto(_)) => ClientShare::Auto,
        Some(raw::PerClient::Count(most)) => ClientShare::Fixed(most),
        Some(raw::PerClient::Switch(is_on)) => {
            if is_on {
                report.value(at, "expected a number, `auto` or `false`, got true");
            }
            ClientShare::All
        }
    }
}

/// Reads a rate in bytes per second; `None` for no minimum.
fn client_rate(raw: Option<&OrOff<raw::Size>>, at: At<'_>, report: &mut Report<'_>) -> Option<NonZeroU32> {
    let Some(raw) = raw else { return Some(defaults::MIN_CLIENT_RATE) };
    let size = on(raw, "expected a size or `false`, got true".into(), at, report)?;
    let bytes = report.take(at, parse::size(&size.0))?;
    let rate = u32::try_from(bytes).ok().and_then(NonZeroU32::new).filter(|_| bytes <= MAX_CLIENT_RATE);
    if rate.is_none() {
        report.value(at, format!("expected a size from 1B to 1MiB, got {bytes} bytes"));
    }
    rate
}

/// Reads a whole percentage.
pub(super) fn percent(raw: Option<&raw::Percentage>, default: u8, at: At<'_>, report: &mut Report<'_>) -> u8 {
    let Some(raw) = raw else { return default };
    let number = raw.0.trim().strip_suffix('%').and_then(|number| number.trim_end().parse::<u8>().ok());
    match number.filter(|number| *number <= 100) {
        Some(number) => number,
        None => {
            let fault = format!("expected a whole percentage from 0% to 100%, got {}", quoted(&raw.0));
            report.value(at, fault);
            default
        }
    }
}
