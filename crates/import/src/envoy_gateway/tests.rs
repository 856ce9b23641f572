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
