//! Finds the objects that lead to a port of pods: Services, and NetworkPolicies that admit it.

use crate::manifest::{ManifestFile, ManifestObject};
use crate::pod::{PodPort, PodTemplate};
use crate::selector::{self, PodLabels};
use crate::tree::{ManifestTree, TreeNodeId};

/// What leads to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReferenceKind {
    Service,
    /// A NetworkPolicy of the pods themselves.
    Ingress,
    /// A NetworkPolicy of their clients.
    Egress,
}

/// A port of a Service, or of a NetworkPolicy, that leads to pods.
#[derive(Clone, Debug)]
pub(crate) struct PortReference {
    /// Index of the object.
    pub(crate) object: usize,
    pub(crate) kind: ReferenceKind,
    /// The entry of `ports`.
    pub(crate) entry: TreeNodeId,
    /// Key of the number or name of the pod's port.
    pub(crate) key: &'static str,
    /// The port of the pod, or the first one of a range.
    pub(crate) target: u16,
    /// The last port of a range.
    pub(crate) end: Option<u16>,
    /// Whether the Service says that the connection is TLS.
    pub(crate) is_tls: bool,
}

impl PortReference {
    /// Whether the reference includes a port.
    pub(crate) fn has(&self, port: u16) -> bool {
        (self.target..=self.end.unwrap_or(self.target)).contains(&port)
    }
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
            ("", "Service") if selector::service_selects(tree, object.node, &labels) => {
                if tree.text_at(object.node, &["spec", "clusterIP"]) == Some("None") {
                    found.headless.push(object.name.clone());
                }
                found.services.extend(service_ports(tree, index, object.node, pod));
            }
            ("networking.k8s.io", "NetworkPolicy") => {
                found.policies.extend(policy_ports(tree, index, object.node, pod, &labels));
            }
            _ => {}
        }
    }
    found
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
        let kind = ReferenceKind::Service;
        Some(PortReference { object, kind, entry: *entry, key: "targetPort", target, end: None, is_tls })
    };
    entries.iter().filter_map(reference).collect()
}

/// Finds the ports that a policy admits to the pods, or from its own pods to them.
fn policy_ports(
    tree: &ManifestTree,
    object: usize,
    node: TreeNodeId,
    pod: &PodTemplate<'_>,
    labels: &PodLabels<'_>,
) -> Vec<PortReference> {
    let rules = |key: &str| tree.at(node, &["spec", key]).map(|list| tree.items(list)).unwrap_or_default();
    let is_selected = |selector: TreeNodeId| selector::selects(tree, selector, labels);
    let is_own = tree.at(node, &["spec", "podSelector"]).is_none_or(is_selected);
    let leads_here = |rule: &&TreeNodeId| {
        let peers = tree.get(**rule, "to").map(|list| tree.items(list)).unwrap_or_default();
        // Without peers, a rule admits connections to everything.
        peers.is_empty() || peers.iter().any(|peer| tree.get(*peer, "podSelector").is_some_and(is_selected))
    };
    let ingress = rules("ingress").iter().filter(|_| is_own).map(|rule| (ReferenceKind::Ingress, rule));
    let egress = rules("egress").iter().filter(leads_here).map(|rule| (ReferenceKind::Egress, rule));
    let mut found = Vec::new();
    for (kind, rule) in ingress.chain(egress) {
        let entries = tree.get(*rule, "ports").map(|list| tree.items(list)).unwrap_or_default();
        found.extend(entries.iter().filter_map(|entry| {
            let is_tcp = tree.text_at(*entry, &["protocol"]).is_none_or(|protocol| protocol == "TCP");
            let target = resolve(pod, tree.text_at(*entry, &["port"])?).filter(|_| is_tcp)?;
            let end = tree.text_at(*entry, &["endPort"]).and_then(|end| end.parse().ok());
            Some(PortReference { object, kind, entry: *entry, key: "port", target, end, is_tls: false })
        }));
    }
    found
}

/// Returns the number of a port that is given by number or name.
fn resolve(pod: &PodTemplate<'_>, port: &str) -> Option<u16> {
    let by_name = |declared: &&PodPort| declared.name.as_deref() == Some(port);
    port.parse().ok().or_else(|| pod.ports.iter().find(by_name).map(|declared| declared.number))
}
