//! What happens if kubectl, a pod or its connection fails.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use serde_json::json;

use super::cluster::Cluster;
use super::{CLIENT, RULES, overrides, shop, two_instances};
use crate::support::config;
use crate::support::weir::Weir;

#[test]
fn missing_kubectl_is_explained() {
    let cluster = Cluster::with_deployment();
    cluster.remove_kubectl();
    let mut command = cluster.command(&["limits", "deploy/shop"]);
    let outcome = cluster.run_command(command.env("PATH", cluster.path("bin")));
    assert_eq!(outcome.code, Some(1));
    assert_eq!(outcome.stderr, "weir: kubectl is not on PATH: install it, or add its directory to PATH\n");
}

#[test]
fn messages_of_kubectl_are_passed_on() {
    let cluster = Cluster::with_deployment();
    let outcome = cluster.run(&["limits", "deploy/other"]);
    assert_eq!(outcome.code, Some(1));
    let expected = "Error from server (NotFound): deploy/other not found\n\
                    weir: `kubectl get deploy/other` has failed (exit status: 1)\n";
    assert_eq!(outcome.stderr, expected);
}

#[test]
fn targets_without_usable_pods_are_explained() {
    let cluster = Cluster::with_deployment();
    let none = cluster.run(&["limits", "deploy/shop"]);
    let expected = "weir: deploy/shop in namespace web (labels app=shop): there are no such pods\n";
    assert_eq!((none.code, none.stderr.as_str()), (Some(1), expected));

    cluster.add_pod("shop-0", None);
    let without = cluster.run(&["limits", "-l", "app=shop", "-n", "web"]);
    let expected = "weir: pods with the labels app=shop in namespace web: no pod runs Weir: \
                    shop-0: it has no container `weir`\n";
    assert_eq!((without.code, without.stderr.as_str()), (Some(1), expected));

    cluster.add_object("cronjob_shop", &json!({ "kind": "CronJob", "metadata": { "namespace": "web" } }));
    let indirect = cluster.run(&["top", "cronjob/shop", "--once"]);
    assert!(indirect.code == Some(1) && indirect.stderr.contains("name one of its jobs"), "{indirect:?}");
    assert!(cluster.forwards().is_empty());
}

#[test]
fn too_many_pods_are_an_error_before_anything_is_done() {
    let cluster = Cluster::with_deployment();
    for index in 0..65 {
        cluster.add_pod(&format!("shop-{index}"), Some(1));
    }
    let outcome = cluster.run(&["ban", "deploy/shop", CLIENT, "--for", "1h"]);
    let expected = "65 pods run Weir, at most 64 are allowed: select fewer, or use --max-pods 65";
    assert!(outcome.code == Some(1) && outcome.stderr.contains(expected), "{outcome:?}");
    assert!(cluster.forwards().is_empty());
}

#[test]
fn all_pods_are_tried_if_one_cannot_be_reached() {
    let instances = two_instances();
    let cluster = shop(&instances);
    cluster.add_pod("shop-2", Some(1));
    cluster
        .set_forward("shop-2", "echo 'error: unable to forward port because pod is not running' >&2\nexit 1");
    let outcome = cluster.run(&["ban", "deploy/shop", CLIENT, "--for", "1h", "--rule", "per-ip"]);
    let expected = "weir: shop-2: kubectl port-forward has ended: error: unable to forward port because pod is not running\n";
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(1), expected));
    for weir in &instances {
        assert_eq!(overrides(weir), ["ban per-ip client_ip=203.0.113.7"]);
    }
    let view = cluster.run(&["top", "deploy/shop", "--once"]);
    assert!(view.code == Some(1) && view.stdout.contains("2 of 2 connected"), "{view:?}");
    assert!(view.stderr.contains(expected), "{view:?}");
    cluster.assert_no_forward_is_left(6);
}

#[test]
fn connection_that_dies_is_reported_with_the_reason_of_kubectl() {
    let instances = [Weir::start(&config("echo", RULES))];
    let cluster = shop(&instances);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n{\"rules\"");
        }
    });
    cluster.add_pod("shop-1", Some(port));
    let forward = format!(
        "echo 'Forwarding from 127.0.0.1:{port} -> 9901'\necho 'lost connection to pod' >&2\nexec sleep 1000"
    );
    cluster.set_forward("shop-1", &forward);
    let outcome = cluster.run(&["limits", "deploy/shop", "--format", "json"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let entries: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(entries[0]["result"]["limits"]["rules"][0]["name"], "per-ip");
    let problem = entries[1]["problems"][0].as_str().unwrap();
    assert!(problem.contains("does not respond in HTTP"), "{problem}");
    assert!(problem.ends_with("(kubectl port-forward to port 9901: lost connection to pod)"), "{problem}");
    let view = cluster.run(&["top", "deploy/shop", "--once"]);
    assert!(view.code == Some(1) && view.stdout.contains("1 of 2 connected"), "{view:?}");
    assert!(view.stderr.contains("weir: shop-1: kubectl: lost connection to pod"), "{view:?}");
    cluster.assert_no_forward_is_left(4);
}

#[test]
fn rejected_commands_name_the_pod_and_the_rule() {
    let instances = two_instances();
    let cluster = shop(&instances);
    let wrong = cluster.run(&["ban", "deploy/shop", CLIENT, "--for", "1 fortnight", "--rule", "per-ip"]);
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.stderr.contains("shop-1: rule per-ip: the admin port responds 400: for: "), "{wrong:?}");
    let unknown =
        cluster.run(&["ban", "deploy/shop", CLIENT, "--for", "1h", "--rule", "per-i", "--rule", "login"]);
    assert!(unknown.code == Some(1) && unknown.stderr.contains("did you mean `per-ip`?"), "{unknown:?}");
    assert_eq!(overrides(&instances[1]), ["ban login client_ip=203.0.113.7"]);
    let other = cluster.run(&["ban", "deploy/shop", "country=DE", "--for", "1h"]);
    assert!(
        other.stderr.contains("no rule counts by the attributes of `country=DE`: per-ip [client_ip]"),
        "{other:?}"
    );
}
