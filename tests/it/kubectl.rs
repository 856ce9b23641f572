//! `kubectl weir`: the real binary with a `kubectl` that the test controls, and running instances as pods.

mod cluster;
mod failures;

use serde_json::Value;

use self::cluster::{Cluster, Outcome};
use crate::support::weir::Weir;
use crate::support::{Client, Request, config, wait};

const RULES: &str = "\
client_ip: { trusted_proxies: [127.0.0.1] }
rules:
  - { name: per-ip, key: [client_ip], limit: 3/d }
  - { name: login, match: { path: /login }, key: [client_ip], limit: 2/d }
  - { name: keys, key: [{ header: x-key }], limit: 5/d }
";

const CLIENT: &str = "203.0.113.7";

/// Returns two running instances.
fn two_instances() -> [Weir; 2] {
    [0, 1].map(|_| Weir::start(&config("echo", RULES)))
}

/// Returns a cluster in which `deploy/shop` has these instances as the pods `shop-0` and so on.
fn shop(instances: &[Weir]) -> Cluster {
    let cluster = Cluster::with_deployment();
    for (index, weir) in instances.iter().enumerate() {
        cluster.add_pod(&format!("shop-{index}"), Some(weir.admin_address("full").port()));
    }
    cluster
}

/// Sends a GET for this client; returns the status.
fn status(weir: &Weir, client: &str) -> u16 {
    Client::connect(weir.address()).fetch(&Request::get("/").forwarded_for(client)).status
}

/// Returns the bans and boosts of an instance, each as `ACTION RULE KEY`.
fn overrides(weir: &Weir) -> Vec<String> {
    let all = weir.admin_json("/limits/overrides");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let shown = |entry: &Value| {
        format!("{} {} {}", text(&entry["action"]), text(&entry["rule"]), text(&entry["key"]))
    };
    all["overrides"].as_array().unwrap().iter().map(shown).collect()
}

#[test]
fn limits_of_each_pod_of_a_workload_are_printed() {
    let instances = two_instances();
    let cluster = shop(&instances);
    cluster.add_pod("other-0", None);
    assert_eq!((status(&instances[1], CLIENT), status(&instances[1], CLIENT)), (200, 200));
    let Outcome { code, stdout, stderr } =
        cluster.run(&["-n", "web", "limits", "deploy/shop", "--context", "test", "--kubeconfig", "/k"]);
    assert_eq!(code, Some(0), "{stderr}");
    let (first, second) = stdout.split_once("== shop-1 ==").unwrap();
    assert!(first.starts_with("== shop-0 ==\nRULE"), "{stdout}");
    let line = |text: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with("per-ip")).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(line(first), ["per-ip", "3/d", "0", "0", "0", "0", "0"]);
    assert_eq!(line(second), ["per-ip", "3/d", "2", "0", "0", "0", "1"]);
    assert_eq!(stderr, "weir: skipped: other-0: it has no container `weir`\n");

    let options = "--context=test --kubeconfig=/k";
    let calls = cluster.calls();
    assert_eq!(calls[0], format!("{options} get deploy/shop --namespace=web --output=json"));
    assert_eq!(calls[1], format!("{options} get pods --selector=app=shop --namespace=web --output=json"));
    let mut forwards = calls[2..].to_vec();
    forwards.sort();
    let forward =
        |pod: &str| format!("{options} port-forward --address=127.0.0.1 --namespace=web pod/{pod} :9901");
    assert_eq!(forwards, [forward("shop-0"), forward("shop-1")]);
    cluster.assert_no_forward_is_left(2);
}

#[test]
fn one_pod_has_no_heading_and_labels_select_in_all_namespaces() {
    let instances = [Weir::start(&config("echo", RULES))];
    let cluster = shop(&instances);
    let one = cluster.run(&["limits", "pod/shop-0"]);
    assert!(one.code == Some(0) && one.stdout.starts_with("RULE"), "{one:?}");
    assert_eq!(cluster.run(&["limits", "shop-0"]).stdout, one.stdout);
    let all = cluster.run(&["limits", "-l", "app=shop", "-A", "--format", "json"]);
    let entries: Value = serde_json::from_str(&all.stdout).unwrap();
    assert_eq!((entries[0]["namespace"].as_str(), entries[0]["pod"].as_str()), (Some("web"), Some("shop-0")));
    assert_eq!(entries[0]["result"]["limits"]["rules"][0]["name"], "per-ip");
    assert!(
        cluster.calls().contains(&"get pods --selector=app=shop --all-namespaces --output=json".to_owned())
    );
}

#[test]
fn ban_rejects_a_client_in_every_pod_and_unban_ends_it() {
    let instances = two_instances();
    let cluster = shop(&instances);
    let banned = cluster.run(&["ban", "deploy/shop", CLIENT, "--for", "10m"]);
    assert_eq!(banned.code, Some(0), "{banned:?}");
    for heading in [
        "== shop-0 ==\nper-ip: client_ip=203.0.113.7 banned until ",
        "login: client_ip=203.0.113.7 banned until ",
    ] {
        assert!(banned.stdout.contains(heading), "{banned:?}");
    }
    for weir in &instances {
        assert_eq!(overrides(weir).len(), 2, "{:?}", overrides(weir));
        assert_eq!((status(weir, CLIENT), status(weir, "203.0.113.8")), (429, 200));
    }
    assert!(cluster.run(&["limits", "shop-0"]).stdout.contains("ban: per-ip: client_ip=203.0.113.7 until "));
    let ended = cluster.run(&["unban", "-l", "app=shop", "client_ip=203.0.113.7"]);
    assert!(
        ended.code == Some(0) && ended.stdout.contains("per-ip: client_ip=203.0.113.7 ban ended"),
        "{ended:?}"
    );
    for weir in &instances {
        assert_eq!(status(weir, CLIENT), 200);
    }
}

#[test]
fn boost_needs_the_rule_if_several_count_by_the_key() {
    let instances = two_instances();
    let cluster = shop(&instances);
    let unclear = cluster.run(&["boost", "deploy/shop", CLIENT, "--factor", "3", "--for", "1h"]);
    let expected = "shop-1: several rules count by the attributes of `client_ip=203.0.113.7`, name one with --rule: per-ip, login";
    assert!(unclear.code == Some(1) && unclear.stderr.contains(expected), "{unclear:?}");
    let arguments = ["boost", "deploy/shop", CLIENT, "--rule", "per-ip", "--factor"];
    let boosted = cluster.run(&[&arguments[..], &["3", "--for", "1h"]].concat());
    assert!(
        boosted.stdout.contains("per-ip: client_ip=203.0.113.7 boosted (factor 3) until "),
        "{boosted:?}"
    );
    for weir in &instances {
        assert_eq!(overrides(weir), ["boost per-ip client_ip=203.0.113.7"]);
    }
    let ended = cluster.run(&[&arguments[..], &["1"]].concat());
    assert!(ended.stdout.contains("per-ip: client_ip=203.0.113.7 boost ended"), "{ended:?}");
    let limit = cluster.run(&["boost", "deploy/shop", "header.x-key=a", "--limit", "50/d", "--for", "1h"]);
    assert!(limit.code == Some(0) && limit.stdout.contains("boosted (limit 50/d)"), "{limit:?}");
}

#[test]
fn explanation_of_each_pod_is_by_its_own_counters() {
    let instances = two_instances();
    let cluster = shop(&instances);
    for _ in 0..3 {
        status(&instances[1], CLIENT);
    }
    let header = format!("x-forwarded-for: {CLIENT}");
    let explained = cluster.run(&["explain", "deploy/shop", "GET", "http://a.example/", "-H", &header]);
    assert_eq!(explained.code, Some(0), "{explained:?}");
    let (first, second) = explained.stdout.split_once("== shop-1 ==\n").unwrap();
    assert!(!first.contains("LIMITED") && second.starts_with("LIMITED 429"), "{explained:?}");
    let json = cluster.run(&["explain", "-l", "app=shop", "GET", "/", "-H", &header, "--format", "json"]);
    let entries: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(entries[1]["result"]["outcome"], "limited", "{entries:#}");
}

#[test]
fn top_adds_up_all_pods() {
    let instances = two_instances();
    let cluster = shop(&instances);
    for weir in &instances {
        for _ in 0..4 {
            status(weir, CLIENT);
        }
    }
    let Outcome { code, stdout, stderr } = cluster.run(&["top", "deploy/shop", "--once"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("deploy/shop in namespace web (labels app=shop)  2 of 2 connected"), "{stdout}");
    for pod in ["shop-0", "shop-1"] {
        assert!(stdout.lines().any(|line| line.starts_with(pod)), "{stdout}");
    }
    let key =
        stdout.lines().find(|line| line.starts_with("client_ip=203.0.113.7") && line.contains("per-ip"));
    let key: Vec<&str> = key.unwrap().split_whitespace().collect();
    assert_eq!(key, ["client_ip=203.0.113.7", "per-ip", "6", "2"]);
    cluster.assert_no_forward_is_left(2);
}

#[test]
fn admin_port_is_that_of_the_configuration() {
    let instances = [Weir::start(&config("echo", RULES))];
    let cluster = shop(&instances);
    cluster.add_config_map(
        "listeners: 0.0.0.0:8080\nadmin: { address: 127.0.0.1:9917, probes: 0.0.0.0:9902 }\n",
    );
    assert_eq!(cluster.run(&["limits", "deploy/shop"]).code, Some(0));
    assert!(cluster.calls().iter().any(|call| call.ends_with("pod/shop-0 :9917")), "{:?}", cluster.calls());
    assert_eq!(cluster.run(&["limits", "deploy/shop", "--admin-port", "9918"]).code, Some(0));
    assert!(cluster.calls().iter().any(|call| call.ends_with("pod/shop-0 :9918")), "{:?}", cluster.calls());
    cluster.add_config_map("admin: \"${ADMIN}\"\n");
    let unknown = cluster.run(&["limits", "deploy/shop"]);
    let expected = "configmap/shop-weir: not readable: line 1: admin.address has no port";
    assert!(unknown.code == Some(0) && unknown.stderr.contains(expected), "{unknown:?}");
    assert!(cluster.calls().iter().any(|call| call.ends_with("pod/shop-0 :9901")), "{:?}", cluster.calls());
}

#[test]
fn token_is_that_of_the_option() {
    let token = "a-token-of-the-admin-port";
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weir.yaml");
    let yaml = config("echo", RULES).replace(
        "admin: { address: 127.0.0.1:0 }",
        &format!("admin: {{ address: 127.0.0.1:0, token: {token} }}"),
    );
    std::fs::write(&file, yaml).unwrap();
    let instances = [Weir::start_file_with_token(&file, token)];
    let cluster = shop(&instances);
    let arguments = ["ban", "deploy/shop", CLIENT, "--for", "1h"];
    let without = cluster.run(&arguments);
    assert!(without.code == Some(1) && without.stderr.contains("requires a token"), "{without:?}");
    let with = cluster.run(&[&arguments[..], &["--token", token]].concat());
    assert_eq!(with.code, Some(0), "{with:?}");
}

#[test]
fn signal_ends_the_command_and_its_processes() {
    let cluster = Cluster::with_deployment();
    cluster.add_pod("shop-0", Some(1));
    // Never ready.
    cluster.set_forward("shop-0", "sleep 1000");
    let mut child = cluster.command(&["limits", "deploy/shop"]).spawn().unwrap();
    wait::until("the process of kubectl", || (cluster.forwards().len() == 1).then_some(()));
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let status = wait::until("the exit", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(1));
    cluster.assert_no_forward_is_left(1);
}

#[test]
fn help_is_that_of_a_plugin() {
    let cluster = Cluster::with_deployment();
    let help = cluster.run(&["--help"]);
    assert!(help.code == Some(0) && help.stdout.contains("Usage: kubectl weir "), "{help:?}");
    let help = cluster.run(&["ban", "--help"]);
    assert!(
        help.stdout.contains("Usage: kubectl weir ban <TARGET | -l LABELS> [KEY] --for DURATION"),
        "{help:?}"
    );
    let missing = cluster.run(&["explain", "deploy/shop", "GET"]);
    assert_eq!((missing.code, cluster.calls().len()), (Some(2), 0), "{missing:?}");
    assert_eq!(cluster.run(&["swim"]).code, Some(2));
}
