use std::path::Path;

use crate::from_text;

/// Returns the path and the message of each note on these rules.
fn notes(rules: &str) -> Vec<String> {
    let text = format!(
        "listeners: 127.0.0.1:0\nupstream: echo\ntrailing_slash: ignore\nplans: {{ of: {{ header: x-api-key }}, members: {{ a: pro }}, default: free }}\nrules:\n{rules}"
    );
    let config = from_text(&text, Path::new("w"), &|_| None);
    let config = config.unwrap_or_else(|problems| panic!("{}", problems[0]));
    config.notices.iter().map(|note| format!("{}: {}", note.path, note.message)).collect()
}

#[track_caller]
fn assert_no_notes(rules: &str) {
    assert_eq!(notes(rules), [""; 0], "{rules}");
}

#[test]
fn deny_rule_inside_an_allow_rule_has_no_effect() {
    let rules = "
- { name: admin, match: { path: /api/admin }, action: deny }
- { name: api, match: { path: /api/* }, action: allow }
";
    let expected = "rules[0].action: has no effect: rule `api` in line 8 allows the same requests, and `allow` overrides `deny`";
    assert_eq!(notes(rules), [expected]);
    let reversed = "
- { name: api, match: { path: /api/* }, action: allow }
- { name: admin, match: { path: [/api/admin, /internal/*] }, action: deny }
";
    let expected = "rules[1].match.path[0]: this path has no effect: rule `api` in line 7 allows the same requests, and `allow` overrides `deny`";
    assert_eq!(notes(reversed), [expected], "the other path is denied");
}

#[test]
fn deny_rule_that_allow_rules_only_touch_has_an_effect() {
    for allowed in [
        "{ path: /api/* , method: GET }",
        "{ path: /api/admin/*, client_ip: 10.0.0.0/8 }",
        "{ path: /api/*, header: { x-internal: \"*\" } }",
        "{ path: /api/*, schedule: Mon-Fri }",
        "{ path: /public/* }",
        "{ host: a.example.com }",
    ] {
        assert_no_notes(&format!(
            "
- {{ name: admin, match: {{ path: [/api/admin, /api/keys/*] }}, action: deny }}
- {{ name: allowed, match: {allowed}, action: allow }}
"
        ));
    }
    assert_no_notes(
        "
- { name: admin, match: { path: /api/admin }, action: deny }
- { name: api, match: { path: /api/* }, except: { path: /api/admin }, action: allow }
",
    );
}

#[test]
fn limit_of_exempt_or_denied_requests_has_no_effect() {
    let rules = "
- { name: health, match: { path: /health/* }, action: allow }
- { name: old, match: { path: /v1/* }, action: deny }
- { name: a, match: { path: /health/live }, key: client_ip, limit: 1/s }
- { name: b, match: { path: \"/v1/users/{id}\", method: GET }, key: client_ip, limit: 1/s }
- { name: c, match: { path: \"/{version}/users\" }, key: client_ip, limit: 1/s }
";
    let expected = [
        "rules[2].name: has no effect: rule `health` in line 7 exempts the same requests from all limits",
        "rules[3].name: has no effect: rule `old` in line 8 rejects the same requests with 403",
    ];
    assert_eq!(notes(rules), expected);
}

#[test]
fn rule_whose_exceptions_match_everything_never_applies() {
    let never = "excludes every request that `match` selects, so the rule never applies";
    for (matching, except) in [
        ("{ path: /a/* }", "{ path: /a/* }"),
        ("{ path: /a/b, method: POST }", "{ path: /a/* }"),
        ("{ path: [/a, /b] }", "[{ path: /a }, { path: /b }]"),
        ("{ client_ip: 10.1.0.0/16 }", "{ client_ip: [10.0.0.0/8, 192.0.2.0/24] }"),
        ("{ header: { x-a: b } }", "{ header: { x-a: \"*\" } }"),
    ] {
        let rules = format!("\n- {{ name: a, match: {matching}, except: {except}, action: deny }}\n");
        assert_eq!(notes(&rules), [format!("rules[0].except: {never}")], "{rules}");
    }
    for (matching, except) in [
        ("{ path: /a/* }", "{ path: /a/b }"),
        ("{ path: /a/* }", "{ path: /a/*, method: GET }"),
        ("{ path: [/a, /b] }", "{ path: /a }"),
        ("{ header: { x-a: \"*\" } }", "{ header: { x-a: b } }"),
    ] {
        assert_no_notes(&format!("\n- {{ name: a, match: {matching}, except: {except}, action: deny }}\n"));
    }
}

#[test]
fn limit_behind_a_tighter_one_is_never_reached() {
    let rules = "
- { name: general, key: client_ip, limit: 10/s }
- { name: search, match: { path: /search }, key: client_ip, limit: 100/s }
- { name: export, match: { path: /export }, key: [client_ip, path], limits: [5/s, 50/s] }
- { name: all, limit: 5/s }
";
    let expected = [
        "rules[0].limit: never reached: rule `all` in line 10 limits the same requests to 5/s",
        "rules[1].limit: never reached: rule `general` in line 7 limits the same requests to 10/s",
        "rules[2].limits[1]: never reached: the limit 5/s of the same rule is tighter",
    ];
    assert_eq!(notes(rules), expected);
}

#[test]
fn limit_that_can_be_reached_has_no_note() {
    let general = "{ name: general, key: client_ip, limit: 10/s }";
    for (general, specific) in [
        // Tighter, or equal: then the order of the file decides which is reported.
        (general, "match: { path: /a }, key: client_ip, limit: 5/s"),
        (general, "match: { path: /a }, key: client_ip, limit: 10/s"),
        // A larger burst of the general rule lets more pass at once.
        ("{ name: general, key: client_ip, limit: 10/s, burst: 500 }", "key: client_ip, limit: 100/s"),
        // Other keys, and requests that the general rule does not apply to.
        ("{ name: general, key: [client_ip, path], limit: 10/s }", "key: client_ip, limit: 100/s"),
        (
            "{ name: general, match: { method: GET }, key: client_ip, limit: 10/s }",
            "key: client_ip, limit: 100/s",
        ),
        (
            "{ name: general, except: { path: /a }, key: client_ip, limit: 10/s }",
            "key: client_ip, limit: 100/s",
        ),
        // Rules that do not reject, or do not charge every request.
        ("{ name: general, key: client_ip, limit: 10/s, throttle: shadow }", "key: client_ip, limit: 100/s"),
        (
            "{ name: general, key: client_ip, limit: 10/s, throttle: soft 10% }",
            "key: client_ip, limit: 100/s",
        ),
        ("{ name: general, key: client_ip, limit: 10/s, enforce: 10% }", "key: client_ip, limit: 100/s"),
        (
            "{ name: general, key: client_ip, limit: 10/s, count: { response_status: 401 } }",
            "key: client_ip, limit: 100/s",
        ),
        ("{ name: general, key: client_ip, limit: 10/s, refund_on: 5xx }", "key: client_ip, limit: 100/s"),
        // Costs, charges for rejected requests, and counters that other requests are charged to.
        (general, "key: client_ip, limit: 100/s, cost: 50"),
        (general, "key: client_ip, limit: 100/s, on_denied: charge"),
        (
            general,
            "key: client_ip, limit: 100/s, counter: b, match: { path: /a }\n- name: other\n  key: client_ip\n  limit: 100/s\n  counter: b\n  match: { path: /b }\n  cost: 100",
        ),
    ] {
        let specific = specific.replace(", ", "\u{1}");
        let lines: Vec<String> = split_pairs(&specific);
        let rules = format!("\n- {general}\n- name: specific\n  {}\n", lines.join("\n  "));
        let found = notes(&rules);
        assert!(!found.iter().any(|note| note.contains("never reached")), "{rules}: {found:?}");
    }
}

/// Splits at the separators outside brackets.
fn split_pairs(text: &str) -> Vec<String> {
    let (mut depth, mut pairs) = (0, vec![String::new()]);
    for letter in text.chars() {
        match letter {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            '\u{1}' if depth == 0 => {
                pairs.push(String::new());
                continue;
            }
            _ => {}
        }
        let pair = pairs.last_mut().unwrap();
        if letter == '\u{1}' { pair.push_str(", ") } else { pair.push(letter) }
    }
    pairs
}

#[test]
fn key_part_whose_absence_means_unlimited_is_noted() {
    for (part, what) in [
        ("{ header: X-User }", "the header `x-user`"),
        ("{ cookie: session }", "the cookie `session`"),
        ("{ query: api_key }", "the query parameter `api_key`"),
    ] {
        let rules = format!("\n- {{ name: a, key: [client_ip, {part}], limit: 1/s }}\n");
        let expected =
            format!("rules[0].key[1]: requests without {what} are not limited, by this rule or another");
        assert_eq!(notes(&rules), [expected]);
    }
    // A limit that these requests also lack the key of, a dry run, or one for other paths does not catch them.
    for other in [
        "key: { cookie: session }, limit: 1/s",
        "key: client_ip, limit: 1/s, throttle: shadow",
        "match: { path: /login }, key: client_ip, limit: 1/s",
    ] {
        let rules =
            format!("\n- {{ name: a, key: {{ header: x-user }}, limit: 1/s }}\n- {{ name: b, {other} }}\n");
        assert!(
            notes(&rules).iter().any(|note| note.starts_with("rules[0].key: requests without")),
            "{rules}"
        );
    }
}

#[test]
fn key_part_that_is_there_or_caught_has_no_note() {
    for rule in [
        "key: { header: x-user }, on_missing: shared",
        "key: { header: host }",
        "key: { header: x-user }, on_missing: deny",
        "key: { header: x-user }, on_missing: skip",
        "key: { header: x-user }, match: { header: { x-user: \"*\" } }",
        "key: { header: x-user }, match: { header: { x-user: [a, \"~^b\"] } }",
        "key: { header: x-user }, except: { header: { x-user: \"!present\" } }",
        "key: { header: x-user }, throttle: shadow",
        "key: { header: x-user }, enforce: 10%",
        "key: { header: x-api-key }, match: { plan: pro }",
        "key: [client_ip, path]",
    ] {
        let found = notes(&format!("\n- {{ name: a, {rule}, limit: 1/s }}\n"));
        assert!(!found.iter().any(|note| note.contains("requests without")), "{rule}: {found:?}");
    }
    for other in [
        "key: client_ip, limit: 50/s",
        "limit: 50/s",
        "key: { cookie: c }, on_missing: shared, limit: 50/s",
        "except: { path: /health }, key: client_ip, limit: 50/s",
        "match: { header: { x-user: \"!present\" }, path: /a }, key: client_ip, limit: 1/s",
        "match: { header: { x-user: \"!present\" } }, action: deny",
    ] {
        let rules =
            format!("\n- {{ name: a, key: {{ header: x-user }}, limit: 1/s }}\n- {{ name: b, {other} }}\n");
        let found = notes(&rules);
        assert!(!found.iter().any(|note| note.starts_with("rules[0]")), "{rules}: {found:?}");
    }
}

#[test]
fn key_part_whose_absence_another_rule_catches_for_each_path_has_no_note() {
    let by_key =
        "\n- { name: keyed, match: { path: [/a/*, /b/*] }, key: { header: x-api-key }, limit: 9/s }\n";
    let by_client = |path: &str| {
        format!("- {{ name: \"{path}\", match: {{ path: {path} }}, key: client_ip, limit: 1/s }}\n")
    };
    let is_noted = |rules: String| notes(&rules).iter().any(|note| note.contains("requests without"));
    assert!(!is_noted(format!("{by_key}{}{}", by_client("/a/*"), by_client("/b/*"))));
    assert!(is_noted(format!("{by_key}{}", by_client("/a/*"))), "`/b/*` is not limited");
    assert!(is_noted(format!("{by_key}{}{}", by_client("/a/*"), by_client("/b/c"))));
}

#[test]
fn default_plan_does_not_imply_the_key_of_a_member() {
    let rules = "\n- { name: a, match: { plan: free }, key: { header: x-api-key }, limit: 1/s }\n- { name: b, match: { plan: pro }, limit: 5/s }\n";
    let found = notes(rules);
    assert_eq!(found.iter().filter(|note| note.contains("requests without")).count(), 1, "{found:?}");
}

#[test]
fn ten_thousand_rules_are_compared_in_bounded_time() {
    use std::fmt::Write as _;
    let mut rules = String::from("\n");
    for index in 0..5_000 {
        let _ = writeln!(rules, "- {{ name: d{index}, match: {{ path: /d/{index} }}, action: deny }}");
        let _ = writeln!(rules, "- {{ name: a{index}, match: {{ path: /a/{index} }}, action: allow }}");
    }
    for index in 0..3_000 {
        let _ = writeln!(
            rules,
            "- {{ name: l{index}, match: {{ path: /l/{index} }}, key: {{ header: x-a }}, limit: 9/s }}"
        );
    }
    // All have the same text.
    assert_eq!(notes(&rules).len(), 4);
}
