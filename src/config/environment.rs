//! Configuration from the environment variables of envoyproxy/ratelimit, for `weir rls`.
//!
//! The result is an ordinary configuration that contains only `rls`, and can be printed and saved. Variables
//! have the same meaning and defaults as in the reference implementation. `REDIS_URL` and similar variables
//! configure the shared store. Unsupported variables are listed in a notice and ignored.

mod redis;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::diagnostic::quoted;
use super::source;

/// Prefixes of unsupported variables.
const IGNORED_STORE_PREFIXES: [&str; 7] = [
    "REDIS_PERSECOND",
    "REDIS_PIPELINE_",
    "REDIS_POOL_",
    "MEMCACHE_",
    "LOCAL_CACHE_SIZE_IN_BYTES",
    "EXPIRATION_JITTER_",
    "REDIS_HEALTH_CHECK_",
];
const IGNORED_PREFIXES: [&str; 4] =
    ["TRACING_", "CACHE_KEY_PREFIX", "PROMETHEUS_MAPPER_YAML", "USE_DOG_STATSD"];

/// Address of the admin port: the only variable read here that is Weir's own.
const ADMIN_ADDRESS_VARIABLE: &str = "WEIR_ADMIN_ADDRESS";

/// The result of reading the environment.
#[derive(Clone, Debug, PartialEq)]
pub struct EnvironmentConfig {
    /// The configuration, as YAML.
    pub text: String,
    /// Notices for the log, one line each.
    pub notices: Vec<String>,
    /// `LOG_LEVEL` as one of Weir's levels, if set.
    pub log_level: Option<&'static str>,
    /// Whether `LOG_FORMAT` is `json`.
    pub is_log_json: bool,
}

/// Creates a configuration from the variables of this process.
///
/// # Errors
/// Returns one line for each invalid variable.
pub fn read() -> Result<EnvironmentConfig, Vec<String>> {
    from_variables(&source::environment_variables())
}

/// Creates a configuration from `variables`.
///
/// # Errors
/// Returns one line for each invalid variable.
pub fn from_variables(variables: &BTreeMap<String, String>) -> Result<EnvironmentConfig, Vec<String>> {
    let mut reader =
        VariableReader { variables, problems: Vec::new(), notices: ignored_variable_notices(variables) };
    let mut configuration = json!({ "rls": rls_section(&mut reader) });
    if let Some(store) = redis::store_section(&mut reader) {
        configuration["store"] = store;
        if let Some(scope) = redis::scope_section(&reader) {
            configuration["rls"]["scope"] = scope;
        }
    }
    if let Some(address) = variables.get(ADMIN_ADDRESS_VARIABLE) {
        configuration["admin"] = json!({ "address": address });
    }
    escape_references(&mut configuration);
    let log_level = reader.log_level();
    let is_log_json = reader.text("LOG_FORMAT", "text") == "json";
    if !reader.problems.is_empty() {
        return Err(reader.problems);
    }
    let text = serde_yaml::to_string(&configuration).map_err(|error| vec![error.to_string()])?;
    Ok(EnvironmentConfig { text, notices: reader.notices, log_level, is_log_json })
}

/// Escapes `${`, so that values are taken literally and not as references to other variables.
fn escape_references(value: &mut Value) {
    match value {
        Value::String(text) => *text = text.replace("${", "$${"),
        Value::Array(items) => items.iter_mut().for_each(escape_references),
        Value::Object(map) => map.values_mut().for_each(escape_references),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn rls_section(env: &mut VariableReader<'_>) -> Value {
    let address = match env.text("GRPC_UDS", "") {
        "" => env.host_and_port("GRPC_HOST", "GRPC_PORT", 8081),
        path => format!("unix:{path}"),
    };
    let mut rls = json!({
        "address": address,
        "http": env.host_and_port("HOST", "PORT", 8080),
        "debug": env.host_and_port("DEBUG_HOST", "DEBUG_PORT", 6070),
        "config": rules_source(env),
        "counting": counting(env),
        "shadow_mode": env.boolean("SHADOW_MODE", false),
        "quota_mode": env.boolean("QUOTA_MODE", false),
        "near_limit": env.percentage("NEAR_LIMIT_RATIO", "0.8"),
        "dynamic_metadata": env.boolean("RESPONSE_DYNAMIC_METADATA", false),
        "connections": {
            "max_age": env.duration("GRPC_MAX_CONNECTION_AGE", "24h"),
            "grace": env.duration("GRPC_MAX_CONNECTION_AGE_GRACE", "1h"),
        },
        "healthy_without_rules": healthy_without_rules(env),
    });
    let san = env.text("GRPC_CLIENT_TLS_SAN", "");
    let optional = [
        ("prometheus", prometheus(env)),
        ("statsd", statsd(env)),
        ("tls", tls(env)),
        ("client_names", (!san.is_empty()).then(|| json!([san]))),
        ("response_headers", response_headers(env)),
    ];
    for (key, value) in optional {
        if let Some(value) = value {
            rls[key] = value;
        }
    }
    rls
}

/// The reference reports unhealthy until it has rules, unless it is configured to start without them.
fn healthy_without_rules(env: &mut VariableReader<'_>) -> bool {
    let starts_without = env.boolean("FORCE_START_WITHOUT_INITIAL_CONFIG", false);
    starts_without && !env.boolean("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", false)
}

fn counting(env: &mut VariableReader<'_>) -> &'static str {
    match env.boolean("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", false) {
        true => "only_over",
        false => "everything",
    }
}

/// Source of the rules: files, or a management server.
fn rules_source(env: &mut VariableReader<'_>) -> Value {
    let is_required = !env.boolean("FORCE_START_WITHOUT_INITIAL_CONFIG", false);
    let merge_domains = env.boolean("MERGE_DOMAIN_CONFIG", false);
    match env.text("CONFIG_TYPE", "FILE") {
        "FILE" => {}
        "GRPC_XDS_SOTW" => return json!({ "xds": xds(env), "merge_domains": merge_domains }),
        other => env.report_invalid("CONFIG_TYPE", "FILE or GRPC_XDS_SOTW", other),
    }
    let root = env.text("RUNTIME_ROOT", "/srv/runtime_data/current");
    let subdirectory = env.text("RUNTIME_SUBDIRECTORY", "");
    let root = if subdirectory.is_empty() {
        root.to_owned()
    } else {
        format!("{}/{subdirectory}", root.trim_end_matches('/'))
    };
    // With `RUNTIME_WATCH_ROOT`, the reference reads the files below the root whose dotted paths begin with
    // `config.`. Otherwise it reads only the application's directory.
    let watches_root = env.boolean("RUNTIME_WATCH_ROOT", true);
    let application = env.text("RUNTIME_APPDIRECTORY", "config");
    let (directory, prefix) = match watches_root {
        true => (root, "config."),
        false => (format!("{}/{application}", root.trim_end_matches('/')), ""),
    };
    json!({
        "directory": directory,
        "prefix": prefix,
        "dotfiles": !env.boolean("RUNTIME_IGNOREDOTFILES", false),
        "merge_domains": merge_domains,
        "required": is_required,
    })
}

/// Settings of a management server.
fn xds(env: &mut VariableReader<'_>) -> Value {
    let server = env.text("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000");
    let is_secure = env.boolean("CONFIG_GRPC_XDS_SERVER_USE_TLS", false);
    let first = env.duration("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s");
    let max_backoff = env.duration("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s");
    let metadata = env.metadata("CONFIG_GRPC_XDS_NODE_METADATA");
    let headers = env.name_value_map("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS");
    let mut xds = json!({
        "address": if is_secure { format!("https://{server}") } else { server.to_owned() },
        "node": env.text("CONFIG_GRPC_XDS_NODE_ID", super::defaults::XDS_NODE_ID),
        "metadata": metadata,
        "headers": headers,
        "backoff": format!("{first}..{max_backoff}"),
    });
    let max_size = env.text("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "");
    if !max_size.is_empty() {
        xds["largest"] = json!(format!("{max_size}B"));
    }
    if is_secure {
        let variables = [
            ("certificate", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT"),
            ("key", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
            ("ca", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
            ("server_name", "CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
        ];
        let given = variables.map(|(key, name)| (key, env.text(name, "")));
        let given = given.into_iter().filter(|(_, value)| !value.is_empty());
        xds["tls"] = given.map(|(key, value)| (key.to_owned(), json!(value))).collect();
    }
    xds
}

fn prometheus(env: &mut VariableReader<'_>) -> Option<Value> {
    let (address, path) = (env.text("PROMETHEUS_ADDR", ":9090"), env.text("PROMETHEUS_PATH", "/metrics"));
    let address = match address.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => address.to_owned(),
    };
    env.boolean("USE_PROMETHEUS", false).then(|| json!({ "address": address, "path": path }))
}

fn statsd(env: &mut VariableReader<'_>) -> Option<Value> {
    let host = env.text("STATSD_HOST", "localhost").to_owned();
    let port = env.port("STATSD_PORT", 8125);
    let interval = env.duration("STATS_FLUSH_INTERVAL", "10s");
    let is_used = env.boolean("USE_STATSD", true);
    let is_disabled = env.boolean("DISABLE_STATS", false) || env.boolean("USE_PROMETHEUS", false);
    let tags = env.name_value_map("EXTRA_TAGS");
    (is_used && !is_disabled).then(
        || json!({ "address": format!("{}:{port}", bracket_ipv6(&host)), "interval": interval, "tags": tags }),
    )
}

fn tls(env: &mut VariableReader<'_>) -> Option<Value> {
    let (certificate, key) = (env.text("GRPC_SERVER_TLS_CERT", ""), env.text("GRPC_SERVER_TLS_KEY", ""));
    let authorities = env.text("GRPC_CLIENT_TLS_CACERT", "");
    let mut tls = json!({ "certificate": certificate, "key": key });
    if !authorities.is_empty() {
        tls["client_ca"] = json!(authorities);
    }
    env.boolean("GRPC_SERVER_USE_TLS", false).then_some(tls)
}

fn response_headers(env: &mut VariableReader<'_>) -> Option<Value> {
    let names = json!({
        "limit": env.text("LIMIT_LIMIT_HEADER", super::defaults::LIMIT_HEADER),
        "remaining": env.text("LIMIT_REMAINING_HEADER", super::defaults::REMAINING_HEADER),
        "reset": env.text("LIMIT_RESET_HEADER", super::defaults::RESET_HEADER),
    });
    env.boolean("LIMIT_RESPONSE_HEADERS_ENABLED", false).then_some(names)
}

fn ignored_variable_notices(variables: &BTreeMap<String, String>) -> Vec<String> {
    let set = |prefixes: &[&str]| {
        let names = variables.keys().filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
        names.cloned().collect::<Vec<_>>().join(", ")
    };
    let stores = set(&IGNORED_STORE_PREFIXES);
    let others = set(&IGNORED_PREFIXES);
    let stores = (!stores.is_empty())
        .then(|| format!("variables ignored, because each instance decides in memory: {stores}"));
    let others = (!others.is_empty()).then(|| format!("unsupported variables ignored: {others}"));
    stores.into_iter().chain(others).collect()
}

/// Reads variables and collects their problems.
struct VariableReader<'a> {
    variables: &'a BTreeMap<String, String>,
    problems: Vec<String>,
    notices: Vec<String>,
}

impl<'a> VariableReader<'a> {
    fn text(&self, name: &str, default: &'a str) -> &'a str {
        self.variables.get(name).map_or(default, String::as_str)
    }

    fn report_invalid(&mut self, name: &str, expected: &str, got: &str) {
        self.problems.push(format!("{name}: expected {expected}, got {}", quoted(got)));
    }

    /// Accepts the values of Go's `strconv.ParseBool`.
    fn boolean(&mut self, name: &str, default: bool) -> bool {
        match self.text(name, "") {
            "" => default,
            "1" | "t" | "T" | "TRUE" | "true" | "True" => true,
            "0" | "f" | "F" | "FALSE" | "false" | "False" => false,
            other => {
                self.report_invalid(name, "true or false", other);
                default
            }
        }
    }

    fn log_level(&mut self) -> Option<&'static str> {
        let text = self.text("LOG_LEVEL", "");
        match text.to_ascii_lowercase().as_str() {
            "" => None,
            "trace" => Some("trace"),
            "debug" => Some("debug"),
            "info" => Some("info"),
            "warn" | "warning" => Some("warn"),
            "error" | "fatal" | "panic" => Some("error"),
            _ => {
                self.report_invalid("LOG_LEVEL", "a level such as WARN", text);
                None
            }
        }
    }

    /// Reads `NAME:VALUE,NAME:VALUE`, as the reference's envconfig reads maps; anything else is an error.
    fn name_value_map(&mut self, name: &str) -> Value {
        let (map, others) = split_pairs(self.text(name, ""), ':');
        for other in others {
            self.report_invalid(name, "comma-separated NAME:VALUE pairs", other);
        }
        map
    }

    /// Reads `NAME=VALUE,NAME=VALUE`. As in the reference, anything else is ignored, with a notice.
    fn metadata(&mut self, name: &str) -> Value {
        let (metadata, others) = split_pairs(self.text(name, ""), '=');
        let ignored = |other| format!("{name}: pair ignored, expected NAME=VALUE, got {}", quoted(other));
        self.notices.extend(others.into_iter().map(ignored));
        metadata
    }

    fn port(&mut self, name: &str, default: u16) -> u16 {
        match self.text(name, "") {
            "" => default,
            text => text.parse().unwrap_or_else(|_| {
                self.report_invalid(name, "a port", text);
                default
            }),
        }
    }

    /// Joins two variables to `HOST:PORT`.
    fn host_and_port(&mut self, host: &str, port: &str, default: u16) -> String {
        let port = self.port(port, default);
        let given = self.text(host, "0.0.0.0");
        let known = if given.is_empty() { "0.0.0.0" } else { given };
        format!("{}:{port}", bracket_ipv6(known))
    }

    /// Reads a fraction and formats it as a percentage.
    fn percentage(&mut self, name: &str, default: &'a str) -> String {
        let text = self.text(name, default);
        match text.parse::<f64>() {
            Ok(fraction) if (0.0..=1.0).contains(&fraction) => {
                let hundredths = (fraction * 10_000.0).round();
                format!("{}%", hundredths / 100.0)
            }
            _ => {
                self.report_invalid(name, "a fraction from 0 to 1", text);
                default.to_owned()
            }
        }
    }

    /// Reads a Go duration and formats it in milliseconds.
    fn duration(&mut self, name: &str, default: &'a str) -> String {
        let text = self.text(name, default);
        match parse_go_duration(text) {
            Some(millis) if millis > 0 => format!("{millis}ms"),
            _ => {
                self.report_invalid(name, "a duration such as 1h30m", text);
                default.to_owned()
            }
        }
    }
}

/// Splits a comma-separated list into pairs at the character `separator`; also returns the items that are not
/// pairs.
fn split_pairs(text: &str, separator: char) -> (Value, Vec<&str>) {
    let (mut pairs, mut others) = (Map::new(), Vec::new());
    for pair in text.split(',').filter(|_| !text.trim().is_empty()) {
        match pair.split_once(separator) {
            Some((name, value)) if !name.trim().is_empty() => {
                pairs.insert(name.trim().to_owned(), json!(value.trim()));
            }
            _ => others.push(pair),
        }
    }
    (Value::Object(pairs), others)
}

/// Puts an IPv6 address into brackets, as needed before a port.
fn bracket_ipv6(host: &str) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        _ => host.to_owned(),
    }
}

/// Parses a duration such as `1h30m`, `10s` or `1.5h` into milliseconds (Go's `time.ParseDuration`).
fn parse_go_duration(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(number);
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let scale = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * scale;
        rest = after;
    }
    let millis = (seconds * 1000.0).round();
    (!text.is_empty() && millis < 1e15).then_some(millis as u64)
}

#[cfg(test)]
mod tests;
