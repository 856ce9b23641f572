//! How the endpoints of an upstream are chosen, watched and left out.

use std::num::NonZeroU32;

use super::timeout;
use crate::config::at::At;
use crate::config::problem::{Fault, Report, quoted};
use crate::config::raw::{self, OrOff};
use crate::config::{defaults, parse};
use crate::upstream::settings::{ClientShare, HealthCheck, Limits, Outliers};

/// More than this a second is no minimum but a fast client.
const MAX_CLIENT_RATE: u64 = 1 << 20;

/// What endpoints are asked.
pub(super) fn health_check(raw: &raw::HealthCheck, at: At<'_>, report: &mut Report<'_>) -> HealthCheck {
    let interval = timeout(raw.interval.as_ref(), at.key("interval"), report);
    let patience = timeout(raw.timeout.as_ref(), at.key("timeout"), report);
    if let Some(path) = &raw.path {
        report.take(at.key("path"), target(path));
    }
    if let Some(host) = &raw.host {
        let is_host = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_host {
            report.value(at.key("host"), format!("not a host, got {}", quoted(host)));
        } else if raw.path.is_none() {
            let fault = Fault::new("without `path` nothing is sent, so there is no host to name");
            report.key(at.key("host"), fault);
        }
    }
    HealthCheck {
        path: raw.path.as_deref().map(Into::into),
        host: raw.host.as_deref().map(Into::into),
        interval: interval.unwrap_or(defaults::CHECK_INTERVAL),
        timeout: patience.unwrap_or(defaults::CHECK_TIMEOUT),
        healthy: count(raw.healthy, defaults::HEALTHY_AFTER),
        unhealthy: count(raw.unhealthy, defaults::UNHEALTHY_AFTER),
    }
}

/// A target goes into a request's line as it is.
fn target(path: &str) -> Result<(), Fault> {
    let fault = |what: &str| Fault::new(format!("{what}, got {}", quoted(path)));
    match path.bytes().find(|byte| !byte.is_ascii_graphic()) {
        _ if !path.starts_with('/') => Err(fault("a path starts with `/`")),
        Some(_) => Err(fault("only visible ASCII can be sent").hint("percent-encode the rest")),
        None => Ok(()),
    }
}

/// When an endpoint is left out.
pub(super) fn outliers(
    raw: Option<&OrOff<raw::OutlierMap>>,
    at: At<'_>,
    report: &mut Report<'_>,
) -> Option<Outliers> {
    let nothing = raw::OutlierMap::default();
    let raw = match raw {
        None => &nothing,
        Some(OrOff::On(map)) => map,
        Some(OrOff::Switch(false)) => return None,
        Some(OrOff::Switch(true)) => {
            report.value(
                at,
                Fault::new("expected a map or `false`, got true").hint("it is on unless turned off"),
            );
            return None;
        }
    };
    let ejection = timeout(raw.ejection.as_ref(), at.key("ejection"), report).unwrap_or(defaults::EJECTION);
    let most = timeout(raw.ejection_max.as_ref(), at.key("ejection_max"), report);
    if let Some(most) = most.filter(|most| *most < ejection) {
        let [most, ejection] = [most, ejection].map(parse::duration_text);
        report.value(at.key("ejection_max"), format!("shorter than `ejection`, {most} < {ejection}"));
    }
    Some(Outliers {
        failures: count(raw.failures, defaults::OUTLIER_FAILURES),
        ejection,
        ejection_max: most.unwrap_or(defaults::EJECTION_MAX).max(ejection),
        max_ejected: percent(raw.max_ejected.as_ref(), defaults::MAX_EJECTED, at.key("max_ejected"), report),
    })
}

/// How much may be under way.
pub(super) fn limits(raw: Option<&raw::UpstreamLimits>, at: At<'_>, report: &mut Report<'_>) -> Limits {
    let read = |of: fn(&raw::UpstreamLimits) -> Option<u64>, default| count(raw.and_then(of), default);
    let per_client = raw.and_then(|raw| raw.requests_per_client);
    let rate = raw.and_then(|raw| raw.min_client_rate.as_ref());
    let limits = Limits {
        requests_per_client: share(per_client, at.key("requests_per_client"), report),
        min_client_rate: client_rate(rate, at.key("min_client_rate"), report),
        connections: read(|raw| raw.connections, defaults::MOST_UNDER_WAY),
        pending: read(|raw| raw.pending, defaults::MOST_UNDER_WAY),
        requests: read(|raw| raw.requests, defaults::MOST_UNDER_WAY),
        retries: read(|raw| raw.retries, defaults::MOST_RETRIES),
    };
    if let ClientShare::Fixed(each) = limits.requests_per_client
        && each.get() > limits.requests
    {
        let fault = format!("above `requests`, {each} > {}", limits.requests);
        report.value(at.key("requests_per_client"), Fault::new(fault).hint("`false` for no share"));
    }
    limits
}

/// How many requests one client may have.
fn share(raw: Option<raw::PerClient>, at: At<'_>, report: &mut Report<'_>) -> ClientShare {
    match raw {
        None | Some(raw::PerClient::Auto(_)) => ClientShare::Auto,
        Some(raw::PerClient::Count(most)) => {
            let most = u32::try_from(most).ok().and_then(NonZeroU32::new);
            most.map_or(ClientShare::Auto, ClientShare::Fixed)
        }
        Some(raw::PerClient::Switch(is_on)) => {
            if is_on {
                report.value(at, "expected a number, `auto` or `false`, got true");
            }
            ClientShare::All
        }
    }
}

/// Bytes a second.
fn client_rate(raw: Option<&OrOff<raw::Size>>, at: At<'_>, report: &mut Report<'_>) -> Option<NonZeroU32> {
    match raw {
        None => Some(defaults::MIN_CLIENT_RATE),
        Some(OrOff::Switch(is_on)) => {
            if *is_on {
                report.value(at, "expected a size or `false`, got true");
            }
            None
        }
        Some(OrOff::On(raw)) => {
            let bytes = report.take(at, parse::size(&raw.0))?;
            let rate =
                u32::try_from(bytes).ok().and_then(NonZeroU32::new).filter(|_| bytes <= MAX_CLIENT_RATE);
            if rate.is_none() {
                report.value(at, format!("expected a size from 1B to 1MiB, got {bytes} bytes"));
            }
            rate
        }
    }
}

/// A whole share, in percent.
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

/// A number that the schema lets through fits.
pub(super) fn count(raw: Option<u64>, default: u32) -> u32 {
    raw.and_then(|count| u32::try_from(count).ok()).unwrap_or(default)
}
