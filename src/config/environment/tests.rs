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
    let problems = read(&[("PORT", "many"), ("SHADOW_MODE", "yes"), ("NEAR_LIMIT_RATIO", "2")]).unwrap_err();
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
    let read = read(&[("REDIS_POOL_SIZE", "10"), ("MEMCACHE_HOST", "there"), ("HOME", "/")]).unwrap();
    let line = "variables ignored, because each instance decides in memory: MEMCACHE_HOST, REDIS_POOL_SIZE";
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
    assert!(read(&[one[0], ("REDIS_TYPE", "many")]).unwrap_err()[0].starts_with("REDIS_TYPE: expected"));
}

#[test]
fn go_durations_are_parsed() {
    assert_eq!(parse_go_duration("1h30m"), Some(5_400_000));
    assert_eq!(parse_go_duration("1.5s"), Some(1500));
    assert_eq!(parse_go_duration("250ms"), Some(250));
    for wrong in ["", "5", "s", "1d", "1h30", "-1s"] {
        assert_eq!(parse_go_duration(wrong), None, "{wrong}");
    }
}
