//! Information about limits in responses.

use crate::support::{Client, Request, Response, Weir, ask, get};

use super::{with_rules, with_settings};

const RATE_LIMIT_HEADERS: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];

/// Sends requests until one is rejected, and returns that response.
fn refusal(weir: &Weir) -> Response {
    let mut client = Client::connect(weir.address());
    (0..50).map(|_| client.get("/")).find(|answer| answer.status != 200).expect("no request was rejected")
}

#[test]
fn every_answer_tells_the_limit_and_what_is_left_of_it() {
    let weir = with_rules("  - { name: per-ip, key: [client_ip], limit: 10/s }");
    let answer = get(weir.address(), "/");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-ratelimit-limit"), "10, 10;w=1;name=\"per-ip\"");
    assert_eq!(answer.header("x-ratelimit-remaining"), "9");
    assert_eq!(answer.header("x-ratelimit-reset"), "1");
    assert_eq!(answer.head.get("retry-after"), None);
    assert_eq!(answer.head.get("x-envoy-ratelimited"), None);
}

#[test]
fn a_refusal_says_when_to_come_back() {
    let weir = with_rules("  - { name: per-ip, key: [client_ip], limit: 10/h }");
    let answer = refusal(&weir);
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("x-envoy-ratelimited"), "true");
    assert_eq!(answer.header("x-ratelimit-limit"), "10, 10;w=3600;name=\"per-ip\"");
    assert_eq!(answer.header("x-ratelimit-remaining"), "0");
    // A tenth of an hour replenishes one unit, an hour all of them, less the seconds that the test has taken.
    assert!((350..=360).contains(&answer.number("retry-after")), "{}", answer.header("retry-after"));
    assert!((3590..=3600).contains(&answer.number("x-ratelimit-reset")), "{answer:#?}");
}

#[test]
fn a_short_wait_is_at_least_a_second() {
    let weir = with_rules("  - { name: a, key: [], limit: 5/s, burst: 1 }");
    let mut client = Client::connect(weir.address());
    let refused = (0..1000).map(|_| client.get("/")).find(|answer| answer.status == 429);
    assert_eq!(refused.expect("no request was rejected").header("retry-after"), "1");
}

#[test]
fn the_promise_of_a_fixed_window_is_its_end() {
    let weir = with_rules("  - { name: a, key: [], limit: 3/2s, algorithm: fixed_window }");
    let answer = refusal(&weir);
    assert_eq!(answer.header("x-ratelimit-limit"), "3, 3;w=2;name=\"a\"");
    assert!((1..=2).contains(&answer.number("retry-after")));
    assert_eq!(answer.header("retry-after"), answer.header("x-ratelimit-reset"));
}

#[test]
fn the_tightest_limit_leads_and_all_are_listed() {
    let weir =
        with_rules("  - { name: fast, key: [], limit: 100/h }\n  - { name: slow, key: [], limit: 50/d }");
    let answer = get(weir.address(), "/");
    let expected = "50, 100;w=3600;name=\"fast\", 50;w=86400;name=\"slow\"";
    assert_eq!(answer.header("x-ratelimit-limit"), expected);
    assert_eq!(answer.header("x-ratelimit-remaining"), "49");
}

#[test]
fn remaining_counts_down() {
    let weir = with_rules("  - { name: a, key: [], limit: 4/d }");
    let mut client = Client::connect(weir.address());
    let left: Vec<_> = (0..5).map(|_| client.get("/").number("x-ratelimit-remaining")).collect();
    assert_eq!(left, [3, 2, 1, 0, 0]);
}

#[test]
fn limits_may_be_told_on_refusals_only() {
    let weir = with_settings("ratelimit_headers: limited", "  - { name: a, key: [], limit: 1/d }");
    let mut client = Client::connect(weir.address());
    let (passed, refused) = (client.get("/"), client.get("/"));
    assert_eq!((passed.status, refused.status), (200, 429));
    for header in RATE_LIMIT_HEADERS {
        assert_eq!(passed.head.get(header), None);
        assert!(refused.head.get(header).is_some(), "{header}");
    }
}

#[test]
fn limits_may_be_kept_from_clients() {
    for off in ["off", "false", "\"off\""] {
        let weir =
            with_settings(&format!("ratelimit_headers: {off}"), "  - { name: a, key: [], limit: 1/d }");
        let mut client = Client::connect(weir.address());
        for answer in [client.get("/"), client.get("/")] {
            for header in RATE_LIMIT_HEADERS {
                assert_eq!(answer.head.get(header), None);
            }
        }
        assert!(refusal(&weir).number("retry-after") > 0, "Retry-After is sent nevertheless");
    }
}

#[test]
fn the_ietf_headers_come_on_request() {
    let rules = "  - { name: a, key: [], limit: 3/d }\n  - { name: b, key: [], limit: 100/s }";
    let weir = with_settings("ietf_headers: true", rules);
    let answer = get(weir.address(), "/");
    assert_eq!(answer.header("ratelimit-policy"), "\"a\";q=3;w=86400, \"b\";q=100;w=1");
    assert_eq!(answer.header("ratelimit"), "\"a\";r=2;t=28800, \"b\";r=99;t=1");
    let answer = get(with_rules(rules).address(), "/");
    assert_eq!(answer.head.get("ratelimit"), None);
}

/// Returns the value of a parameter of the member of `field` that starts with `name`.
fn parameter<'a>(field: &'a str, name: &str, parameter: &str) -> Option<&'a str> {
    let member = field.split(", ").find(|member| member.starts_with(&format!("\"{name}\";")))?;
    member.split(';').find_map(|part| part.strip_prefix(parameter)?.strip_prefix('='))
}

#[test]
fn the_time_in_ratelimit_is_until_more_quota_and_never_later_than_retry_after() {
    for algorithm in ["gcra", "token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"]
    {
        let rule = format!("  - {{ name: a, key: [], limit: 20/d, algorithm: {algorithm} }}");
        let weir = with_settings("ietf_headers: true", &rule);
        (0..20).for_each(|_| assert_eq!(get(weir.address(), "/").status, 200, "{algorithm}"));
        let rejected = refusal(&weir);
        let time = parameter(rejected.header("ratelimit"), "a", "t").unwrap().parse::<u64>().unwrap();
        assert_eq!(time, rejected.number("retry-after"), "{algorithm}");
        // Envoy's header contains the time until the whole quota is available again.
        assert!(rejected.number("x-ratelimit-reset") >= time, "{algorithm}");
    }
}

#[test]
fn a_time_beyond_retry_after_is_left_out_and_what_rejects_has_its_own() {
    let rules = "  - { name: fast, key: [], limit: 2/h }\n  - { name: slow, key: [], limit: 9/d, algorithm: fixed_window }";
    let weir = with_settings("ietf_headers: true", rules);
    (0..2).for_each(|_| assert_eq!(get(weir.address(), "/").status, 200));
    let rejected = refusal(&weir);
    let times = ["fast", "slow"].map(|name| parameter(rejected.header("ratelimit"), name, "t"));
    let retry_after = rejected.number("retry-after");
    assert_eq!(times[0], Some(&*retry_after.to_string()));
    assert!(times[1].is_none_or(|time| time.parse::<u64>().unwrap() <= retry_after), "{times:?}");
}

#[test]
fn each_limit_of_a_rule_is_a_policy_with_a_name_and_a_unit_of_its_own() {
    let rules = "  - { name: a, key: [], limits: [50/s, 5/100ms, 100/d], in_flight: 7 }\n  \
                 - { name: up, key: [], limit: 10/h, cost: { request_bytes: 1KiB } }";
    let weir = with_settings("ietf_headers: true", rules);
    let answer = get(weir.address(), "/");
    let policies = answer.header("ratelimit-policy");
    assert_eq!(
        policies,
        "\"a/in_flight\";q=7;qu=\"concurrent-requests\", \"a/s\";q=50;w=1, \"a/100ms\";q=5, \
         \"a/d\";q=100;w=86400, \"up\";q=10240;qu=\"content-bytes\";w=3600"
    );
    let left = ["a/in_flight", "a/d", "up"].map(|name| parameter(answer.header("ratelimit"), name, "r"));
    assert_eq!(left, [Some("6"), Some("99"), Some("9216")]);
    // Envoy's header stays unchanged.
    assert!(answer.header("x-ratelimit-limit").contains("5;w=1;name=\"a\""));
}

#[test]
fn a_partition_key_tells_clients_apart_and_does_not_say_who_they_are() {
    let rule = "  - { name: a, key: [{ header: x-user }], limit: 9/d }";
    let weir = with_settings("ietf_headers: true", rule);
    let partition = |user: &str| {
        let answer = ask(weir.address(), &Request::get("/").header("x-user", user));
        let both = ["ratelimit", "ratelimit-policy"]
            .map(|field| parameter(answer.header(field), "a", "pk").map(str::to_owned).unwrap());
        assert_eq!(both[0], both[1]);
        both[0].clone()
    };
    let (ada, bob) = (partition("ada"), partition("bob"));
    assert_eq!(ada, partition("ada"));
    assert_ne!(ada, bob);
    // Eight bytes in base64, between colons.
    assert!(ada.len() == 14 && ada.starts_with(':') && ada.ends_with(':'), "{ada}");
    let elsewhere = with_settings("ietf_headers: true", rule);
    let answer = ask(elsewhere.address(), &Request::get("/").header("x-user", "ada"));
    let other = parameter(answer.header("ratelimit"), "a", "pk");
    assert_ne!(other, Some(&*ada), "another process has its own secret for partition keys");
}

#[test]
fn a_request_no_rule_is_for_is_told_nothing() {
    let weir = with_rules("  - { name: a, match: { path: /limited }, key: [], limit: 1/d }");
    let answer = get(weir.address(), "/free");
    for header in RATE_LIMIT_HEADERS {
        assert_eq!(answer.head.get(header), None);
    }
}

#[test]
fn a_rule_chooses_status_text_and_headers_of_its_refusal() {
    let weir = with_rules(
        "  - name: a\n    key: []\n    limit: 1/d\n    on_limit:\n      status: 503\n      \
         body: { text: \"busy, come back later\" }\n      headers: { x-limited-by: \"{rule}\", x-more: fixed }",
    );
    let answer = refusal(&weir);
    assert_eq!((answer.status, answer.body.text().as_str()), (503, "busy, come back later"));
    assert_eq!((answer.header("x-limited-by"), answer.header("x-more")), ("a", "fixed"));
    assert!(answer.header("content-type").starts_with("text/plain"));
    assert_eq!(answer.header("x-envoy-ratelimited"), "true");
    assert!(answer.number("retry-after") >= 1);
}

#[test]
fn a_rule_chooses_a_json_body() {
    let weir = with_rules(
        "  - { name: a, key: [], limit: 1/d, on_limit: { body: { json: { error: \"slow down\", n: 1 } } } }",
    );
    let answer = refusal(&weir);
    assert_eq!(answer.status, 429);
    assert!(answer.header("content-type").starts_with("application/json"));
    let body: serde_json::Value = serde_json::from_slice(&answer.body.bytes).unwrap();
    assert_eq!(body, serde_json::json!({ "error": "slow down", "n": 1 }));
}

#[test]
fn what_a_refusal_says_it_says_once() {
    let on_limit = "on_limit: { headers: { date: now, x-ratelimit-remaining: \"77\" } }";
    let weir = with_rules(&format!("  - {{ name: a, key: [], limit: 1/d, {on_limit} }}"));
    let answer = refusal(&weir);
    assert_eq!(answer.head.all("date"), ["now"]);
    assert_eq!(answer.head.all("x-ratelimit-remaining"), ["0"]);
    assert_eq!(answer.head.all("x-ratelimit-reset").len(), 1);
}

#[test]
fn of_several_refusing_rules_the_longest_wait_answers() {
    let on_limit = "on_limit: { headers: { x-limited-by: \"{rule}\" } }";
    let weir = with_rules(&format!(
        "  - {{ name: hour, key: [], limit: 1/h, {on_limit} }}\n  - {{ name: day, key: [], limit: 1/d, {on_limit} }}"
    ));
    let answer = refusal(&weir);
    assert_eq!(answer.header("x-limited-by"), "day");
    assert!(answer.number("retry-after") > 3600, "{}", answer.header("retry-after"));
}

#[test]
fn a_refusal_of_head_has_no_body_and_one_of_get_has() {
    let weir = with_rules("  - { name: a, key: [], limit: 1/d }");
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/").status, 200);
    // A body after the response to HEAD would be read as the start of the next response.
    assert_eq!(client.ask(&Request::new("HEAD", "/")).status, 429);
    let refused = client.get("/");
    assert_eq!(refused.status, 429);
    assert!(refused.body.length > 0);
    // The response was complete, and its client did not reset the request.
    assert_eq!(weir.metric("weir_requests_reset_total", &[]), 0.0);
}

#[test]
fn the_upstreams_own_headers_of_the_same_name_do_not_mix_with_ours() {
    let origin = crate::support::Origin::answering(
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-ratelimit-limit: 1\r\nx-ratelimit-remaining: 1\r\n\r\n",
    );
    let rules = "rules: [{ name: a, key: [], limit: 10/d }]";
    let weir = Weir::start(&crate::support::config(origin.address(), rules));
    let answer = get(weir.address(), "/");
    assert_eq!(answer.head.all("x-ratelimit-limit"), ["10, 10;w=86400;name=\"a\""]);
    assert_eq!(answer.head.all("x-ratelimit-remaining"), ["9"]);
}
