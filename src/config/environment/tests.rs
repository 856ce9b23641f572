use super::*;

fn read(variables: &[(&str, &str)]) -> Result<FromEnvironment, Vec<String>> {
    let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    from_variables(&owned.collect())
}

fn rls_of(variables: &[(&str, &str)]) -> Value {
    serde_yaml::from_str::<Value>(&read(variables).unwrap().text).unwrap()["rls"].take()
}

#[test]
fn without_variables_everything_is_as_the_reference_has_it() {
    let rls = rls_of(&[]);
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
fn the_directory_is_found_as_the_reference_finds_it() {
    let root = [("RUNTIME_ROOT", "/data/"), ("RUNTIME_SUBDIRECTORY", "ratelimit")];
    assert_eq!(rls_of(&root)["config"]["directory"], "/data/ratelimit");
    let own = [root[0], root[1], ("RUNTIME_WATCH_ROOT", "false"), ("RUNTIME_APPDIRECTORY", "rules")];
    assert_eq!(rls_of(&own)["config"]["directory"], "/data/ratelimit/rules");
    assert_eq!(rls_of(&own)["config"]["prefix"], "");
}

#[test]
fn what_is_set_is_taken_over() {
    let rls = rls_of(&[
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
fn every_mistake_is_named_with_its_variable() {
    let problems = read(&[("PORT", "many"), ("SHADOW_MODE", "yes"), ("NEAR_LIMIT_RATIO", "2")]).unwrap_err();
    assert_eq!(problems.len(), 3);
    assert!(problems.contains(&"SHADOW_MODE: expected true or false, got \"yes\"".to_owned()));
}

#[test]
fn pairs_are_read_as_the_reference_reads_them_and_none_is_dropped_silently() {
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
fn variables_of_stores_are_named_in_one_line() {
    let read = read(&[("REDIS_POOL_SIZE", "10"), ("MEMCACHE_HOST", "there"), ("HOME", "/")]).unwrap();
    let line = "variables ignored, because each instance decides in memory: MEMCACHE_HOST, REDIS_POOL_SIZE";
    assert_eq!(read.notices, [line]);
}

#[test]
fn the_store_is_that_of_the_reference() {
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
fn durations_are_those_of_go() {
    assert_eq!(go_duration("1h30m"), Some(5_400_000));
    assert_eq!(go_duration("1.5s"), Some(1500));
    assert_eq!(go_duration("250ms"), Some(250));
    for wrong in ["", "5", "s", "1d", "1h30", "-1s"] {
        assert_eq!(go_duration(wrong), None, "{wrong}");
    }
}
