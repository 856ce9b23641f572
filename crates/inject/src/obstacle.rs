//! Pods to which the sidecar cannot be added, each with the reason.

use crate::application_port::ApplicationPort;
use crate::pod::{CONTAINER, PodTemplate, REDIRECT_CONTAINER, VOLUME};
use crate::tree::TreeNodeId;

/// User of the sidecar, as of the image.
pub(crate) const WEIR_USER: u32 = 65532;

/// User of a sidecar to which connections are redirected. Those of its user are not, so it is one that no image uses: 65532 is
/// that of many. User namespaces have 65536 users, and systemd gives away none of 65520 to 65533.
const REDIRECT_USER: u32 = 65523;

/// Returns the user of the sidecar.
pub(crate) fn weir_user(pod: &PodTemplate<'_>, is_redirect: bool) -> u32 {
    let taken = pod.users();
    match is_redirect {
        true => (1..=REDIRECT_USER).rev().find(|user| !taken.contains(user)).unwrap_or(REDIRECT_USER),
        false => WEIR_USER,
    }
}

/// Returns the reasons why a pod cannot have the sidecar, each with the value that is the reason.
pub(crate) fn obstacles(pod: &PodTemplate<'_>, is_redirect: bool) -> Vec<(TreeNodeId, String)> {
    let mut found = Vec::new();
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
    found
}

/// Returns a container without a name, or with that of another one. Kubernetes rejects such pods, and the record of an injection has the
/// names of containers.
pub(crate) fn names(pod: &PodTemplate<'_>) -> Option<(TreeNodeId, String)> {
    let mut seen = Vec::new();
    for container in pod.init_containers.iter().chain(&pod.containers) {
        match pod.tree.text_at(*container, &["name"]) {
            Some(name) if !name.is_empty() && !seen.contains(&name) => seen.push(name),
            Some(name) => return Some((*container, format!("two containers have the name `{name}`"))),
            None => return Some((*container, "the container has no name".to_owned())),
        }
    }
    None
}

/// Reason for a value that is the same in several places of a document.
pub(crate) const SHARED: &str =
    "this is shared with other places by an anchor and an alias, write it out at each";

/// Returns a value that an injection would change, but that other places of the document share.
pub(crate) fn shared(pod: &PodTemplate<'_>, port: &ApplicationPort) -> Option<(TreeNodeId, String)> {
    const EDITED: [&str; 3] = ["initContainers", "volumes", "terminationGracePeriodSeconds"];
    let tree = pod.tree;
    let container = pod.containers[port.container];
    let metadata = tree.entry(pod.node, "metadata").map(|(_, metadata)| metadata);
    let annotations =
        metadata.and_then(|metadata| tree.entry(metadata, "annotations")).map(|(_, value)| value);
    let lifecycle = tree.entry(container, "lifecycle").map(|(_, lifecycle)| lifecycle);
    let lists = EDITED.iter().filter_map(|key| tree.entry(pod.spec, key)).map(|(_, value)| value);
    let ports = port.declared.iter().map(|declared| declared.node);
    let edited = [pod.spec, container]
        .into_iter()
        .chain(metadata)
        .chain(annotations)
        .chain(lifecycle)
        .chain(lists)
        .chain(ports);
    if let Some(node) = edited.into_iter().find(|node| tree.is_shared(*node)) {
        return Some((node, SHARED.to_owned()));
    }
    // An entry of the map itself would hide one that is merged into it.
    let merged =
        EDITED.iter().map(|key| (pod.spec, *key)).chain([(container, "lifecycle"), (pod.node, "metadata")]);
    let hidden = merged
        .into_iter()
        .find(|(map, key)| tree.get(*map, key).is_some() && tree.entry(*map, key).is_none());
    hidden.map(|(map, key)| (map, format!("`{key}` is merged into this by `<<`, write it out here")))
}

fn redirect_obstacles(pod: &PodTemplate<'_>) -> Vec<(TreeNodeId, String)> {
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

fn true_at(pod: &PodTemplate<'_>, key: &str) -> Option<TreeNodeId> {
    pod.tree.get(pod.spec, key).filter(|node| pod.tree.text(*node) == Some("true"))
}

fn windows(pod: &PodTemplate<'_>) -> Option<TreeNodeId> {
    const PLACES: [&[&str]; 3] =
        [&["os", "name"], &["nodeSelector", "kubernetes.io/os"], &["nodeSelector", "beta.kubernetes.io/os"]];
    let found = PLACES.iter().filter_map(|keys| pod.tree.at(pod.spec, keys));
    found.into_iter().find(|node| pod.tree.text(*node) == Some("windows"))
}
