//! Converts the decoded configuration into its meaning, and reports problems that only the meaning shows.
//!
//! An invalid part is replaced by a default or left out, so that the rest is still checked. The result is
//! used only if nothing was reported.

mod addresses;
mod bootstrap;
mod clients;
mod counters;
mod credentials;
mod descriptors;
mod domain;
mod endpoints;
mod geo;
mod grpc;
mod jwt;
mod limits;
mod matching;
mod nested;
mod networks;
mod patterns;
mod plans;
mod rate_limits;
mod refusal;
mod remote_limit;
mod retries;
mod rules;
mod scope;
mod shared;
mod state;
mod store_settings;
mod tariff;
mod throttle;
mod tls;
mod tracing;
mod trailing_slash;
mod upstream_tls;
mod upstreams;
mod windows;

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use self::scope::{Asks, Scope};
use super::at::At;
use super::contents::Contents;
use super::files::Files;
use super::parse::{self, nearest};
use super::problem::{Fault, Report, quoted};
use super::raw::{self, OrOff};
use super::{Config, defaults};
use crate::engine::PolicySpec;
use crate::identify::cidr::CidrSet;
use crate::limiter::elastic::signal::SignalSet;
use crate::telemetry::access_log::{self, Sink};
use crate::{drain, identify, response};

/// Compiles the configuration; `None` if it has problems. Files that it names are relative to `file`.
pub(super) fn compile(
    raw: &raw::Root,
    file: &Path,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<Config> {
    let root = At::ROOT;
    required(raw, report);
    let mut addresses = addresses::compile(raw, files, report);
    let rls = rate_limits::compile(raw, &mut addresses.taken, files, report);
    let central = bootstrap::compile(raw.config.as_ref(), file, root.key("config"), files, report);
    let access_log = access_log(raw.access_log.as_ref(), file, root.key("access_log"), report);
    let tracing = tracing::compile(raw.tracing.as_ref(), root.key("tracing"), files, report);
    let drain = drain(raw.drain.as_ref(), root.key("drain"), report);
    let overload = clients::compile(raw.overload.as_ref(), root.key("overload"), report);
    let mut identify = identify(raw, files, report);
    let response = response(raw, report);
    let state = state::compile(raw.state.as_ref(), file, root.key("state"), report);
    let store = store_settings::compile(raw.store.as_ref(), root.key("store"), files, report);
    let written =
        |name: fn(&raw::Geo) -> &Option<String>| raw.geo.as_ref().is_some_and(|geo| name(geo).is_some());
    let mut scope = Scope {
        files,
        trailing_slash: raw.trailing_slash.unwrap_or_default(),
        has_places: written(|geo| &geo.database) || report.is_faulty(root.key("geo")),
        has_systems: written(|geo| &geo.asn_database) || report.is_faulty(root.key("geo")),
        has_plans: raw.plans.is_some() || report.is_faulty(root.key("plans")),
        plans: None,
        plan_names: None,
        has_tokens: raw.jwt.is_some() || report.is_faulty(root.key("jwt")),
        has_certificates: tls::verifies_clients(raw),
        has_service: raw.rls.is_some() || report.is_faulty(root.key("rls")),
        asks: Asks::default(),
        ipv6_prefix: identify.ipv6_prefix,
        has_store: raw.store.is_some() || report.is_faulty(root.key("store")),
        has_shared_limits: rls.as_ref().is_some_and(|rls| rls.scope.is_some()),
        services: Vec::new(),
        claims: RefCell::default(),
    };
    scope.plans = plans::compile(raw.plans.as_ref(), root.key("plans"), &mut scope, report);
    let rules = raw
        .rules
        .as_ref()
        .map_or_else(Vec::new, |raw| rules::compile(raw, root.key("rules"), &mut scope, report));
    plans::note_unnamed(raw.plans.as_ref(), scope.plans.as_deref(), &rules, root.key("plans"), report);
    let (rules, rejections): (Vec<_>, Vec<_>) = rules.into_iter().unzip();
    if let (Some(raw), None) = (&raw.rules, raw.trailing_slash) {
        trailing_slash::note(raw, root.key("rules"), &rules, report);
    }
    let upstreams = upstreams::compile(raw, &addresses.taken, &mut scope, report);
    if store.is_some() && !scope.has_shared_limits {
        let note = Fault::new("not used, because no limit needs the store");
        report.note(root.key("store"), note.hint("set `scope: shared` on a rule, or remove `store`"));
    }
    let services = std::mem::take(&mut scope.services);
    identify.jwt = jwt::compile(raw.jwt.as_ref(), root.key("jwt"), scope, report).map(Arc::new);
    let upstreams = upstreams.filter(|_| report.is_clean())?;
    Some(Config {
        central,
        listeners: addresses.listeners,
        tls: addresses.tls,
        workers: workers(raw.workers),
        upstreams: upstreams.settings,
        upstream_tls: upstreams.tls,
        admin: addresses.admin,
        access_log,
        tracing,
        drain,
        overload,
        max_keys: raw.limiter.as_ref().and_then(|raw| raw.max_keys).unwrap_or(defaults::MAX_KEYS),
        state,
        store,
        policy: PolicySpec { identify, rules, rejections, routes: upstreams.routes, response },
        elastic: signals(raw.elastic.as_ref()),
        rls,
        services,
        notices: Vec::new(),
        contents: Contents::default(),
    })
}

/// Requires `listeners` and `rules`, so that an empty or truncated file is not accepted as one without rules.
/// A configuration with `rls` alone needs neither.
fn required(raw: &raw::Root, report: &mut Report<'_>) {
    let root = At::ROOT;
    let is_service_alone =
        raw.listeners.is_none() && (raw.rls.is_some() || report.is_faulty(root.key("rls")));
    if is_service_alone {
        return;
    }
    for (key, is_missing) in [("listeners", raw.listeners.is_none()), ("rules", raw.rules.is_none())] {
        if is_missing && !report.is_faulty(root.key(key)) {
            report.value(root.key(key), format!("missing, `{key}` is required"));
        }
    }
}

/// `available_parallelism` takes the CPU quota of a container into account.
fn workers(raw: Option<raw::Workers>) -> NonZeroUsize {
    match raw {
        Some(raw::Workers::Count(count)) => count,
        Some(raw::Workers::Auto(_)) | None => available_parallelism().unwrap_or(NonZeroUsize::MIN),
    }
}

/// Returns the configured signals, or all of them.
fn signals(raw: Option<&raw::Elastic>) -> SignalSet {
    let Some(named) = raw.and_then(|raw| raw.signals.as_ref()) else { return SignalSet::ALL };
    named.items().map(|(_, signal)| *signal).collect()
}

fn drain(raw: Option<&raw::Drain>, at: At<'_>, report: &mut Report<'_>) -> drain::DrainSettings {
    let unsaid = raw::Drain::default();
    let raw::Drain { delay, timeout } = raw.unwrap_or(&unsaid);
    drain::DrainSettings {
        delay: duration(delay.as_ref(), at.key("delay"), report).unwrap_or(defaults::DRAIN_DELAY),
        timeout: duration(timeout.as_ref(), at.key("timeout"), report).unwrap_or(defaults::DRAIN_TIMEOUT),
    }
}

fn identify(root: &raw::Root, files: &mut Files, report: &mut Report<'_>) -> identify::IdentifySettings {
    let unsaid = raw::ClientIp::default();
    let (raw, at) = (root.client_ip.as_ref().unwrap_or(&unsaid), At::ROOT.key("client_ip"));
    let mut proxies = |list: &Option<raw::ZeroOrMany<raw::Networks>>, key, chosen| {
        let at = at.key(key);
        let set = list.as_ref().map_or_else(CidrSet::default, |list| networks::set(list, at, files, report));
        if set.holds_a_family() {
            report.note(at, format!("every peer is trusted, so any client can forge {chosen}"));
        }
        set
    };
    let trusted_proxies = proxies(&raw.trusted_proxies, "trusted_proxies", "its address");
    let client_certificate_proxies = proxies(
        &raw.client_certificate_proxies,
        "client_certificate_proxies",
        "the certificate that upstreams receive",
    );
    let geo = geo::databases(root.geo.as_ref(), At::ROOT.key("geo"), files, report);
    identify::IdentifySettings {
        trusted_proxies,
        client_certificate_proxies,
        ipv6_prefix: raw.ipv6_prefix.unwrap_or(defaults::IPV6_PREFIX),
        geo,
        jwt: None,
    }
}

fn response(raw: &raw::Root, report: &mut Report<'_>) -> response::LimitHeaderSettings {
    use response::Visibility;
    let fault = Fault::new("expected one of full, limited, off, got true").meant(Some("full"));
    let ratelimit_headers = match &raw.ratelimit_headers {
        None => Visibility::Full,
        Some(raw) => *on(raw, fault, At::ROOT.key("ratelimit_headers"), report).unwrap_or(&Visibility::Off),
    };
    response::LimitHeaderSettings { ratelimit_headers, ietf_headers: raw.ietf_headers.unwrap_or(false) }
}

fn access_log(
    raw: Option<&OrOff<raw::AccessLog>>,
    file: &Path,
    at: At<'_>,
    report: &mut Report<'_>,
) -> Option<access_log::Settings> {
    let fault = Fault::new("expected `disabled`, `stdout`, `stderr` or a file, got true");
    let (path, at, format) = match on(raw?, fault.meant(Some("stdout")), at, report)? {
        raw::AccessLog::Path(path) if path == "disabled" => return None,
        raw::AccessLog::Path(path) => (path, at.same(), None),
        raw::AccessLog::Map(map) => (map.path.as_ref()?, at.key("path"), map.format),
    };
    let sink = report.take(at, sink(path, file))?;
    Some(access_log::Settings { sink, format: format.unwrap_or_default() })
}

/// Rejects bare words that resemble `stdout`, `stderr` or a switch, instead of using them as file names.
fn sink(path: &str, file: &Path) -> Result<Sink, Fault> {
    const SWITCHES: [&str; 7] = ["off", "no", "none", "false", "null", "disable", "disabled"];
    let refused = || Fault::new(format!("expected `stdout`, `stderr` or a file, got {}", quoted(path)));
    let is_bare = !path.contains(['/', '.']);
    match path {
        "stdout" => Ok(Sink::Stdout),
        "stderr" => Ok(Sink::Stderr),
        "" => Err(refused()),
        "disabled" => Err(refused().hint("write `access_log: disabled`")),
        _ if path.ends_with('/') => Err(refused().hint("a directory cannot be written to")),
        _ if is_bare && SWITCHES.contains(&path.to_lowercase().as_str()) => {
            Err(refused().hint("did you mean `disabled`?"))
        }
        _ => match nearest(path, ["stdout", "stderr"]).filter(|_| is_bare) {
            Some(word) => {
                Err(refused().hint(format!("did you mean `{word}`? a file of that name is `./{path}`")))
            }
            None => Ok(Sink::File(beside(file, path))),
        },
    }
}

/// Resolves `path` relative to the directory of `file`.
fn beside(file: &Path, path: &str) -> std::path::PathBuf {
    file.parent().map_or_else(|| path.into(), |directory| directory.join(path))
}

fn duration(raw: Option<&raw::Duration>, at: At<'_>, report: &mut Report<'_>) -> Option<Duration> {
    raw.and_then(|raw| report.take(at, parse::duration(&raw.0)))
}

/// Reads a timeout, which must not be zero: with zero, every operation would time out.
fn timeout(raw: &Option<raw::Duration>, default: Duration, at: At<'_>, report: &mut Report<'_>) -> Duration {
    positive(raw.as_ref(), at, report).unwrap_or(default)
}

fn positive(raw: Option<&raw::Duration>, at: At<'_>, report: &mut Report<'_>) -> Option<Duration> {
    let length = duration(raw, at, report)?;
    if length.is_zero() {
        report.value(at, "must be longer than 0, got 0");
    }
    Some(length)
}

/// Returns the value of a section that is turned on; `None` if it is turned off. `true` gives no value and is
/// reported as `fault`.
fn on<'r, T>(raw: &'r OrOff<T>, fault: Fault, at: At<'_>, report: &mut Report<'_>) -> Option<&'r T> {
    match raw {
        OrOff::On(raw) => Some(raw),
        OrOff::Switch(false) => None,
        OrOff::Switch(true) => {
            report.value(at, fault);
            None
        }
    }
}

/// Returns the keys that are given.
fn given<'k>(keys: impl IntoIterator<Item = (&'k str, bool)>) -> impl Iterator<Item = &'k str> {
    keys.into_iter().filter_map(|(key, is_given)| is_given.then_some(key))
}

/// Applies `read` to each item at its position; leaves out items for which it returns `None`.
fn each<'l, I, T, const MIN: usize>(
    list: &'l raw::List<I, MIN>,
    at: At<'_>,
    mut read: impl FnMut(&'l I, At<'_>) -> Option<T>,
) -> Vec<T> {
    let read = |(index, item)| match index {
        Some(index) => read(item, at.item(index)),
        None => read(item, at.same()),
    };
    list.items().filter_map(read).collect()
}
