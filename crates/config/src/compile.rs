//! Converts the decoded configuration into its meaning, and reports problems that only the meaning shows.
//!
//! An invalid part is replaced by a default or left out, so that the rest is still checked. The result is
//! used only if nothing was reported.

mod access_log;
mod alerts;
mod any_of;
mod bodies;
mod bootstrap;
mod classes;
mod client_limits;
mod context;
mod cost;
mod counters;
mod decisions;
mod descriptors;
mod distinct;
mod diversion;
mod domain;
mod endpoints;
mod feedback;
mod forward_proxy;
mod geo;
mod graphql;
mod grpc;
mod http_target;
mod in_flight;
mod jwt;
mod limit_headers;
mod limit_scope;
mod limits;
mod listeners;
mod matching;
mod nested_networks;
mod networks;
mod own_limits;
mod patterns;
mod plans;
mod rejection;
mod remote_limit;
mod respond;
mod response_cost;
mod retries;
mod rls;
mod rule_notes;
mod rules;
mod secret_headers;
mod state_file;
mod stated_limit;
mod store_settings;
mod streams;
mod throttle;
mod tls;
mod tracing;
mod trailing_slash;
mod upstream_headers;
mod upstream_tls;
mod upstreams;
mod wait;
mod windows;

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use self::context::{CompileContext, MatcherOwner, StoreFacts, UsedFields};
use self::upstreams::CompiledUpstreams;
use super::content_hashes::ContentHashes;
use super::data_files::DataFiles;
use super::diagnostic::{Diagnostics, ValueError};
use super::parse;
use super::quoting::quoted;
use super::raw::{self, OrOff};
use super::{Config, defaults};
use crate::at::At;
use weir_limiter::elastic::signal::SignalSet;
use weir_net::drain;
use weir_policy::engine::PolicySpec;
use weir_policy::identify;
use weir_policy::identify::cidr::CidrSet;
use weir_policy::identify::client_headers::{AddressHeader, names_client_or_target};
use weir_policy::identify::forwarded::X_FORWARDED_FOR;
use weir_policy::identify::via::Via;
use weir_policy::rules::rule::Rule;

/// Compiles the configuration; `None` if it has problems. Files that it names are relative to `file`.
pub(super) fn compile(
    raw: &raw::Root,
    file: &Path,
    files: &mut DataFiles,
    report: &Diagnostics<'_>,
) -> Option<Config> {
    let root = report.root();
    let central = bootstrap::compile(raw.config.as_ref(), file, root.key("config"), files);
    let tracing = tracing::compile(raw.tracing.as_ref(), root.key("tracing"), files);
    let alerts = alerts::compile(raw.alerts.as_ref(), root.key("alerts"), files);
    check_required_keys(raw, report);
    let mut listeners = listeners::compile(raw, files, report);
    let rls = rls::compile(raw, &mut listeners.used_addresses, files, report);
    let (mut access_log, log_keys) = access_log::compile(raw, file, report);
    let drain = compile_drain(raw.drain.as_ref(), root.key("drain"));
    let state_file = state_file::compile(raw.state.as_ref(), file, root.key("state"));
    let overload = client_limits::compile_overload(raw.overload.as_ref(), root.key("overload"));
    let mut identify = compile_identify(raw, files, report);
    let response = limit_headers::compile(raw, report);
    let store = store_settings::compile(raw.store.as_ref(), root.key("store"), files);
    let mut context = CompileContext {
        files,
        limit_headers: response.clone(),
        trailing_slash: raw.trailing_slash.unwrap_or_default(),
        listeners: listeners.all.iter().map(|listener| listener.settings.name.clone()).collect(),
        deciding_listeners: decisions::listener_names(&listeners.all),
        has_geo_database: names_geo_file(raw, |geo| &geo.database, root),
        has_asn_database: names_geo_file(raw, |geo| &geo.asn_database, root),
        has_plans: raw.plans.is_some() || root.key("plans").is_reported(),
        plans: None,
        plan_names: None,
        has_jwt: raw.jwt.is_some() || root.key("jwt").is_reported(),
        has_trusted_proxies: !identify.trusted_proxies.is_empty(),
        has_client_certificates: tls::verifies_clients(raw),
        has_rls: raw.rls.is_some() || root.key("rls").is_reported(),
        matcher_owner: MatcherOwner::default(),
        ipv6_prefix: identify.ipv6_prefix,
        store: StoreFacts::read(raw.store.as_ref(), store.as_ref(), root.key("store")),
        needs_store: rls.as_ref().is_some_and(|rls| rls.shared_limit.is_some()),
        remote_services: Vec::new(),
        used_claims: RefCell::default(),
        used_fields: UsedFields::default(),
    };
    context.plans = plans::compile(raw.plans.as_ref(), root.key("plans"), &mut context);
    let rules = compile_rules(raw, &mut context, report);
    access_log.iter_mut().for_each(|log| access_log::hide_parameters(log, log_keys, &rules));
    note_questionable_rules(raw, &rules, report);
    let upstreams = upstreams::compile(raw, &listeners.used_addresses, &mut context, report);
    diversion::check_names(raw, upstreams.as_ref().map(|compiled| &*compiled.all), root.key("rules"));
    note_unused_store(store.is_some() && !context.needs_store, report);
    let fields = context.used_fields.requests.take();
    let bodies = bodies::compile(raw.bodies.as_ref(), root.key("bodies"), fields);
    let response_fields = response_cost::fields(&context.used_fields);
    let services = std::mem::take(&mut context.remote_services);
    identify.jwt = jwt::compile(raw.jwt.as_ref(), root.key("jwt"), context).map(Arc::new);
    let CompiledUpstreams { all: upstreams, routes, classes } =
        upstreams.filter(|_| report.has_no_errors())?;
    Some(Config {
        central,
        listeners: listeners.all,
        workers: worker_count(raw.workers),
        upstreams,
        admin: listeners.admin,
        access_log,
        log_keys,
        tracing,
        alerts,
        drain,
        overload,
        max_keys: raw.limiter.as_ref().and_then(|raw| raw.max_keys).unwrap_or(defaults::MAX_KEYS),
        state_file,
        store,
        policy: PolicySpec { identify, rules, routes, classes, bodies, response_fields, response },
        elastic_signals: compile_elastic_signals(raw.elastic.as_ref()),
        rls,
        remote_services: services,
        notices: Vec::new(),
        content_hashes: ContentHashes::default(),
    })
}

/// Whether the configuration names a database of this kind, or may do so if its problems are solved.
fn names_geo_file(raw: &raw::Root, file: fn(&raw::Geo) -> &Option<String>, root: At<'_>) -> bool {
    raw.geo.as_ref().is_some_and(|geo| file(geo).is_some()) || root.key("geo").is_reported()
}

fn compile_rules(raw: &raw::Root, context: &mut CompileContext<'_>, report: &Diagnostics<'_>) -> Arc<[Rule]> {
    let root = report.root();
    let rules = raw.rules.as_ref().map(|raw| rules::compile(raw, root.key("rules"), context));
    let mut rules = rules.unwrap_or_default();
    any_of::compile(raw, &mut rules, root);
    let (raw_plans, plans) = (raw.plans.as_ref(), context.plans.as_deref());
    plans::note_plans_without_rule(raw_plans, plans, &rules, root.key("plans"));
    rules.into()
}

/// Adds notes on rules that are valid and may not do what was meant.
fn note_questionable_rules(root: &raw::Root, rules: &[Rule], report: &Diagnostics<'_>) {
    let at = report.section("rules");
    let Some(raw) = &root.rules else { return };
    if root.trailing_slash.is_none() {
        trailing_slash::note_bypassed_rules(raw, at, rules);
    }
    // Problems of one rule would make notes on others wrong.
    if report.has_no_errors() {
        let ipv6_prefix = root.client_ip.as_ref().and_then(|raw| raw.ipv6_prefix);
        rule_notes::add_notes(raw, at, rules, ipv6_prefix.unwrap_or(defaults::IPV6_PREFIX));
    }
}

fn note_unused_store(is_unused: bool, report: &Diagnostics<'_>) {
    if is_unused {
        let note = ValueError::new("not used, because no rule needs the store");
        report
            .root()
            .key("store")
            .note(note.with_hint("set `scope: shared` or `respond` on a rule, or remove `store`"));
    }
}

/// Requires `listeners` and `rules`, so that an empty or truncated file is not accepted as one without rules.
/// A configuration with `rls` alone needs neither.
fn check_required_keys(raw: &raw::Root, report: &Diagnostics<'_>) {
    let root = report.root();
    let is_rls_only = raw.listeners.is_none() && (raw.rls.is_some() || root.key("rls").is_reported());
    if is_rls_only {
        return;
    }
    for (key, is_missing) in [("listeners", raw.listeners.is_none()), ("rules", raw.rules.is_none())] {
        if is_missing && !root.key(key).is_reported() {
            root.key(key).error(format!("missing, `{key}` is required"));
        }
    }
}

/// `available_parallelism` takes the CPU quota of a container into account.
fn worker_count(raw: Option<raw::Workers>) -> NonZeroUsize {
    match raw {
        Some(raw::Workers::Count(count)) => count,
        Some(raw::Workers::Auto(_)) | None => available_parallelism().unwrap_or(NonZeroUsize::MIN),
    }
}

/// Returns the configured signals, or all of them.
fn compile_elastic_signals(raw: Option<&raw::Elastic>) -> SignalSet {
    let Some(named) = raw.and_then(|raw| raw.signals.as_ref()) else { return SignalSet::ALL };
    named.items().map(|(_, signal)| *signal).collect()
}

fn compile_drain(raw: Option<&raw::Drain>, at: At<'_>) -> drain::DrainSettings {
    let empty = raw::Drain::default();
    let raw::Drain { delay, timeout } = raw.unwrap_or(&empty);
    drain::DrainSettings {
        delay: at.key("delay").duration(delay.as_ref()).unwrap_or(defaults::DRAIN_DELAY),
        timeout: at.key("timeout").duration(timeout.as_ref()).unwrap_or(defaults::DRAIN_TIMEOUT),
    }
}

fn compile_identify(
    root: &raw::Root,
    files: &mut DataFiles,
    report: &Diagnostics<'_>,
) -> identify::IdentifySettings {
    let empty = raw::ClientIp::default();
    let (raw, at) = (root.client_ip.as_ref().unwrap_or(&empty), report.section("client_ip"));
    let mut proxies = |list: &Option<raw::ZeroOrMany<raw::Networks>>, key, chosen| {
        let at = at.key(key);
        let set = list.as_ref().map_or_else(CidrSet::default, |list| networks::compile_set(list, at, files));
        if set.holds_a_family() {
            at.note(format!("every peer is trusted, so any client can forge {chosen}"));
        }
        set
    };
    let trusted_proxies = proxies(&raw.trusted_proxies, "trusted_proxies", "its address");
    let client_certificate_proxies = proxies(
        &raw.client_certificate_proxies,
        "client_certificate_proxies",
        "the certificate that upstreams receive",
    );
    let address_headers = compile_address_headers(raw, at);
    let geo = geo::load_databases(root.geo.as_ref(), report.section("geo"), files);
    identify::IdentifySettings {
        trusted_proxies,
        reads_other_headers: address_headers
            .iter()
            .map(AddressHeader::name)
            .any(|name| *name != X_FORWARDED_FOR && !names_client_or_target(name.as_str())),
        address_headers,
        keeps_client_headers: root.forwarded_headers == Some(raw::ForwardedHeaders::Keep),
        client_certificate_proxies,
        ipv6_prefix: raw.ipv6_prefix.unwrap_or(defaults::IPV6_PREFIX),
        geo,
        jwt: None,
        via: compile_via(root.via.as_ref(), report),
    }
}

/// Returns the headers from which the address of the client is read.
fn compile_address_headers(raw: &raw::ClientIp, at: At<'_>) -> Box<[AddressHeader]> {
    let Some(names) = &raw.header else { return Box::new([AddressHeader::default()]) };
    let mut headers: Vec<AddressHeader> = Vec::new();
    map_items(names, at.key("header"), |name, at| {
        let header = AddressHeader::new(at.ok(matching::parse_header_name(name))?);
        if headers.contains(&header) {
            at.error(format!("`{}` is listed twice", header.name()));
        }
        headers.push(header);
        Some(())
    });
    if raw.trusted_proxies.is_none() && headers != [AddressHeader::default()] {
        let note = ValueError::new("has no effect without `trusted_proxies`");
        at.key("header").note(note.with_hint("add the networks of the proxies that set it"));
    }
    headers.into()
}

/// Returns how this hop names itself in `Via`.
fn compile_via(raw: Option<&OrOff<raw::ViaName>>, report: &Diagnostics<'_>) -> Option<Via> {
    let at = report.section("via");
    let Some(raw) = raw else { return Via::new(Via::DEFAULT_NAME) };
    let error = ValueError::new("expected a name or disabled, got true").with_suggestion(Some("weir"));
    let raw::ViaName(name) = at.unless_off(raw, error)?;
    if matches!(name.as_str(), "disabled" | "off") {
        return None;
    }
    let via = Via::new(name);
    if via.is_none() {
        let error =
            format!("expected letters, digits and punctuation such as `-` and `.`, got {}", quoted(name));
        at.error(error);
    }
    via
}

/// Resolves `path` relative to the directory of `file`.
fn resolve_relative(file: &Path, path: &str) -> PathBuf {
    file.parent().map_or_else(|| path.into(), |directory| directory.join(path))
}

impl At<'_> {
    fn duration(&self, raw: Option<&raw::Duration>) -> Option<Duration> {
        raw.and_then(|raw| self.ok(parse::duration(&raw.0)))
    }

    /// Reads a timeout, which must not be zero: with zero, every operation would time out.
    fn timeout(&self, raw: &Option<raw::Duration>, default: Duration) -> Duration {
        self.nonzero_duration(raw.as_ref()).unwrap_or(default)
    }

    fn nonzero_duration(&self, raw: Option<&raw::Duration>) -> Option<Duration> {
        let length = self.duration(raw)?;
        if length.is_zero() {
            self.error("must be longer than 0, got 0");
        }
        Some(length)
    }

    /// Returns the path of a file to which `what` is written, relative to the directory of `config`.
    fn written_file(&self, what: &str, path: &str, config: &Path) -> Option<PathBuf> {
        if path.ends_with('/') || Path::new(path).file_name().is_none() {
            let error = ValueError::new(format!("expected a file, got {}", quoted(path)));
            self.error(error.with_hint("a directory cannot be written to"));
            return None;
        }
        self.note_switch_as_file(what, path, "");
        Some(resolve_relative(config, path))
    }

    /// Adds a note for a written file whose name reads like a switch that is turned on. `alternative` is what else may be
    /// meant, with a space behind it.
    fn note_switch_as_file(&self, what: &str, path: &str, alternative: &str) {
        const SWITCHES_ON: [&str; 7] = ["on", "yes", "y", "true", "enable", "enabled", "1"];
        if SWITCHES_ON.contains(&path.to_lowercase().as_str()) {
            let note = ValueError::new(format!("writes {what} to a file called {}", quoted(path)));
            self.note(note.with_hint(format!("{alternative}write `./{path}` if the file is meant")));
        }
    }

    /// Returns the value of a section that is turned on; `None` if it is turned off. `true` gives no value and is
    /// reported as `error`.
    fn unless_off<'r, T>(&self, raw: &'r OrOff<T>, error: ValueError) -> Option<&'r T> {
        match raw {
            OrOff::On(raw) => Some(raw),
            OrOff::Switch(false) => None,
            OrOff::Switch(true) => {
                self.error(error);
                None
            }
        }
    }
}

/// Returns the keys that are given.
fn given_keys<'k>(keys: impl IntoIterator<Item = (&'k str, bool)>) -> impl Iterator<Item = &'k str> {
    keys.into_iter().filter_map(|(key, is_given)| is_given.then_some(key))
}

/// Applies `read` to each item at its position; leaves out items for which it returns `None`.
fn map_items<'l, I, T, const MIN: usize>(
    list: &'l raw::List<I, MIN>,
    at: At<'_>,
    mut read: impl FnMut(&'l I, At<'_>) -> Option<T>,
) -> Vec<T> {
    let read = |(index, item)| match index {
        Some(index) => read(item, at.item(index)),
        None => read(item, at.single_item()),
    };
    // Most lists have no invalid items.
    let mut items = Vec::with_capacity(list.items().size_hint().1.unwrap_or_default());
    items.extend(list.items().filter_map(read));
    items
}
