//! Imported rules reject exactly what the original rejects.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use weir_import::{IMPORTERS, ImportError, ImportSource, Imported, envoy_ratelimit, local_ratelimit, nginx};
use weir_rls::request::{RlsDescriptor, RlsEntry, RlsRequest};
use weir_rls::response::Code;
use weir_rls::settings::{Counting, RlsSettings};

use crate::fixture::RlsFixture;
use crate::native;

const KEYS: [&str; 2] = ["a", "b"];
const VALUES: [&str; 7] = ["", "x", "xy", "x*", "*y", "*", "~x"];
const REQUESTED_VALUES: [&str; 6] = ["", "x", "xy", "xay", "z", "~x"];

/// A node of a document.
#[derive(Clone, Debug)]
struct DocumentNode {
    key: &'static str,
    value: &'static str,
    limit: Limit,
    shadow: bool,
    share_threshold: bool,
    children: Vec<Self>,
}

#[derive(Clone, Copy, Debug)]
enum Limit {
    None,
    Unlimited,
    PerUnit(u32, &'static str),
}

fn document_nodes() -> impl Strategy<Value = Vec<DocumentNode>> {
    let limit = || {
        prop_oneof![
            2 => Just(Limit::None),
            1 => Just(Limit::Unlimited),
            6 => (0_u32..5, prop::sample::select(vec!["second", "minute", "hour", "week", "year"]))
                .prop_map(|(count, unit)| Limit::PerUnit(count, unit)),
        ]
    };
    let node = move |below: BoxedStrategy<Vec<DocumentNode>>| {
        let named = (prop::sample::select(KEYS.to_vec()), prop::sample::select(VALUES.to_vec()));
        let flags = (prop::bool::weighted(0.2), prop::bool::weighted(0.3));
        (named, limit(), flags, below).prop_map(|((key, value), limit, (shadow, shares), below)| {
            let shares = shares && value.contains('*');
            DocumentNode { key, value, limit, shadow, share_threshold: shares, children: below }
        })
    };
    let level = |below: BoxedStrategy<Vec<DocumentNode>>| {
        prop::collection::vec(node(below), 0..6).prop_map(without_duplicates).boxed()
    };
    level(level(level(Just(Vec::new()).boxed())))
}

fn without_duplicates(nodes: Vec<DocumentNode>) -> Vec<DocumentNode> {
    let mut kept: Vec<DocumentNode> = Vec::new();
    for node in nodes {
        if !kept.iter().any(|other| (other.key, other.value) == (node.key, node.value)) {
            kept.push(node);
        }
    }
    kept
}

fn to_yaml(nodes: &[DocumentNode]) -> String {
    let node = |node: &DocumentNode| {
        let limit = match node.limit {
            Limit::None => "null".to_owned(),
            Limit::Unlimited => "{unlimited: true}".to_owned(),
            Limit::PerUnit(count, unit) => format!("{{unit: {unit}, requests_per_unit: {count}}}"),
        };
        let DocumentNode { key, value, shadow, share_threshold: shares, children: below, .. } = node;
        let below = to_yaml(below);
        format!(
            "{{key: {key}, value: '{value}', rate_limit: {limit}, shadow_mode: {shadow}, \
             share_threshold: {shares}, descriptors: {below}}}"
        )
    };
    format!("[{}]", nodes.iter().map(node).collect::<Vec<_>>().join(", "))
}

#[derive(Clone, Debug)]
struct TimedRequest {
    delay: u64,
    descriptors: Vec<RlsDescriptor>,
}

fn timed_requests() -> impl Strategy<Value = Vec<TimedRequest>> {
    let key = prop::sample::select(vec!["a", "a", "b", "b", "c"]);
    let entry = (key, prop::sample::select(REQUESTED_VALUES.to_vec()))
        .prop_map(|(key, value)| RlsEntry { key: key.to_owned(), value: value.to_owned() });
    let descriptor = (prop::collection::vec(entry, 1..4), 1_u64..3).prop_map(|(entries, hits)| {
        RlsDescriptor { entries, hits_addend: Some(hits), ..RlsDescriptor::default() }
    });
    let after = prop_oneof![6 => Just(0_u64), 2 => Just(1), 1 => Just(45), 1 => Just(400_000)];
    let question = (after, prop::collection::vec(descriptor, 1..4));
    prop::collection::vec(
        question.prop_map(|(after, descriptors)| TimedRequest { delay: after, descriptors }),
        1..60,
    )
}

/// Returns imported rules as a whole configuration.
fn as_configuration(rules: &str) -> String {
    format!("listeners: 127.0.0.1:0\nupstream: echo\n{rules}")
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn imported_rules_reject_what_the_original_rejects(nodes in document_nodes(), questions in timed_requests()) {
        let yaml = format!("domain: d\ndescriptors: {}\n", to_yaml(&nodes));
        let rules = envoy_ratelimit::import(&[("f", &yaml)]).unwrap().rules;
        // If the import reports a difference, outcomes may differ.
        prop_assume!(!rules.contains("occurs several times"));
        let settings = RlsSettings { counting: Counting::AllOrNothing, ..RlsSettings::default() };
        let mut original = RlsFixture::with_settings(&yaml, settings.clone());
        let mut imported = native::fixture_with_configuration(&as_configuration(&rules), settings);
        for TimedRequest { delay, descriptors } in questions {
            original.advance(delay);
            imported.advance(delay);
            let request = RlsRequest { domain: "d".into(), descriptors, hits_addend: 0 };
            let over = |desk: &RlsFixture| desk.try_decide(&request).map_or(Code::Ok, |answer| answer.overall_code);
            prop_assert_eq!(over(&imported), over(&original), "{:?}\n{}", request, rules);
        }
    }
}

pub(crate) fn samples(suffixes: &[&str]) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("rls/imports");
    let mut files: Vec<_> =
        fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path()).collect();
    let is_wanted = |path: &PathBuf| {
        let name = path.to_str().expect("a file name in UTF-8");
        suffixes.iter().any(|suffix| name.ends_with(suffix))
    };
    files.retain(is_wanted);
    files.sort();
    assert!(!files.is_empty());
    files
}

/// Imports a sample by the kind that its name has: `NAME.FORMAT.yaml`, `NAME.ratelimit.yaml`, `NAME.nginx.conf`, or
/// Envoy's.
pub(crate) fn import_sample(name: &str, text: &str) -> Result<Imported, Vec<ImportError>> {
    if name.contains(".ratelimit.") {
        envoy_ratelimit::import(&[(name, text)])
    } else if name.contains(".nginx.") {
        nginx::import(name, text, &|_| Vec::new())
    } else if let Some(importer) = IMPORTERS.iter().find(|one| name.contains(&format!(".{}.", one.name))) {
        importer
            .import(&[ImportSource { path: name.into(), name: name.to_owned(), text: text.to_owned() }], None)
    } else {
        local_ratelimit::import(name, text)
    }
}

/// Compares the import of each sample with `NAME.….rules`. `WEIR_BLESS=1` rewrites those files; review the difference
/// before committing it.
#[test]
fn import_samples_match_the_expected_rules() {
    let bless = std::env::var_os("WEIR_BLESS").is_some();
    let mut different = Vec::new();
    for path in samples(&[".yaml", ".json", ".conf"]) {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let said = match import_sample(name, &text) {
            Ok(imported) => imported.rules,
            Err(problems) => problems.iter().map(|problem| format!("{problem}\n")).collect(),
        };
        let beside = path.with_extension("rules");
        if bless {
            fs::write(&beside, &said).unwrap();
        } else if fs::read_to_string(&beside).unwrap_or_default() != said {
            different.push(format!("{}:\n{said}", path.display()));
        }
    }
    assert!(different.is_empty(), "not as expected:\n{}", different.join("\n"));
}

#[test]
fn imported_rules_load_as_a_configuration() {
    let mut loaded = 0;
    for path in samples(&[".rules"]) {
        let rules = fs::read_to_string(&path).unwrap();
        if rules.contains("rules:") {
            native::fixture_with_configuration(&as_configuration(&rules), RlsSettings::default());
            loaded += 1;
        }
    }
    assert!(loaded >= 8, "only {loaded} files");
}

#[test]
fn files_that_share_a_domain_are_merged_on_import() {
    let first =
        "{domain: d, descriptors: [{key: a, value: 'x*', rate_limit: {unit: day, requests_per_unit: 1}}]}";
    let second = "{domain: d, descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 2}}]}";
    let rules = envoy_ratelimit::import(&[("2", second), ("1", first)]).unwrap().rules;
    assert!(rules.contains("From 1, 2, envoyproxy/ratelimit"), "{rules}");
    assert!(rules.contains(r#"except: { descriptor: { a: "~(?s)^x.*$" } }"#), "{rules}");
}

#[test]
fn import_errors_name_every_file_and_position() {
    let files =
        [("a", "domain: d\ndescriptors:\n  - kee: x\n"), ("b", "domain: d\n  x: [\n"), ("c", "domain: d")];
    let problems = envoy_ratelimit::import(&files).unwrap_err();
    let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(said[0], "a:3:5: config error, unknown key 'kee'");
    assert!(said[1].starts_with("b:2:"), "{}", said[1]);
    assert_eq!(said.len(), 2);
    let twice = "domain: d\ndescriptors:\n- {key: a}\n- {key: b, rate_limit: {unit: day}}\n- {key: a}\n";
    let problems = envoy_ratelimit::import(&[("a", twice)]).unwrap_err();
    assert_eq!(problems[0].to_string(), "a:5:3: duplicate descriptor composite key 'd.a'");
}

#[test]
fn import_of_an_invalid_local_ratelimit_filter_is_rejected() {
    let error = |text: &str| local_ratelimit::import("f", text).unwrap_err()[0].to_string();
    assert_eq!(error("static_resources: {}"), "f: no envoy.filters.http.local_ratelimit in the file");
    assert_eq!(error(""), "f: empty, expected a YAML or JSON document");
    assert!(error("a: [").starts_with("f:2:1: did not find expected node content"), "{}", error("a: ["));
}

fn sample(name: &str) -> Imported {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("rls/imports").join(name);
    import_sample(name, &fs::read_to_string(path).expect("a sample")).expect("an input")
}

#[test]
fn limit_of_a_route_does_not_get_the_descriptors_of_another_route() {
    let rules = sample("routes.envoy.yaml").rules;
    let login = "match: { path: \"~^/login\" }\n    key: [client_ip]\n    limit: 5/m\n";
    let files = "match: { path: \"~^/static\" }\n    key: [client_ip]\n    limit: 500/m\n";
    assert!(rules.contains(login) && rules.contains(files), "{rules}");
    assert_eq!(
        (rules.matches("limit: 5/m\n").count(), rules.matches("limit: 500/m\n").count()),
        (1, 1),
        "{rules}"
    );
}

#[test]
fn descriptors_of_several_routes_share_their_counter() {
    let text = "name: r
virtual_hosts:
- domains: ['*']
  typed_per_filter_config:
    envoy.filters.http.local_ratelimit:
      '@type': type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
      stat_prefix: s
      descriptors: [{ entries: [{ key: remote_address }], token_bucket: { max_tokens: 5, fill_interval: 1s } }]
  routes:
  - { match: { prefix: /a }, route: { rate_limits: [{ actions: [{ remote_address: {} }] }] } }
  - { match: { prefix: /a/b }, route: { rate_limits: [{ actions: [{ remote_address: {} }] }] } }
  - { match: { prefix: / }, route: { rate_limits: [{ actions: [{ remote_address: {} }] }] } }
";
    let rules = local_ratelimit::import("f", text).unwrap().rules;
    assert_eq!(rules.matches("counter: s.remote_address\n").count(), 2, "{rules}");
    assert!(!rules.contains("/a/b\""), "no request reaches the second route:\n{rules}");
    assert!(rules.contains("except: { path: \"~^/a\" }"), "{rules}");
}

#[test]
fn fields_that_change_what_is_admitted_are_warnings() {
    let warnings = sample("istio.envoy.yaml").warnings;
    let expected = [
        ("differs: ", ".applyOnStreamDone: "),
        ("differs: ", ".rate_limits[1].limit: "),
        ("differs: ", ".rate_limit: unknown field of a rate limit"),
        ("tighter: ", ".workloadSelector: "),
        ("tighter: ", ".match.listener.portNumber: "),
        ("tighter: ", ".routeConfiguration.vhost.name: "),
        ("differs: ", "runtime_key: "),
    ];
    for (effect, field) in expected {
        assert!(
            warnings.iter().any(|warning| warning.starts_with(effect) && warning.contains(field)),
            "no {field} in {warnings:?}"
        );
    }
    let rules = sample("istio.envoy.yaml").rules;
    assert!(
        rules.contains("match: { path: \"~(?i)^/productpage\" }") && rules.contains("cost: 2\n"),
        "{rules}"
    );
}

#[test]
fn every_document_of_a_file_is_imported() {
    let limit = "descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 2}}]";
    let both = format!("domain: a\n{limit}\n---\ndomain: b\n{limit}\n");
    let rules = envoy_ratelimit::import(&[("f", &both)]).unwrap().rules;
    assert!(rules.contains("domain: a\n") && rules.contains("domain: b\n"), "{rules}");
    let filter = "stat_prefix: one\ntoken_bucket: { max_tokens: 1, fill_interval: 1s }\n";
    let both = format!("{filter}---\n{}", filter.replace("one", "two"));
    let imported = local_ratelimit::import("f", &both).unwrap();
    let rules = imported.rules;
    assert!(rules.contains("- name: one") && rules.contains("- name: two"), "{rules}");
    assert!(imported.warnings.iter().any(|warning| warning.contains("of several listeners")), "{rules}");
}

#[test]
fn one_invalid_field_does_not_refuse_the_rest_of_a_filter() {
    let text = "stat_prefix: x\ntoken_bucket: { max_tokens: 1, fill_interval: 1s }\n\
                descriptors: [{ entries: [{ key: a }], token_bucket: { max_tokens: many, fill_interval: 1s } }]";
    let imported = local_ratelimit::import("f", text).unwrap();
    assert!(imported.rules.contains("- name: x\n"), "{}", imported.rules);
    assert!(
        imported.warnings.iter().any(|one| one.contains("left out, as it has an invalid `token_bucket`"))
    );
}
