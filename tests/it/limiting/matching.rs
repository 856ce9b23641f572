//! Matching of rules, shown by `deny` rules because those do not count.

use crate::support::{Client, Request, Weir, config};

use super::{count_admitted, start_with_rules, statuses};

/// Checks that a rule with `matcher` and `deny` rejects all of `inside` and none of `outside`.
fn assert_matches(matcher: &str, inside: &[Request], outside: &[Request]) {
    let weir = start_with_rules(&format!("  - {{ name: a, match: {matcher}, action: deny }}"));
    assert_eq!(statuses(&weir, inside), vec![403; inside.len()], "{matcher} does not match all of them");
    assert_eq!(statuses(&weir, outside), vec![200; outside.len()], "{matcher} matches too much");
}

fn get(target: &str) -> Request {
    Request::get(target)
}

#[test]
fn an_exact_path_matches_itself() {
    assert_matches(
        "{ path: /login }",
        &["/login", "/login?next=/"].map(get),
        &["/login/", "/Login", "/logins", "/a/login", "/"].map(get),
    );
}

#[test]
fn a_prefix_matches_everything_below() {
    assert_matches(
        "{ path: \"/api/*\" }",
        &["/api/", "/api/a", "/api/a/b"].map(get),
        &["/api", "/apis/a", "/"].map(get),
    );
}

#[test]
fn template_matches_one_segment_per_placeholder() {
    assert_matches(
        "{ path: \"/users/{id}\" }",
        &["/users/1", "/users/a%2Fb"].map(get),
        &["/users", "/users/", "/users/1/orders"].map(get),
    );
}

#[test]
fn a_regex_matches_anywhere() {
    assert_matches(
        "{ path: \"~\\\\.php$\" }",
        &["/a.php", "/x/y.php?z"].map(get),
        &["/a.php5", "/aphp"].map(get),
    );
}

#[test]
fn list_matches_any_of_its_values() {
    assert_matches(
        "{ path: [/a, \"/b/*\"], method: [GET, PUT] }",
        &[get("/a"), Request::new("PUT", "/b/c")],
        &[get("/c"), Request::new("DELETE", "/a")],
    );
}

#[test]
fn path_spellings_cannot_bypass_a_rule() {
    let spellings = [
        "/login",
        "//login",
        "/x/../login",
        "/%6cogin",
        "/%6Cogin",
        "/./login",
        "/x/%2e%2e/login",
        "/../login",
        "/x//..//./login",
        "/a;/../login",
        "http://any.test/login",
    ];
    assert_matches("{ path: /login }", &spellings.map(get), &["/x", "/login%2F"].map(get));
}

#[test]
fn an_encoded_slash_is_not_a_slash() {
    assert_matches("{ path: /a/b }", &[get("/a/b")], &["/a%2Fb", "/a%2fb", "/a%252Fb", "/a%5Cb"].map(get));
    assert_matches("{ path: /a%2Fb }", &["/a%2Fb", "/a%2fb"].map(get), &["/a/b", "/a%252Fb"].map(get));
}

#[test]
fn method_match_is_case_sensitive() {
    assert_matches("{ method: POST }", &[Request::post("/", "")], &[get("/"), Request::new("post", "/")]);
}

#[test]
fn host_match_ignores_case_and_port() {
    let host = |host: &str| get("/").host(host);
    assert_matches(
        "{ host: api.example.com }",
        &["api.example.com", "API.Example.com:8080", "api.example.com."].map(host),
        &["example.com", "x.api.example.com"].map(host),
    );
    assert_matches(
        "{ host: \"*.example.com\" }",
        &["a.example.com", "a.b.example.com"].map(host),
        &[host("example.com")],
    );
}

#[test]
fn host_of_an_absolute_target_overrides_the_host_header() {
    let disguised = get("http://api.example.com/").host("innocent.test");
    assert_matches(
        "{ host: api.example.com }",
        &[disguised],
        &[get("http://innocent.test/").host("api.example.com")],
    );
}

#[test]
fn a_header_matches_by_value_presence_or_absence() {
    let with = |value: &str| get("/").header("X-Internal", value);
    assert_matches("{ header: { x-internal: yes-it-is } }", &[with("yes-it-is")], &[with("no"), get("/")]);
    assert_matches("{ header: { x-internal: \"*\" } }", &[with("yes"), with("")], &[get("/")]);
    assert_matches("{ header: { x-internal: \"!present\" } }", &[get("/")], &[with("yes"), with("")]);
    assert_matches("{ header: { x-internal: \"~^v[0-9]\" } }", &[with("v2")], &[with("v"), get("/")]);
}

#[test]
fn any_line_of_a_repeated_header_matches() {
    let twice = get("/").header("x-a", "good").header("x-a", "bad");
    assert_matches("{ header: { x-a: bad } }", &[twice], &[get("/").header("x-a", "good")]);
}

#[test]
fn a_client_address_matches_by_network() {
    let from = |ip: &str| get("/").forwarded_for(ip);
    assert_matches(
        "{ client_ip: [203.0.113.0/24, \"2001:db8::/32\", 198.51.100.7] }",
        &["203.0.113.1", "203.0.113.255", "2001:db8:1::1", "198.51.100.7", "::ffff:203.0.113.9"].map(from),
        &["203.0.114.1", "2001:db9::1", "198.51.100.8", "192.0.2.1"].map(from),
    );
}

#[test]
fn all_fields_must_hold() {
    let matcher = "{ path: /login, method: POST, header: { x-a: \"*\" } }";
    let right = Request::post("/login", "x").header("x-a", "b");
    assert_matches(
        matcher,
        &[right],
        &[
            Request::post("/login", "x"),
            get("/login").header("x-a", "b"),
            Request::post("/", "x").header("x-a", "b"),
        ],
    );
}

#[test]
fn rule_without_match_applies_to_all_requests() {
    let weir = start_with_rules("  - { name: a, action: deny }");
    assert_eq!(statuses(&weir, &[get("/"), Request::post("/x", "y")]), [403, 403]);
}

#[test]
fn except_excludes_requests() {
    let weir = start_with_rules(
        "  - { name: a, key: [], limit: 1/d, except: { header: { x-probe: \"*\" }, path: /health } }",
    );
    let probe = get("/health").header("x-probe", "1");
    assert_eq!(count_admitted(&weir, 5, &probe), 5);
    assert_eq!(
        statuses(&weir, &[get("/"), get("/health"), get("/").header("x-probe", "1")]),
        [200, 429, 429]
    );
    assert_eq!(count_admitted(&weir, 5, &probe), 5);
}

#[test]
fn deny_responds_403_without_charging_other_rules() {
    let weir = start_with_rules(
        "  - { name: no, match: { path: /secret }, action: deny }\n  - { name: all, key: [], limit: 2/d }",
    );
    assert_eq!(statuses(&weir, &vec![get("/secret"); 5]), vec![403; 5]);
    assert_eq!(count_admitted(&weir, 4, &get("/")), 2);
}

#[test]
fn allow_exempts_from_deny_and_limits_in_any_order() {
    let rules = [
        "  - { name: no, match: { path: \"/a/*\" }, action: deny }",
        "  - { name: all, key: [], limit: 1/d }",
        "  - { name: yes, match: { path: /a/health }, action: allow }",
    ];
    for order in [[0, 1, 2], [2, 1, 0]] {
        let weir = start_with_rules(&order.map(|index| rules[index]).join("\n"));
        assert_eq!(count_admitted(&weir, 5, &get("/a/health")), 5);
        assert_eq!(statuses(&weir, &[get("/a/b"), get("/"), get("/")]), [403, 200, 429]);
    }
}

#[test]
fn outcomes_are_counted_by_rule() {
    let weir = start_with_rules(
        "  - { name: yes, match: { path: /yes }, action: allow }\n  - { name: no, match: { path: /no }, action: deny }\n  \
         - { name: all, key: [], limit: 1/d }",
    );
    let mut client = Client::connect(weir.address());
    for target in ["/yes", "/yes", "/no", "/", "/", "/"] {
        client.get(target);
    }
    for (rule, outcome, count) in
        [("yes", "exempt", 2.0), ("no", "denied", 1.0), ("all", "allowed", 1.0), ("all", "limited", 2.0)]
    {
        let counted = weir.metric("weir_decisions_total", &[("rule", rule), ("outcome", outcome)]);
        assert_eq!(counted, count, "{rule} {outcome}");
    }
}

#[test]
fn trailing_slash_ignore_matches_with_and_without_slash() {
    let rules = |top: &str, inner: &str| {
        format!(
            "{top}rules:\n  - {{ name: login, match: {{ path: /login{inner} }}, key: route, limit: 1/d }}\n  \
             - {{ name: no, match: {{ path: [\"/users/{{id}}\", /no/]{inner} }}, action: deny }}\n"
        )
    };
    for (top, inner, ignored) in [
        ("", "", false),
        ("trailing_slash: ignore\n", "", true),
        ("", ", trailing_slash: ignore", true),
        ("trailing_slash: ignore\n", ", trailing_slash: exact", false),
    ] {
        let weir = Weir::start(&config("echo", &rules(top, inner)));
        let mut client = Client::connect(weir.address());
        let mut status = |path: &str| client.get(path).status;
        assert_eq!(status("/login"), 200);
        let (limited, denied) = if ignored { (429, 403) } else { (200, 200) };
        assert_eq!([status("/login/"), status("/login")], [limited, 429], "{top}{inner}");
        assert_eq!([status("/users/42/"), status("/no")], [denied, denied], "{top}{inner}");
        assert_eq!([status("/users/42"), status("/no/"), status("/login/x")], [403, 403, 200]);
    }
}
