//! Where requests go, and which of them.

use super::addresses::Taken;
use super::scope::Scope;
use super::{each, endpoints, matching, retries, rules, timeout};
use crate::config::at::At;
use crate::config::problem::{Fault, Report, named};
use crate::config::raw::{self, List as _};
use crate::config::{defaults, parse};
use crate::rules::matcher::Matcher;
use crate::rules::routes::Routes;
use crate::upstream::settings::{Address, Balance, Settings};

/// The name of the only upstream, unless it is given one.
const ONLY: &str = "upstream";

/// The upstreams with what each of them is for; nothing where there is a problem with one of them.
pub(super) fn compile(
    raw: &raw::Root,
    taken: &Taken,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> Option<(Vec<Settings>, Routes)> {
    let root = At::ROOT;
    let (one, several) = (root.key("upstream"), root.key("upstreams"));
    match (&raw.upstream, &raw.upstreams) {
        (Some(raw), None) => Some((vec![only(raw, one, taken, report)?], Routes::default())),
        (None, Some(raw)) => list(raw, several, taken, scope, report),
        (Some(_), Some(_)) => {
            report.key(several, Fault::new("`upstream` is there too").hint("one of them says it all"));
            None
        }
        (None, None) => {
            if !report.is_faulty(one) && !report.is_faulty(several) {
                report.value(one, "missing, `upstream` is required");
            }
            None
        }
    }
}

fn only(raw: &raw::Upstream, at: At<'_>, taken: &Taken, report: &mut Report<'_>) -> Option<Settings> {
    match raw {
        raw::Upstream::Address(raw) => {
            let addresses = [address(raw, at, taken, report)?].into();
            settings(addresses, Some(ONLY.into()), None, at, report)
        }
        raw::Upstream::Map(map) => {
            if map.matching.is_some() {
                let fault = Fault::new("the only upstream takes every request");
                report.key(at.key("match"), fault.hint("several are written under `upstreams`"));
            }
            let name = map.name.as_deref().map_or_else(|| ONLY.into(), Into::into);
            of_map(map, Some(name), at, taken, report)
        }
    }
}

fn list(
    raw: &raw::OneOrMany<raw::UpstreamMap>,
    at: At<'_>,
    taken: &Taken,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> Option<(Vec<Settings>, Routes)> {
    let mut compiled: Vec<(Settings, Matcher)> = Vec::new();
    // The one that takes everything: nothing gets past it.
    let mut rest: Option<Box<str>> = None;
    each(raw, at, |raw, at| {
        let matcher = matching::matcher(raw.matching.as_ref(), at.key("match"), scope, report);
        let name = raw.name.as_deref().map(Into::into);
        let settings = of_map(raw, name, at, taken, report)?;
        if compiled.iter().any(|(other, _)| other.name == settings.name) {
            report.value(at.key("name"), format!("duplicate upstream name {}", named(&settings.name)));
        }
        if let Some(rest) = &rest {
            let fault = format!("no request gets here: {} takes all that are left", named(rest));
            report.value(at, Fault::new(fault).hint("an upstream without `match` comes last"));
        } else if matching::holds_for_all(&matcher) && !report.is_faulty(at.key("match")) {
            rest = Some(settings.name.clone());
        }
        compiled.push((settings, matcher));
        Some(())
    });
    let is_whole = compiled.len() == raw.items().count();
    let (settings, matchers): (Vec<_>, Vec<_>) = compiled.into_iter().unzip();
    is_whole.then(|| (settings, Routes::new(matchers)))
}

fn of_map(
    raw: &raw::UpstreamMap,
    name: Option<Box<str>>,
    at: At<'_>,
    taken: &Taken,
    report: &mut Report<'_>,
) -> Option<Settings> {
    if let Some(name) = &raw.name {
        report.take(at.key("name"), rules::check_name(name));
    }
    let addresses = raw
        .address
        .as_ref()
        .map(|raw| each(raw, at.key("address"), |raw, at| address(raw, at, taken, report)));
    settings(addresses.unwrap_or_default(), name, Some(raw), at, report)
}

fn settings(
    addresses: Vec<Address>,
    name: Option<Box<str>>,
    raw: Option<&raw::UpstreamMap>,
    at: At<'_>,
    report: &mut Report<'_>,
) -> Option<Settings> {
    let mut read = |raw: Option<&raw::Duration>, key| timeout(raw, at.key(key), report);
    let connect = read(raw.and_then(|raw| raw.connect_timeout.as_ref()), "connect_timeout");
    let answer = read(raw.and_then(|raw| raw.timeout.as_ref()), "timeout");
    let idle = read(raw.and_then(|raw| raw.idle_timeout.as_ref()), "idle_timeout");
    let refresh = read(raw.and_then(|raw| raw.dns_refresh.as_ref()), "dns_refresh");
    let check = raw.and_then(|raw| raw.health_check.as_ref());
    let health_check = check.map(|raw| endpoints::health_check(raw, at.key("health_check"), report));
    let outliers = raw.and_then(|raw| raw.outliers.as_ref());
    let outliers = endpoints::outliers(outliers, at.key("outliers"), report);
    let panic = raw.and_then(|raw| raw.panic_threshold.as_ref());
    let panic_threshold =
        endpoints::percent(panic, defaults::PANIC_THRESHOLD, at.key("panic_threshold"), report);
    let retries = retries::compile(raw.and_then(|raw| raw.retries.as_ref()), at.key("retries"), report);
    let first = addresses.first()?;
    Some(Settings {
        dns_refresh: refresh.unwrap_or(defaults::DNS_REFRESH),
        balance: match raw.and_then(|raw| raw.balance) {
            None | Some(raw::Balance::RoundRobin) => Balance::RoundRobin,
            Some(raw::Balance::LeastRequest) => Balance::LeastRequest,
        },
        health_check,
        outliers,
        panic_threshold,
        retries,
        limits: endpoints::limits(raw.and_then(|raw| raw.limits.as_ref())),
        name: name.unwrap_or_else(|| first.to_string().into()),
        addresses: addresses.into(),
        http2: raw.and_then(|raw| raw.http2).unwrap_or(false),
        connect_timeout: connect.unwrap_or(defaults::CONNECT_TIMEOUT),
        timeout: answer.unwrap_or(defaults::UPSTREAM_TIMEOUT),
        idle_timeout: idle.unwrap_or(defaults::UPSTREAM_IDLE_TIMEOUT),
    })
}

fn address(
    raw: &raw::UpstreamAddress,
    at: At<'_>,
    taken: &Taken,
    report: &mut Report<'_>,
) -> Option<Address> {
    let address = report.take(at, parse::upstream_address(&raw.0))?;
    if let Some(path) = taken.reached_by(&address) {
        report.value(at, format!("our own address, that of `{path}`: requests would never leave"));
    }
    Some(address)
}
