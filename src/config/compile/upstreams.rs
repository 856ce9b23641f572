//! Upstreams, and which requests are forwarded to each.

use super::addresses::Taken;
use super::scope::Scope;
use super::{each, endpoints, matching, on, retries, rules, timeout, upstream_tls};
use crate::config::at::At;
use crate::config::files::Files;
use crate::config::parse::UpstreamPlace;
use crate::config::problem::{Fault, Report, named};
use crate::config::raw::{self, OrOff};
use crate::config::{defaults, parse};
use crate::rules::matcher::Matcher;
use crate::rules::routes::Routes;
use crate::tls::client;
use crate::upstream::settings::{UpstreamAddress, UpstreamSettings};

/// Default name of the only upstream.
const ONLY: &str = "upstream";

/// The compiled upstreams.
#[derive(Debug, Default)]
pub(super) struct Upstreams {
    pub(super) settings: Vec<UpstreamSettings>,
    /// In the order of the settings.
    pub(super) tls: Vec<Option<client::TlsClientSettings>>,
    /// Which requests each upstream receives.
    pub(super) routes: Routes,
}

/// An upstream and its TLS settings.
type One = (UpstreamSettings, Option<client::TlsClientSettings>);

/// Compiles the upstreams; `None` if one of them has a problem.
pub(super) fn compile(
    raw: &raw::Root,
    taken: &Taken,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> Option<Upstreams> {
    let root = At::ROOT;
    let (one, several) = (root.key("upstream"), root.key("upstreams"));
    match (&raw.upstream, &raw.upstreams) {
        (Some(raw), None) => {
            let (settings, tls) = only(raw, one, taken, scope.files, report)?;
            Some(Upstreams { settings: vec![settings], tls: vec![tls], routes: Routes::default() })
        }
        (None, Some(raw)) => list(raw, several, taken, scope, report),
        (Some(_), Some(_)) => {
            report.key(several, "both `upstream` and `upstreams`, expected one of them");
            None
        }
        (None, None) if raw.listeners.is_none() && raw.rls.is_some() => Some(Upstreams::default()),
        (None, None) => {
            if !report.is_faulty(one) && !report.is_faulty(several) {
                report.value(one, "missing, `upstream` is required");
            }
            // Used only for a bootstrap, for which a missing upstream is not reported: it may be in the
            // document that is not available.
            Some(Upstreams::default())
        }
    }
}

fn only(
    raw: &raw::Upstream,
    at: At<'_>,
    taken: &Taken,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<One> {
    match raw {
        raw::Upstream::Address(raw) => {
            let place = address(raw, at.same(), taken, report)?;
            at_places(vec![place], Some(ONLY.into()), &raw::UpstreamMap::default(), at, files, report)
        }
        raw::Upstream::Map(map) => {
            if map.matching.is_some() {
                let fault = Fault::new("the only upstream receives every request");
                report.key(at.key("match"), fault.hint("use `upstreams` to route by `match`"));
            }
            let name = map.name.as_deref().map_or_else(|| ONLY.into(), Into::into);
            of_map(map, Some(name), at, taken, files, report)
        }
    }
}

fn list(
    raw: &raw::OneOrMany<raw::UpstreamMap>,
    at: At<'_>,
    taken: &Taken,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> Option<Upstreams> {
    let mut compiled: Vec<(One, Matcher)> = Vec::new();
    // Name of the upstream that matches every request; later ones are unreachable.
    let mut rest: Option<Box<str>> = None;
    each(raw, at, |raw, at| {
        let matcher = matching::matcher(raw.matching.as_ref(), at.key("match"), scope, report);
        let name = raw.name.as_deref().map(Into::into);
        let (settings, tls) = of_map(raw, name, at.same(), taken, scope.files, report)?;
        if compiled.iter().any(|((other, _), _)| other.name == settings.name) {
            report.value(at.key("name"), format!("duplicate upstream name {}", named(&settings.name)));
        }
        if let Some(rest) = &rest {
            let fault = format!("unreachable, because {} matches every request", named(rest));
            report.value(at, Fault::new(fault).hint("move the upstream without `match` to the end"));
        } else if matcher.holds_for_all() && !report.is_faulty(at.key("match")) {
            rest = Some(settings.name.clone());
        }
        compiled.push(((settings, tls), matcher));
        Some(())
    });
    let is_whole = compiled.len() == raw.items().count();
    let (compiled, matchers): (Vec<_>, Vec<_>) = compiled.into_iter().unzip();
    let (settings, tls) = compiled.into_iter().unzip();
    is_whole.then(|| Upstreams { settings, tls, routes: Routes::new(matchers) })
}

fn of_map(
    raw: &raw::UpstreamMap,
    name: Option<Box<str>>,
    at: At<'_>,
    taken: &Taken,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<One> {
    if let Some(name) = &raw.name {
        report.take(at.key("name"), rules::check_name(name));
    }
    let addresses = raw
        .address
        .as_ref()
        .map(|raw| each(raw, at.key("address"), |raw, at| address(raw, at, taken, report)));
    at_places(addresses.unwrap_or_default(), name, raw, at, files, report)
}

fn at_places(
    places: Vec<UpstreamPlace>,
    name: Option<Box<str>>,
    raw: &raw::UpstreamMap,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<One> {
    let tls = upstream_tls::client(raw.tls.as_deref(), &places, (at, at.key("address")), files, report);
    let addresses = places.into_iter().map(|place| place.address).collect();
    Some((settings(addresses, name, raw, at, report)?, tls))
}

fn settings(
    addresses: Vec<UpstreamAddress>,
    name: Option<Box<str>>,
    raw: &raw::UpstreamMap,
    at: At<'_>,
    report: &mut Report<'_>,
) -> Option<UpstreamSettings> {
    let check = raw.health_check.as_ref();
    let health_check = check.map(|raw| endpoints::health_check(raw, at.key("health_check"), report));
    let panic = raw.panic_threshold.as_ref();
    let panic_at = at.key("panic_threshold");
    let mut read = |raw: &Option<raw::Duration>, default, key| timeout(raw, default, at.key(key), report);
    let settings = UpstreamSettings {
        dns_refresh: read(&raw.dns_refresh, defaults::DNS_REFRESH, "dns_refresh"),
        connect_timeout: read(&raw.connect_timeout, defaults::CONNECT_TIMEOUT, "connect_timeout"),
        timeout: read(&raw.timeout, defaults::UPSTREAM_TIMEOUT, "timeout"),
        idle_timeout: read(&raw.idle_timeout, defaults::UPSTREAM_IDLE_TIMEOUT, "idle_timeout"),
        balance: raw.balance.unwrap_or_default(),
        health_check,
        outliers: endpoints::outliers(raw.outliers.as_ref(), at.key("outliers"), report),
        panic_threshold: endpoints::percent(panic, defaults::PANIC_THRESHOLD, panic_at, report),
        retries: retries::compile(raw.retries.as_ref(), at.key("retries"), report),
        limits: endpoints::limits(raw.limits.as_ref(), at.key("limits"), report),
        http2: raw.http2.unwrap_or(false),
        upgrades: upgrades(raw.upgrades.as_ref(), at.key("upgrades"), report),
        name: name.or_else(|| Some(addresses.first()?.to_string().into())).unwrap_or_default(),
        addresses: addresses.into(),
    };
    (!settings.addresses.is_empty()).then_some(settings)
}

/// Compiles the names of protocols, in lower case.
fn upgrades(
    raw: Option<&OrOff<raw::OneOrMany<String>>>,
    at: At<'_>,
    report: &mut Report<'_>,
) -> Box<[Box<str>]> {
    let Some(raw) = raw else { return defaults::UPGRADES.map(Into::into).into() };
    let fault = Fault::new("expected protocols or `false`, got true");
    match on(raw, fault.hint("`websocket` is forwarded by default"), at, report) {
        Some(raw) => each(raw, at, |raw, at| report.take(at, parse::protocol(raw))).into(),
        None => Box::default(),
    }
}

fn address(
    raw: &raw::UpstreamAddress,
    at: At<'_>,
    taken: &Taken,
    report: &mut Report<'_>,
) -> Option<UpstreamPlace> {
    let place = report.take(at.same(), parse::upstream_address(&raw.0))?;
    if let Some(path) = taken.reached_by(&place.address) {
        report.value(at, format!("forwarding loop, this is the address of `{path}`"));
    }
    Some(place)
}
