//! What cannot be done is an error with its place and its reason, and odd layouts are no reason.

use serde_json::Value as Json;
use weir_inject::{ConfigSource, InjectOptions, ManifestSource, inject, uninject};

fn source(text: &str) -> Vec<ManifestSource> {
    vec![ManifestSource { name: "a.yaml".to_owned(), text: text.to_owned() }]
}

fn redirect() -> InjectOptions {
    InjectOptions { is_redirect: true, ..InjectOptions::default() }
}

fn configured(config: ConfigSource) -> InjectOptions {
    InjectOptions { config: Some(config), ..InjectOptions::default() }
}

/// Returns a Deployment with a named port, and these lines in the specification of its pods.
fn deployment(lines: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: a\nspec:\n  template:\n    metadata:\n      labels: {{app: a}}\n    \
         spec:\n      containers:\n        - name: a\n          image: a:1\n          ports:\n            \
         - {{name: http, containerPort: 80}}\n{lines}"
    )
}

#[track_caller]
fn assert_rejected(text: &str, options: &InjectOptions, expected: &str) {
    match inject(&source(text), options) {
        Ok(injection) => panic!("no problem, but:\n{}", injection.files[0].text),
        Err(problems) => {
            let shown: Vec<_> = problems.iter().map(ToString::to_string).collect();
            assert!(shown.iter().any(|problem| problem.contains(expected)), "{}", shown.join("\n"));
        }
    }
}

/// Injects, and checks that a second injection changes nothing and that the removal restores the text.
#[track_caller]
fn assert_restored(text: &str, options: &InjectOptions) -> String {
    let first = inject(&source(text), options).unwrap_or_else(|problems| panic!("{}: {text}", problems[0]));
    let second = inject(&first.files, options).expect("a second injection");
    assert!(second.files[0].text == first.files[0].text, "second:\n{}", second.files[0].text);
    let removed = uninject(&first.files).expect("a removal");
    assert_eq!(removed.files[0].text, text);
    first.files[0].text.clone()
}

#[test]
fn problems_have_place_path_and_reason() {
    let rejected = [
        (
            "      hostNetwork: true\n",
            "a.yaml:15:20: spec.template.spec.hostNetwork: the pod uses the network of its node",
        ),
        ("      nodeSelector: {kubernetes.io/os: windows}\n", "no image of Weir for Windows"),
        (
            "      initContainers:\n        - {name: weir, image: b}\n",
            "a.yaml:16:11: spec.template.spec.initContainers[0]: there is a container `weir`",
        ),
        ("      volumes: [{name: weir-config, emptyDir: {}}]\n", "there is a volume `weir-config`"),
    ];
    for (lines, expected) in rejected {
        assert_rejected(&deployment(lines), &InjectOptions::default(), expected);
        assert_rejected(&deployment(lines), &redirect(), expected);
    }
}

#[test]
fn lines_of_problems_are_those_of_the_input_that_was_injected_before() {
    let injected = inject(&source(&deployment("")), &InjectOptions::default()).unwrap();
    let text = format!("{}      hostNetwork: true\n", injected.files[0].text);
    let line = text.lines().count();
    assert_rejected(
        &text,
        &InjectOptions::default(),
        &format!("a.yaml:{line}:20: spec.template.spec.hostNetwork"),
    );
}

#[test]
fn shared_values_are_rejected() {
    let alias = deployment("      volumes: &v [{name: b, emptyDir: {}}]\n").replace("kind:", "x: *v\nkind:");
    assert!(inject(&source(&alias), &InjectOptions::default()).is_err(), "an alias before its anchor");
    let shared = deployment("      volumes: &v [{name: b, emptyDir: {}}]\nx: *v\n");
    assert_rejected(&shared, &InjectOptions::default(), "volumes: this is shared");
    let merged = deployment("      <<: {volumes: [{name: b, emptyDir: {}}]}\n");
    assert_rejected(&merged, &InjectOptions::default(), "`volumes` is merged into this by `<<`");
    assert_restored(&deployment("      volumes: &v [{name: b, emptyDir: {}}]\n"), &InjectOptions::default());
}

#[test]
fn ports_are_found_or_asked_for() {
    let two = deployment("").replace("name: http, ", "") + "            - {containerPort: 81}\n";
    assert_rejected(&two, &InjectOptions::default(), "several ports, set --port to one of 80 of a, 81 of a");
    let unnamed = deployment("").replace("name: http, ", "");
    assert_rejected(
        &unnamed,
        &InjectOptions::default(),
        "a.yaml:14:15: spec.template.spec.containers[0].ports[0]: nothing leads to the sidecar",
    );
    assert_rejected(
        &deployment("").replace("http", "https"),
        &InjectOptions::default(),
        "port 80 is for TLS",
    );
    assert_rejected(
        &deployment("").replace("http", "redis"),
        &InjectOptions::default(),
        "port 80 is usually redis and not HTTP",
    );
    assert_restored(&two, &InjectOptions { port: Some(81), ..redirect() });
    assert_restored(
        &deployment("").replace("http", "redis"),
        &InjectOptions { port: Some(80), ..InjectOptions::default() },
    );
}

#[test]
fn configurations_are_checked() {
    let file =
        |text: &str| configured(ConfigSource::File { name: "w.yaml".to_owned(), text: text.to_owned() });
    let valid = "listeners: 0.0.0.0:7000\nupstream: 127.0.0.1:80\nadmin: {address: 127.0.0.1:7001, probes: 0.0.0.0:7002}\ndrain: {timeout: 30s}\nrules: []\n";
    let injected = assert_restored(&deployment(""), &file(valid));
    let redirected =
        inject(&source(&deployment("")), &InjectOptions { is_redirect: true, ..file(valid) }).unwrap();
    assert!(redirected.notes.iter().any(|note| note.contains("to [::]:7000")), "{:?}", redirected.notes);
    assert!(injected.contains("containerPort: 7000") && injected.contains("port: 7002"), "{injected}");
    assert!(
        injected.contains("terminationGracePeriodSeconds: 70"),
        "30 s, 5 s, the drain of 30 s, 5 s: {injected}"
    );
    let several = valid.replace("listeners: 0.0.0.0:7000", "listeners: [0.0.0.0:7000, 0.0.0.0:7003]");
    let injected = assert_restored(&deployment(""), &file(&several));
    assert!(injected.contains("- name: http-2\n              containerPort: 7003"), "{injected}");
    assert_rejected(&deployment(""), &file(&valid.replace("rules: []", "rule: []")), "w.yaml:5:1: rule");
    assert_rejected(
        &deployment(""),
        &file(&valid.replace("listeners: 0.0.0.0", "listeners: 127.0.0.1")),
        "listeners[0].address",
    );
    assert_rejected(
        &deployment(""),
        &file(&valid.replace("probes: 0.0.0.0", "probes: 127.0.0.1")),
        "admin.probes",
    );
    assert_rejected(
        &deployment(""),
        &file(&valid.replace("upstream: 127.0.0.1:80", "upstream: b:80")),
        "no upstream on loopback",
    );
    let taken = deployment("            - {containerPort: 7002}\n");
    assert_rejected(&taken, &file(valid), "uses a port that the pod uses already, 7002");
    assert_rejected(
        &deployment(""),
        &file(&format!("{valid}geo: {{database: cities.mmdb}}\n")),
        "cities.mmdb",
    );
    let wrong = InjectOptions { port: Some(81), ..file(valid) };
    assert_rejected(&deployment(""), &wrong, "--port is 81, but the upstream of the configuration is 80");
    assert_rejected(
        &deployment(""),
        &configured(ConfigSource::Limit("10/fortnight".to_owned())),
        "--limit: unknown unit \"fortnight\"",
    );
}

#[test]
fn existing_config_map_is_used() {
    let options = configured(ConfigSource::ConfigMap("rules".to_owned()));
    let injected = assert_restored(&deployment(""), &options);
    assert!(injected.contains("name: rules") && !injected.contains("kind: ConfigMap"), "{injected}");
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: rules}\ndata:\n  weir.yaml: |\n    listeners: 0.0.0.0:7000\n    upstream: 127.0.0.1:80\n    admin: {probes: 0.0.0.0:7002}\n    rules: []\n---\n";
    let injected = assert_restored(&format!("{map}{}", deployment("")), &options);
    assert!(injected.contains("containerPort: 7000"), "its ports are read: {injected}");
}

#[test]
fn name_of_a_config_map_is_checked_and_stays_a_text() {
    let named = |name: &str| configured(ConfigSource::ConfigMap(name.to_owned()));
    assert_rejected(&deployment(""), &named("A b"), "--config-map: not a name of a ConfigMap, \"A b\"");
    let injected = assert_restored(&deployment(""), &named("123"));
    assert!(injected.contains("name: \"123\""), "{injected}");
}

#[test]
fn configurations_that_write_files_are_rejected() {
    let file = |more: &str| {
        let valid =
            "listeners: 0.0.0.0:80\nupstream: 127.0.0.1:8080\nadmin: {probes: 0.0.0.0:7002}\nrules: []\n";
        configured(ConfigSource::File { name: "weir.yaml".to_owned(), text: format!("{valid}{more}") })
    };
    let text = deployment("").replace("containerPort: 80", "containerPort: 8080");
    assert_rejected(&text, &file("state: {file: /tmp/state}\n"), "state.file: the sidecar has no volume");
    assert_rejected(&text, &file("access_log: /tmp/log\n"), "access_log: the sidecar has no volume");
    let injection = inject(&source(&text), &file("access_log: stdout\n")).expect("an injection");
    assert!(
        injection.notes.iter().any(|note| note.contains("listen on 80, below 1024")),
        "{:?}",
        injection.notes
    );
}

#[test]
fn config_map_of_others_keeps_its_name() {
    let text =
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a-weir}}\n---\n{}", deployment(""));
    assert_rejected(&text, &InjectOptions::default(), "rename the ConfigMap, or use --config-map");
}

#[test]
fn redirection_is_rejected_where_it_cannot_work() {
    let mesh = deployment("").replace("labels:", "annotations: {linkerd.io/inject: enabled}\n      labels:");
    assert_rejected(&mesh, &redirect(), "`linkerd.io/inject` redirects the same ports");
}

#[test]
fn text_that_is_no_manifest_is_rejected() {
    assert_rejected("", &InjectOptions::default(), "no Kubernetes objects");
    assert_rejected(
        "kind: Service\napiVersion: v1\n",
        &InjectOptions::default(),
        "no workload among the objects",
    );
    assert_rejected(
        "{{- if .Values.x }}\na: 1\n{{- end }}\n",
        &InjectOptions::default(),
        "render templates first",
    );
    assert_rejected("---\na: 1\n---\na: [1\n", &InjectOptions::default(), "a.yaml:5:1: ");
}

#[test]
fn odd_layouts_are_restored() {
    let lines = [
        "      volumes:\n",
        "      volumes: ~ # none\n      initContainers:   []\n",
        "      volumes:\n      - name: b\n        emptyDir: {}",
        "      volumes:\n        -\n          name: b\n          emptyDir: {}\n\n# end\n...\n",
        "      volumes:\n        - {name: b, emptyDir: {},}\n      initContainers: [ ]\n---\n# nothing\n---\nkind: Other\n",
        "      terminationGracePeriodSeconds: \"60\"\n      initContainers: [{name: b, image: 'b', command: [sh, -c, 'x']}]\n",
        "      initContainers:\n        - image: b\n          name: b\n          args:\n            - |+\n              x\n\n",
        "      hostAliases: [\n        {ip: 1.2.3.4, hostnames: [b]}\n      ]\n      # tail\n        # deeper\n",
    ];
    for lines in lines {
        for text in [
            deployment(lines),
            format!("---\n{}", deployment(lines)),
            format!("\u{feff}{}", deployment(lines)),
        ] {
            for options in [InjectOptions::default(), redirect()] {
                assert_restored(&text, &options);
                assert_restored(&text.replace('\n', "\r\n"), &options);
            }
        }
    }
}

#[test]
fn what_a_cluster_returns_is_restored() {
    // Kubernetes sorts keys, adds defaults, and leaves out a port of 0. `kubectl` prints JSON.
    let text = deployment("").replace("containerPort: 80", "containerPort: 80, hostPort: 81");
    let injected = inject(&source(&text), &InjectOptions::default()).unwrap();
    let document = injected.files[0].text.split("\n---\n").nth(1).unwrap();
    let mut object: Json = serde_yaml::from_str(document).unwrap();
    object.sort_all_objects();
    let spec = &mut object["spec"]["template"]["spec"];
    spec["initContainers"][0]["terminationMessagePath"] = "/dev/termination-log".into();
    let port = &mut spec["containers"][0]["ports"][0];
    assert_eq!(port["hostPort"], 0);
    port.as_object_mut().unwrap().remove("hostPort");
    let printed = serde_json::to_string_pretty(&object).unwrap();
    let removed = uninject(&source(&printed)).unwrap();
    assert_eq!(removed.notes, [""; 0]);
    let found: Json = serde_json::from_str(&removed.files[0].text).unwrap();
    assert_eq!(found, serde_yaml::from_str::<Json>(&text).unwrap());
}

#[test]
fn changes_after_the_injection_stay_with_a_note() {
    let injected = inject(&source(&deployment("")), &InjectOptions::default()).unwrap();
    let changed = injected.files[0]
        .text
        .replace("seconds: 5\n", "seconds: 5\n            postStart: {exec: {command: [x]}}\n");
    let changed = changed.replace("- {name: app-http,", "- {name: mine,").replace(
        "        - name: weir-config\n          configMap",
        "        - {name: mine, emptyDir: {}}\n        - name: weir-config\n          configMap",
    );
    let removed = uninject(&source(&changed)).unwrap();
    assert_eq!(
        removed.notes,
        ["Deployment a: spec.containers[a].ports[#0].name has changed since the injection and stays"]
    );
    let text = &removed.files[0].text;
    assert!(
        text.contains("name: mine, containerPort")
            && text.contains("postStart")
            && text.contains("- {name: mine, emptyDir"),
        "{text}"
    );
    assert!(!text.contains("weir") && !text.contains("preStop"), "{text}");
}

#[test]
fn records_of_others_are_rejected() {
    let text = deployment("").replace("labels:", "annotations: {weir.dev/injected: 'yes'}\n      labels:");
    let problems = uninject(&source(&text)).unwrap_err();
    assert!(problems[0].to_string().contains("not a record of an injection"), "{}", problems[0]);
}

#[test]
fn workloads_can_opt_out() {
    let out = deployment("").replace("labels:", "annotations: {weir.dev/inject: disabled}\n      labels:");
    assert_rejected(&out, &InjectOptions::default(), "`weir.dev/inject` is disabled");
    let other = deployment("").replace("name: a\nspec", "name: b\nspec");
    let injection = inject(&source(&format!("{out}---\n{other}")), &InjectOptions::default()).unwrap();
    assert_eq!(injection.titles, ["Deployment b"]);
    assert!(injection.files[0].text.contains(&out), "it stays as it is: {}", injection.files[0].text);
}

#[test]
fn workloads_of_the_same_name_have_config_maps_of_their_own() {
    let other = deployment("").replace("kind: Deployment", "kind: StatefulSet");
    let injected = assert_restored(&format!("{}---\n{other}", deployment("")), &InjectOptions::default());
    assert!(
        injected.contains("  name: a-weir\n") && injected.contains("  name: a-statefulset-weir\n"),
        "{injected}"
    );
}

#[test]
fn policies_are_directed_to_the_sidecar_without_a_service() {
    let policy = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: a}\nspec:\n  podSelector: {matchLabels: {app: a}}\n  ingress:\n    - ports:\n        - {port: http}\n";
    let injected = assert_restored(&format!("{}{policy}", deployment("")), &InjectOptions::default());
    assert!(injected.contains("- {port: 18080}"), "{injected}");
    let redirected = assert_restored(&format!("{}{policy}", deployment("")), &redirect());
    assert!(redirected.contains("- {port: http}"), "the port of clients stays: {redirected}");
}

#[test]
fn clients_of_headless_services_are_mentioned() {
    let service = |name: &str, ip: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n{ip}  selector: {{app: a}}\n  ports: [{{port: 80}}]\n"
        )
    };
    let text = format!("{}{}{}", deployment(""), service("b", ""), service("c", "  clusterIP: None\n"));
    let injection = inject(&source(&text), &InjectOptions::default()).unwrap();
    assert!(
        injection.notes.iter().any(|note| note.contains("Service c is headless")),
        "{:?}",
        injection.notes
    );
    assert!(
        injection.files[0].text.contains("{port: 80, \"targetPort\": 18080}"),
        "{}",
        injection.files[0].text
    );
}
