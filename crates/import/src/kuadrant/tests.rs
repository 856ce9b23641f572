use super::*;

const GATEWAY: &str = "group: gateway.networking.k8s.io, kind: Gateway, name: g";
const ROUTE: &str = "group: gateway.networking.k8s.io, kind: HTTPRoute, name: r";

fn policy(name: &str, target: &str, content: &str) -> String {
    format!(
        "apiVersion: kuadrant.io/v1\nkind: RateLimitPolicy\nmetadata: {{ name: {name} }}\n\
         spec: {{ targetRef: {{ {target} }}, {content} }}\n"
    )
}

fn limits(names: &[(&str, u32)]) -> String {
    let one =
        |(name, count): &(&str, u32)| format!("{name}: {{ rates: [{{ limit: {count}, window: 1m }}] }}");
    format!("limits: {{ {} }}", names.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// Returns the names of the rules, for a route of a gateway.
fn names(policies: &[String]) -> Vec<String> {
    let route = "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: { name: r }\n\
                 spec: { parentRefs: [{ name: g }] }\n";
    let text = policies.iter().map(String::as_str).chain([route]).collect::<Vec<_>>().join("---\n");
    let rules = import(&[ImportSource { path: "f".into(), name: "f".to_owned(), text }]).unwrap().rules;
    let named = rules.lines().filter_map(|line| line.strip_prefix("  - name: "));
    named.map(str::to_owned).collect()
}

#[test]
fn policies_of_gateway_and_route_are_combined_by_the_strategy_of_the_gateway() {
    let route = policy("r", ROUTE, &limits(&[("a", 1), ("b", 2)]));
    let of_gateway = limits(&[("b", 3), ("c", 4)]);
    for (content, expected) in [
        (of_gateway.clone(), vec!["r.a", "r.b"]),
        (format!("defaults: {{ {of_gateway} }}"), vec!["r.a", "r.b"]),
        (format!("defaults: {{ strategy: merge, {of_gateway} }}"), vec!["r.a", "r.b", "g.c"]),
        (format!("overrides: {{ {of_gateway} }}"), vec!["g.b", "g.c"]),
        (format!("overrides: {{ strategy: merge, {of_gateway} }}"), vec!["g.b", "g.c", "r.a"]),
    ] {
        assert_eq!(names(&[policy("g", GATEWAY, &content), route.clone()]), expected, "{content}");
    }
}

#[test]
fn a_route_without_a_policy_has_that_of_its_gateway() {
    assert_eq!(names(&[policy("g", GATEWAY, &limits(&[("a", 1)]))]), ["g.a"]);
    let other = GATEWAY.replace("name: g", "name: h");
    let apart =
        names(&[policy("g", GATEWAY, &limits(&[("a", 1)])), policy("h", &other, &limits(&[("b", 1)]))]);
    assert_eq!(apart, ["g.a", "h.b"]);
}
