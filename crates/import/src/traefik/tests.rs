use super::*;

fn rules(http: &str) -> String {
    let text = format!("http: {http}\n");
    import(&[ImportSource { path: "f".into(), name: "f".to_owned(), text }]).unwrap().rules
}

#[test]
fn a_request_may_wait_for_half_of_the_time_between_two_requests() {
    for (limit, expected) in [
        ("average: 10", "limit: 10/s\n    burst: 1\n    throttle: delay 50ms\n"),
        ("average: 10, period: 1m, burst: 3", "limit: 10/m\n    burst: 3\n    throttle: delay 500ms\n"),
        ("average: 3, period: 2s", "limit: 3/2s\n    burst: 1\n    throttle: delay 500ms\n"),
        ("average: 5, period: 5", "limit: 5/5s\n    burst: 1\n    throttle: delay 500ms\n"),
        ("average: 2, period: 1500us", "limit: 20/15ms\n    burst: 1\n"),
        ("average: 1000", "limit: 1000/s\n    burst: 1\n"),
    ] {
        let rules = rules(&format!("{{ middlewares: {{ a: {{ rateLimit: {{ {limit} }} }} }} }}"));
        assert!(rules.contains(expected), "{limit}\n{rules}");
    }
}

#[test]
fn each_router_has_its_own_counter_unless_these_are_in_redis() {
    let routers =
        "routers: { a: { rule: Path(`/a`), middlewares: [m] }, b: { rule: Path(`/bb`), middlewares: [m] } }";
    let apart = rules(&format!("{{ {routers}, middlewares: {{ m: {{ rateLimit: {{ average: 1 }} }} }} }}"));
    assert_eq!(apart.matches("  - name: m").count(), 2, "{apart}");
    let shared = rules(&format!(
        "{{ {routers}, middlewares: {{ m: {{ rateLimit: {{ average: 1, redis: {{}} }} }} }} }}"
    ));
    assert_eq!(shared.matches("  - name: m").count(), 1, "{shared}");
    assert!(
        shared.contains("match: { path: [\"/bb\", \"/a\"]") || shared.contains("path: [\"/a\", \"/bb\"]")
    );
}

#[test]
fn routers_with_longer_rules_or_a_higher_priority_take_requests() {
    let middlewares = "middlewares: { m: { inFlightReq: { amount: 1 } } }";
    let wide = "wide: { rule: PathPrefix(`/`), middlewares: [m] }";
    let by_length =
        rules(&format!("{{ routers: {{ {wide}, narrow: {{ rule: PathPrefix(`/a/`) }} }}, {middlewares} }}"));
    assert!(by_length.contains("- name: m\n    except: { path: \"/a/*\" }\n"), "{by_length}");
    let wide = wide.replace("middlewares", "priority: 1000, middlewares");
    let by_priority =
        rules(&format!("{{ routers: {{ {wide}, narrow: {{ rule: PathPrefix(`/a/`) }} }}, {middlewares} }}"));
    assert!(by_priority.contains("- name: m\n    key: [host]\n"), "{by_priority}");
}

#[test]
fn an_ingress_without_middlewares_takes_requests_from_other_routers() {
    let ingress = |name: &str, annotation: &str, path: &str| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{ name: {name}, annotations: {{ {annotation} }} }}\n\
             spec: {{ rules: [{{ http: {{ paths: [{{ path: {path}, pathType: Prefix }}] }} }}] }}\n"
        )
    };
    let limited = "traefik.ingress.kubernetes.io/router.middlewares: default-m@kubernetescrd";
    let text = [
        "apiVersion: traefik.io/v1alpha1\nkind: Middleware\nmetadata: { name: m }\nspec: { inFlightReq: { amount: 1 } }\n".to_owned(),
        ingress("wide", limited, "/"),
        ingress("narrow", "", "/a"),
    ]
    .join("---\n");
    let rules = import(&[ImportSource { path: "f".into(), name: "f".to_owned(), text }]).unwrap().rules;
    assert!(rules.contains("except: { path: [\"/a\", \"/a/*\"], trailing_slash: exact }"), "{rules}");
}

#[test]
fn files_in_toml_are_an_error_that_says_what_to_do() {
    let text = "[http.middlewares.a.rateLimit]\naverage = 1\n".to_owned();
    let error =
        import(&[ImportSource { path: "a.toml".into(), name: "a.toml".to_owned(), text }]).unwrap_err();
    assert_eq!(
        error[0].to_string(),
        "a.toml: TOML is not supported, expected the file provider's configuration in YAML"
    );
}

#[test]
fn chains_in_a_circle_end() {
    let rules = rules(
        "{ routers: { r: { rule: Path(`/a`), middlewares: [c] } }, middlewares: { c: { chain: { middlewares: [c] } } } }",
    );
    assert!(rules.contains("differs: ") && rules.contains("in a circle"), "{rules}");
}
