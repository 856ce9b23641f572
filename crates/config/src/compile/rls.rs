//! Envoy's rate limit service.

mod xds;

use std::net::SocketAddr;
use std::sync::Arc;

use http::HeaderName;

use super::listeners::UsedAddresses;
use super::{client_limits, limit_scope, tls};
use crate::at::At;
use crate::data_files::DataFiles;
use crate::diagnostic::{Diagnostics, ValueError};
use crate::quoting::quoted;
use crate::{defaults, parse, raw};
use weir_policy::rules::shared_limit::OnStoreLoss;
use weir_rls::options::{
    Connections, HttpEndpoint, LoadedRules, RlsOptions, RlsPorts, RulesDirectory, load_rules,
};
use weir_rls::settings::{DomainSettings, HeaderNames, RlsSettings};
use weir_telemetry::statsd;

pub(super) fn compile(
    root: &raw::Root,
    used_addresses: &mut UsedAddresses,
    files: &mut DataFiles,
    report: &Diagnostics<'_>,
) -> Option<RlsOptions> {
    let (raw, at) = (root.rls.as_ref()?, report.section("rls"));
    let has_store = root.store.is_some() || report.section("store").is_reported();
    let ports = compile_ports(raw, at, used_addresses);
    let tls = raw.tls.as_deref().and_then(|raw| tls::compile_server(raw, at.key("tls"), files));
    let is_required = raw.config.as_ref().and_then(|config| config.required).unwrap_or(true);
    let decisions = Arc::new(compile_settings(raw, at));
    let client_names = read_client_names(raw, at);
    let scope = limit_scope::compile_rls_scope(raw.scope.as_ref(), at.key("scope"), has_store);
    let has_regions = root.store.as_ref().is_some_and(|store| store.regions.is_some());
    if has_regions && scope.as_ref().is_some_and(|scope| scope.on_store_loss == OnStoreLoss::StrictSplit) {
        at.key("scope").key("on_store_loss").error(limit_scope::strict_split_in_regions());
    }
    let config = raw.config.as_ref();
    let directory = config.and_then(|config| compile_directory(config, files));
    let loaded = directory.as_ref().map(|directory| compile_rules(directory, at.key("config"), is_required));
    let xds = config.and_then(|config| xds::compile(config, at.key("config"), files));
    let loaded = loaded.flatten();
    Some(RlsOptions {
        ports: ports?,
        tls,
        client_names,
        decision_settings: decisions,
        shared_limit: scope,
        directory,
        loaded_rules: loaded,
        xds,
    })
}

/// Reads the names that client certificates must have. Reports names without `client_ca`, because then no
/// certificate is required.
fn read_client_names(raw: &raw::Rls, at: At<'_>) -> Arc<[Box<str>]> {
    let names = raw.client_names.iter().flat_map(|names| names.items());
    let names: Arc<[Box<str>]> = names.map(|(_, name)| name.as_str().into()).collect();
    let verifies = raw.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    if !names.is_empty() && !verifies && !at.key("tls").is_reported() {
        at.inapplicable_key("client_names", "without `tls.client_ca`");
    }
    names
}

/// Compiles the export of statistics to StatsD.
fn compile_statsd(raw: Option<&raw::Statsd>, at: At<'_>) -> Option<statsd::StatsdSettings> {
    let raw = raw?;
    let address = raw.address.as_deref()?;
    let is_host_port = address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0));
    if !is_host_port {
        at.key("address").error(format!("expected `host:port`, got {}", quoted(address)));
    }
    Some(statsd::StatsdSettings {
        address: address.into(),
        protocol: raw.protocol.unwrap_or_default(),
        interval: at.key("interval").timeout(&raw.interval, defaults::STATSD_INTERVAL),
        tags: raw.tags.clone().unwrap_or_default(),
    })
}

fn compile_ports(raw: &raw::Rls, at: At<'_>, used_addresses: &mut UsedAddresses) -> Option<RlsPorts> {
    let grpc = used_addresses.read_listener_address(raw.address.as_ref(), at.key("address"));
    let mut door =
        |raw: Option<&raw::Address>, at: At<'_>, door: HttpEndpoint| -> Option<(SocketAddr, HttpEndpoint)> {
            Some((used_addresses.read_tcp_address(raw, at)?, door))
        };
    let http = door(raw.http.as_ref(), at.key("http"), HttpEndpoint::Http);
    let debug = door(raw.debug.as_ref(), at.key("debug"), HttpEndpoint::Debug);
    let prometheus = raw.prometheus.as_ref().and_then(|raw| {
        let path = raw.path.as_deref().unwrap_or(defaults::METRICS_PATH);
        door(raw.address.as_ref(), at.key("prometheus").key("address"), HttpEndpoint::Metrics(path.into()))
    });
    let path = raw.prometheus.as_ref().and_then(|raw| raw.path.as_deref());
    if let Some(path) = path.filter(|path| !path.starts_with('/')) {
        let error = ValueError::new(format!("expected a path that begins with `/`, got {}", quoted(path)));
        at.key("prometheus").key("path").error(error);
    }
    let empty = raw::RlsConnections::default();
    let (given, given_at) = (raw.connections.as_ref().unwrap_or(&empty), at.key("connections"));
    let connections = Connections {
        max_age: given_at.key("max_age").timeout(&given.max_age, defaults::RLS_MAX_CONNECTION_AGE),
        grace: given_at.key("grace").timeout(&given.grace, defaults::RLS_CONNECTION_GRACE),
        max_connections: given.max.and_then(client_limits::max_connections),
    };
    let doors = [http, debug, prometheus].into_iter().flatten().collect();
    let statsd = compile_statsd(raw.statsd.as_ref(), at.key("statsd"));
    Some(RlsPorts { grpc: grpc?, http_endpoints: doors, statsd, connections })
}

fn compile_settings(raw: &raw::Rls, at: At<'_>) -> RlsSettings {
    let near_limit = raw.near_limit.as_ref();
    let near_limit = near_limit.and_then(|raw| at.key("near_limit").ok(parse::percentage(&raw.0)));
    let own = raw.domains.iter().flatten();
    let own = own.map(|(domain, own)| {
        let smoothing = own.algorithm.unwrap_or_default();
        (domain.as_str().into(), DomainSettings { counting: own.counting, smoothing })
    });
    RlsSettings {
        shadow_mode: raw.shadow_mode.unwrap_or_default(),
        quota_mode: raw.quota_mode.unwrap_or_default(),
        near_limit_ratio: near_limit.map_or(0.8, |share| share.as_fraction()),
        header_names: read_header_names(raw.response_headers.as_ref(), at.key("response_headers")),
        dynamic_metadata: raw.dynamic_metadata.unwrap_or_default(),
        needs_rules: !raw.healthy_without_rules.unwrap_or_default(),
        needs_domains: !raw.healthy_without_domains.unwrap_or(true),
        counting: raw.counting.unwrap_or_default(),
        domains: own.collect(),
    }
}

fn read_header_names(raw: Option<&raw::ResponseHeaders>, at: At<'_>) -> Option<HeaderNames> {
    let names = match raw? {
        raw::ResponseHeaders::Switch(false) => return None,
        raw::ResponseHeaders::Switch(true) => return Some(HeaderNames::default()),
        raw::ResponseHeaders::Names(names) => names,
    };
    let name = |given: &Option<String>, key: &'static str, default: &'static str| -> Arc<str> {
        let given = given.as_deref().unwrap_or(default);
        if HeaderName::try_from(given).is_err() {
            at.key(key).error(format!("not a header name, got {}", quoted(given)));
        }
        given.into()
    };
    Some(HeaderNames {
        limit: name(&names.limit, "limit", defaults::LIMIT_HEADER),
        remaining: name(&names.remaining, "remaining", defaults::REMAINING_HEADER),
        reset: name(&names.reset, "reset", defaults::RESET_HEADER),
    })
}

fn compile_directory(raw: &raw::RlsConfig, files: &DataFiles) -> Option<RulesDirectory> {
    Some(RulesDirectory {
        path: files.resolve_path(raw.directory.as_deref()?),
        prefix: raw.prefix.clone().unwrap_or_default().into(),
        includes_dotfiles: raw.dotfiles.unwrap_or_default(),
        merge_domains: raw.merge_domains.unwrap_or_default(),
    })
}

/// Loads the rules as they are at present. Error messages use the wording of envoyproxy/ratelimit.
fn compile_rules(directory: &RulesDirectory, at: At<'_>, is_required: bool) -> Option<LoadedRules> {
    let at = at.key("directory");
    match load_rules(directory) {
        Ok(loaded) => {
            if loaded.rules.is_empty() {
                let note = match &*directory.prefix {
                    "" => format!("no rule files in {}", directory.path.display()),
                    prefix => format!(
                        "no rule files in {} whose paths begin with {}",
                        directory.path.display(),
                        quoted(prefix)
                    ),
                };
                at.note(ValueError::new(note).with_hint("nothing is limited until there is one"));
            }
            return Some(loaded);
        }
        Err(error) if is_required => at.error(error.to_string()),
        Err(error) => {
            let note = ValueError::new(error.to_string());
            at.note(note.with_hint("no rules are in force until this is fixed"));
        }
    }
    None
}
