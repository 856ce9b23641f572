//! The shared store, from the Redis variables of envoyproxy/ratelimit.
//!
//! `REDIS_URL` enables the store. Without it counters are in memory.

use serde_json::{Value, json};

use super::reader::VariableReader;

/// Returns the settings of the store; `None` if there is none.
pub(super) fn store_section(env: &mut VariableReader<'_>) -> Option<Value> {
    let url = env.text("REDIS_URL", "");
    if !is_redis_used(env) {
        return None;
    }
    check_socket_type(env, url);
    let is_secure = env.boolean("REDIS_TLS", false);
    let scheme = if is_secure { "rediss" } else { "redis" };
    let mut store = json!({});
    let is_sentinel = match env.text("REDIS_TYPE", "SINGLE").to_ascii_uppercase().as_str() {
        "SINGLE" if url.starts_with('/') => {
            store["redis"] = json!(format!("redis+unix://{url}"));
            false
        }
        "SINGLE" => {
            store["redis"] = json!(with_scheme(url, scheme));
            false
        }
        "CLUSTER" => {
            let servers = url.split(',').map(|server| with_scheme(server.trim(), scheme));
            store["redis"] = servers.collect();
            false
        }
        "SENTINEL" => {
            // The master's name, followed by the sentinels.
            let Some((master, sentinels)) = url.split_once(',') else {
                env.report_invalid(
                    "REDIS_URL",
                    "MASTER,HOST:PORT,HOST:PORT with the addresses of sentinels",
                    url,
                );
                return None;
            };
            let sentinels: Vec<_> = sentinels.split(',').map(str::trim).collect();
            store["redis"] = json!({ "sentinel": sentinels, "master": master });
            true
        }
        _ => {
            env.report_invalid("REDIS_TYPE", "SINGLE, SENTINEL or CLUSTER", env.text("REDIS_TYPE", ""));
            return None;
        }
    };
    add_credentials(env, &mut store, is_sentinel);
    if env.is_set("CACHE_KEY_PREFIX") {
        // Services with different prefixes have different counters.
        store["prefix"] = json!(env.text("CACHE_KEY_PREFIX", ""));
    }
    if is_secure {
        store["tls"] = tls_section(env);
    }
    Some(store)
}

/// Returns whether instances share their limits. If they do not, but variables suggest it, there is a notice.
fn is_redis_used(env: &mut VariableReader<'_>) -> bool {
    const SEPARATE: &str =
        "each instance counts separately, so several instances admit a multiple of each limit";
    let notice = match env.text("BACKEND_TYPE", "redis") {
        "" | "redis" if env.is_set("REDIS_URL") => return true,
        "" | "redis" => ["REDIS_TYPE", "REDIS_SOCKET_TYPE", "REDIS_AUTH", "REDIS_TLS", "CACHE_KEY_PREFIX"]
            .into_iter()
            .find(|name| env.is_set(name))
            .map(|name| format!("REDIS_URL: not set, but {name} is; {SEPARATE}")),
        "memcache" => {
            Some(format!("BACKEND_TYPE: memcache is not supported, only redis with REDIS_URL; {SEPARATE}"))
        }
        other => {
            env.report_invalid("BACKEND_TYPE", "redis or memcache", other);
            None
        }
    };
    env.notices.extend(notice);
    false
}

/// Reports an address that is not of the kind that `REDIS_SOCKET_TYPE` names. Unless it is set, the address decides.
fn check_socket_type(env: &mut VariableReader<'_>, url: &str) {
    if !env.text("REDIS_TYPE", "SINGLE").eq_ignore_ascii_case("single") {
        return;
    }
    let is_path = url.starts_with('/');
    match env.text("REDIS_SOCKET_TYPE", "") {
        "unix" if !is_path => env.report_invalid("REDIS_URL", "a path, since REDIS_SOCKET_TYPE is unix", url),
        "tcp" | "tcp4" | "tcp6" if is_path => {
            env.report_invalid("REDIS_URL", "HOST:PORT, since REDIS_SOCKET_TYPE is tcp", url);
        }
        "" | "unix" | "tcp" | "tcp4" | "tcp6" => {}
        other => env.report_invalid("REDIS_SOCKET_TYPE", "tcp or unix", other),
    }
}

fn with_scheme(server: &str, scheme: &str) -> String {
    if server.contains("://") { server.to_owned() } else { format!("{scheme}://{server}") }
}

/// Reads `PASSWORD` or `USER:PASSWORD`.
fn add_credentials(env: &VariableReader<'_>, store: &mut Value, is_sentinel: bool) {
    let pair = |text: &str| match text.split_once(':') {
        Some((user, password)) => (Some(user.to_owned()), password.to_owned()),
        None => (None, text.to_owned()),
    };
    let own = env.text("REDIS_AUTH", "");
    if !own.is_empty() {
        let (user, password) = pair(own);
        store["password"] = json!(password);
        user.into_iter().for_each(|user| store["username"] = json!(user));
    }
    let sentinel_auth = env.text("REDIS_SENTINEL_AUTH", "");
    if is_sentinel && !sentinel_auth.is_empty() {
        let (user, password) = pair(sentinel_auth);
        store["redis"]["sentinel_password"] = json!(password);
        user.into_iter().for_each(|user| store["redis"]["sentinel_username"] = json!(user));
    }
}

fn tls_section(env: &mut VariableReader<'_>) -> Value {
    let files = [
        ("ca", "REDIS_TLS_CACERT"),
        ("certificate", "REDIS_TLS_CLIENT_CERT"),
        ("key", "REDIS_TLS_CLIENT_KEY"),
    ];
    let given = files.map(|(key, name)| (key, env.text(name, "")));
    let given = given.into_iter().filter(|(_, file)| !file.is_empty());
    given.map(|(key, file)| (key.to_owned(), json!(file))).collect()
}

/// Returns how limits are shared, if Weir's own variables set it.
pub(super) fn scope_section(env: &VariableReader<'_>) -> Option<Value> {
    let keys =
        [("shared", "WEIR_SHARED"), ("wait", "WEIR_SHARED_WAIT"), ("on_store_loss", "WEIR_ON_STORE_LOSS")];
    let given = keys.map(|(key, name)| (key, env.text(name, "")));
    let mut given = given.into_iter().filter(|(_, value)| !value.is_empty()).peekable();
    given.peek()?;
    let mut scope = json!({ "shared": "lease" });
    given.for_each(|(key, value)| scope[key] = json!(value));
    Some(scope)
}
