//! Names of the ConfigMaps that inject creates: each workload has its own.

use weir_inject::{InjectOptions, ManifestSource, inject};

const SHOP: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: shop}\nspec:\n  template:\n    spec:\n      containers:\n        \
                    - name: app\n          image: shop:1\n          ports: [{name: http, containerPort: 80}]\n";

fn source(text: &str) -> Vec<ManifestSource> {
    vec![ManifestSource { name: "a.yaml".to_owned(), text: text.to_owned() }]
}

#[track_caller]
fn problem(text: &str) -> String {
    inject(&source(text), &InjectOptions::default()).expect_err("a problem")[0].to_string()
}

#[test]
fn config_maps_of_different_kinds_and_runs_have_different_names() {
    let names = |text: &str| {
        let first = inject(&source(text), &InjectOptions::default()).expect("an injection");
        let names = first.files[0].text.lines().filter_map(|line| line.strip_prefix("  name: "));
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let of = |kind: &str| SHOP.replace("kind: Deployment", &format!("kind: {kind}"));
    // One by one.
    assert_eq!(names(SHOP), ["shop-weir"]);
    assert_eq!(names(&of("StatefulSet")), ["shop-statefulset-weir"]);
    assert_eq!(names(&of("DaemonSet")), ["shop-daemonset-weir"]);
    // Together.
    let both = format!("{}---\n{SHOP}", of("StatefulSet"));
    assert_eq!(names(&both), ["shop-statefulset-weir", "shop-weir"]);
    let clash =
        format!("{}---\n{}", of("StatefulSet"), SHOP.replace("{name: shop}", "{name: shop-statefulset}"));
    let expected = "the ConfigMap shop-statefulset-weir is that of StatefulSet shop, too, rename one of both, or use --config-map";
    assert!(problem(&clash).contains(expected), "{}", problem(&clash));
    let twice = format!("{SHOP}---\n{SHOP}");
    assert!(
        problem(&twice).contains("the ConfigMap shop-weir is that of Deployment shop, too"),
        "{}",
        problem(&twice)
    );
}

#[test]
fn names_are_no_longer_than_kubernetes_accepts() {
    let longest = "a".repeat(226);
    let of = |kind: &str, name: &str| {
        SHOP.replace("Deployment", kind).replace("{name: shop}", &format!("{{name: {name}}}"))
    };
    let text = of("ReplicationController", &longest).replace("apps/v1", "v1");
    let first = inject(&source(&text), &InjectOptions::default()).expect("an injection");
    assert!(first.files[0].text.contains(&format!("  name: {longest}-replicationcontroller-weir\n")));
    let long = problem(&of("Deployment", &format!("{longest}a")));
    assert!(long.contains("not a name of Kubernetes objects with at most 226 letters"), "{long}");
}
