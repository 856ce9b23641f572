//! Twenty kinds of manifests, as public charts have them: all but two get the sidecar without an edit, a second injection changes
//! nothing, and its removal restores every byte.

use std::fs;
use std::path::Path;

use serde_json::Value as Json;
use weir_inject::{ConfigSource, InjectOptions, InjectProblem, Injection, ManifestSource, inject, uninject};

/// Manifests that cannot have the sidecar, with the reason.
const REJECTED: [(&str, &str); 2] = [
    ("database.yaml", "port 5432 is usually postgresql"),
    ("node-exporter.yaml", "uses the network of its node"),
];

fn manifests() -> Vec<ManifestSource> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manifests");
    let mut paths: Vec<_> = fs::read_dir(directory)
        .expect("a test manifest")
        .map(|entry| entry.expect("a test manifest").path())
        .collect();
    paths.sort();
    let name = |path: &Path| path.file_name().expect("a test manifest").to_string_lossy().into_owned();
    paths
        .iter()
        .map(|path| ManifestSource {
            name: name(path),
            text: fs::read_to_string(path).expect("a test manifest"),
        })
        .collect()
}

fn manifest(name: &str) -> ManifestSource {
    manifests().into_iter().find(|manifest| manifest.name == name).expect("a test manifest")
}

fn limit(rate: &str) -> InjectOptions {
    InjectOptions { config: Some(ConfigSource::Limit(rate.to_owned())), ..InjectOptions::default() }
}

fn redirect() -> InjectOptions {
    InjectOptions { is_redirect: true, ..InjectOptions::default() }
}

/// Options for a manifest: one has two ports with equal rights, between which the user chooses.
fn options_for(name: &str, options: &InjectOptions) -> InjectOptions {
    let port = (name == "search.yaml").then_some(9200).or(options.port);
    InjectOptions { port, ..options.clone() }
}

#[track_caller]
fn assert_same(name: &str, found: &str, expected: &str) {
    let mut lines = found.lines().zip(expected.lines()).enumerate();
    if found != expected {
        let first = lines.find(|(_, (found, expected))| found != expected);
        panic!("{name}: texts differ at line {first:?}, lengths {} and {}", found.len(), expected.len());
    }
}

fn injected(name: &str, options: &InjectOptions) -> Injection {
    inject(&[manifest(name)], &options_for(name, options))
        .unwrap_or_else(|problems| panic!("{name}: {}", shown(&problems)))
}

fn shown(problems: &[InjectProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Reads all objects of a text, YAML or JSON.
fn objects(text: &str) -> Vec<Json> {
    let mut found = Vec::new();
    if text.starts_with('{') {
        found.extend(
            serde_json::Deserializer::from_str(text).into_iter::<Json>().map(|value| value.expect("JSON")),
        );
    } else {
        for document in text.split("\n---\n") {
            found.extend(serde_yaml::from_str::<Option<Json>>(document).expect("a test manifest"));
        }
    }
    let lists = found.iter().flat_map(|object| object["items"].as_array().cloned().unwrap_or_default());
    let items: Vec<_> = lists.collect();
    found.extend(items);
    found
}

fn object(text: &str, kind: &str, name: &str) -> Json {
    let is_it = |object: &Json| object["kind"] == kind && object["metadata"]["name"] == name;
    objects(text).into_iter().find(is_it).unwrap_or_else(|| panic!("no {kind} {name} in {text}"))
}

fn container<'o>(spec: &'o Json, list: &str, name: &str) -> &'o Json {
    spec[list]
        .as_array()
        .expect("a test manifest")
        .iter()
        .find(|container| container["name"] == name)
        .expect("a test manifest")
}

#[test]
fn eighteen_of_twenty_manifests_are_injected_as_they_are() {
    let all = manifests();
    assert_eq!(all.len(), 20);
    for manifest in all {
        let outcome = inject(std::slice::from_ref(&manifest), &options_for(&manifest.name, &limit("50/s")));
        match (REJECTED.iter().find(|(name, _)| *name == manifest.name), outcome) {
            (None, Ok(injection)) => {
                assert!(injection.files[0].text.contains("limit: 50/s"), "{}", manifest.name)
            }
            (Some((_, reason)), Err(problems)) => {
                assert!(shown(&problems).contains(reason), "{}", shown(&problems))
            }
            (_, Err(problems)) => panic!("{}: {}", manifest.name, shown(&problems)),
            (Some(_), Ok(_)) => panic!("{} has a sidecar", manifest.name),
        }
    }
}

#[test]
fn second_injection_changes_nothing_and_removal_restores_every_byte() {
    for options in [limit("50/s"), redirect()] {
        for manifest in manifests() {
            let Ok(first) = inject(std::slice::from_ref(&manifest), &options_for(&manifest.name, &options))
            else {
                continue;
            };
            assert_ne!(first.files[0].text, manifest.text, "{}", manifest.name);
            let second = inject(&first.files, &options_for(&manifest.name, &options)).unwrap();
            assert_same(&manifest.name, &second.files[0].text, &first.files[0].text);
            let removed = uninject(&first.files).unwrap();
            assert_same(&manifest.name, &removed.files[0].text, &manifest.text);
            assert_eq!(removed.notes, [""; 0], "{}", manifest.name);
        }
    }
}

#[test]
fn other_options_update_what_was_injected() {
    for manifest in manifests() {
        let Ok(first) = inject(std::slice::from_ref(&manifest), &options_for(&manifest.name, &limit("50/s")))
        else {
            continue;
        };
        let updated = inject(&first.files, &options_for(&manifest.name, &redirect())).unwrap();
        let direct =
            inject(std::slice::from_ref(&manifest), &options_for(&manifest.name, &redirect())).unwrap();
        assert_same(&manifest.name, &updated.files[0].text, &direct.files[0].text);
    }
}

#[test]
fn all_manifests_in_one_call_are_injected_as_one_by_one() {
    let accepted: Vec<_> = manifests()
        .into_iter()
        .filter(|manifest| {
            manifest.name != "search.yaml" && !REJECTED.iter().any(|(name, _)| *name == manifest.name)
        })
        .collect();
    let together = inject(&accepted, &limit("50/s")).unwrap();
    for (manifest, file) in accepted.iter().zip(&together.files) {
        let alone = inject(std::slice::from_ref(manifest), &limit("50/s")).unwrap();
        assert_same(&manifest.name, &alone.files[0].text, &file.text);
    }
}

#[test]
fn services_and_policies_of_the_input_lead_to_the_sidecar() {
    let text = &injected("search.yaml", &limit("50/s")).files[0].text;
    let service = object(text, "Service", "search");
    assert_eq!(service["spec"]["ports"][0]["targetPort"], 18080);
    assert!(service["spec"]["ports"][1]["targetPort"].is_null(), "another port stays");
    let policy = object(text, "NetworkPolicy", "search");
    assert_eq!(policy["spec"]["ingress"][0]["ports"][0]["port"], 18080);
    assert_eq!(policy["spec"]["ingress"][0]["ports"][1]["port"], 9300);
    let spec = &object(text, "StatefulSet", "search")["spec"]["template"]["spec"];
    assert_eq!(container(spec, "initContainers", "weir")["restartPolicy"], "Always");
    assert_eq!(container(spec, "initContainers", "sysctl")["securityContext"]["privileged"], true);
    assert_eq!(container(spec, "containers", "search")["ports"][0]["name"], "rest-api");
}

#[test]
fn without_a_service_the_sidecar_takes_the_name_of_the_port() {
    let injection = injected("auth.yaml", &limit("50/s"));
    let spec = &object(&injection.files[0].text, "StatefulSet", "auth")["spec"]["template"]["spec"];
    assert_eq!(container(spec, "initContainers", "weir")["ports"][0]["name"], "http");
    let auth = container(spec, "containers", "auth");
    assert_eq!(auth["ports"][0]["name"], "app-http");
    assert_eq!(auth["ports"][0]["containerPort"], 8080);
    assert_eq!(auth["readinessProbe"]["httpGet"]["port"], 8080, "the kubelet still probes the application");
    assert_eq!(auth["livenessProbe"]["tcpSocket"]["port"], 8080);
    assert_eq!(auth["lifecycle"]["preStop"]["sleep"]["seconds"], 5);
    assert!(injection.notes.iter().any(|note| note.contains("Kubernetes 1.32")), "{:?}", injection.notes);
}

#[test]
fn application_keeps_its_time_to_stop() {
    let text = &injected("queue.yaml", &InjectOptions { port: Some(15672), ..limit("50/s") }).files[0].text;
    let spec = &object(text, "StatefulSet", "queue")["spec"]["template"]["spec"];
    // 120 s of the application, 5 s until the endpoint is removed, 10 s of the drain, 5 s to exit.
    assert_eq!(spec["terminationGracePeriodSeconds"], 140);
    let hook = &container(spec, "containers", "queue")["lifecycle"]["preStop"];
    assert!(hook["sleep"].is_null() && hook["exec"]["command"].is_array(), "its own hook stays: {hook}");
}

#[test]
fn port_of_the_node_is_that_of_the_sidecar() {
    let text = &injected("exporter.yaml", &limit("50/s")).files[0].text;
    let spec = &object(text, "DaemonSet", "exporter")["spec"]["template"]["spec"];
    assert_eq!(container(spec, "initContainers", "weir")["ports"][0]["hostPort"], 9100);
    assert_eq!(container(spec, "containers", "exporter")["ports"][0]["hostPort"], 0);
}

#[test]
fn sidecar_avoids_ports_and_names_of_the_pod() {
    let text = &injected("gateway.yaml", &limit("50/s")).files[0].text;
    let spec = &object(text, "Deployment", "gateway")["spec"]["template"]["spec"];
    let ports = &container(spec, "initContainers", "weir")["ports"];
    assert_eq!(
        (&ports[0]["containerPort"], &ports[1]["containerPort"]),
        (&Json::from(18081), &Json::from(9904))
    );
    assert_eq!((&ports[0]["name"], &ports[1]["name"]), (&Json::from("web"), &Json::from("weir-probes")));
    let config = object(text, "ConfigMap", "gateway-weir")["data"]["weir.yaml"].to_string();
    assert!(config.contains("127.0.0.1:9903") && config.contains("127.0.0.1:18080"), "{config}");
}

#[test]
fn redirection_leaves_ports_services_and_probes_as_they_are() {
    let text = &injected("blog.yaml", &redirect()).files[0].text;
    assert_eq!(object(text, "Service", "blog")["spec"]["ports"][0]["targetPort"], "http");
    let spec = &object(text, "Deployment", "blog")["spec"]["template"]["spec"];
    let blog = container(spec, "containers", "blog");
    assert_eq!(
        (&blog["ports"][0]["name"], &blog["readinessProbe"]["httpGet"]["port"]),
        (&Json::from("http"), &Json::from("http"))
    );
    let names: Vec<_> = spec["initContainers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|container| container["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["wait-for-database", "weir-redirect", "weir"]);
    let rules = container(spec, "initContainers", "weir-redirect");
    assert_eq!(
        rules["args"],
        serde_json::json!([
            "redirect",
            "--port",
            "8080",
            "--to",
            "18080",
            "--uid",
            "65523",
            "--exclude",
            "9902",
            "--exclude",
            "9901"
        ])
    );
    assert_eq!(
        rules["securityContext"]["capabilities"],
        serde_json::json!({"drop": ["ALL"], "add": ["NET_ADMIN"]})
    );
    let config = object(text, "ConfigMap", "blog-weir")["data"]["weir.yaml"].to_string();
    assert!(
        config.contains("/wp-login.php") && config.contains("action: allow"),
        "probes are exempt: {config}"
    );
}

#[test]
fn workloads_without_an_http_port_stay_as_they_are() {
    let injection = injected("shop.yaml", &limit("50/s"));
    assert_eq!(injection.titles, ["Deployment frontend", "Deployment cart"]);
    let worker = "no container declares a port, set --port (Deployment worker): left as it is";
    assert!(injection.notes.iter().any(|note| note.ends_with(worker)), "{:?}", injection.notes);
    let spec = &object(&injection.files[0].text, "Deployment", "worker")["spec"]["template"]["spec"];
    assert!(spec["initContainers"].is_null());
}
