//! Configuration from the environment variables of envoyproxy/ratelimit, for `weir rls`.
//!
//! The result is an ordinary configuration that contains only `rls`, and can be printed and saved. Variables
//! have the same meaning and defaults as in the reference implementation. `REDIS_URL` and similar variables
//! configure the shared store. Unsupported variables are listed in a notice and ignored.

mod attribution;
mod go_values;
mod reader;
mod redis;
mod rules;
mod statistics;
mod variables;

use std::collections::BTreeMap;

use serde_json::{Value, json};

pub use self::attribution::attribute_to_variables;
use self::reader::{VariableReader, millis};
use super::source;

/// Address of the admin port, and the durations of a graceful shutdown: the only variables read here that are Weir's own.
const ADMIN_ADDRESS_VARIABLE: &str = "WEIR_ADMIN_ADDRESS";
const DRAIN_DELAY_VARIABLE: &str = "WEIR_DRAIN_DELAY";
const DRAIN_TIMEOUT_VARIABLE: &str = "WEIR_DRAIN_TIMEOUT";

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
    let mut reader = VariableReader {
        variables,
        problems: Vec::new(),
        notices: variables::ignored_variable_notices(variables),
    };
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
    configuration["drain"] = drain_section(&mut reader);
    escape_references(&mut configuration);
    let log_level = reader.log_level();
    let is_log_json = reader.is_log_json();
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
        "config": rules::rules_source(env),
        "counting": counting(env),
        "shadow_mode": env.boolean("SHADOW_MODE", false),
        "quota_mode": env.boolean("QUOTA_MODE", false),
        "near_limit": env.percentage("NEAR_LIMIT_RATIO", "0.8"),
        "dynamic_metadata": env.boolean("RESPONSE_DYNAMIC_METADATA", false),
        "connections": {
            "max_age": millis(env.duration_or_unlimited("GRPC_MAX_CONNECTION_AGE", "24h")),
            "grace": millis(env.duration_or_unlimited("GRPC_MAX_CONNECTION_AGE_GRACE", "1h")),
        },
        "healthy_without_rules": healthy_without_rules(env),
        "healthy_without_domains": !env.boolean("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", false),
    });
    let tls = tls(env);
    let optional = [
        ("prometheus", statistics::prometheus(env)),
        ("statsd", statistics::statsd(env)),
        ("client_names", client_names(env, tls.as_ref())),
        ("tls", tls),
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

fn tls(env: &mut VariableReader<'_>) -> Option<Value> {
    let files = [
        ("certificate", "GRPC_SERVER_TLS_CERT"),
        ("key", "GRPC_SERVER_TLS_KEY"),
        ("client_ca", "GRPC_CLIENT_TLS_CACERT"),
    ];
    let given: Vec<_> = files.into_iter().filter(|(_, name)| env.is_set(name)).collect();
    if !env.boolean("GRPC_SERVER_USE_TLS", false) {
        if !given.is_empty() {
            let names: Vec<_> = given.iter().map(|(_, name)| *name).collect();
            env.notices.push(format!(
                "connections are not encrypted: {} without GRPC_SERVER_USE_TLS",
                names.join(", ")
            ));
        }
        return None;
    }
    Some(given.into_iter().map(|(key, name)| (key.to_owned(), json!(env.text(name, "")))).collect())
}

/// A name without authorities verifies nothing, here and in the reference, which ignores it.
fn client_names(env: &mut VariableReader<'_>, tls: Option<&Value>) -> Option<Value> {
    let name = env.text("GRPC_CLIENT_TLS_SAN", "");
    if name.is_empty() {
        return None;
    }
    if tls.is_none_or(|tls| tls.get("client_ca").is_none()) {
        let needed = "GRPC_SERVER_USE_TLS and GRPC_CLIENT_TLS_CACERT";
        env.notices.push(format!("clients are not verified: GRPC_CLIENT_TLS_SAN without {needed}"));
        return None;
    }
    Some(json!([name]))
}

/// A graceful shutdown: clients need the delay to find the service unhealthy and to use another instance.
fn drain_section(env: &mut VariableReader<'_>) -> Value {
    let mut read = |name, default| {
        let value = env.go_duration(name, default);
        if value.is_some_and(|value| value.is_negative()) {
            env.report_invalid(name, "a duration", env.text(name, ""));
        }
        millis(value.map_or(std::time::Duration::ZERO, |value| value.to_millis()))
    };
    json!({ "delay": read(DRAIN_DELAY_VARIABLE, "5s"), "timeout": read(DRAIN_TIMEOUT_VARIABLE, "20s") })
}

fn response_headers(env: &mut VariableReader<'_>) -> Option<Value> {
    let names = json!({
        "limit": env.text("LIMIT_LIMIT_HEADER", super::defaults::LIMIT_HEADER),
        "remaining": env.text("LIMIT_REMAINING_HEADER", super::defaults::REMAINING_HEADER),
        "reset": env.text("LIMIT_RESET_HEADER", super::defaults::RESET_HEADER),
    });
    env.boolean("LIMIT_RESPONSE_HEADERS_ENABLED", false).then_some(names)
}

#[cfg(test)]
mod tests;
