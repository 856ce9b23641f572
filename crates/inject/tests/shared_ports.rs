//! Services and NetworkPolicies that lead to several workloads, to pods without the sidecar, or from clients of the pods.

use serde_json::{Value as Json, json};
use weir_inject::{InjectOptions, ManifestSource, inject, uninject};

fn source(text: &str) -> Vec<ManifestSource> {
    vec![ManifestSource { name: "a.yaml".to_owned(), text: text.to_owned() }]
}

/// Returns a Deployment with a port, whose pods have the label `app: shop`.
fn deployment(name: &str, metadata: &str, port: u16) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  template:\n    metadata:\n      {metadata}\n      \
         labels: {{app: shop, tier: {name}}}\n    spec:\n      containers:\n        - name: app\n          image: shop:1\n          ports:\n            \
         - {{name: http, containerPort: {port}}}\n---\n"
    )
}

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: shop}\nspec:\n  selector: {app: shop}\n  ports:\n    \
                       - {port: 80, targetPort: http}\n";

fn policy(spec: &str) -> String {
    format!("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  name: rules\nspec:\n{spec}")
}

fn problem(text: &str) -> String {
    inject(&source(text), &InjectOptions::default()).expect_err("a problem")[0].to_string()
}

/// Injects, and checks that a second injection changes nothing and that the removal restores the text.
#[track_caller]
fn injected(text: &str) -> String {
    let options = InjectOptions::default();
    let first = inject(&source(text), &options).unwrap_or_else(|problems| panic!("{}", problems[0]));
    let second = inject(&first.files, &options).expect("a second injection");
    assert_eq!(second.files[0].text, first.files[0].text);
    assert_eq!(uninject(&first.files).expect("a removal").files[0].text, text);
    first.files[0].text.clone()
}

/// Returns the specification of the last object.
fn last_spec(text: &str) -> Json {
    let document = text.rsplit("---\n").next().unwrap_or_default();
    serde_yaml::from_str::<Json>(document).expect("YAML")["spec"].take()
}

#[test]
fn service_of_several_workloads_is_changed_once() {
    let text = deployment("a", "annotations: {}", 8080) + &deployment("b", "annotations: {}", 9090) + SERVICE;
    assert_eq!(last_spec(&injected(&text))["ports"][0]["targetPort"], 18080);
}

#[test]
fn service_that_also_leads_to_pods_without_the_sidecar_is_a_problem() {
    let text = deployment("a", "annotations: {}", 8080)
        + &deployment("b", "annotations: {weir.dev/inject: disabled}", 9090)
        + SERVICE;
    let expected = "a.yaml:37:7: spec.ports[0]: the port leads to Deployment a and to Deployment b, which gets no sidecar for it";
    assert!(problem(&text).starts_with(expected), "{}", problem(&text));
}

#[test]
fn pods_that_do_not_have_the_port_of_a_service_are_none_of_it() {
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: migration}\nspec:\n  template:\n    metadata:\n      \
               labels: {app: shop}\n    spec:\n      containers: [{name: job, image: shop:1}]\n---\n";
    let text = deployment("a", "annotations: {}", 8080) + job + SERVICE;
    assert_eq!(last_spec(&injected(&text))["ports"][0]["targetPort"], 18080);
}

#[test]
fn service_of_sidecars_with_different_ports_is_a_problem() {
    let text =
        deployment("a", "annotations: {}", 8080) + &deployment("b", "annotations: {}", 18080) + SERVICE;
    assert!(
        problem(&text).contains("leads to sidecars with different ports, 18080 and 18081"),
        "{}",
        problem(&text)
    );
}

#[test]
fn policy_of_the_pods_alone_admits_only_the_sidecar() {
    let text = deployment("a", "annotations: {}", 8080)
        + &policy(
            "  podSelector: {matchLabels: {tier: a}}\n  ingress:\n    - ports:\n        - port: 8080\n",
        );
    assert_eq!(last_spec(&injected(&text))["ingress"][0]["ports"], json!([{"port": 18080}]));
}

#[test]
fn policy_of_other_pods_too_keeps_their_port() {
    let both = json!([{"port": 8080}, {"port": 18080, "protocol": "TCP"}]);
    let ingress = "  ingress:\n    - ports:\n        - port: 8080\n";
    let other = deployment("b", "annotations: {weir.dev/inject: disabled}", 8080);
    for (other, selector) in
        [("", "  podSelector: {}\n"), (&other, "  podSelector: {matchLabels: {app: shop}}\n")]
    {
        let text =
            deployment("a", "annotations: {}", 8080) + other + &policy(&(selector.to_owned() + ingress));
        assert_eq!(last_spec(&injected(&text))["ingress"][0]["ports"], both, "{selector}");
    }
}

#[test]
fn expressions_of_a_selector_decide() {
    let expressions = [
        ("{key: tier, operator: In, values: [a, b]}", true),
        ("{key: tier, operator: In, values: [b]}", false),
        ("{key: tier, operator: NotIn, values: [b]}", true),
        ("{key: tier, operator: NotIn, values: [a]}", false),
        ("{key: app, operator: Exists}", true),
        ("{key: app, operator: DoesNotExist}", false),
        ("{key: zone, operator: NotIn, values: [a]}", true),
    ];
    for (expression, is_selected) in expressions {
        let spec = format!(
            "  podSelector:\n    matchExpressions:\n      - {expression}\n  ingress:\n    - ports:\n        - port: 8080\n"
        );
        let text = deployment("a", "annotations: {}", 8080) + &policy(&spec);
        let port = if is_selected { 18080 } else { 8080 };
        assert_eq!(
            last_spec(&injected(&text))["ingress"][0]["ports"],
            json!([{"port": port}]),
            "{expression}"
        );
    }
}

#[test]
fn range_of_a_policy_stays_and_gets_the_sidecar_beside_it() {
    for (end, is_added) in [(9000, true), (20000, false)] {
        let spec = format!(
            "  podSelector: {{matchLabels: {{tier: a}}}}\n  ingress:\n    - ports:\n        - {{port: 8000, endPort: {end}}}\n"
        );
        let text = deployment("a", "annotations: {}", 8080) + &policy(&spec);
        let ports = last_spec(&injected(&text))["ingress"][0]["ports"].take();
        assert_eq!(ports[0], json!({"port": 8000, "endPort": end}));
        assert_eq!(ports.as_array().expect("a list").len(), 1 + usize::from(is_added), "{ports}");
    }
}

#[test]
fn policy_of_the_clients_admits_the_sidecar_too() {
    let spec = |to: &str| {
        format!(
            "  podSelector: {{matchLabels: {{app: client}}}}\n  egress:\n    - {to}ports:\n        - {{port: 8080}}\n"
        )
    };
    for (to, is_added) in [
        ("to: [{podSelector: {matchLabels: {app: shop}}}]\n      ", true),
        ("to: [{podSelector: {matchLabels: {app: bank}}}]\n      ", false),
        ("", true),
    ] {
        let text = deployment("a", "annotations: {}", 8080) + &policy(&spec(to));
        let ports = last_spec(&injected(&text))["egress"][0]["ports"].take();
        assert_eq!(ports[0], json!({"port": 8080}));
        assert_eq!(ports.as_array().expect("a list").len(), 1 + usize::from(is_added), "{to}");
    }
}

#[test]
fn objects_of_a_controller_stay_as_they_are() {
    let owner = "annotations: {}";
    let pod = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: shop-6d\n  labels: {app: shop}\n  ownerReferences:\n    \
               - {kind: ReplicaSet, name: shop-6, controller: true}\nspec:\n  containers:\n    \
               - {name: app, image: shop:1, ports: [{containerPort: 8080}]}\n";
    let text = deployment("shop", owner, 8080) + pod + "---\n" + SERVICE;
    let after = injected(&text);
    assert!(after.contains(pod), "{after}");
    let expected =
        "a.yaml:1:1: ReplicaSet shop-6 controls the object and would undo the change, inject that one";
    assert!(problem(pod).starts_with(expected), "{}", problem(pod));
}

/// Returns the ports of a policy of clients, in a namespace, after an injection into pods of the namespace `shop`.
#[track_caller]
fn client_ports(namespace: &str, to: &str, others: &str) -> Json {
    let spec =
        format!("  podSelector: {{}}\n  egress:\n    - to: [{to}]\n      ports:\n        - {{port: 8080}}\n");
    let policy =
        policy(&spec).replace("  name: rules\n", &format!("  name: rules\n  namespace: {namespace}\n"));
    let workload =
        deployment("a", "annotations: {}", 8080).replace("{name: a}", "{name: a, namespace: shop}");
    last_spec(&injected(&format!("{others}{workload}{policy}")))["egress"][0]["ports"].take()
}

#[test]
fn policy_of_clients_selects_pods_by_their_namespace_or_address() {
    let labelled = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: web}}\n---\n";
    for (namespace, to, others, is_added) in [
        ("web", "{namespaceSelector: {}}", "", true),
        ("shop", "{namespaceSelector: {}}", "", true),
        ("web", "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}}", "", true),
        ("web", "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: bank}}}", "", false),
        (
            "web",
            "{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [shop]}]}}",
            "",
            false,
        ),
        // A label that the input does not say may be there.
        ("web", "{namespaceSelector: {matchLabels: {team: web}}}", "", true),
        ("web", "{namespaceSelector: {matchLabels: {team: bank}}}", labelled, false),
        ("web", "{namespaceSelector: {matchLabels: {team: web}}}", labelled, true),
        ("web", "{namespaceSelector: {}, podSelector: {matchLabels: {app: shop}}}", "", true),
        ("web", "{namespaceSelector: {}, podSelector: {matchLabels: {app: bank}}}", "", false),
        ("shop", "{podSelector: {matchLabels: {app: shop}}}", "", true),
        ("web", "{podSelector: {matchLabels: {app: shop}}}", "", false),
        ("web", "{ipBlock: {cidr: 10.0.0.0/8}}", "", true),
        ("web", "{ipBlock: {cidr: '2001:db8::/32'}}", "", true),
        ("web", "{ipBlock: {cidr: 192.0.2.7/32}}", "", false),
        ("web", "{ipBlock: {cidr: '2001:db8::7/128'}}", "", false),
        ("web", "", "", true),
    ] {
        let ports = client_ports(namespace, to, others);
        assert_eq!(ports[0], json!({"port": 8080}));
        assert_eq!(ports.as_array().expect("a list").len(), 1 + usize::from(is_added), "{namespace}: {to}");
    }
}

#[test]
fn policies_of_other_kinds_are_mentioned() {
    let foreign = "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: rules}\n";
    let text = deployment("a", "annotations: {}", 8080) + foreign;
    let notes = inject(&source(&text), &InjectOptions::default()).expect("an injection").notes;
    let expected =
        "Deployment a: CiliumNetworkPolicy rules is not read: where it admits port 8080, it must admit 18080";
    assert!(notes.iter().any(|note| note == expected), "{notes:?}");
}

#[test]
fn target_that_is_shared_with_another_place_is_a_problem() {
    let service =
        SERVICE.replace("{port: 80, targetPort: http}", "{port: 80, targetPort: &t http, name: *t}");
    let text = deployment("a", "annotations: {}", 8080) + &service;
    assert!(problem(&text).contains("targetPort: this is shared with other places"), "{}", problem(&text));
    let alias = SERVICE.replace("{port: 80, targetPort: http}", "{port: 80, name: &t http, targetPort: *t}");
    let text = deployment("a", "annotations: {}", 8080) + &alias;
    assert_eq!(
        last_spec(&injected(&text))["ports"][0],
        json!({"port": 80, "name": "http", "targetPort": 18080})
    );
}
