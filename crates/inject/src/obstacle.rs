//! Pods to which the sidecar cannot be added, each with the reason.

use crate::pod::{CONTAINER, PodTemplate, REDIRECT_CONTAINER, VOLUME};
use crate::tree::NodeId;

/// User of the sidecar. Redirection excludes its connections.
pub(crate) const WEIR_USER: u32 = 65532;

/// Returns the reasons why a pod cannot have the sidecar, each with the value that is the reason.
pub(crate) fn obstacles(pod: &PodTemplate<'_>, is_redirect: bool) -> Vec<(NodeId, String)> {
    let mut found = Vec::new();
    let tree = pod.tree;
    if let Some(node) = true_at(pod, "hostNetwork") {
        let problem = "the pod uses the network of its node, where the admin port and rules of the sidecar would be those of the node, \
                       deploy Weir in front of the Service instead";
        found.push((node, problem.to_owned()));
    }
    if let Some(node) = windows(pod) {
        found.push((node, "there is no image of Weir for Windows".to_owned()));
    }
    for name in [CONTAINER, REDIRECT_CONTAINER] {
        if let Some(node) = pod.container_named(name) {
            let problem = format!("there is a container `{name}` that inject has not added, remove it first");
            found.push((node, problem));
        }
    }
    if let Some(node) = pod.volume_named(VOLUME) {
        found.push((node, format!("there is a volume `{VOLUME}` that inject has not added, rename it")));
    }
    if is_redirect {
        found.extend(redirect_obstacles(pod));
    }
    // Every edit is in one of these. What several places of a document share cannot be changed in one of them.
    let edited = ["initContainers", "volumes"]
        .iter()
        .filter_map(|key| tree.entry(pod.spec, key))
        .map(|(_, node)| node);
    let shared = edited.chain([pod.spec]).find(|node| tree.is_shared(*node));
    if let Some(node) = shared {
        let problem = "this is shared with other places by an anchor and an alias, write it out at each";
        found.push((node, problem.to_owned()));
    }
    found
}

fn redirect_obstacles(pod: &PodTemplate<'_>) -> Vec<(NodeId, String)> {
    const MESHES: [(&str, &str); 3] = [
        ("sidecar.istio.io/inject", "true"),
        ("linkerd.io/inject", "enabled"),
        ("kuma.io/sidecar-injection", "enabled"),
    ];
    let mut found = Vec::new();
    for (annotation, value) in MESHES {
        if pod.annotation(annotation) == Some(value) {
            let problem = format!("`{annotation}` redirects the same ports, leave --redirect out");
            found.push((pod.node, problem));
        }
    }
    let user = |node: NodeId| pod.tree.at(node, &["securityContext", "runAsUser"]);
    for node in pod.containers.iter().copied().chain([pod.spec]) {
        let uid = user(node).filter(|uid| pod.tree.text(*uid) == Some(&WEIR_USER.to_string()));
        if let Some(uid) = uid {
            let problem = format!(
                "user {WEIR_USER} is that of the sidecar, whose connections are not redirected, choose another"
            );
            found.push((uid, problem));
        }
    }
    found
}

/// Returns what is odd, but no reason to stop.
pub(crate) fn remarks(pod: &PodTemplate<'_>) -> Vec<String> {
    let mut found = Vec::new();
    if true_at(pod, "shareProcessNamespace").is_some() {
        found.push(
            "the containers share their processes, so that the application can signal the sidecar".to_owned(),
        );
    }
    if pod.annotation("sidecar.istio.io/inject") == Some("true") {
        found.push(
            "behind the proxy of a mesh, set client_ip.trusted_proxies and traffic.sidecar.istio.io/excludeInboundPorts".to_owned(),
        );
    }
    found
}

fn true_at(pod: &PodTemplate<'_>, key: &str) -> Option<NodeId> {
    pod.tree.get(pod.spec, key).filter(|node| pod.tree.text(*node) == Some("true"))
}

fn windows(pod: &PodTemplate<'_>) -> Option<NodeId> {
    const PLACES: [&[&str]; 3] =
        [&["os", "name"], &["nodeSelector", "kubernetes.io/os"], &["nodeSelector", "beta.kubernetes.io/os"]];
    let found = PLACES.iter().filter_map(|keys| pod.tree.at(pod.spec, keys));
    found.into_iter().find(|node| pod.tree.text(*node) == Some("windows"))
}
