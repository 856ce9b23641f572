//! Ports of the node, names of ports, probes that are redirected, and users: what the other containers of a pod have to do with the
//! sidecar.

use serde_json::{Value as Json, json};
use weir_inject::{ConfigSource, InjectOptions, ManifestSource, inject, uninject};

fn source(text: &str) -> Vec<ManifestSource> {
    vec![ManifestSource { name: "a.yaml".to_owned(), text: text.to_owned() }]
}

fn redirect() -> InjectOptions {
    InjectOptions { is_redirect: true, ..InjectOptions::default() }
}

/// Returns a Deployment whose application has these ports and lines, beside what follows in its pods.
fn deployment(ports: &str, container: &str, pod: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: shop}}\nspec:\n  template:\n    spec:\n      containers:\n        \
         - name: app\n          image: shop:1\n          ports: {ports}\n{container}{pod}"
    )
}

/// Injects, and checks that a second injection changes nothing and that the removal restores the text.
#[track_caller]
fn injected(text: &str, options: &InjectOptions) -> (Json, Vec<String>) {
    let first = inject(&source(text), options).unwrap_or_else(|problems| panic!("{}: {text}", problems[0]));
    let second = inject(&first.files, options).expect("a second injection");
    assert_eq!(second.files[0].text, first.files[0].text);
    assert_eq!(uninject(&first.files).expect("a removal").files[0].text, text);
    let document = first.files[0].text.split("---\n").last().expect("a document");
    let mut object: Json = serde_yaml::from_str(document).expect("YAML");
    (object["spec"]["template"]["spec"].take(), first.notes)
}

#[track_caller]
fn problem(text: &str) -> String {
    inject(&source(text), &InjectOptions::default()).expect_err("a problem")[0].to_string()
}

fn sidecar(spec: &Json) -> &Json {
    let containers = spec["initContainers"].as_array().expect("a list");
    containers.iter().find(|container| container["name"] == "weir").expect("the sidecar")
}

#[test]
fn port_of_the_node_is_taken_over_with_its_address() {
    let text = deployment("[{containerPort: 80, hostPort: 8080, hostIP: 192.0.2.1}]", "", "");
    let (spec, _) = injected(&text, &InjectOptions::default());
    assert_eq!(
        sidecar(&spec)["ports"][0],
        json!({"name": "http", "containerPort": 18080, "hostPort": 8080, "hostIP": "192.0.2.1"})
    );
    assert_eq!(spec["containers"][0]["ports"][0]["hostPort"], 0);
}

#[test]
fn every_port_of_the_node_that_leads_to_the_application_is_taken_over() {
    let text = deployment(
        "[{containerPort: 80, hostPort: 8080, hostIP: 192.0.2.1}, {containerPort: 80, hostPort: 8081, hostIP: '2001:db8::1'}]",
        "",
        "",
    );
    let (spec, _) = injected(&text, &InjectOptions::default());
    let ports = &sidecar(&spec)["ports"];
    assert_eq!((&ports[0]["hostPort"], &ports[0]["hostIP"]), (&json!(8080), &json!("192.0.2.1")));
    assert_eq!(ports[2], json!({"containerPort": 18080, "hostPort": 8081, "hostIP": "2001:db8::1"}));
    let application = &spec["containers"][0]["ports"];
    assert_eq!((&application[0]["hostPort"], &application[1]["hostPort"]), (&json!(0), &json!(0)));
}

#[test]
fn host_port_0_is_none() {
    for port in ["0", "", "null"] {
        let ports = format!("[{{containerPort: 80, hostPort: {port}}}]");
        assert!(problem(&deployment(&ports, "", "")).contains("nothing leads to the sidecar"), "{port}");
        let named = format!("[{{name: http, containerPort: 80, hostPort: {port}}}]");
        let (spec, _) = injected(&deployment(&named, "", ""), &InjectOptions::default());
        assert_eq!(sidecar(&spec)["ports"][0], json!({"name": "http", "containerPort": 18080}), "{port}");
    }
}

#[test]
fn host_port_that_is_an_alias_changes_alone() {
    let text = deployment("[{containerPort: &p 80, hostPort: *p}]", "", "");
    let (spec, _) = injected(&text, &InjectOptions::default());
    assert_eq!(spec["containers"][0]["ports"][0], json!({"containerPort": 80, "hostPort": 0}));
    assert_eq!(sidecar(&spec)["ports"][0]["hostPort"], 80);
    let text = deployment("[{hostPort: &p 80, containerPort: *p}]", "", "");
    assert!(problem(&text).contains("hostPort: this is shared with other places"), "{}", problem(&text));
}

#[test]
fn new_names_of_ports_are_used_by_no_other_port() {
    for (ports, init, expected) in [
        ("{name: app-http, containerPort: 81}", "[]", "app2-http"),
        ("{name: app-http, containerPort: 81, protocol: UDP}", "[]", "app2-http"),
        ("{name: app-http, containerPort: 81}, {name: app2-http, containerPort: 82}", "[]", "app3-http"),
        ("{name: a, containerPort: 81}", "[{name: app-http, containerPort: 82}]", "app2-http"),
    ] {
        let init = format!("      initContainers: [{{name: i, image: 'i:1', ports: {init}}}]\n");
        let text = deployment(&format!("[{{name: http, containerPort: 80}}, {ports}]"), "", &init);
        let (spec, _) = injected(&text, &InjectOptions::default());
        assert_eq!(spec["containers"][0]["ports"][0]["name"], expected, "{ports}");
        assert_eq!(sidecar(&spec)["ports"][0]["name"], "http");
    }
    let long = "[{name: http-interface, containerPort: 80}, {name: app-http-interf, containerPort: 81}]";
    let options = InjectOptions { port: Some(80), ..InjectOptions::default() };
    let (spec, _) = injected(&deployment(long, "", ""), &options);
    assert_eq!(spec["containers"][0]["ports"][0]["name"], "app2-http-inter");
    let probes = "[{name: http, containerPort: 80}, {name: probes, containerPort: 81}, {name: weir-probes, containerPort: 82}]";
    let (spec, _) = injected(&deployment(probes, "", ""), &InjectOptions::default());
    assert_eq!(sidecar(&spec)["ports"][1]["name"], "weir2-probes");
}

#[test]
fn names_of_further_listeners_are_used_by_no_other_port() {
    let text = "listeners: ['[::]:7000', '[::]:7001', '[::]:7002']\nupstream: 127.0.0.1:80\nadmin: {probes: '[::]:7003'}\nrules: []\n";
    let config = Some(ConfigSource::File { name: "weir.yaml".to_owned(), text: text.to_owned() });
    let options = InjectOptions { config, ..InjectOptions::default() };
    for (name, others, expected) in [
        ("http", "{name: http-2, containerPort: 81}", ["http", "probes", "http-3", "http-4"]),
        (
            "http-internal-a",
            "{name: b, containerPort: 81}",
            ["http-internal-a", "probes", "http-internal-2", "http-internal-3"],
        ),
    ] {
        let ports = format!("[{{name: {name}, containerPort: 80}}, {others}]");
        let (spec, _) = injected(&deployment(&ports, "", ""), &options);
        let ports = sidecar(&spec)["ports"].as_array().expect("a list");
        let names: Vec<_> = ports.iter().map(|port| port["name"].as_str().expect("a name")).collect();
        assert_eq!(names, expected);
    }
}

#[test]
fn name_of_the_port_that_another_container_has_too_is_a_problem() {
    let ports = "[{name: http, containerPort: 80}]";
    let other = "        - {name: metrics, image: 'm:1', ports: [{name: http, containerPort: 9090}]}\n";
    let init = "      initContainers: [{name: metrics, image: 'm:1', restartPolicy: Always, ports: [{name: http, containerPort: 9090}]}]\n";
    let options = InjectOptions { port: Some(80), ..InjectOptions::default() };
    for other in [other, init] {
        let text = deployment(ports, "", other);
        let problems = inject(&source(&text), &options).expect_err("a problem");
        let expected = "container `metrics` has a port with the name `http` of the application's, too";
        assert!(problems[0].to_string().contains(expected), "{}", problems[0]);
        let service = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: shop}}\nspec: {{selector: {{a: b}}, ports: [{{port: 80}}]}}\n---\n{}",
            text.replace(
                "    spec:\n      containers",
                "    metadata: {labels: {a: b}}\n    spec:\n      containers"
            )
        );
        injected(&service, &options);
    }
}

#[test]
fn probes_find_the_port_by_the_name_that_it_has_in_their_container() {
    let other = "        - name: metrics\n          image: m:1\n          ports: [{name: web, containerPort: 9090}]\n          \
                 readinessProbe: {httpGet: {port: web}}\n";
    let text = deployment(
        "[{name: web, containerPort: 80}]",
        "          livenessProbe: {httpGet: {port: web}}\n",
        other,
    );
    let options = InjectOptions { port: Some(80), ..redirect() };
    let first = inject(
        &source(
            &text
                .replace("httpGet: {port: web}}\n        -", "httpGet: {path: /live, port: web}}\n        -"),
        ),
        &options,
    )
    .expect("an injection");
    let exempt = "match: { path: [\"/live\"] }";
    assert!(first.files[0].text.contains(exempt), "only its own probe: {}", first.files[0].text);
}

#[test]
fn probes_that_share_a_port_by_an_alias_are_changed_once() {
    let ports = "[{name: http, containerPort: 80}]";
    for probes in [
        "          livenessProbe: &p {httpGet: {path: /, port: http}}\n          readinessProbe: *p\n",
        "          livenessProbe: &p\n            httpGet: {path: /, port: http}\n          readinessProbe:\n            \
         <<: *p\n            periodSeconds: 5\n",
        "          livenessProbe: {httpGet: &h {path: /, port: http}}\n          readinessProbe: {httpGet: *h}\n",
        "          livenessProbe: {httpGet: {path: /, port: &n http}}\n          readinessProbe: {httpGet: {port: *n}}\n",
    ] {
        let (spec, _) = injected(&deployment(ports, probes, ""), &InjectOptions::default());
        let application = &spec["containers"][0];
        assert_eq!(application["ports"][0]["name"], "app-http", "{probes}");
        for probe in ["livenessProbe", "readinessProbe"] {
            let merged = &application[probe]["<<"]["httpGet"]["port"];
            let port = if merged.is_null() { &application[probe]["httpGet"]["port"] } else { merged };
            assert_eq!(*port, 80, "{probe}: {probes}");
        }
    }
    let name = deployment(
        "[{name: &n http, containerPort: 80}]",
        "          readinessProbe: {httpGet: {port: *n}}\n",
        "",
    );
    let (spec, _) = injected(&name, &InjectOptions::default());
    let application = &spec["containers"][0];
    assert_eq!(
        (&application["ports"][0]["name"], &application["readinessProbe"]["httpGet"]["port"]),
        (&json!("app-http"), &json!(80))
    );
}

#[test]
fn name_that_is_shared_with_another_place_is_a_problem_that_says_so() {
    let other = "        - name: b\n          image: b:1\n          env: [{name: PORT, value: *n}]\n";
    let text = deployment("[{name: &n http, containerPort: 80}]", "", other);
    let expected = "a.yaml:10:29: spec.template.spec.containers[0].ports[0].name: the name `http` of the application's port is shared \
                    by an anchor and an alias with a place that is no probe of this port";
    assert!(problem(&text).starts_with(expected), "{}", problem(&text));
    let probe = "          livenessProbe: &p {httpGet: {path: /, port: http}}\n";
    let other = "        - name: b\n          image: b:1\n          ports: [{name: other, containerPort: 81}]\n          livenessProbe: *p\n";
    let text = deployment("[{name: http, containerPort: 80}]", probe, other);
    let expected =
        "a.yaml:11:55: spec.template.spec.containers[0].livenessProbe.httpGet.port: the name `http` of the";
    assert!(problem(&text).starts_with(expected), "{}", problem(&text));
}

#[test]
fn redirected_probes_are_exempt_or_mentioned() {
    let probes = "          startupProbe: {tcpSocket: {port: http}}\n          livenessProbe: {grpc: {port: 80}}\n          \
                  readinessProbe: {httpGet: {path: /ready, port: http}}\n";
    let text = deployment("[{name: http, containerPort: 80}]", probes, "");
    let first = inject(&source(&text), &redirect()).expect("an injection");
    let exempt = "match: { path: [\"/grpc.health.v1.Health/Check\", \"/ready\"] }\n        action: allow";
    assert!(first.files[0].text.contains(exempt), "{}", first.files[0].text);
    let tcp = "Deployment shop: startupProbe of app connects to the sidecar, and succeeds while the application does not listen";
    assert!(first.notes.iter().any(|note| note.starts_with(tcp)), "{:?}", first.notes);
    let exempted = "Deployment shop: probes arrive at the sidecar: the configuration must exempt \
                    /grpc.health.v1.Health/Check and /ready by a rule with `action: allow`";
    assert!(!first.notes.iter().any(|note| note == exempted), "{:?}", first.notes);
    let own = InjectOptions { config: Some(ConfigSource::ConfigMap("own".to_owned())), ..redirect() };
    let notes = inject(&source(&text), &own).expect("an injection").notes;
    assert!(notes.iter().any(|note| note == exempted), "{notes:?}");
    let direct = inject(&source(&text), &InjectOptions::default()).expect("an injection").notes;
    assert!(!direct.iter().any(|note| note.contains("arrive") || note.contains("connects to")), "{direct:?}");
}

#[test]
fn user_of_a_redirected_sidecar_is_that_of_no_container() {
    let ports = "[{name: http, containerPort: 80}]";
    for (container, pod, expected) in [
        ("", "", 65523),
        ("          securityContext: {runAsUser: 65532}\n", "", 65523),
        ("          securityContext: {runAsUser: 65523}\n", "", 65522),
        ("", "      securityContext: {runAsUser: 65523}\n", 65522),
        (
            "          securityContext: {runAsUser: 65522}\n",
            "      securityContext: {runAsUser: 65523}\n",
            65521,
        ),
        ("", "        - {name: b, image: 'b:1', securityContext: {runAsUser: 65523}}\n", 65522),
        ("", "      initContainers: [{name: b, image: 'b:1', securityContext: {runAsUser: 65523}}]\n", 65522),
    ] {
        let (spec, _) = injected(&deployment(ports, container, pod), &redirect());
        assert_eq!(sidecar(&spec)["securityContext"]["runAsUser"], expected, "{container}{pod}");
        let containers = spec["initContainers"].as_array().expect("a list");
        let rules = containers.iter().find(|container| container["name"] == "weir-redirect").expect("rules");
        let arguments = rules["args"].as_array().expect("a list");
        assert!(arguments.contains(&json!(expected.to_string())), "{arguments:?}");
        // Without redirection, users do not matter.
        let (spec, _) = injected(&deployment(ports, container, pod), &InjectOptions::default());
        assert_eq!(sidecar(&spec)["securityContext"]["runAsUser"], 65532);
    }
}
