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

/// Returns the rules of a limited router for `a.example` on the entry point `websecure`, beside these others.
fn beside(other: &str) -> String {
    let middlewares = "middlewares: { m: { rateLimit: { average: 1 } }, s: { redirectScheme: { scheme: https } }, \
                       x: { redirectRegex: { regex: \"^http://(.*)\", replacement: \"https://${1}\" } }, \
                       c: { chain: { middlewares: [s] } }, h: { headers: {} } }";
    let limited = "limited: { rule: Host(`a.example`), entryPoints: [websecure], tls: {}, middlewares: [m] }";
    rules(&format!("{{ routers: {{ {other}, {limited} }}, {middlewares} }}"))
}

#[test]
fn routers_that_only_redirect_to_https_take_no_request_from_a_limit() {
    for other in [
        "web: { rule: Host(`a.example`), entryPoints: [web], middlewares: [s] }",
        "web: { rule: Host(`a.example`), tls: {}, middlewares: [s] }",
        "web: { rule: Host(`a.example`), tls: {}, middlewares: [x] }",
        "web: { rule: Host(`a.example`), tls: {}, middlewares: [c] }",
        "web: { rule: PathPrefix(`/`), priority: 1000, tls: {}, middlewares: [s] }",
    ] {
        let found = beside(other);
        assert!(found.contains("- name: m\n    match: { host: a.example }\n"), "{other}\n{found}");
        let reason = "redirects to HTTPS: requests that arrive here without TLS have the limit";
        assert!(found.contains("  # tighter: router web, "), "{found}");
        assert!(found.contains(reason), "{other}\n{found}");
    }
}

#[test]
fn routers_of_other_entry_points_take_no_request_from_a_limit() {
    for other in [
        "web: { rule: Host(`a.example`), entryPoints: [web], tls: {}, middlewares: [h] }",
        "web: { rule: Host(`a.example`), entryPoints: [websecure] }",
        "web: { rule: Host(`a.example`) }",
    ] {
        let found = beside(other);
        assert!(found.contains("- name: m\n    match: { host: a.example }\n"), "{other}\n{found}");
        assert!(found.contains("has other entry points or TLS"), "{other}\n{found}");
    }
}

#[test]
fn a_limit_of_which_other_routers_take_all_requests_is_looser() {
    for other in ["tls: {}", "entryPoints: [web, websecure], tls: {}, priority: 1000"] {
        let found = beside(&format!("web: {{ rule: Host(`a.example`), {other} }}"));
        assert!(!found.contains("- name: m\n"), "{found}");
        let reason = "looser: m: no request meets its conditions (middleware m, router limited, Host(`a.example`)): \
                      { limit: 1/s, burst: 1, throttle: delay 500ms }; router web, Host(`a.example`) takes its requests";
        assert!(found.contains(reason), "{found}");
    }
}

fn default_backend(rules_: &str) -> String {
    let middleware = "apiVersion: traefik.io/v1alpha1\nkind: Middleware\nmetadata: { name: m }\nspec: { inFlightReq: { amount: 1 } }\n";
    let ingress = |name: &str, middlewares: &str, spec: &str| {
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{ name: {name}, annotations: {{ {middlewares} }} }}\n\
             spec: {{ {spec} }}\n"
        )
    };
    let limited = "traefik.ingress.kubernetes.io/router.middlewares: default-m@kubernetescrd";
    let default = format!("{rules_}defaultBackend: {{ service: {{ name: a, port: {{ number: 80 }} }} }}");
    let narrow = "rules: [{ http: { paths: [{ path: /a, pathType: Exact }] } }]";
    let text = format!("{middleware}{}{}", ingress("rest", limited, &default), ingress("narrow", "", narrow));
    import(&[ImportSource { path: "f".into(), name: "f".to_owned(), text }]).unwrap().rules
}

#[test]
fn default_backend_has_the_requests_of_no_other_router() {
    let found = default_backend("");
    assert!(found.contains("- name: m\n    except: { path: \"/a\", trailing_slash: exact }\n"), "{found}");
    // Traefik reads the default backend of an Ingress without rules only.
    let found = default_backend("rules: [{ http: { paths: [{ path: /b, pathType: Exact }] } }], ");
    assert!(found.contains("match: { path: \"/b\", trailing_slash: exact }"), "{found}");
    assert!(found.contains("Traefik reads it only without `rules`"), "{found}");
}
