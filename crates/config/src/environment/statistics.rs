//! Where statistics go: Prometheus, or statsd.

use serde_json::{Value, json};

use super::reader::{VariableReader, bracket_ipv6, millis};

pub(super) fn prometheus(env: &mut VariableReader<'_>) -> Option<Value> {
    let (address, path) = (env.text("PROMETHEUS_ADDR", ":9090"), env.text("PROMETHEUS_PATH", "/metrics"));
    let address = match address.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => address.to_owned(),
    };
    env.boolean("USE_PROMETHEUS", false).then(|| json!({ "address": address, "path": path }))
}

pub(super) fn statsd(env: &mut VariableReader<'_>) -> Option<Value> {
    let host = env.text("STATSD_HOST", "localhost").to_owned();
    let port = env.port("STATSD_PORT", 8125);
    let interval = env.positive_duration("STATS_FLUSH_INTERVAL", "10s");
    let (is_statsd, is_dogstatsd) = (env.boolean("USE_STATSD", true), env.boolean("USE_DOG_STATSD", false));
    let is_disabled = env.boolean("DISABLE_STATS", false) || env.boolean("USE_PROMETHEUS", false);
    let tags = env.name_value_map("EXTRA_TAGS");
    let protocol = protocol(env, is_dogstatsd);
    let address = format!("{}:{port}", bracket_ipv6(&host));
    ((is_statsd || is_dogstatsd) && !is_disabled).then(
        || json!({ "address": address, "interval": millis(interval), "tags": tags, "protocol": protocol }),
    )
}

/// `STATSD_PROTOCOL` is a variable of the reference's statistics library, whose default is TCP. DogStatsD is UDP.
fn protocol(env: &mut VariableReader<'_>, is_dogstatsd: bool) -> &'static str {
    let given = env.text("STATSD_PROTOCOL", "tcp");
    match given.to_ascii_lowercase().as_str() {
        _ if is_dogstatsd => "dogstatsd",
        "" | "tcp" => "tcp",
        "udp" => "udp",
        _ => {
            env.report_invalid("STATSD_PROTOCOL", "tcp or udp", given);
            "tcp"
        }
    }
}
