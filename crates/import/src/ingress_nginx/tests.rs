use super::*;
use crate::scope::ScopeCondition;

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

/// A location of nginx, as the controller writes it: whether it is exact, its text, and the Ingress that it is of.
type NginxLocation = (bool, String, usize);

/// Returns the locations of a host for the paths of Ingresses, the oldest first.
fn nginx_locations(paths: &[(usize, &str, &str)]) -> Vec<NginxLocation> {
    let mut locations: Vec<NginxLocation> = Vec::new();
    let mut add = |location: NginxLocation| {
        if !locations.iter().any(|known| (known.0, &known.1) == (location.0, &location.1)) {
            locations.push(location);
        }
    };
    // An exact path takes the place of the exact location beside a prefix.
    paths.iter().filter(|path| path.2 == "Exact").for_each(|path| add((true, path.1.to_owned(), path.0)));
    for (ingress, path, kind) in paths {
        match *kind {
            "Prefix" => {
                add((true, (*path).to_owned(), *ingress));
                add((false, format!("{path}/"), *ingress));
            }
            "ImplementationSpecific" => add((false, (*path).to_owned(), *ingress)),
            _ => {}
        }
    }
    locations
}

/// Returns the Ingress whose location nginx uses: the exact one, or else the longest prefix.
fn nginx_choice(locations: &[NginxLocation], path: &str) -> Option<usize> {
    let exact = locations.iter().find(|(is_exact, text, _)| *is_exact && text == path);
    let prefixes =
        locations.iter().filter(|(is_exact, text, _)| !is_exact && path.starts_with(text.as_str()));
    exact.or_else(|| prefixes.max_by_key(|(_, text, _)| text.len())).map(|(_, _, ingress)| *ingress)
}

/// Whether a rule of this name applies to the path.
fn applies(rules: &RequestSet, path: &str) -> usize {
    let matches = |pattern: &String| match (pattern.strip_prefix('~'), pattern.strip_suffix('*')) {
        (Some(regex), _) => regex::Regex::new(regex).unwrap().is_match(path),
        (None, Some(prefix)) => path.starts_with(prefix),
        (None, None) => pattern == path,
    };
    let meets = |conditions: &[ScopeCondition]| {
        conditions.iter().all(|one| one.field == MatchField::Host || one.patterns.iter().any(matches))
    };
    let scopes = rules.scopes.iter();
    scopes.filter(|one| meets(&one.conditions) && !one.exceptions.iter().any(|one| meets(one))).count()
}

#[test]
fn requests_belong_to_the_ingress_whose_location_nginx_uses() {
    const PATHS: [&str; 4] = ["/a", "/a/b", "/ab", "/a/b/c"];
    const KINDS: [&str; 3] = ["Exact", "Prefix", "ImplementationSpecific"];
    for seed in 0_usize..1000 {
        let mut number = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut digit = |base: usize| {
            let digit = number % base;
            number /= base;
            digit
        };
        let mut paths: Vec<(usize, &str, &str)> =
            (0..4).map(|index| (index % 3, PATHS[digit(4)], KINDS[digit(3)])).collect();
        paths.sort_by_key(|path| path.0);
        let documents: Vec<String> = (0..3)
            .map(|ingress_index| {
                let own = paths.iter().filter(|path| path.0 == ingress_index);
                let own: Vec<(&str, &str)> = own.map(|path| (path.1, path.2)).collect();
                ingress(&format!("i{ingress_index}"), &[("limit-rps", "1")], "a.example", &own)
            })
            .collect();
        let source = ImportSource { path: "f".into(), name: "f".to_owned(), text: documents.join("---\n") };
        let files = ManifestFiles::read(&[source]).unwrap();
        let ledger = Ledger::default();
        let manifests = files.manifests(&ledger);
        let of = |manifest: &Manifest<'_>| Annotations::read(manifest, PREFIX.default, &ledger).has_limits();
        assert!(manifests.iter().all(of));
        let ingresses: Vec<Ingress<'_>> = manifests
            .iter()
            .map(|one| Ingress {
                manifest: *one,
                annotations: Annotations::read(one, PREFIX.default, &ledger),
            })
            .collect();
        let locations = IngressLocations::read(&ingresses, &ledger);
        let ages = IngressAges { order: vec![0, 1, 2], created: vec![String::new(); 3] };
        let sets: Vec<_> = (0..3).map(|index| locations.requests(index, &ages)).collect();
        let expected = nginx_locations(&paths);
        for path in ["/", "/a", "/a/", "/a/b", "/a/bc", "/a/b/", "/a/b/c", "/a/b/c/d", "/ab", "/ab/c", "/abc"]
        {
            let counts: Vec<usize> = sets.iter().map(|set| applies(set, path)).collect();
            let mut wanted = vec![0; 3];
            nginx_choice(&expected, path).into_iter().for_each(|index| wanted[index] = 1);
            assert_eq!(counts, wanted, "{path} of {paths:?}");
        }
    }
}

#[test]
fn a_path_of_two_ingresses_belongs_to_the_older_one_and_a_guess_is_looser() {
    let created = |time: &str| ("creationTimestamp", time.to_owned());
    let plain =
        ingress("redirect", &[("permanent-redirect", "https://b.example")], "a.example", &[("/", "Prefix")]);
    let limited = ingress("limited", &[("limit-rps", "1")], "a.example", &[("/", "Prefix")]);
    let found = rules(&[plain.clone(), limited.clone()]);
    let reason = "looser: limited.rps: no request meets its conditions (Ingress limited: limit-rps): \
                  { limit: 1/s, burst: 6 }; Ingress redirect has the path /, too: \
                  the older one has its requests, and their `creationTimestamp` does not tell";
    assert!(found.contains(reason), "{found}");
    let aged = |text: &str, (key, time): (&str, String)| {
        text.replace("metadata: {", &format!("metadata: {{ {key}: {time},"))
    };
    let found = rules(&[
        aged(&plain, created("2024-01-01T00:00:00Z")),
        aged(&limited, created("2023-01-01T00:00:00Z")),
    ]);
    assert!(found.contains("- name: limited.rps") && !found.contains("looser: "), "{found}");
}
