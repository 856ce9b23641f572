use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use weir_limiter::algorithm::Algorithm;
use weir_policy::identify;
use weir_policy::response::rejection::RejectionResponse;
use weir_policy::response::{self, Visibility};
use weir_policy::rules::rule::{Action, LimitAction, OnMissing, Throttle};
use weir_telemetry::access_log::{Format, Sink};
use weir_upstream::UpstreamAddress;

const QUICK_START: &str = "\
listeners:
  - address: 0.0.0.0:8080
upstream:
  address: 127.0.0.1:3000
rules:
  - name: per-ip
    key: [client_ip]
    limit: 100/s
    burst: 200
";

const MINIMAL: &str = "listeners: 127.0.0.1:8080\nupstream: echo\n";

fn load_with_environment(environment: &[(&str, &str)], text: &str) -> Result<Config, Vec<String>> {
    let environment: HashMap<_, _> = environment.iter().copied().collect();
    from_text(text, Path::new("/etc/weir/weir.yaml"), &|name| {
        environment.get(name).map(|value| (*value).to_owned())
    })
    .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

fn config(text: &str) -> Config {
    load_with_environment(&[], text).unwrap()
}

/// The minimal configuration with a rule of these lines.
fn with_rule(lines: &str) -> String {
    let mut text = format!("{MINIMAL}rules:\n  - name: a\n");
    for line in lines.lines() {
        let _ = writeln!(text, "    {line}");
    }
    text
}

fn limit_action(lines: &str) -> LimitAction {
    match &config(&with_rule(lines)).policy.rules[0].action {
        Action::Limit(limiting) => limiting.clone(),
        other => panic!("{other:?}"),
    }
}

/// Rate, burst and algorithm of each limit.
fn quotas(lines: &str) -> Vec<String> {
    let quota = |limit: &weir_policy::rules::rule::RuleLimit| {
        format!("{} {} {}", limit.quota.limit(), limit.quota.burst(), limit.quota.algorithm())
    };
    limit_action(lines).limits.iter().map(quota).collect()
}

#[test]
fn quick_start_config_is_valid() {
    let config = config(QUICK_START);
    assert_eq!(config.listeners[0].settings.address.to_string(), "0.0.0.0:8080");
    assert_eq!(&*config.listeners[0].settings.name, "0.0.0.0:8080");
    assert_eq!(
        config.upstreams[0].settings.addresses[0],
        UpstreamAddress::Tcp { host: "127.0.0.1".into(), port: 3000 }
    );
    assert_eq!(config.policy.rules[0].limits()[0].quota.burst().get(), 200);
    assert_eq!(config.policy.rules[0].rejection, RejectionResponse::default());
    assert_eq!(config.notices, []);
}

#[test]
fn omitted_settings_have_documented_defaults() {
    let config = config(&format!("{MINIMAL}rules: []\n"));
    let listener = &config.listeners[0].settings;
    assert_eq!(
        (listener.header_timeout, listener.idle_timeout),
        (Duration::from_secs(10), Duration::from_secs(620))
    );
    assert_eq!(config.upstreams[0].settings.connect_timeout, Duration::from_secs(5));
    assert_eq!(config.upstreams[0].settings.timeout, Duration::from_secs(15));
    assert_eq!(config.upstreams[0].settings.idle_timeout, Duration::from_secs(300));
    assert_eq!(config.admin.address.to_string(), "127.0.0.1:9901");
    assert!(!config.admin.is_explicit && config.admin.probe_address.is_none() && config.access_log.is_none());
    assert_eq!(config.drain, drain::DrainSettings::default());
    assert_eq!(config.policy.response, response::LimitHeaderSettings::default());
    assert_eq!(config.policy.identify.ipv6_prefix, identify::IdentifySettings::default().ipv6_prefix);
    assert!(config.policy.identify.trusted_proxies.is_empty());
    assert_eq!(config.max_keys, 1_000_000);
    assert_eq!(config.workers.get(), std::thread::available_parallelism().map_or(1, NonZeroUsize::get));
}

#[test]
fn explicit_schema_defaults_equal_omitted_settings() {
    // Required keys of the sections.
    let needed = [
        ("config", "http: \"http://config.internal/\""),
        ("rls", "address: \"127.0.0.1:0\""),
        ("jwt", "secret: 0123456789abcdef0123456789abcdef"),
        ("state", "file: state"),
        ("store", "redis: \"redis://127.0.0.1\""),
        ("tracing", "otlp: \"http://127.0.0.1:4318\""),
        ("alerts", "webhook: \"http://127.0.0.1:9093\""),
    ];
    let with = |section: &str, more: &str| {
        let mut text =
            format!("{MINIMAL}rules: [{{ name: a, key: [{{ jwt: sub }}, {{ json: id }}], limit: 1/s }}]\n");
        for (name, least) in needed {
            let more = if name == section { more } else { "" };
            let _ = writeln!(text, "{name}: {{ {least}{more} }}");
        }
        text
    };
    let implicit = config(&with("", ""));
    let mut written = 0;
    for (name, schema) in schema::schema()["properties"].as_object().unwrap() {
        let target = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/"));
        let inner = target.map_or(schema, |target| &schema::schema()["$defs"][target]);
        for (key, property) in inner["properties"].as_object().into_iter().flatten() {
            if let Some(default) = property.get("default") {
                let text = if needed.iter().any(|(section, _)| section == name) {
                    with(name, &format!(", {key}: {default}"))
                } else {
                    format!("{}{name}: {{ {key}: {default} }}\n", with("", ""))
                };
                let explicit = Config { admin: implicit.admin.clone(), ..config(&text) };
                assert_eq!(format!("{explicit:?}"), format!("{implicit:?}"), "{text}");
                written += 1;
            }
        }
    }
    assert!(written >= 5, "{written}");
}

#[test]
fn single_value_is_read_as_a_list_of_one() {
    let many = config(QUICK_START);
    let one = config(
        "listeners: { address: 0.0.0.0:8080 }\nupstream: 127.0.0.1:3000\nrules: { name: per-ip, key: client_ip, limit: 100/s, burst: 200 }\n",
    );
    assert_eq!(format!("{many:?}"), format!("{one:?}"));
    let list = with_rule(
        "match: { path: [/a/*], method: [GET], host: [b], header: { x: [y] }, client_ip: [\"::1\"] }\nlimits: [1/s]",
    );
    let single = with_rule(
        "match: { path: /a/*, method: GET, host: b, header: { x: y }, client_ip: \"::1\" }\nlimits: 1/s",
    );
    assert_eq!(format!("{:?}", config(&list)), format!("{:?}", config(&single)));
}

#[test]
fn yaml_1_1_booleans_are_read_as_words() {
    let config = config(&format!("{MINIMAL}rules: []\naccess_log: false\nratelimit_headers: false\n"));
    assert!(config.access_log.is_none());
    assert_eq!(config.policy.response.ratelimit_headers, Visibility::Off);
}

#[test]
fn default_burst_is_the_limit_count() {
    assert_eq!(quotas("limit: 10/s"), ["10/s 10 gcra"]);
    assert_eq!(quotas("limit: 10/s\nburst: 3\nalgorithm: token_bucket"), ["10/s 3 token_bucket"]);
    assert_eq!(
        quotas(
            "limits:\n  - 10/s\n  - { limit: 100/min, burst: 7 }\n  - { limit: 9/d, algorithm: fixed_window }\nburst: 4"
        ),
        ["10/s 4 gcra", "100/min 7 gcra", "9/d 9 fixed_window"]
    );
    assert_eq!(
        quotas("limit: 10/s\nalgorithm: leaky_bucket\nthrottle: delay 1s"),
        ["10/s 1 leaky_bucket"],
        "a leaky bucket with a delay has a burst of 1"
    );
    assert_eq!(
        quotas("limits: [10/s, { limit: 90/min, burst: 4 }]\nalgorithm: leaky_bucket\nthrottle: delay 1s"),
        ["10/s 1 leaky_bucket", "90/min 4 leaky_bucket"]
    );
    assert_eq!(quotas("limit: 10/s\nalgorithm: leaky_bucket"), ["10/s 10 leaky_bucket"]);
    assert_eq!(
        quotas("limits: [1/s, 2/min]\nalgorithm: fixed_window"),
        ["1/s 1 fixed_window", "2/min 2 fixed_window"]
    );
}

#[test]
fn every_algorithm_can_be_configured() {
    for algorithm in Algorithm::ALL {
        let [quota] = &*limit_action(&format!("limit: 1/s\nalgorithm: {algorithm}")).limits else { panic!() };
        assert_eq!(quota.quota.algorithm(), algorithm);
    }
}

#[test]
fn rule_without_key_has_one_counter_for_all_requests() {
    assert_eq!(limit_action("limit: 1/s").key, limit_action("limit: 1/s\nkey: []").key);
    let all = "key: [client_ip, route, path, method, host, { header: X-Key }, { cookie: c }, { query: q }]";
    let limiting = limit_action(&format!(
        "match: {{ path: /a }}\nlimit: 1/s\n{all}\non_missing: deny\nthrottle: shadow"
    ));
    assert_eq!(
        limiting.key.to_string(),
        "[client_ip, route, path, method, host, {header: x-key}, {cookie: c}, {query: q}]"
    );
    assert_eq!((limiting.on_missing, limiting.throttle), (OnMissing::Deny, Throttle::Shadow));
}

#[test]
fn rejection_response_has_configured_status_body_and_headers() {
    let lines = "limit: 1/s\non_limit:\n  status: 503\n  body: { json: { b: 1, a: [~, x] } }\n  headers: { X-By: \"weir {rule}\" }";
    let rejection = config(&with_rule(lines)).policy.rules[0].rejection.clone();
    assert_eq!((rejection.status.as_u16(), &rejection.body[..]), (503, &br#"{"b":1,"a":[null,"x"]}"#[..]));
    assert_eq!(rejection.headers["content-type"], "application/json");
    assert_eq!(rejection.headers["x-by"], "weir a");
    let text = config(&with_rule(
        "limit: 1/s\non_limit: { body: { text: no }, headers: { content-type: text/html } }",
    ));
    assert_eq!(text.policy.rules[0].rejection.headers["content-type"], "text/html");
    assert_eq!(&text.policy.rules[0].rejection.body[..], b"no");
}

#[test]
fn file_names_are_relative_to_the_config_file() {
    let sink = |log: &str| config(&format!("{MINIMAL}rules: []\naccess_log: {log}\n")).access_log.unwrap();
    assert_eq!(sink("access.log").sink, Sink::File("/etc/weir/access.log".into()));
    assert_eq!(sink("/var/log/a").sink, Sink::File("/var/log/a".into()));
    assert_eq!(sink("{ path: stderr, format: json }").sink, Sink::Stderr);
    assert_eq!(sink("{ path: stderr, format: json }").format, Format::Json);
    assert_eq!(sink("./stdot").sink, Sink::File("/etc/weir/./stdot".into()));
}

#[test]
fn variable_is_converted_to_the_expected_type() {
    let environment = [("N", "7"), ("OFF", "false"), ("KEY", "12345"), ("UNIT", "min"), ("AUTO", "auto")];
    let text = with_rule(
        "limit: ${N}/${UNIT}\nburst: ${N}\nmatch: { header: { x-key: \"${KEY}\", x-flag: \"${OFF}\" } }\non_limit: { body: { json: { wait: \"${N}\", literal: \"$${N}\" } } }",
    ) + "access_log: ${OFF}\nworkers: ${AUTO}\nietf_headers: ${OFF}\ndrain: { delay: \"${NONE:-3s}\" }\n";
    let config = load_with_environment(&environment, &text).unwrap();
    assert_eq!(config.policy.rules[0].limits()[0].quota.limit().to_string(), "7/min");
    assert_eq!(config.policy.rules[0].limits()[0].quota.burst().get(), 7);
    assert_eq!(&config.policy.rules[0].rejection.body[..], br#"{"wait":7,"literal":"${N}"}"#);
    assert_eq!(config.drain.delay, Duration::from_secs(3));
    assert!(config.access_log.is_none());
    assert!(format!("{:?}", config.policy.rules[0].matcher.conditions).contains("Exact(\"12345\")"));
}

#[test]
fn a_variable_cannot_add_keys() {
    let environment = [("X", "1/s\n    burst: 5"), ("Y", "{ limit: 1/s }"), ("Z", "[1/s, 2/s]")];
    for name in ["X", "Y", "Z"] {
        let problems =
            load_with_environment(&environment, &with_rule(&format!("limits: ${{{name}}}"))).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems:?}");
    }
}

#[test]
fn several_listeners_may_use_port_zero() {
    let text = "listeners: [{ name: a, address: 127.0.0.1:0 }, { name: b, address: 127.0.0.1:0 }]\nupstream: echo\nadmin: { address: 127.0.0.1:0 }\nrules: []\n";
    assert_eq!(config(text).listeners.len(), 2);
}

#[test]
fn ten_thousand_rules_load_and_of_ten_thousand_errors_the_first_are_reported() {
    let mut text = MINIMAL.to_owned() + "rules:\n";
    for index in 0..10_000 {
        let _ = writeln!(
            text,
            "  - {{ name: r{index}, match: {{ path: /p/{index} }}, key: client_ip, limit: 5/s }}"
        );
    }
    assert_eq!(config(&text).policy.rules.len(), 10_000);
    let problems = load_with_environment(&[], &text.replace("5/s", "5/x")).unwrap_err();
    // The first ones, and a line that states the number of the others.
    assert_eq!(problems.len(), 201);
    assert!(problems[199].starts_with("/etc/weir/weir.yaml:203:"), "{}", problems[199]);
    assert!(problems[200].contains("9800"), "{}", problems[200]);
}

#[test]
fn the_schema_describes_every_key() {
    let described = |object: &serde_json::Value| {
        object["properties"]
            .as_object()
            .unwrap()
            .values()
            .all(|property| property.get("description").is_some())
    };
    assert!(described(schema::schema()));
    let definitions = schema::schema()["$defs"].as_object().unwrap();
    for (name, definition) in definitions.iter().filter(|(_, schema)| schema.get("properties").is_some()) {
        assert!(described(definition), "{name}");
        assert_eq!(definition["additionalProperties"], false, "{name}");
    }
    assert!(!schema::schema().to_string().contains("null"));
}

/// Positions, lengths and pieces of YAML to replace them with.
fn edits() -> impl Strategy<Value = Vec<(usize, usize, String)>> {
    let piece = prop_oneof![
        "[\\[\\]{}:,\\-?&*!|>'\"#%@~ \n\t$]{1,4}",
        "[0-9]{1,20}",
        Just("~".to_owned()),
        Just("[]".to_owned()),
        Just("{}".to_owned()),
        Just("${".to_owned()),
        Just("\u{feff}".to_owned()),
        ".{0,6}",
    ];
    prop::collection::vec((0..10_000_usize, 0..12_usize, piece), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Any edited file is either a valid configuration or has problems with positions.
    #[test]
    fn garbled_config_is_valid_or_has_errors_with_positions(edits in edits()) {
        let mut text: Vec<char> = include_str!("../../../config/gateway.yaml").chars().collect();
        for (at, length, piece) in edits {
            let at = at % text.len();
            let end = (at + length).min(text.len());
            text.splice(at..end, piece.chars());
        }
        let text: String = text.into_iter().collect();
        if let Err(problems) = from_text(&text, Path::new("w"), &|_| None) {
            prop_assert!(!problems.is_empty());
            for problem in problems {
                prop_assert!(problem.line > 0 && problem.column > 0, "{}", problem);
                prop_assert!(problem.line <= text.lines().count() + 2, "{}", problem);
                // The shape check reports these problems first, with better messages than the decoder's.
                prop_assert!(!problem.message.contains("did not match any variant"), "{}", problem);
                prop_assert!(!problem.message.contains("invalid type"), "{}", problem);
            }
        }
    }
}
