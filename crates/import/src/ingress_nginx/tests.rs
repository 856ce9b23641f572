use super::*;

/// An Ingress of these annotations, with paths of a host: each with its type.
fn ingress(name: &str, annotations: &[(&str, &str)], host: &str, paths: &[(&str, &str)]) -> String {
    let annotations: Vec<String> = annotations
        .iter()
        .map(|(key, value)| format!("nginx.ingress.kubernetes.io/{key}: {value:?}"))
        .collect();
    let paths: Vec<String> =
        paths.iter().map(|(path, kind)| format!("{{ path: {path:?}, pathType: {kind} }}")).collect();
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{ name: {name}, annotations: {{ {} }} }}\n\
         spec: {{ rules: [{{ host: {host:?}, http: {{ paths: [{}] }} }}] }}\n",
        annotations.join(", "),
        paths.join(", ")
    )
}

fn rules(documents: &[String]) -> String {
    let source = ImportSource { path: "f".into(), name: "f".to_owned(), text: documents.join("---\n") };
    import(&[source], PREFIX.default).unwrap().rules
}

#[track_caller]
fn assert_rule(rules: &str, expected: &[&str]) {
    let expected = format!("  - {}\n", expected.join("\n    "));
    assert!(rules.contains(&expected), "no\n{expected}in\n{rules}");
}

#[test]
fn burst_is_a_multiple_of_the_limit_beside_the_request_that_conforms() {
    for (multiplier, burst) in [(None, "burst: 51"), (Some("1"), "burst: 11"), (Some("many"), "burst: 51")] {
        let mut annotations = vec![("limit-rps", "10")];
        annotations.extend(multiplier.map(|multiplier| ("limit-burst-multiplier", multiplier)));
        let rules = rules(&[ingress("a", &annotations, "a.example", &[("/", "Prefix")])]);
        let key = "key: [{ client_ip: { prefix: 128 } }]";
        assert_rule(
            &rules,
            &[
                "name: a.rps",
                "match: { host: a.example }",
                key,
                "limit: 10/s",
                burst,
                "on_limit: { status: 503 }",
            ],
        );
    }
}

#[test]
fn exact_paths_and_longer_prefixes_of_other_ingresses_take_precedence() {
    let limit = [("limit-rps", "1")];
    let all = ingress("all", &limit, "a.example", &[("/", "Prefix")]);
    let api = ingress("api", &limit, "a.example", &[("/api", "Prefix"), ("/api/login", "Prefix")]);
    let login = ingress("login", &limit, "a.example", &[("/api/login", "Exact"), ("/x", "Exact")]);
    let rules = rules(&[all, api, login]);
    let excepted = "except: { path: [\"/api\", \"/api/*\", \"/api/login\", \"/api/login/*\", \"/x\"], trailing_slash: exact }";
    assert!(rules.contains(excepted), "{rules}");
    assert!(rules.contains("path: [\"/api/login\", \"/x\"], trailing_slash: exact"), "{rules}");
}

#[test]
fn regexes_of_one_ingress_apply_to_all_paths_of_the_host() {
    let regex =
        ingress("regex", &[("use-regex", "true")], "a.example", &[("/v[0-9]+/", "ImplementationSpecific")]);
    let plain = ingress("plain", &[("limit-rps", "1")], "a.example", &[("/v1", "Prefix")]);
    let other = ingress("other", &[("limit-rps", "1")], "b.example", &[("/v1", "Prefix")]);
    let rules = rules(&[regex, plain, other]);
    assert!(
        rules.contains(
            "match: { host: a.example, path: \"~(?i)^/v1\" }\n    except: { path: \"~(?i)^/v[0-9]+/\" }"
        ),
        "{rules}"
    );
    assert!(
        rules.contains("match: { host: b.example, path: [\"/v1\", \"/v1/*\"], trailing_slash: exact }"),
        "{rules}"
    );
}

#[test]
fn the_older_ingress_has_a_path_that_two_have() {
    let limit = [("limit-rps", "1")];
    let newer = ingress("newer", &limit, "a.example", &[("/a", "Prefix")]);
    let newer = newer.replace("name: newer,", "name: newer, creationTimestamp: '2026-01-02T00:00:00Z',");
    let older = ingress("older", &limit, "a.example", &[("/a", "Prefix")]);
    let older = older.replace("name: older,", "name: older, creationTimestamp: '2025-01-02T00:00:00Z',");
    let rules = rules(&[newer, older]);
    assert!(rules.contains("# newer.rps: no request meets its conditions"), "{rules}");
    assert!(rules.contains("- name: older.rps"), "{rules}");
}

#[test]
fn wildcard_hosts_leave_their_requests_to_closer_hosts() {
    let limit = [("limit-connections", "1")];
    let wide = ingress("wide", &limit, "*.example", &[("/", "Prefix")]);
    let close = ingress("close", &limit, "*.a.example", &[("/", "Prefix")]);
    let exact = ingress("exact", &limit, "b.example", &[("/", "Prefix")]);
    let rules = rules(&[wide, close, exact]);
    assert!(
        rules.contains("match: { host: \"*.example\" }\n    except: { host: [\"*.a.example\", b.example] }"),
        "{rules}"
    );
    assert!(
        rules.contains("- name: close.connections\n    match: { host: \"*.a.example\" }\n    key"),
        "{rules}"
    );
}
