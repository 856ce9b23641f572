//! Imports of Kubernetes objects: standard input, several files, options and exit codes.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::{assert_imports, import_from_input, text, write_file};
use crate::support::weir::run;

const INGRESS: &str = "
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: web
  namespace: shop
  annotations:
    limits.example/limit-rps: '10'
spec:
  rules:
  - host: shop.example
    http: { paths: [{ path: /, pathType: Prefix }] }
";

#[test]
fn prefix_of_the_annotations_of_ingress_nginx_is_an_option() {
    let directory = TempDir::new().unwrap();
    let file = write_file(&directory, "ingress.yaml", INGRESS);
    let rule = "- name: shop.web.rps\n    match: { host: shop.example }\n    key: [{ client_ip: { prefix: 128 } }]\n    \
                limit: 10/s\n    burst: 51\n    on_limit: { status: 503 }\n";
    assert_imports(&["ingress-nginx", "--annotations-prefix", "limits.example", &file], &[rule]);
    assert_imports(&["ingress-nginx", "--annotations-prefix=limits.example/", &file], &[rule]);
    let output = run(["import", "ingress-nginx", &file]);
    assert_eq!(output.status.code(), Some(0));
    let warnings = text(&output.stderr);
    assert!(warnings.contains("use `--annotations-prefix limits.example`"), "{warnings}");
}

#[test]
fn policy_and_route_may_be_in_different_files() {
    let directory = TempDir::new().unwrap();
    let policy = write_file(
        &directory,
        "policy.yaml",
        "apiVersion: kuadrant.io/v1\nkind: RateLimitPolicy\nmetadata: { name: p }\nspec:\n  targetRef: { group: \
         gateway.networking.k8s.io, kind: HTTPRoute, name: r }\n  limits: { l: { rates: [{ limit: 5, window: 10s }] } }\n",
    );
    let route = write_file(
        &directory,
        "route.json",
        r#"{ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": { "name": "r" },
             "spec": { "hostnames": ["a.example"] } }"#,
    );
    assert_imports(
        &["kuadrant", &policy, &route],
        &["- name: p.l\n    match: { host: a.example }\n    token_bucket: { refill: 5, every: 10s }\n"],
    );
}

#[test]
fn files_of_the_file_provider_are_read_from_standard_input() {
    let output = import_from_input(
        "traefik",
        "http: { middlewares: { a: { inFlightReq: { amount: 3 } } }, routers: { r: { rule: Host(`a.example`), middlewares: [a] } } }",
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let rule = "- name: a\n    match: { host: a.example }\n    key: [host]\n    in_flight: 3\n";
    assert!(text(&output.stdout).contains(rule), "{}", text(&output.stdout));
}

#[test]
fn input_without_an_object_of_the_format_exits_2_with_what_was_found() {
    let service = "apiVersion: v1\nkind: Service\nmetadata: { name: web, namespace: shop }\n";
    for (format, expected) in [
        ("ingress-nginx", "-: no Ingress, found Service shop/web (v1)\n"),
        ("envoy-gateway", "-: no BackendTrafficPolicy, found Service shop/web (v1)\n"),
        ("linkerd", "-: no HTTPLocalRateLimitPolicy, found Service shop/web (v1)\n"),
        ("kuadrant", "-: no RateLimitPolicy, found Service shop/web (v1)\n"),
        (
            "traefik",
            "-: no Middleware, and no `http.middlewares` of the file provider, found Service shop/web (v1)\n",
        ),
    ] {
        let output = import_from_input(format, service);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), expected), "{format}");
        let output = import_from_input(format, "a: [\n");
        assert_eq!(output.status.code(), Some(2), "{format}");
        assert!(text(&output.stderr).starts_with("-:"), "{}", text(&output.stderr));
    }
}

/// Returns the code blocks of a page of the documentation with this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides/migration").join(page);
    let text = fs::read_to_string(path).unwrap();
    let fence = format!("```{language}\n");
    let after_fence = text.split(fence.as_str()).skip(1);
    after_fence.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn rules_of_the_migration_guides_are_those_of_the_import() {
    for (page, formats) in [
        ("ingress-nginx.md", &["ingress-nginx"][..]),
        ("gateways.md", &["envoy-gateway", "linkerd", "kuadrant"]),
    ] {
        let (before, after) = (blocks(page, "yml"), blocks(page, "yaml"));
        assert_eq!((before.len(), after.len()), (formats.len(), formats.len()), "{page}");
        for (format, (before, after)) in formats.iter().zip(before.iter().zip(&after)) {
            let output = import_from_input(format, before);
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
            let without_comments = |line: &&str| !line.trim_start().starts_with('#');
            let rules: Vec<&str> = text(&output.stdout).lines().filter(without_comments).collect();
            let rules = rules.join("\n");
            assert!(after.trim_end().ends_with(&rules), "{page}, {format}:\n{rules}");
        }
    }
}
