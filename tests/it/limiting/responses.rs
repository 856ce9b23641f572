//! Information about limits in responses.

use crate::support::{Client, Request, Response, Weir, fetch, get};

use super::{start_with_rules, start_with_settings};

const RATE_LIMIT_HEADERS: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];

/// Sends requests until one is rejected, and returns that response.
fn first_rejection(weir: &Weir) -> Response {
    let mut client = Client::connect(weir.address());
    (0..50).map(|_| client.get("/")).find(|answer| answer.status != 200).expect("no request was rejected")
}

#[test]
fn responses_have_limit_and_remaining_headers() {
    let weir = start_with_rules("  - { name: per-ip, key: [client_ip], limit: 10/s }");
    let answer = get(weir.address(), "/");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-ratelimit-limit"), "10, 10;w=1;name=\"per-ip\"");
    assert_eq!(answer.header("x-ratelimit-remaining"), "9");
    assert_eq!(answer.header("x-ratelimit-reset"), "1");
    assert_eq!(answer.head.get("retry-after"), None);
    assert_eq!(answer.head.get("x-envoy-ratelimited"), None);
}

#[test]
fn rejection_has_retry_after() {
    let weir = start_with_rules("  - { name: per-ip, key: [client_ip], limit: 10/h }");
    let answer = first_rejection(&weir);
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("x-envoy-ratelimited"), "true");
    assert_eq!(answer.header("x-ratelimit-limit"), "10, 10;w=3600;name=\"per-ip\"");
    assert_eq!(answer.header("x-ratelimit-remaining"), "0");
    // A tenth of an hour replenishes one unit, an hour all of them, less the seconds that the test has taken.
    assert!((350..=360).contains(&answer.numeric_header("retry-after")), "{}", answer.header("retry-after"));
    assert!((3590..=3600).contains(&answer.numeric_header("x-ratelimit-reset")), "{answer:#?}");
}

#[test]
fn retry_after_is_at_least_one_second() {
    let weir = start_with_rules("  - { name: a, key: [], limit: 5/s, burst: 1 }");
    let mut client = Client::connect(weir.address());
    let refused = (0..1000).map(|_| client.get("/")).find(|answer| answer.status == 429);
    assert_eq!(refused.expect("no request was rejected").header("retry-after"), "1");
}

#[test]
fn retry_after_of_a_fixed_window_is_its_end() {
    let weir = start_with_rules("  - { name: a, key: [], limit: 3/2s, algorithm: fixed_window }");
    let answer = first_rejection(&weir);
    assert_eq!(answer.header("x-ratelimit-limit"), "3, 3;w=2;name=\"a\"");
    assert!((1..=2).contains(&answer.numeric_header("retry-after")));
    assert_eq!(answer.header("retry-after"), answer.header("x-ratelimit-reset"));
}

#[test]
fn limit_header_starts_with_the_tightest_limit_and_lists_all() {
    let weir = start_with_rules(
        "  - { name: fast, key: [], limit: 100/h }\n  - { name: slow, key: [], limit: 50/d }",
    );
    let answer = get(weir.address(), "/");
    let expected = "50, 100;w=3600;name=\"fast\", 50;w=86400;name=\"slow\"";
    assert_eq!(answer.header("x-ratelimit-limit"), expected);
    assert_eq!(answer.header("x-ratelimit-remaining"), "49");
}

#[test]
fn remaining_counts_down() {
    let weir = start_with_rules("  - { name: a, key: [], limit: 4/d }");
    let mut client = Client::connect(weir.address());
    let left: Vec<_> = (0..5).map(|_| client.get("/").numeric_header("x-ratelimit-remaining")).collect();
    assert_eq!(left, [3, 2, 1, 0, 0]);
}

#[test]
fn ratelimit_headers_limited_adds_headers_to_rejections_only() {
    let weir = start_with_settings("ratelimit_headers: limited", "  - { name: a, key: [], limit: 1/d }");
    let mut client = Client::connect(weir.address());
    let (passed, refused) = (client.get("/"), client.get("/"));
    assert_eq!((passed.status, refused.status), (200, 429));
    for header in RATE_LIMIT_HEADERS {
        assert_eq!(passed.head.get(header), None);
        assert!(refused.head.get(header).is_some(), "{header}");
    }
}

#[test]
fn ratelimit_headers_off_leaves_only_retry_after() {
    for off in ["off", "false", "\"off\""] {
        let weir =
            start_with_settings(&format!("ratelimit_headers: {off}"), "  - { name: a, key: [], limit: 1/d }");
        let mut client = Client::connect(weir.address());
        for answer in [client.get("/"), client.get("/")] {
            for header in RATE_LIMIT_HEADERS {
                assert_eq!(answer.head.get(header), None);
            }
        }
        assert!(first_rejection(&weir).numeric_header("retry-after") > 0, "Retry-After is sent nevertheless");
    }
}

#[test]
fn ietf_headers_are_added_if_enabled() {
    let rules = "  - { name: a, key: [], limit: 3/d }\n  - { name: b, key: [], limit: 100/s }";
    let weir = start_with_settings("ietf_headers: true", rules);
    let answer = get(weir.address(), "/");
    assert_eq!(answer.header("ratelimit-policy"), "\"a\";q=3;w=86400, \"b\";q=100;w=1");
    assert_eq!(answer.header("ratelimit"), "\"a\";r=2;t=28800, \"b\";r=99;t=1");
    let answer = get(start_with_rules(rules).address(), "/");
    assert_eq!(answer.head.get("ratelimit"), None);
}

/// Returns the value of a parameter of the member of `field` that starts with `name`.
fn member_parameter<'a>(field: &'a str, name: &str, parameter: &str) -> Option<&'a str> {
    let member = field.split(", ").find(|member| member.starts_with(&format!("\"{name}\";")))?;
    member.split(';').find_map(|part| part.strip_prefix(parameter)?.strip_prefix('='))
}

#[test]
fn ietf_reset_time_of_a_rejection_equals_retry_after() {
    for algorithm in ["gcra", "token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"]
    {
        let rule = format!("  - {{ name: a, key: [], limit: 20/d, algorithm: {algorithm} }}");
        let weir = start_with_settings("ietf_headers: true", &rule);
        (0..20).for_each(|_| assert_eq!(get(weir.address(), "/").status, 200, "{algorithm}"));
        let rejected = first_rejection(&weir);
        let time = member_parameter(rejected.header("ratelimit"), "a", "t").unwrap().parse::<u64>().unwrap();
        assert_eq!(time, rejected.numeric_header("retry-after"), "{algorithm}");
        // Envoy's header contains the time until the whole quota is available again.
        assert!(rejected.numeric_header("x-ratelimit-reset") >= time, "{algorithm}");
    }
}

#[test]
fn ietf_reset_time_beyond_retry_after_is_omitted() {
    let rules = "  - { name: fast, key: [], limit: 2/h }\n  - { name: slow, key: [], limit: 9/d, algorithm: fixed_window }";
    let weir = start_with_settings("ietf_headers: true", rules);
    (0..2).for_each(|_| assert_eq!(get(weir.address(), "/").status, 200));
    let rejected = first_rejection(&weir);
    let times = ["fast", "slow"].map(|name| member_parameter(rejected.header("ratelimit"), name, "t"));
    let retry_after = rejected.numeric_header("retry-after");
    assert_eq!(times[0], Some(&*retry_after.to_string()));
    assert!(times[1].is_none_or(|time| time.parse::<u64>().unwrap() <= retry_after), "{times:?}");
}

#[test]
fn each_limit_is_an_ietf_policy_with_its_own_name_and_unit() {
    let rules = "  - { name: a, key: [], limits: [50/s, 5/100ms, 100/d], in_flight: 7 }\n  \
                 - { name: up, key: [], limit: 10/h, cost: { request_bytes: 1KiB } }";
    let weir = start_with_settings("ietf_headers: true", rules);
    let answer = get(weir.address(), "/");
    let policies = answer.header("ratelimit-policy");
    assert_eq!(
        policies,
        "\"a/in_flight\";q=7;qu=\"concurrent-requests\", \"a/s\";q=50;w=1, \"a/100ms\";q=5, \
         \"a/d\";q=100;w=86400, \"up\";q=10240;qu=\"content-bytes\";w=3600"
    );
    let left =
        ["a/in_flight", "a/d", "up"].map(|name| member_parameter(answer.header("ratelimit"), name, "r"));
    assert_eq!(left, [Some("6"), Some("99"), Some("9216")]);
    // Envoy's header stays unchanged.
    assert!(answer.header("x-ratelimit-limit").contains("5;w=1;name=\"a\""));
}

#[test]
fn partition_key_distinguishes_clients_without_revealing_them() {
    let rule = "  - { name: a, key: [{ header: x-user }], limit: 9/d }";
    let weir = start_with_settings("ietf_headers: true", rule);
    let partition = |user: &str| {
        let answer = fetch(weir.address(), &Request::get("/").header("x-user", user));
        let both = ["ratelimit", "ratelimit-policy"]
            .map(|field| member_parameter(answer.header(field), "a", "pk").map(str::to_owned).unwrap());
        assert_eq!(both[0], both[1]);
        both[0].clone()
    };
    let (ada, bob) = (partition("ada"), partition("bob"));
    assert_eq!(ada, partition("ada"));
    assert_ne!(ada, bob);
    // Eight bytes in base64, between colons.
    assert!(ada.len() == 14 && ada.starts_with(':') && ada.ends_with(':'), "{ada}");
    let elsewhere = start_with_settings("ietf_headers: true", rule);
    let answer = fetch(elsewhere.address(), &Request::get("/").header("x-user", "ada"));
    let other = member_parameter(answer.header("ratelimit"), "a", "pk");
    assert_ne!(other, Some(&*ada), "another process has its own secret for partition keys");
}

#[test]
fn request_without_matching_rule_gets_no_rate_limit_headers() {
    let weir = start_with_rules("  - { name: a, match: { path: /limited }, key: [], limit: 1/d }");
    let answer = get(weir.address(), "/free");
    for header in RATE_LIMIT_HEADERS {
        assert_eq!(answer.head.get(header), None);
    }
}

#[test]
fn rejection_status_body_and_headers_are_configurable() {
    let weir = start_with_rules(
        "  - name: a\n    key: []\n    limit: 1/d\n    on_limit:\n      status: 503\n      \
         body: { text: \"busy, come back later\" }\n      headers: { x-limited-by: \"{rule}\", x-more: fixed }",
    );
    let answer = first_rejection(&weir);
    assert_eq!((answer.status, answer.body.text().as_str()), (503, "busy, come back later"));
    assert_eq!((answer.header("x-limited-by"), answer.header("x-more")), ("a", "fixed"));
    assert!(answer.header("content-type").starts_with("text/plain"));
    assert_eq!(answer.header("x-envoy-ratelimited"), "true");
    assert!(answer.numeric_header("retry-after") >= 1);
}

#[test]
fn rejection_body_may_be_json() {
    let weir = start_with_rules(
        "  - { name: a, key: [], limit: 1/d, on_limit: { body: { json: { error: \"slow down\", n: 1 } } } }",
    );
    let answer = first_rejection(&weir);
    assert_eq!(answer.status, 429);
    assert!(answer.header("content-type").starts_with("application/json"));
    let body: serde_json::Value = serde_json::from_slice(&answer.body.bytes).unwrap();
    assert_eq!(body, serde_json::json!({ "error": "slow down", "n": 1 }));
}

#[test]
fn configured_rejection_headers_do_not_duplicate_generated_ones() {
    let on_limit = "on_limit: { headers: { date: now, x-ratelimit-remaining: \"77\" } }";
    let weir = start_with_rules(&format!("  - {{ name: a, key: [], limit: 1/d, {on_limit} }}"));
    let answer = first_rejection(&weir);
    assert_eq!(answer.head.get_all("date"), ["now"]);
    assert_eq!(answer.head.get_all("x-ratelimit-remaining"), ["0"]);
    assert_eq!(answer.head.get_all("x-ratelimit-reset").len(), 1);
}

#[test]
fn rejecting_rule_with_the_longest_wait_determines_the_response() {
    let on_limit = "on_limit: { headers: { x-limited-by: \"{rule}\" } }";
    let weir = start_with_rules(&format!(
        "  - {{ name: hour, key: [], limit: 1/h, {on_limit} }}\n  - {{ name: day, key: [], limit: 1/d, {on_limit} }}"
    ));
    let answer = first_rejection(&weir);
    assert_eq!(answer.header("x-limited-by"), "day");
    assert!(answer.numeric_header("retry-after") > 3600, "{}", answer.header("retry-after"));
}

#[test]
fn rejection_of_head_has_no_body() {
    let weir = start_with_rules("  - { name: a, key: [], limit: 1/d }");
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/").status, 200);
    // A body after the response to HEAD would be read as the start of the next response.
    assert_eq!(client.fetch(&Request::new("HEAD", "/")).status, 429);
    let refused = client.get("/");
    assert_eq!(refused.status, 429);
    assert!(refused.body.length > 0);
    // The response was complete, and its client did not reset the request.
    assert_eq!(weir.metric("weir_requests_reset_total", &[]), 0.0);
}

#[test]
fn upstream_rate_limit_headers_are_replaced() {
    let origin = crate::support::Origin::responding_with(
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-ratelimit-limit: 1\r\nx-ratelimit-remaining: 1\r\n\r\n",
    );
    let rules = "rules: [{ name: a, key: [], limit: 10/d }]";
    let weir = Weir::start(&crate::support::config(origin.address(), rules));
    let answer = get(weir.address(), "/");
    assert_eq!(answer.head.get_all("x-ratelimit-limit"), ["10, 10;w=86400;name=\"a\""]);
    assert_eq!(answer.head.get_all("x-ratelimit-remaining"), ["9"]);
}
