//! Upstreams, and which requests are forwarded to each.

use std::sync::Arc;

use super::context::CompileContext;
use super::in_flight::{self, InFlight};
use super::listeners::UsedAddresses;
use super::{
    classes, diversion, endpoints, map_items, matching, retries, rules, upstream_headers, upstream_tls,
};
use crate::at::At;
use crate::data_files::DataFiles;
use http::HeaderValue;

use crate::diagnostic::{Diagnostics, ValueError};
use crate::parse::UpstreamUrl;
use crate::quoting::{backquoted, quoted};
use crate::raw::{self, OrOff};
use crate::{UpstreamConfig, defaults, parse};
use weir_limiter::adaptive::AdaptiveRange;
use weir_policy::identify::host;
use weir_policy::rules::classes::Classes;
use weir_policy::rules::matcher::Matcher;
use weir_policy::rules::routes::Routes;
use weir_upstream::settings::{
    CircuitBreakerLimits, HeadRewrite, SlotSettings, UpstreamAddress, UpstreamSettings,
};

/// Default name of the only upstream.
const DEFAULT_NAME: &str = "upstream";

/// The compiled upstreams.
#[derive(Debug, Default)]
pub(super) struct CompiledUpstreams {
    pub(super) all: Vec<UpstreamConfig>,
    /// Which requests each upstream receives.
    pub(super) routes: Routes,
    /// Classes of requests, if an upstream has slots.
    pub(super) classes: Option<Arc<Classes>>,
}

/// Compiles the upstreams and the classes of their requests; `None` if an upstream has a problem.
pub(super) fn compile(
    raw: &raw::Root,
    used_addresses: &UsedAddresses,
    context: &mut CompileContext<'_>,
    report: &Diagnostics<'_>,
) -> Option<CompiledUpstreams> {
    let root = report.root();
    let classes = classes::compile(raw, root, context);
    let mut upstreams = compile_upstreams(raw, used_addresses, context, report)?;
    upstreams.classes = classes::divide(classes, &mut upstreams.all, root.key("classes")).map(Arc::new);
    Some(upstreams)
}

/// Compiles the upstreams; `None` if one of them has a problem.
fn compile_upstreams(
    raw: &raw::Root,
    used_addresses: &UsedAddresses,
    context: &mut CompileContext<'_>,
    report: &Diagnostics<'_>,
) -> Option<CompiledUpstreams> {
    let root = report.root();
    let (upstream_at, upstreams_at) = (root.key("upstream"), root.key("upstreams"));
    match (&raw.upstream, &raw.upstreams) {
        (Some(raw), None) => {
            let only = compile_single(raw, upstream_at, used_addresses, context.files)?;
            Some(CompiledUpstreams { all: vec![only], ..CompiledUpstreams::default() })
        }
        (None, Some(list)) => compile_list(raw, list, upstreams_at, used_addresses, context),
        (Some(_), Some(_)) => {
            upstreams_at.key_error("both `upstream` and `upstreams`, expected one of them");
            None
        }
        (None, None) if raw.listeners.is_none() && raw.rls.is_some() => Some(CompiledUpstreams::default()),
        (None, None) if needs_no_upstream(raw, &root.key("listeners")) => Some(CompiledUpstreams::default()),
        (None, None) => {
            if !upstream_at.is_reported() && !upstreams_at.is_reported() {
                upstream_at.error("missing, `upstream` is required");
            }
            // Used only for a bootstrap, for which a missing upstream is not reported: it may be in the
            // document that is not available.
            Some(CompiledUpstreams::default())
        }
    }
}

/// Whether every listener is a forward proxy or decides for another proxy, which needs no upstream.
fn needs_no_upstream(raw: &raw::Root, at: &At<'_>) -> bool {
    let mut listeners = raw.listeners.iter().flat_map(|list| list.items()).peekable();
    let is_reported = |index: Option<usize>| {
        index.map_or_else(|| at.single_item(), |index| at.item(index)).key("decide").is_reported()
    };
    let needs_none =
        |(index, listener): (_, &raw::Listener)| !listener.needs_upstream() || is_reported(index);
    listeners.peek().is_some() && listeners.all(needs_none)
}

fn compile_single(
    raw: &raw::Upstream,
    at: At<'_>,
    used_addresses: &UsedAddresses,
    files: &mut DataFiles,
) -> Option<UpstreamConfig> {
    match raw {
        raw::Upstream::Address(raw) => {
            let url = read_url(raw, at.single_item(), used_addresses)?;
            compile_with_urls(vec![url], Some(DEFAULT_NAME.into()), &raw::UpstreamMap::default(), at, files)
        }
        raw::Upstream::Map(map) => {
            if map.matching.is_some() {
                let error = ValueError::new("the only upstream receives every request");
                at.key("match").key_error(error.with_hint("use `upstreams` to route by `match`"));
            }
            let name = map.name.as_deref().map_or_else(|| DEFAULT_NAME.into(), Into::into);
            compile_map(map, Some(name), at, used_addresses, files)
        }
    }
}

fn compile_list(
    root: &raw::Root,
    raw: &raw::OneOrMany<raw::UpstreamMap>,
    at: At<'_>,
    used_addresses: &UsedAddresses,
    context: &mut CompileContext<'_>,
) -> Option<CompiledUpstreams> {
    let (mut all, mut matchers): (Vec<UpstreamConfig>, Vec<Matcher>) = Default::default();
    // Name of the upstream that matches every request; later ones are unreachable.
    let mut catch_all: Option<Box<str>> = None;
    let list_at = at;
    map_items(raw, at, |raw, at| {
        let matcher = matching::compile_matcher(raw.matching.as_ref(), at.key("match"), context);
        let name = raw.name.as_deref().map(Into::into);
        let upstream = compile_map(raw, name, at.single_item(), used_addresses, context.files)?;
        let name = &upstream.settings.name;
        if let Some(first) = all.iter().position(|other| other.settings.name == *name) {
            let error = ValueError::new(format!("duplicate upstream name {}", backquoted(name)));
            let first = list_at.item(first).place();
            at.key("name").error(error.with_hint(format!("first in {first}")));
        }
        if let Some(rest) = catch_all.as_ref().filter(|_| !diversion::is_target(root, name)) {
            let error = format!("unreachable, because {} matches every request", backquoted(rest));
            at.error(ValueError::new(error).with_hint("move the upstream without `match` to the end"));
        } else if catch_all.is_none() && matcher.holds_for_all() && !at.key("match").is_reported() {
            catch_all = Some(name.clone());
        }
        all.push(upstream);
        matchers.push(matcher);
        Some(())
    });
    let is_complete = all.len() == raw.items().count();
    is_complete.then(|| CompiledUpstreams { all, routes: Routes::new(matchers), classes: None })
}

fn compile_map(
    raw: &raw::UpstreamMap,
    name: Option<Box<str>>,
    at: At<'_>,
    used_addresses: &UsedAddresses,
    files: &mut DataFiles,
) -> Option<UpstreamConfig> {
    if let Some(name) = &raw.name {
        at.key("name").ok(rules::check_name(name));
    }
    let addresses = raw
        .address
        .as_ref()
        .map(|raw| map_items(raw, at.key("address"), |raw, at| read_url(raw, at, used_addresses)));
    compile_with_urls(addresses.unwrap_or_default(), name, raw, at, files)
}

fn compile_with_urls(
    urls: Vec<UpstreamUrl>,
    name: Option<Box<str>>,
    raw: &raw::UpstreamMap,
    at: At<'_>,
    files: &mut DataFiles,
) -> Option<UpstreamConfig> {
    let tls = upstream_tls::compile_upstream(raw.tls.as_deref(), &urls, at, at.key("address"), files);
    let addresses = urls.into_iter().map(|place| place.address).collect();
    Some(UpstreamConfig { settings: compile_settings(addresses, name, raw, at)?, tls })
}

fn compile_settings(
    addresses: Vec<UpstreamAddress>,
    name: Option<Box<str>>,
    raw: &raw::UpstreamMap,
    at: At<'_>,
) -> Option<UpstreamSettings> {
    let check = raw.health_check.as_ref();
    let health_check = check.map(|raw| endpoints::compile_health_check(raw, at.key("health_check")));
    let panic = raw.panic_threshold.as_ref();
    let panic_at = at.key("panic_threshold");
    let read = |raw: &Option<raw::Duration>, default, key| at.key(key).timeout(raw, default);
    let limits = endpoints::compile_circuit_breaker(raw.limits.as_ref(), at.key("limits"));
    let settings = UpstreamSettings {
        dns_refresh: read(&raw.dns_refresh, defaults::DNS_REFRESH, "dns_refresh"),
        connect_timeout: read(&raw.connect_timeout, defaults::CONNECT_TIMEOUT, "connect_timeout"),
        timeout: read(&raw.timeout, defaults::UPSTREAM_TIMEOUT, "timeout"),
        idle_timeout: read(&raw.idle_timeout, defaults::UPSTREAM_IDLE_TIMEOUT, "idle_timeout"),
        balance: raw.balance.unwrap_or_default(),
        health_check,
        outliers: endpoints::compile_outlier_detection(raw.outliers.as_ref(), at.key("outliers")),
        panic_threshold: endpoints::read_percent(panic, defaults::PANIC_THRESHOLD, panic_at),
        retries: retries::compile(raw.retries.as_ref(), at.key("retries")),
        limits,
        has_adaptive_throttle: raw.adaptive_throttle.unwrap_or(false),
        concurrency: compile_concurrency(raw, limits, at),
        http2: raw.http2.unwrap_or(false),
        upgrades: compile_upgrades(raw.upgrades.as_ref(), at.key("upgrades")),
        rewrite: HeadRewrite {
            host: raw.host.as_ref().and_then(|host| at.key("host").ok(parse_host(host))),
            strip_prefix: raw
                .strip_prefix
                .as_ref()
                .and_then(|prefix| at.key("strip_prefix").ok(parse_prefix(prefix))),
            hides_client: !raw.client_headers.unwrap_or(true),
            headers: upstream_headers::compile(raw.headers.as_ref(), at.key("headers")),
        },
        server_name_from_host: raw.tls.as_ref().is_some_and(|tls| upstream_tls::is_name_from_host(tls)),
        name: name.or_else(|| Some(addresses.first()?.to_string().into())).unwrap_or_default(),
        addresses: addresses.into(),
    };
    (!settings.addresses.is_empty()).then_some(settings)
}

/// Compiles the maximum number of requests in flight; `None` without one.
fn compile_concurrency(
    raw: &raw::UpstreamMap,
    limits: CircuitBreakerLimits,
    at: At<'_>,
) -> Option<SlotSettings> {
    let InFlight { max, adaptive } = in_flight::compile(raw.in_flight.as_ref(), at);
    let fixed = || max.and_then(|max| AdaptiveRange::new(max, max));
    let range = adaptive.or_else(fixed)?;
    let is_given = matches!(raw.in_flight, Some(raw::InFlight::Max(_) | raw::InFlight::Map(_)));
    if is_given && range.max().get() > limits.requests {
        let error = format!("{} is above `limits.requests`, which is {}", range.max(), limits.requests);
        let hint = "requests beyond that are rejected without waiting; raise `limits.requests`";
        at.key("in_flight").error(ValueError::new(error).with_hint(hint));
    }
    Some(SlotSettings::new(classes::within(range, limits)))
}

/// Parses the value of a `Host` header.
fn parse_host(host: &str) -> Result<HeaderValue, ValueError> {
    let value = HeaderValue::from_str(host).ok().filter(|_| host::is_valid(host.as_bytes()));
    value.ok_or_else(|| {
        let error = ValueError::new(format!("expected a host with an optional port, got {}", quoted(host)));
        error.with_hint("such as `api.example.com`")
    })
}

/// Parses a prefix of paths, which is compared with the path as received.
fn parse_prefix(prefix: &str) -> Result<Box<str>, ValueError> {
    let is_sent_as_written = prefix.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#*".contains(&byte));
    match prefix.strip_suffix('/').unwrap_or(prefix) {
        "" => Err(ValueError::new(format!("expected a prefix such as `/stripe`, got {}", quoted(prefix)))),
        prefix if prefix.starts_with('/') && is_sent_as_written => Ok(prefix.into()),
        prefix => {
            Err(ValueError::new(format!("expected a path that begins with `/`, got {}", quoted(prefix))))
        }
    }
}

/// Compiles the names of protocols, in lower case.
fn compile_upgrades(raw: Option<&OrOff<raw::OneOrMany<String>>>, at: At<'_>) -> Box<[Box<str>]> {
    let Some(raw) = raw else { return defaults::UPGRADE_PROTOCOLS.map(Into::into).into() };
    let error = ValueError::new("expected protocols or `false`, got true");
    match at.unless_off(raw, error.with_hint("`websocket` is forwarded by default")) {
        Some(raw) => map_items(raw, at, |raw, at| at.ok(parse::upgrade_protocol(raw))).into(),
        None => Box::default(),
    }
}

fn read_url(raw: &raw::UpstreamAddress, at: At<'_>, used_addresses: &UsedAddresses) -> Option<UpstreamUrl> {
    let url = at.single_item().ok(parse::upstream_address(&raw.0))?;
    if let Some(path) = used_addresses.find_reached_listener(&url.address) {
        at.error(format!("forwarding loop, this is the address of `{path}`"));
    }
    Some(url)
}
