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
    /// Titles of policies of other kinds, which are not read.
    pub(crate) foreign: Vec<String>,
}

/// API groups with policies of their own.
const FOREIGN_GROUPS: [&str; 5] = [
    "cilium.io",
    "crd.projectcalico.org",
    "projectcalico.org",
    "policy.networking.k8s.io",
    "security.istio.io",
];

/// Finds the references to the ports of a pod.
pub(crate) fn references(
    files: &[ManifestFile<'_>],
    objects: &[ManifestObject],
    workload: &ManifestObject,
    pod: &PodTemplate<'_>,
) -> PortReferences {
    let mut found = PortReferences::default();
    let labels = pod.labels();
    let pods = PolicyPods { pod, labels: &labels, namespace: namespace_labels(files, objects, workload) };
    for (index, object) in objects.iter().enumerate() {
        let tree = &files[object.document.file].documents[object.document.document].tree;
        let is_here = object.namespace == workload.namespace;
        match (object.api_group.as_str(), object.kind.as_str()) {
            ("", "Service") if is_here && selector::service_selects(tree, object.node, &labels) => {
                if tree.text_at(object.node, &["spec", "clusterIP"]) == Some("None") {
                    found.headless.push(object.name.clone());
                }
                found.services.extend(service_ports(tree, index, object.node, pod));
            }
            ("networking.k8s.io", "NetworkPolicy") => {
                found.policies.extend(pods.policy_ports(tree, index, object.node, is_here));
            }
            (group, kind) if FOREIGN_GROUPS.contains(&group) && kind.ends_with("Policy") => {
                found.foreign.push(object.title());
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

/// Returns the labels of a workload's namespace, as far as the input has them.
///
/// <https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-metadata-name>
fn namespace_labels<'f>(
    files: &'f [ManifestFile<'_>],
    objects: &'f [ManifestObject],
    workload: &'f ManifestObject,
) -> Vec<(&'f str, &'f str)> {
    if workload.namespace.is_empty() {
        return Vec::new();
    }
    let is_it = |object: &&ManifestObject| object.kind == "Namespace" && object.name == workload.namespace;
    let mut labels = vec![("kubernetes.io/metadata.name", workload.namespace.as_str())];
    for object in objects.iter().filter(is_it) {
        let tree = &files[object.document.file].documents[object.document.document].tree;
        let given = tree.at(object.node, &["metadata", "labels"]).map(|map| tree.entries(map));
        let pairs = given.unwrap_or_default().iter();
        labels.extend(pairs.filter_map(|(key, value)| Some((tree.text(*key)?, tree.text(*value)?))));
    }
    labels
}

/// The pods of a workload, as policies select them.
#[derive(Debug)]
struct PolicyPods<'p, 'd> {
    pod: &'p PodTemplate<'d>,
    labels: &'p PodLabels<'p>,
    /// Known labels of the namespace.
    namespace: Vec<(&'p str, &'p str)>,
}

impl PolicyPods<'_, '_> {
    /// Finds the ports that a policy admits to the pods, or from its own pods to them. `is_here` is whether it has their namespace.
    fn policy_ports(
        &self,
        tree: &ManifestTree,
        object: usize,
        node: TreeNodeId,
        is_here: bool,
    ) -> Vec<PortReference> {
        let rules =
            |key: &str| tree.at(node, &["spec", key]).map(|list| tree.items(list)).unwrap_or_default();
        let is_selected = |selector: TreeNodeId| selector::selects(tree, selector, self.labels);
        let is_own = is_here && tree.at(node, &["spec", "podSelector"]).is_none_or(is_selected);
        let leads_here = |rule: &&TreeNodeId| {
            let peers = tree.get(**rule, "to").map(|list| tree.items(list)).unwrap_or_default();
            // Without peers, a rule admits connections to everything.
            peers.is_empty() || peers.iter().any(|peer| self.may_be_peer(tree, *peer, is_here))
        };
        let ingress = rules("ingress").iter().filter(|_| is_own).map(|rule| (ReferenceKind::Ingress, rule));
        let egress = rules("egress").iter().filter(leads_here).map(|rule| (ReferenceKind::Egress, rule));
        let mut found = Vec::new();
        for (kind, rule) in ingress.chain(egress) {
            let entries = tree.get(*rule, "ports").map(|list| tree.items(list)).unwrap_or_default();
            found.extend(entries.iter().filter_map(|entry| {
                let is_tcp = tree.text_at(*entry, &["protocol"]).is_none_or(|protocol| protocol == "TCP");
                let target = resolve(self.pod, tree.text_at(*entry, &["port"])?).filter(|_| is_tcp)?;
                let end = tree.text_at(*entry, &["endPort"]).and_then(|end| end.parse().ok());
                Some(PortReference { object, kind, entry: *entry, key: "port", target, end, is_tls: false })
            }));
        }
        found
    }

    /// Whether a peer of a policy may be one of the pods: by their labels, by those of their namespace, or by their addresses, which
    /// are not known.
    fn may_be_peer(&self, tree: &ManifestTree, peer: TreeNodeId, is_here: bool) -> bool {
        if let Some(block) = tree.text_at(peer, &["ipBlock", "cidr"]) {
            // A single address is none of a workload: its pods get new ones.
            let bits = if block.contains(':') { "/128" } else { "/32" };
            return !block.ends_with(bits);
        }
        let pods = tree.get(peer, "podSelector");
        let is_selected = pods.is_none_or(|selector| selector::selects(tree, selector, self.labels));
        match tree.get(peer, "namespaceSelector") {
            Some(namespaces) => is_selected && selector::may_select(tree, namespaces, &self.namespace),
            None => is_here && pods.is_some() && is_selected,
        }
    }
}

/// Returns the number of a port that is given by number or name.
fn resolve(pod: &PodTemplate<'_>, port: &str) -> Option<u16> {
    let by_name = |declared: &&PodPort| declared.name.as_deref() == Some(port);
    port.parse().ok().or_else(|| pod.ports.iter().find(by_name).map(|declared| declared.number))
}
