//! Envoy's rate limit service.

mod xds;

use std::net::SocketAddr;
use std::sync::Arc;

use http::HeaderName;

use super::addresses::Taken;
use super::{clients, shared, timeout, tls};
use crate::config::at::At;
use crate::config::files::Files;
use crate::config::problem::{Fault, Report, quoted};
use crate::config::{defaults, parse, raw};
use crate::rls::options::{Connections, Directory, Door, Loaded, Options, Ports, load};
use crate::rls::settings::{DomainSettings, HeaderNames, Settings};
use crate::telemetry::statsd;

pub(super) fn compile(
    root: &raw::Root,
    taken: &mut Taken,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<Options> {
    let (raw, at) = (root.rls.as_ref()?, At::ROOT.key("rls"));
    let has_store = root.store.is_some() || report.is_faulty(At::ROOT.key("store"));
    let ports = ports(raw, at, taken, report);
    let tls = raw.tls.as_deref().and_then(|raw| tls::server(raw, at.key("tls"), files, report));
    let is_required = raw.config.as_ref().and_then(|config| config.required).unwrap_or(true);
    let decisions = Arc::new(decisions(raw, at, report));
    let client_names = client_names(raw, at, report);
    let scope = shared::of_service(raw.scope.as_ref(), at.key("scope"), has_store, report);
    let config = raw.config.as_ref();
    let directory = config.and_then(|config| directory(config, files));
    let loaded = directory.as_ref().map(|directory| loaded(directory, at.key("config"), is_required, report));
    let xds = config.and_then(|config| xds::compile(config, at.key("config"), files, report));
    let loaded = loaded.flatten();
    Some(Options { ports: ports?, tls, client_names, decisions, scope, directory, loaded, xds })
}

/// Reads the names that client certificates must have. Reports names without `client_ca`, because then no
/// certificate is required.
fn client_names(raw: &raw::Rls, at: At<'_>, report: &mut Report<'_>) -> Arc<[Box<str>]> {
    let names = raw.client_names.iter().flat_map(|names| names.items());
    let names: Arc<[Box<str>]> = names.map(|(_, name)| name.as_str().into()).collect();
    let verifies = raw.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    if !names.is_empty() && !verifies && !report.is_faulty(at.key("tls")) {
        report.key(at.key("client_names"), "`client_names` has no meaning without `tls.client_ca`");
    }
    names
}

/// Compiles the export of statistics to StatsD.
fn statsd(raw: Option<&raw::Statsd>, at: At<'_>, report: &mut Report<'_>) -> Option<statsd::Settings> {
    let raw = raw?;
    let address = raw.address.as_deref()?;
    let is_place = address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0));
    if !is_place {
        report.value(at.key("address"), format!("expected `host:port`, got {}", quoted(address)));
    }
    Some(statsd::Settings {
        address: address.into(),
        interval: timeout(&raw.interval, defaults::STATSD_INTERVAL, at.key("interval"), report),
        tags: raw.tags.clone().unwrap_or_default(),
    })
}

fn ports(raw: &raw::Rls, at: At<'_>, taken: &mut Taken, report: &mut Report<'_>) -> Option<Ports> {
    let grpc = taken.listener(raw.address.as_ref(), at.key("address"), report);
    let mut door = |raw: Option<&raw::Address>, at: At<'_>, door: Door| -> Option<(SocketAddr, Door)> {
        Some((taken.port(raw, at, report)?, door))
    };
    let http = door(raw.http.as_ref(), at.key("http"), Door::Http);
    let debug = door(raw.debug.as_ref(), at.key("debug"), Door::Debug);
    let prometheus = raw.prometheus.as_ref().and_then(|raw| {
        let path = raw.path.as_deref().unwrap_or(defaults::METRICS_PATH);
        door(raw.address.as_ref(), at.key("prometheus").key("address"), Door::Metrics(path.into()))
    });
    let path = raw.prometheus.as_ref().and_then(|raw| raw.path.as_deref());
    if let Some(path) = path.filter(|path| !path.starts_with('/')) {
        let fault = Fault::new(format!("expected a path that begins with `/`, got {}", quoted(path)));
        report.value(at.key("prometheus").key("path"), fault);
    }
    let unsaid = raw::RlsConnections::default();
    let (given, given_at) = (raw.connections.as_ref().unwrap_or(&unsaid), at.key("connections"));
    let connections = Connections {
        max_age: timeout(&given.max_age, defaults::RLS_MAX_AGE, given_at.key("max_age"), report),
        grace: timeout(&given.grace, defaults::RLS_GRACE, given_at.key("grace"), report),
        max: given.max.and_then(clients::connections),
    };
    let doors = [http, debug, prometheus].into_iter().flatten().collect();
    let statsd = statsd(raw.statsd.as_ref(), at.key("statsd"), report);
    Some(Ports { grpc: grpc?, doors, statsd, connections })
}

fn decisions(raw: &raw::Rls, at: At<'_>, report: &mut Report<'_>) -> Settings {
    let near_limit = raw.near_limit.as_ref();
    let near_limit = near_limit.and_then(|raw| report.take(at.key("near_limit"), parse::share(&raw.0)));
    let own = raw.domains.iter().flatten();
    let own = own.map(|(domain, own)| {
        let smoothing = own.algorithm.unwrap_or_default();
        (domain.as_str().into(), DomainSettings { counting: own.counting, smoothing })
    });
    Settings {
        shadow_mode: raw.shadow_mode.unwrap_or_default(),
        quota_mode: raw.quota_mode.unwrap_or_default(),
        near_limit_ratio: near_limit.map_or(0.8, |share| share.as_fraction()),
        headers: headers(raw.response_headers.as_ref(), at.key("response_headers"), report),
        dynamic_metadata: raw.dynamic_metadata.unwrap_or_default(),
        needs_rules: !raw.healthy_without_rules.unwrap_or_default(),
        counting: raw.counting.unwrap_or_default(),
        domains: own.collect(),
    }
}

fn headers(raw: Option<&raw::ResponseHeaders>, at: At<'_>, report: &mut Report<'_>) -> Option<HeaderNames> {
    let names = match raw? {
        raw::ResponseHeaders::Switch(false) => return None,
        raw::ResponseHeaders::Switch(true) => return Some(HeaderNames::default()),
        raw::ResponseHeaders::Names(names) => names,
    };
    let mut name = |given: &Option<String>, key: &'static str, default: &'static str| -> Arc<str> {
        let given = given.as_deref().unwrap_or(default);
        if HeaderName::try_from(given).is_err() {
            report.value(at.key(key), format!("not a header name, got {}", quoted(given)));
        }
        given.into()
    };
    Some(HeaderNames {
        limit: name(&names.limit, "limit", defaults::LIMIT_HEADER),
        remaining: name(&names.remaining, "remaining", defaults::REMAINING_HEADER),
        reset: name(&names.reset, "reset", defaults::RESET_HEADER),
    })
}

fn directory(raw: &raw::RlsConfig, files: &Files) -> Option<Directory> {
    Some(Directory {
        path: files.path(raw.directory.as_deref()?),
        prefix: raw.prefix.clone().unwrap_or_default().into(),
        dotfiles: raw.dotfiles.unwrap_or_default(),
        merge_domains: raw.merge_domains.unwrap_or_default(),
    })
}

/// Loads the rules as they are at present. Error messages use the wording of envoyproxy/ratelimit.
fn loaded(directory: &Directory, at: At<'_>, is_required: bool, report: &mut Report<'_>) -> Option<Loaded> {
    let at = at.key("directory");
    match load(directory) {
        Ok(loaded) => return Some(loaded),
        Err(error) if is_required => report.value(at, error.to_string()),
        Err(error) => {
            let note = Fault::new(error.to_string());
            report.note(at, note.hint("no rules are in force until this is fixed"));
        }
    }
    None
}
