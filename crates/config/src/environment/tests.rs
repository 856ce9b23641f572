use super::*;

fn read(variables: &[(&str, &str)]) -> Result<EnvironmentConfig, Vec<String>> {
    let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    from_variables(&owned.collect())
}

fn rls_section_from(variables: &[(&str, &str)]) -> Value {
    serde_yaml::from_str::<Value>(&read(variables).unwrap().text).unwrap()["rls"].take()
}

#[test]
fn environment_defaults_equal_reference_implementation() {
    let rls = rls_section_from(&[]);
    assert_eq!(rls["address"], "0.0.0.0:8081");
    assert_eq!((&rls["http"], &rls["debug"]), (&json!("0.0.0.0:8080"), &json!("0.0.0.0:6070")));
    assert_eq!(rls["config"]["directory"], "/srv/runtime_data/current");
    assert_eq!(rls["config"]["prefix"], "config.");
    assert_eq!(rls["near_limit"], "80%");
    assert_eq!(rls["connections"]["max_age"], "86400000ms");
    assert!(rls.get("tls").is_none() && rls.get("prometheus").is_none());
    assert_eq!(rls["statsd"]["address"], "localhost:8125");
}

#[test]
fn rules_directory_follows_runtime_variables() {
    let root = [("RUNTIME_ROOT", "/data/"), ("RUNTIME_SUBDIRECTORY", "ratelimit")];
    assert_eq!(rls_section_from(&root)["config"]["directory"], "/data/ratelimit");
    let own = [root[0], root[1], ("RUNTIME_APPDIRECTORY", "rules")];
    assert_eq!(rls_section_from(&own)["config"]["directory"], "/data/ratelimit");
    assert_eq!(rls_section_from(&own)["config"]["prefix"], "rules.", "also while the root is watched");
    let nested = [root[0], ("RUNTIME_APPDIRECTORY", "a/b/")];
    assert_eq!(rls_section_from(&nested)["config"]["prefix"], "a.b.");
    let own = [root[0], root[1], ("RUNTIME_WATCH_ROOT", "false"), ("RUNTIME_APPDIRECTORY", "rules")];
    assert_eq!(rls_section_from(&own)["config"]["directory"], "/data/ratelimit/rules");
    assert_eq!(rls_section_from(&own)["config"]["prefix"], "");
}

#[test]
fn environment_variables_set_config_keys() {
    let rls = rls_section_from(&[
        ("GRPC_HOST", "::"),
        ("GRPC_PORT", "18081"),
        ("USE_PROMETHEUS", "1"),
        ("PROMETHEUS_ADDR", ":19001"),
        ("NEAR_LIMIT_RATIO", "0.875"),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_RESET_HEADER", "x-reset"),
        ("GRPC_MAX_CONNECTION_AGE", "1h30m"),
        ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "T"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", "/c"),
        ("GRPC_SERVER_TLS_KEY", "/k"),
        ("GRPC_CLIENT_TLS_CACERT", "/ca"),
        ("GRPC_CLIENT_TLS_SAN", "envoy"),
    ]);
    assert_eq!(rls["address"], "[::]:18081");
    assert_eq!(rls["prometheus"], json!({"address": "0.0.0.0:19001", "path": "/metrics"}));
    assert_eq!(rls["near_limit"], "87.5%");
    assert_eq!(rls["response_headers"]["reset"], "x-reset");
    assert_eq!(rls["response_headers"]["limit"], "RateLimit-Limit");
    assert_eq!(rls["connections"]["max_age"], "5400000ms");
    assert_eq!(rls["counting"], "only_over");
    assert_eq!(rls["tls"], json!({"certificate": "/c", "key": "/k", "client_ca": "/ca"}));
    assert_eq!(rls["client_names"], json!(["envoy"]));
    assert!(rls.get("statsd").is_none(), "`statsd` is not set with Prometheus");
}

#[test]
fn invalid_variables_are_reported_by_name() {
    let problems =
        read(&[("PORT", "many"), ("SHADOW_MODE", "yes"), ("NEAR_LIMIT_RATIO", "most")]).unwrap_err();
    assert_eq!(problems.len(), 3);
    assert!(problems.contains(&"SHADOW_MODE: expected true or false, got \"yes\"".to_owned()));
}

#[test]
fn name_value_pairs_are_parsed_as_by_reference() {
    let of = |headers: &str| {
        let variables =
            [("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", headers)];
        read(&variables).map(|read| {
            serde_yaml::from_str::<Value>(&read.text).unwrap()["rls"]["config"]["xds"]["headers"].take()
        })
    };
    assert_eq!(of("x-a:b,x-c: d"), Ok(json!({"x-a": "b", "x-c": "d"})));
    assert_eq!(of("authorization:Bearer a:b"), Ok(json!({"authorization": "Bearer a:b"})));
    assert_eq!(of(""), Ok(json!({})));
    let expected = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: expected comma-separated NAME:VALUE pairs";
    assert_eq!(of("x-a=b"), Err(vec![format!("{expected}, got \"x-a=b\"")]));
    assert_eq!(of("x-a:b,").unwrap_err(), [format!("{expected}, got \"\"")]);
    assert_eq!(of("x-a:b,:c,d").unwrap_err().len(), 2);
    let tags = [("EXTRA_TAGS", "team=a"), ("CONFIG_TYPE", "FILE")];
    assert!(read(&tags).unwrap_err()[0].starts_with("EXTRA_TAGS: expected comma-separated NAME:VALUE pairs"));
    let metadata = [("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_NODE_METADATA", "zone:a")];
    let ignored = "CONFIG_GRPC_XDS_NODE_METADATA: pair ignored, expected NAME=VALUE, got \"zone:a\"";
    assert_eq!(read(&metadata).unwrap().notices, [ignored]);
}

#[test]
fn ignored_store_variables_are_listed_in_one_notice() {
    let read = read(&[("REDIS_POOL_SIZE", "10"), ("MEMCACHE_HOST_PORT", "there"), ("HOME", "/")]).unwrap();
    let line =
        "variables ignored, because each instance decides in memory: REDIS_POOL_SIZE, MEMCACHE_HOST_PORT";
    assert_eq!(read.notices, [line]);
}

#[test]
fn redis_variables_configure_store() {
    let of = |variables: &[(&str, &str)]| {
        let text = read(variables).unwrap().text;
        let read = serde_yaml::from_str::<Value>(&text).unwrap();
        (read["store"].clone(), read["rls"]["scope"].clone())
    };
    assert_eq!(of(&[("HOME", "/")]), (Value::Null, Value::Null), "counters are in memory");
    let one = [("REDIS_URL", "redis:6379"), ("REDIS_AUTH", "weir:pass$word"), ("REDIS_TLS", "true")];
    let secure = json!({
        "redis": "rediss://redis:6379", "username": "weir", "password": "pass$word", "tls": {}
    });
    assert_eq!(of(&one).0, secure);
    let cluster = [("REDIS_URL", "a:1,b:2"), ("REDIS_TYPE", "cluster"), ("REDIS_AUTH", "secret")];
    assert_eq!(of(&cluster).0, json!({ "redis": ["redis://a:1", "redis://b:2"], "password": "secret" }));
    let sentinel = [("REDIS_URL", "mymaster,a:26379,b:26379"), ("REDIS_TYPE", "SENTINEL")];
    let redis = json!({ "sentinel": ["a:26379", "b:26379"], "master": "mymaster" });
    assert_eq!(of(&sentinel).0, json!({ "redis": redis }));
    assert_eq!(of(&[("REDIS_URL", "/run/redis.sock")]).0["redis"], "redis+unix:///run/redis.sock");
    let how = [one[0], ("WEIR_SHARED", "exact"), ("WEIR_ON_STORE_LOSS", "deny")];
    assert_eq!(of(&how).1, json!({ "shared": "exact", "on_store_loss": "deny" }));
    assert_eq!(of(&[one[0], ("BACKEND_TYPE", "memcache")]).0, Value::Null);
    assert_eq!(of(&[one[0], ("CACHE_KEY_PREFIX", "blue_")]).0["prefix"], "blue_");
    assert!(read(&[one[0], ("REDIS_TYPE", "many")]).unwrap_err()[0].starts_with("REDIS_TYPE: expected"));
}

/// A variable, a valid value other than its default, and the variables without which it has no effect.
type Sample = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const XDS: (&str, &str) = ("CONFIG_TYPE", "GRPC_XDS_SOTW");
const XDS_TLS: (&str, &str) = ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true");
const REDIS: (&str, &str) = ("REDIS_URL", "redis:6379");
const TLS: (&str, &str) = ("GRPC_SERVER_USE_TLS", "true");
const CLIENT_CA: (&str, &str) = ("GRPC_CLIENT_TLS_CACERT", "/ca");
const PROMETHEUS: (&str, &str) = ("USE_PROMETHEUS", "true");
const HEADERS: (&str, &str) = ("LIMIT_RESPONSE_HEADERS_ENABLED", "true");

const SAMPLES: [Sample; 70] = [
    ("HOST", "127.0.0.1", &[]),
    ("PORT", "0x1F91", &[]),
    ("DEBUG_HOST", "::1", &[]),
    ("DEBUG_PORT", "7070", &[]),
    ("GRPC_UDS", "/run/rls.sock", &[]),
    ("GRPC_HOST", "127.0.0.1", &[]),
    ("GRPC_PORT", "+9000", &[]),
    ("GRPC_MAX_CONNECTION_AGE", "0", &[]),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", "+5m", &[]),
    ("GRPC_SERVER_USE_TLS", "T", &[]),
    ("GRPC_SERVER_TLS_CERT", "/c", &[TLS]),
    ("GRPC_SERVER_TLS_KEY", "/k", &[TLS]),
    ("GRPC_CLIENT_TLS_CACERT", "/ca", &[TLS]),
    ("GRPC_CLIENT_TLS_SAN", "envoy", &[TLS, CLIENT_CA]),
    ("LOG_LEVEL", "DEBUG", &[]),
    ("LOG_FORMAT", "JSON", &[]),
    ("CONFIG_TYPE", "GRPC_XDS_SOTW", &[]),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "1", &[]),
    ("CONFIG_GRPC_XDS_NODE_ID", "node", &[XDS]),
    ("CONFIG_GRPC_XDS_NODE_METADATA", "a=b", &[XDS]),
    ("CONFIG_GRPC_XDS_SERVER_URL", "dns:///server:18001", &[XDS]),
    ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "a:b", &[XDS]),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true", &[XDS]),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/c", &[XDS, XDS_TLS]),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/k", &[XDS, XDS_TLS]),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/ca", &[XDS, XDS_TLS]),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "name", &[XDS, XDS_TLS]),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "1s", &[XDS]),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "5s", &[XDS]),
    ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "1_000_000", &[XDS]),
    ("USE_DOG_STATSD", "true", &[]),
    ("USE_STATSD", "false", &[]),
    ("STATSD_HOST", "statsd", &[]),
    ("STATSD_PORT", "9125", &[]),
    ("STATSD_PROTOCOL", "udp", &[]),
    ("EXTRA_TAGS", "a:b", &[]),
    ("STATS_FLUSH_INTERVAL", "500ms", &[]),
    ("DISABLE_STATS", "true", &[]),
    ("USE_PROMETHEUS", "True", &[]),
    ("PROMETHEUS_ADDR", ":9191", &[PROMETHEUS]),
    ("PROMETHEUS_PATH", "/m", &[PROMETHEUS]),
    ("RUNTIME_ROOT", "/rules", &[]),
    ("RUNTIME_SUBDIRECTORY", "ratelimit", &[]),
    ("RUNTIME_APPDIRECTORY", "rules", &[]),
    ("RUNTIME_IGNOREDOTFILES", "t", &[]),
    ("RUNTIME_WATCH_ROOT", "F", &[]),
    ("NEAR_LIMIT_RATIO", "1.5", &[]),
    ("CACHE_KEY_PREFIX", "blue", &[REDIS]),
    ("BACKEND_TYPE", "memcache", &[REDIS]),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true", &[]),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", "true", &[]),
    ("LIMIT_LIMIT_HEADER", "x-l", &[HEADERS]),
    ("LIMIT_REMAINING_HEADER", "x-r", &[HEADERS]),
    ("LIMIT_RESET_HEADER", "x-s", &[HEADERS]),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true", &[]),
    // Only what it contradicts is seen.
    ("REDIS_SOCKET_TYPE", "unix", &[REDIS]),
    ("REDIS_TYPE", "CLUSTER", &[REDIS]),
    ("REDIS_URL", "redis:6379", &[]),
    ("REDIS_AUTH", "secret", &[REDIS]),
    ("REDIS_TLS", "true", &[REDIS]),
    ("REDIS_TLS_CLIENT_CERT", "/c", &[REDIS, ("REDIS_TLS", "true")]),
    ("REDIS_TLS_CLIENT_KEY", "/k", &[REDIS, ("REDIS_TLS", "true")]),
    ("REDIS_TLS_CACERT", "/ca", &[REDIS, ("REDIS_TLS", "true")]),
    ("REDIS_SENTINEL_AUTH", "x", &[("REDIS_URL", "m,a:1"), ("REDIS_TYPE", "sentinel")]),
    ("SHADOW_MODE", "true", &[]),
    ("QUOTA_MODE", "true", &[]),
    ("RESPONSE_DYNAMIC_METADATA", "true", &[]),
    ("MERGE_DOMAIN_CONFIG", "true", &[]),
    ("WEIR_DRAIN_DELAY", "0", &[]),
    ("WEIR_DRAIN_TIMEOUT", "1m", &[]),
];

#[test]
fn every_variable_has_an_effect_or_a_notice() {
    for (name, treatment) in variables::VARIABLES {
        let sample = SAMPLES.iter().find(|(sampled, ..)| *sampled == name);
        if treatment == variables::Treatment::Honoured {
            assert!(sample.is_some(), "{name} has no sample");
            continue;
        }
        assert!(sample.is_none(), "{name} is ignored");
        let notices = read(&[(name, "10s")]).unwrap().notices;
        assert!(notices.iter().any(|notice| notice.contains(name)), "{name}: {notices:?}");
        assert_eq!(read(&[(name, "false")]).unwrap().notices, [""; 0], "{name} is switched off");
    }
    for (name, value, needed) in SAMPLES {
        let without = read(needed).unwrap();
        let with = read(&[needed, &[(name, value)]].concat());
        assert_ne!(with, Ok(without), "{name}={value} has no effect");
    }
}

#[test]
fn reference_page_lists_every_variable() {
    let page = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/rls-variables.md"
    ));
    let page = page.unwrap();
    for (name, treatment) in variables::VARIABLES {
        let is_honoured = treatment == variables::Treatment::Honoured;
        let row = format!("| `{name}` | {} |", if is_honoured { "honoured" } else { "ignored" });
        assert!(page.lines().any(|line| line.starts_with(&row)), "{row}");
    }
    let rows = page.lines().filter(|line| line.contains("| honoured |") || line.contains("| ignored |"));
    assert_eq!(rows.count(), variables::VARIABLES.len());
}

#[test]
fn invalid_values_of_every_type_name_the_variable() {
    let xds =
        [XDS, ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "-1s"), ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "-1")];
    let problems = read(&xds).unwrap_err();
    assert!(
        problems
            .iter()
            .zip(["XDS_CLIENT_BACKOFF_INITIAL", "XDS_CLIENT_MAX_MSG"])
            .all(|(problem, name)| problem.starts_with(name)),
        "{problems:?}"
    );
    for (name, value) in [
        ("GRPC_PORT", "65536"),
        ("PORT", "-1"),
        ("GRPC_MAX_CONNECTION_AGE", "-1s"),
        ("GRPC_MAX_CONNECTION_AGE_GRACE", "1 day"),
        ("STATS_FLUSH_INTERVAL", "0"),
        ("STATSD_PROTOCOL", "sctp"),
        ("CONFIG_TYPE", "ETCD"),
        ("BACKEND_TYPE", "dynamo"),
        ("WEIR_DRAIN_DELAY", "5"),
        ("LOG_LEVEL", "loud"),
        ("USE_DOG_STATSD", "yes"),
    ] {
        let problems = read(&[(name, value)]).unwrap_err();
        assert!(problems[0].starts_with(&format!("{name}: expected")), "{problems:?}");
    }
}

#[test]
fn values_that_the_reference_accepts_are_valid() {
    let rls = rls_section_from(&[
        XDS,
        ("GRPC_MAX_CONNECTION_AGE", "0"),
        ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "0"),
        ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "2m"),
    ]);
    assert_eq!(rls["connections"]["max_age"], "31536000000ms", "no limit");
    assert!(rls["config"]["xds"].get("largest").is_none());
    assert_eq!(rls["config"]["xds"]["backoff"], "60000ms..60000ms");
    let rls = rls_section_from(&[("NEAR_LIMIT_RATIO", "2"), ("GRPC_MAX_CONNECTION_AGE", ""), ("PORT", "")]);
    assert_eq!((&rls["near_limit"], &rls["connections"]["max_age"]), (&json!("100%"), &json!("86400000ms")));
    assert_eq!(rls_section_from(&[])["statsd"]["protocol"], "tcp");
}

#[test]
fn problems_of_the_configuration_name_variables() {
    for (name, value, expected) in [
        ("GRPC_HOST", "nowhere.test", "GRPC_HOST, GRPC_PORT, GRPC_UDS: "),
        ("PROMETHEUS_PATH", "metrics", "PROMETHEUS_PATH: "),
        ("GRPC_SERVER_USE_TLS", "true", "GRPC_SERVER_TLS_CERT"),
        ("WEIR_ON_STORE_LOSS", "panic", "WEIR_SHARED, WEIR_SHARED_WAIT, WEIR_ON_STORE_LOSS: "),
    ] {
        let text = read(&[("USE_PROMETHEUS", "true"), REDIS, (name, value)]).unwrap().text;
        let problems = crate::from_text(&text, std::path::Path::new("env"), &|_| None).unwrap_err();
        let lines: Vec<String> =
            problems.into_iter().map(|problem| attribute_to_variables(problem).to_string()).collect();
        assert!(lines.iter().any(|line| line.starts_with(expected)), "{name}: {lines:?}");
    }
}
