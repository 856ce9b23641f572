//! Objects that lead to a port of pods: Services and NetworkPolicies. They are directed to the sidecar.

use crate::edit::NewValue;
use crate::manifest::{ManifestFile, ManifestObject};
use crate::pod::{PodPort, PodTemplate};
use crate::record::RecordingEditor;
use crate::tree::{ManifestTree, TreeNodeId};

/// A port of a Service, or of a NetworkPolicy, that leads to pods.
#[derive(Clone, Debug)]
pub(crate) struct PortReference {
    /// Index of the object.
    pub(crate) object: usize,
    /// The entry of `ports`.
    pub(crate) entry: TreeNodeId,
    /// Key of the number or name of the pod's port.
    pub(crate) key: &'static str,
    /// The port of the pod.
    pub(crate) target: u16,
    /// Whether the Service says that the connection is TLS.
    pub(crate) is_tls: bool,
}

/// Ports of the input that lead to a pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct PortReferences {
    pub(crate) services: Vec<PortReference>,
    pub(crate) policies: Vec<PortReference>,
    /// Names of Services without a cluster address, whose clients connect to the pods directly.
    pub(crate) headless: Vec<String>,
}

/// Finds the references to the ports of a pod.
pub(crate) fn references(
    files: &[ManifestFile<'_>],
    objects: &[ManifestObject],
    workload: &ManifestObject,
    pod: &PodTemplate<'_>,
) -> PortReferences {
    let mut found = PortReferences::default();
    let labels = pod.labels();
    for (index, object) in
        objects.iter().enumerate().filter(|(_, object)| object.namespace == workload.namespace)
    {
        let tree = &files[object.document.file].documents[object.document.document].tree;
        match (object.api_group.as_str(), object.kind.as_str()) {
            ("", "Service") if selects(tree, object.node, &["spec", "selector"], &labels, false) => {
                if tree.text_at(object.node, &["spec", "clusterIP"]) == Some("None") {
                    found.headless.push(object.name.clone());
                }
                found.services.extend(service_ports(tree, index, object.node, pod));
            }
            ("networking.k8s.io", "NetworkPolicy")
                if selects(tree, object.node, &["spec", "podSelector", "matchLabels"], &labels, true) =>
            {
                found.policies.extend(policy_ports(tree, index, object.node, pod));
            }
            _ => {}
        }
    }
    found
}

/// Whether a selector selects pods with these labels. One that is missing selects all pods, or none.
fn selects(
    tree: &ManifestTree,
    object: TreeNodeId,
    keys: &[&str],
    labels: &[(&str, &str)],
    is_missing_all: bool,
) -> bool {
    let entries = tree.at(object, keys).map(|selector| tree.entries(selector)).unwrap_or_default();
    if entries.is_empty() {
        return is_missing_all;
    }
    entries.iter().all(|(key, value)| {
        let pair = tree.text(*key).zip(tree.text(*value));
        pair.is_some_and(|pair| labels.contains(&pair))
    })
}

fn service_ports(
    tree: &ManifestTree,
    object: usize,
    node: TreeNodeId,
    pod: &PodTemplate<'_>,
) -> Vec<PortReference> {
    let entries = tree.at(node, &["spec", "ports"]).map(|list| tree.items(list)).unwrap_or_default();
    let reference = |entry: &TreeNodeId| {
        let text = |key: &str| tree.text_at(*entry, &[key]).unwrap_or_default();
        let is_tcp = matches!(text("protocol"), "" | "TCP");
        let target = if text("targetPort").is_empty() { text("port") } else { text("targetPort") };
        let is_tls = text("appProtocol") == "https";
        let target = resolve(pod, target).filter(|_| is_tcp)?;
        Some(PortReference { object, entry: *entry, key: "targetPort", target, is_tls })
    };
    entries.iter().filter_map(reference).collect()
}

fn policy_ports(
    tree: &ManifestTree,
    object: usize,
    node: TreeNodeId,
    pod: &PodTemplate<'_>,
) -> Vec<PortReference> {
    let rules = tree.at(node, &["spec", "ingress"]).map(|list| tree.items(list)).unwrap_or_default();
    let entries = rules.iter().filter_map(|rule| tree.get(*rule, "ports")).flat_map(|list| tree.items(list));
    let reference = |entry: &TreeNodeId| {
        let target = resolve(pod, tree.text_at(*entry, &["port"])?)?;
        Some(PortReference { object, entry: *entry, key: "port", target, is_tls: false })
    };
    entries.filter_map(reference).collect()
}

/// Returns the number of a port that is given by number or name.
fn resolve(pod: &PodTemplate<'_>, port: &str) -> Option<u16> {
    let by_name = |declared: &&PodPort| declared.name.as_deref() == Some(port);
    port.parse().ok().or_else(|| pod.ports.iter().find(by_name).map(|declared| declared.number))
}

/// Directs a reference to another port of the pod.
pub(crate) fn redirect_reference(editor: &mut RecordingEditor<'_, '_>, reference: &PortReference, port: u16) {
    let number = port.to_string();
    match editor.editor.tree.entry(reference.entry, reference.key) {
        Some((_, value)) => editor.set(value, &number),
        None => editor.put(reference.entry, reference.key, &NewValue::Inline(number)),
    }
}
