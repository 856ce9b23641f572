//! Keys: what is counted separately, and what happens to requests without a part of the key.

use crate::support::Request;

use super::{count_admitted, start_with_rules, statuses};

/// Checks that under `limit: 1/d` with this key each of `apart` is admitted once.
fn assert_separate_counters(rule: &str, apart: &[Request]) {
    let weir = start_with_rules(rule);
    assert_eq!(statuses(&weir, apart), vec![200; apart.len()], "not counted separately: {rule}");
    assert_eq!(statuses(&weir, apart), vec![429; apart.len()], "not counted: {rule}");
}

/// Checks that under `limit: 1/d` with this key only the first of `together` is admitted.
fn assert_shared_counter(rule: &str, together: &[Request]) {
    let statuses = statuses(&start_with_rules(rule), together);
    assert_eq!(statuses[0], 200);
    assert!(statuses[1..].iter().all(|status| *status == 429), "not counted together: {rule}: {statuses:?}");
}

fn rule_with_key(key: &str) -> String {
    format!("  - {{ name: a, key: {key}, limit: 1/d }}")
}

fn get(target: &str) -> Request {
    Request::get(target)
}

#[test]
fn a_header_is_a_key() {
    let with = |value: &str| get("/").header("X-Api-Key", value);
    assert_separate_counters(
        &rule_with_key("[{ header: x-api-key }]"),
        &[with("one"), with("two"), with("One")],
    );
    assert_shared_counter(
        &rule_with_key("[{ header: x-api-key }]"),
        &[with("one"), get("/other").header("x-api-key", "one")],
    );
}

#[test]
fn a_cookie_is_a_key() {
    let with = |cookies: &str| get("/").header("cookie", cookies);
    assert_separate_counters(
        &rule_with_key("[{ cookie: session }]"),
        &[with("session=one"), with("session=two")],
    );
    assert_shared_counter(
        &rule_with_key("[{ cookie: session }]"),
        &[with("session=one"), with("a=b; session=one; c=d")],
    );
}

/// Returns spellings of a session cookie: percent-encoded, quoted, with octal escapes, with an encoded name, and with
/// spaces.
fn cookie_spellings(session: &str) -> Vec<String> {
    let quoted = |inner: String| format!("\"{inner}\"");
    let each = |index: usize, spell: &dyn Fn(u8) -> String| {
        let bytes = session.bytes().enumerate();
        bytes
            .map(|(at, byte)| if at == index { spell(byte) } else { char::from(byte).to_string() })
            .collect::<String>()
    };
    let percent = |byte: u8| format!("%{byte:02X}");
    let twice = |byte: u8| format!("%25{byte:02x}");
    let octal = |byte: u8| format!("\\{byte:03o}");
    let backslash = |byte: u8| format!("\\{}", char::from(byte));
    let mut all = vec![format!("session={session}"), format!("session={}", quoted(session.to_owned()))];
    for index in 0..session.len() {
        all.push(format!("session={}", each(index, &percent)));
        all.push(format!("session={}", each(index, &twice)));
        all.push(format!("session={}", quoted(each(index, &percent))));
        all.push(format!("session={}", quoted(each(index, &octal))));
        all.push(format!("session={}", quoted(each(index, &backslash))));
        all.push(format!("sess%69on={}", each(index, &percent)));
        let space = "\u{a0}".repeat(index);
        all.extend([format!("session={space}{session}"), format!("{space}session={session}{space}\u{3000}")]);
    }
    all
}

#[test]
fn cookie_spellings_cannot_bypass_the_limit() {
    let weir = start_with_rules(&rule_with_key("[{ cookie: session }]"));
    let all = cookie_spellings("wxyz.abcd-zyxw_dcba");
    assert!(all.len() > 100);
    let mut client = crate::support::Client::connect(weir.address());
    let mut status = |cookies: &str| client.fetch(&get("/").header("cookie", cookies)).status;
    let passed = all.iter().filter(|cookie| status(cookie) == 200).count();
    assert_eq!(passed, 1, "admitted of {} spellings", all.len());
    assert_eq!(status("session=another"), 200);
    for several in [
        "session=a; session=b",
        "session=a; %73ession=b",
        "session=\"a; session=b",
        "session=a x=1",
        "x=1 session=a",
    ] {
        assert_eq!(status(several), 400, "{several}");
    }
}

#[test]
fn a_query_parameter_is_a_key() {
    assert_separate_counters(&rule_with_key("[{ query: user }]"), &[get("/?user=one"), get("/?user=two")]);
    assert_shared_counter(
        &rule_with_key("[{ query: user }]"),
        &[get("/?user=one"), get("/x?a=b&user=one"), get("/?user=%6fne")],
    );
}

#[test]
fn the_method_is_a_key() {
    assert_separate_counters(
        &rule_with_key("[method]"),
        &[get("/"), Request::new("DELETE", "/"), Request::new("get", "/")],
    );
}

#[test]
fn host_key_is_normalised() {
    assert_separate_counters(&rule_with_key("[host]"), &[get("/").host("a.test"), get("/").host("b.test")]);
    let spellings = ["a.test", "A.Test", "a.test:80", "a.test."].map(|host| get("/").host(host));
    assert_shared_counter(&rule_with_key("[host]"), &spellings);
}

#[test]
fn path_key_is_normalised() {
    assert_separate_counters(&rule_with_key("[path]"), &[get("/a"), get("/b"), get("/A"), get("/a/")]);
    assert_shared_counter(&rule_with_key("[path]"), &["/a", "//a", "/x/../a", "/%61", "/a?b=c"].map(get));
}

#[test]
fn route_key_counts_all_its_paths_together() {
    let rule = "  - { name: a, match: { path: [\"/users/{id}\", /other] }, key: [route], limit: 1/d }";
    assert_shared_counter(rule, &[get("/users/1"), get("/users/2"), get("/users/me")]);
    assert_separate_counters(rule, &[get("/users/1"), get("/other")]);
}

#[test]
fn key_parts_are_delimited() {
    let with = |a: &str, b: &str| get("/").header("x-a", a).header("x-b", b);
    assert_separate_counters(
        &rule_with_key("[{ header: x-a }, { header: x-b }]"),
        &[with("ab", "c"), with("a", "bc"), with("a_b", "c")],
    );
}

#[test]
fn an_empty_key_is_one_counter_for_all() {
    assert_shared_counter(
        &rule_with_key("[]"),
        &[get("/"), get("/other").forwarded_for("192.0.2.1"), Request::post("/", "x")],
    );
}

#[test]
fn rules_with_the_same_key_have_separate_counters() {
    let weir = start_with_rules(
        "  - { name: a, match: { path: /a }, key: [client_ip], limit: 2/d }\n  \
         - { name: b, match: { path: /b }, key: [client_ip], limit: 3/d }",
    );
    assert_eq!(count_admitted(&weir, 5, &get("/a")), 2);
    assert_eq!(count_admitted(&weir, 5, &get("/b")), 3);
}

#[test]
fn missing_key_skips_the_rule_by_default() {
    let weir = start_with_rules(&rule_with_key("[{ header: x-api-key }]"));
    assert_eq!(count_admitted(&weir, 5, &get("/")), 5);
    let weir =
        start_with_rules("  - { name: a, key: [{ header: x-api-key }], limit: 1/d, on_missing: skip }");
    assert_eq!(count_admitted(&weir, 5, &get("/")), 5);
}

#[test]
fn on_missing_shared_uses_one_counter() {
    let weir =
        start_with_rules("  - { name: a, key: [{ header: x-api-key }], limit: 2/d, on_missing: shared }");
    assert_eq!(count_admitted(&weir, 5, &get("/")), 2);
    assert_eq!(count_admitted(&weir, 5, &get("/").header("x-api-key", "one")), 2, "not the shared counter");
    assert_eq!(
        count_admitted(&weir, 5, &get("/").header("x-api-key", "")),
        2,
        "an empty value is not a missing value"
    );
}

#[test]
fn on_missing_deny_rejects() {
    let weir =
        start_with_rules("  - { name: a, key: [{ header: x-api-key }], limit: 2/d, on_missing: deny }");
    assert_eq!(statuses(&weir, &[get("/"), get("/").header("x-api-key", "one"), get("/")]), [403, 200, 403]);
}

#[test]
fn key_may_contain_any_bytes() {
    let weir = start_with_rules("  - { name: a, key: [{ header: x-api-key }, { query: q }], limit: 1/d }");
    let mut client = crate::support::Client::connect(weir.address());
    let mut ask = |value: &[u8]| {
        client.send(
            [b"GET /?q=%ff%00%0a HTTP/1.1\r\nhost: a.test\r\nx-api-key: ", value, b"\r\n\r\n"].concat(),
        );
        client.read_response("GET").status
    };
    let long = vec![b'k'; 30_000];
    for value in [b"\xff\xfe".as_slice(), b"\xff", &long] {
        assert_eq!((ask(value), ask(value)), (200, 429));
    }
}

#[test]
fn repeated_key_values_are_rejected_with_400() {
    let weir = start_with_rules(
        "  - { name: header, key: { header: authorization }, limit: 1/d }\n  \
         - { name: cookie, key: { cookie: sid }, limit: 1/d }\n  \
         - { name: query, key: { query: k }, limit: 1/d, on_missing: shared }\n  \
         - { name: looks-on, key: { header: x-api-key }, limit: 1/d, on_missing: deny, throttle: shadow }",
    );
    let basic = || get("/?k=1").header("authorization", "Basic K");
    assert_eq!(count_admitted(&weir, 2, &basic()), 1);
    for n in 0..3 {
        let n = n.to_string();
        for repeated in [
            basic().header("authorization", &n),
            get("/?k=2").header("authorization", &n).header("authorization", "Basic K"),
            get("/?k=2").header("cookie", &format!("sid={n}; sid=real")),
            get("/?k=2").header("cookie", "sid=real").header("cookie", &format!("sid={n}")),
            get(&format!("/?k={n}&k=real")),
            get(&format!("/?k=real&a=b&%6B={n}")),
        ] {
            let answer = crate::support::fetch(weir.address(), &repeated);
            assert_eq!(answer.status, 400, "{repeated:?}");
            assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
            assert!(answer.body.text().contains("several values"), "{}", answer.body.text());
        }
    }
    for (rule, times) in [("header", 6.0), ("cookie", 6.0), ("query", 6.0), ("looks-on", 0.0)] {
        let denied = weir.metric("weir_decisions_total", &[("rule", rule), ("outcome", "denied")]);
        assert_eq!(denied, times, "{rule}");
    }
    // A repeated value is still one value, and a rule in shadow mode rejects nothing.
    let again = get("/?k=3&k=3").header("x-api-key", "a").header("x-api-key", "b");
    assert_eq!(count_admitted(&weir, 2, &again), 1);
}

#[test]
fn on_missing_deny_does_not_reject_in_shadow_mode() {
    let rule = |more: &str| {
        start_with_rules(&format!(
            "  - {{ name: a, key: {{ header: x-key }}, limit: 1/d, on_missing: deny, {more} }}"
        ))
    };
    for more in ["enforce: 0%", "throttle: shadow"] {
        let weir = rule(more);
        assert_eq!(statuses(&weir, &[get("/"), get("/")]), [200, 200], "{more}");
        let seen = |outcome| weir.metric("weir_decisions_total", &[("rule", "a"), ("outcome", outcome)]);
        assert_eq!((seen("shadow"), seen("denied")), (2.0, 0.0), "{more}");
    }
    assert_eq!(statuses(&rule("enforce: 100%"), &[get("/")]), [403]);
}
