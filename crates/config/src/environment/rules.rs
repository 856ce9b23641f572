//! Where the rules come from: files, or a management server.

use serde_json::{Value, json};

use super::reader::{VariableReader, millis};

pub(super) fn rules_source(env: &mut VariableReader<'_>) -> Value {
    let merge_domains = env.boolean("MERGE_DOMAIN_CONFIG", false);
    match env.text("CONFIG_TYPE", "FILE") {
        "" | "FILE" => {}
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
    // With `RUNTIME_WATCH_ROOT`, the reference reads the files below the root whose dotted paths begin with the
    // application's directory. Otherwise it reads only that directory.
    let watches_root = env.boolean("RUNTIME_WATCH_ROOT", true);
    let application = env.text("RUNTIME_APPDIRECTORY", "config").trim_matches('/');
    let (directory, prefix) = match (watches_root, application) {
        (_, "") => (root, String::new()),
        (true, application) => (root, format!("{}.", application.replace('/', "."))),
        (false, application) => (format!("{}/{application}", root.trim_end_matches('/')), String::new()),
    };
    json!({
        "directory": directory,
        "prefix": prefix,
        "dotfiles": !env.boolean("RUNTIME_IGNOREDOTFILES", false),
        "merge_domains": merge_domains,
        // The reference starts with an invalid file, responds with errors, and continues once the file is valid.
        "required": false,
    })
}

/// Settings of a management server.
fn xds(env: &mut VariableReader<'_>) -> Value {
    let server = server_address(env.text("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000"));
    let is_secure = env.boolean("CONFIG_GRPC_XDS_SERVER_USE_TLS", false);
    let metadata = env.metadata("CONFIG_GRPC_XDS_NODE_METADATA");
    let headers = env.name_value_map("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS");
    let mut xds = json!({
        "address": if is_secure { format!("https://{server}") } else { server },
        "node": env.text("CONFIG_GRPC_XDS_NODE_ID", crate::defaults::XDS_NODE_ID),
        "metadata": metadata,
        "headers": headers,
        "backoff": backoff(env),
    });
    let expected = "a number of bytes, or 0 for the default";
    match env.integer("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", expected) {
        None | Some(0) => {}
        Some(bytes) if bytes > 0 => xds["largest"] = json!(format!("{bytes}B")),
        Some(bytes) => env.report_invalid("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", expected, &bytes.to_string()),
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

/// Converts a target as gRPC names it (gRPC Name Resolution), such as `dns:///HOST:PORT`.
fn server_address(target: &str) -> String {
    if let Some(path) = target.strip_prefix("unix://").or_else(|| target.strip_prefix("unix:")) {
        return format!("unix:{path}");
    }
    let schemes = ["dns:///", "passthrough:///", "ipv4:", "ipv6:", "dns:"];
    let plain = schemes.iter().find_map(|scheme| target.strip_prefix(scheme));
    plain.unwrap_or(target).to_owned()
}

/// Pauses between attempts. Zero is the default of the reference's library, and a first pause above the maximum is the
/// maximum.
fn backoff(env: &mut VariableReader<'_>) -> String {
    let mut read = |name, default, if_zero: &'static str| {
        let value = env.go_duration(name, default);
        if value.is_some_and(|value| value.is_negative()) {
            env.report_invalid(name, "a duration", env.text(name, ""));
        }
        match value {
            Some(value) if !value.is_zero() => millis(value.to_millis()),
            _ => if_zero.to_owned(),
        }
    };
    let first = read("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s", "100ms");
    let max = read("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s", "10000ms");
    let number = |text: &str| text.trim_end_matches("ms").parse::<u64>().unwrap_or(u64::MAX);
    let first = if number(&first) > number(&max) { max.clone() } else { first };
    format!("{first}..{max}")
}
