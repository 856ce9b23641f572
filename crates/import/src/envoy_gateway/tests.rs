use super::*;

const ROUTE: &str = "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: { name: r }\n\
    spec: { rules: [{ matches: [{ path: { value: /a } }, { path: { value: /b }, method: GET }] }] }\n";

fn rules(limit: &str) -> String {
    let policy = format!(
        "apiVersion: {GROUP}/v1alpha1\nkind: {KIND}\nmetadata: {{ name: p }}\nspec: {{ targetRefs: [{{ group: \
         gateway.networking.k8s.io, kind: HTTPRoute, name: r }}], rateLimit: {limit} }}\n"
    );
    let text = format!("{policy}---\n{ROUTE}");
    import(&[ImportSource { path: "f".into(), name: "f".to_owned(), text }]).unwrap().rules
}

fn rule<'r>(rules: &'r str, name: &str) -> &'r str {
    let start = format!("{name}\n");
    rules.split("  - name: ").find(|rule| rule.starts_with(&start)).unwrap_or_default()
}

#[test]
fn each_match_of_a_route_has_its_own_counter_unless_the_rule_is_shared() {
    let apart = rules("{ global: { rules: [{ limit: { requests: 1, unit: Hour } }] } }");
    assert!(rule(&apart, "p.global-0").contains("match: { path: [\"/a\", \"/a/*\"]"), "{apart}");
    assert!(
        rule(&apart, "p.global-0-2").contains("path: [\"/b\", \"/b/*\"], trailing_slash: exact, method: GET")
    );
    assert!(!apart.contains("counter:"), "{apart}");
    let shared = rules("{ global: { rules: [{ limit: { requests: 1, unit: Hour }, shared: true }] } }");
    assert_eq!(shared.matches("counter: p.global-0\n").count(), 2, "{shared}");
}

#[test]
fn a_local_rule_without_selectors_takes_what_no_other_selects_and_a_global_one_all() {
    for (section, is_excepted) in [("local", true), ("global", false)] {
        let rules = rules(&format!(
            "{{ {section}: {{ rules: [{{ limit: {{ requests: 9, unit: Second }} }}, {{ limit: {{ requests: 1, unit: \
             Second }}, clientSelectors: [{{ headers: [{{ name: x-a, type: Distinct }}] }}] }}] }} }}"
        ));
        let own = rule(&rules, &format!("p.{section}-0"));
        assert_eq!(own.contains("except: { header: { x-a: \"*\" } }"), is_excepted, "{rules}");
        let key = "header: { x-a: \"*\" } }\n    key: [{ header: x-a }]";
        assert!(rule(&rules, &format!("p.{section}-1")).contains(key), "{rules}");
    }
}

#[test]
fn requests_that_cost_more_than_the_limit_are_rejected() {
    let cost = "cost: { request: { from: Number, number: 6 } }";
    let rules =
        rules(&format!("{{ global: {{ rules: [{{ limit: {{ requests: 5, unit: Day }}, {cost} }}] }} }}"));
    assert!(rule(&rules, "p.global-0").contains("action: deny\n    on_limit: { status: 429 }"), "{rules}");
}

/// Returns the rules of a policy of the route `r` on the listener `https`, beside another route with these fields.
fn beside(parent: &str, rule: &str) -> String {
    let route = |name: &str, parent: &str, rule: &str| {
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{ name: {name} }}\n\
             spec: {{ parentRefs: [{{ name: g, {parent} }}], hostnames: [a.example], rules: [{{ {rule} }}] }}\n"
        )
    };
    let policy = format!(
        "apiVersion: {GROUP}/v1alpha1\nkind: {KIND}\nmetadata: {{ name: p }}\nspec: {{ targetRefs: [{{ group: \
         gateway.networking.k8s.io, kind: HTTPRoute, name: r }}], rateLimit: {{ global: {{ rules: [{{ limit: {{ requests: 1, unit: Hour }} }}] }} }} }}\n"
    );
    let text =
        format!("{policy}{}{}", route("other", parent, rule), route("r", "sectionName: https", "name: r"));
    import(&[ImportSource { path: "f".into(), name: "f".to_owned(), text }]).unwrap().rules
}

#[test]
fn routes_that_redirect_to_https_or_of_other_listeners_take_no_request_from_a_limit() {
    let redirect = "filters: [{ type: RequestRedirect, requestRedirect: { scheme: https } }]";
    for (parent, fields, reason) in [
        ("sectionName: http", redirect, "redirects to HTTPS"),
        ("", redirect, "redirects to HTTPS"),
        ("sectionName: http", "name: o", "is attached to other listeners"),
        ("port: 80", "name: o", "is attached to other listeners"),
    ] {
        let found = beside(parent, fields);
        assert!(rule(&found, "p.global-0").contains("match: { host: a.example }"), "{found}");
        assert!(found.contains(&format!("# tighter: HTTPRoute other {reason}")), "{parent}\n{found}");
    }
}

#[test]
fn a_limit_of_which_another_route_takes_all_requests_is_looser() {
    for parent in ["sectionName: https", ""] {
        let found = beside(parent, "name: o");
        assert_eq!(rule(&found, "p.global-0"), "", "{found}");
        let reason = "looser: p.global-0: no request meets its conditions";
        assert!(found.contains(reason) && found.contains("; HTTPRoute other takes its requests"), "{found}");
    }
}
