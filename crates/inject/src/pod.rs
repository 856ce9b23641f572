//! What inject reads from a pod template: containers, ports, probes, and names that are taken.

use std::collections::BTreeSet;

use crate::tree::{ManifestTree, TreeNodeId};

/// Name of the sidecar, and of the init container that redirects ports to it.
pub(crate) const CONTAINER: &str = "weir";
pub(crate) const REDIRECT_CONTAINER: &str = "weir-redirect";
/// Name of the volume with the configuration.
pub(crate) const VOLUME: &str = "weir-config";

/// A TCP port that a container declares.
#[derive(Clone, Debug)]
pub(crate) struct PodPort {
    pub(crate) container: usize,
    pub(crate) number: u16,
    pub(crate) name: Option<String>,
    /// The item of `ports`.
    pub(crate) node: TreeNodeId,
    /// The number on the node, if there is one.
    pub(crate) host_port: Option<TreeNodeId>,
}

/// An HTTP, TCP or gRPC probe, or an HTTP hook.
#[derive(Clone, Debug)]
pub(crate) struct PodProbe {
    pub(crate) container: usize,
    /// The number or the name of its port, as written.
    pub(crate) port: TreeNodeId,
    pub(crate) port_text: String,
    /// Path of an HTTP request.
    pub(crate) path: Option<String>,
    pub(crate) is_https: bool,
    /// Whether the probe decides that the pod is ready or alive, and not only a hook.
    pub(crate) is_probe: bool,
}

/// A pod template, or a pod.
#[derive(Debug)]
pub(crate) struct PodTemplate<'d> {
    pub(crate) tree: &'d ManifestTree,
    pub(crate) node: TreeNodeId,
    pub(crate) spec: TreeNodeId,
    pub(crate) containers: Vec<TreeNodeId>,
    pub(crate) init_containers: Vec<TreeNodeId>,
    /// TCP ports of the containers, without init containers.
    pub(crate) ports: Vec<PodPort>,
    pub(crate) probes: Vec<PodProbe>,
}

impl<'d> PodTemplate<'d> {
    /// Reads a template; `None` if it has no containers.
    pub(crate) fn read(tree: &'d ManifestTree, node: TreeNodeId) -> Option<Self> {
        let spec = tree.get(node, "spec")?;
        let list = |key: &str| tree.get(spec, key).map(|list| tree.items(list).to_vec()).unwrap_or_default();
        let (containers, init_containers) = (list("containers"), list("initContainers"));
        if containers.is_empty() {
            return None;
        }
        let (mut ports, mut probes) = (Vec::new(), Vec::new());
        for (index, container) in containers.iter().enumerate() {
            let declared = tree.get(*container, "ports");
            let items = declared.map(|list| tree.items(list)).unwrap_or_default();
            ports.extend(items.iter().filter_map(|item| port(tree, index, *item)));
            probes.extend(container_probes(tree, index, *container));
        }
        Some(Self { tree, node, spec, containers, init_containers, ports, probes })
    }

    pub(crate) fn container_name(&self, index: usize) -> &str {
        self.containers.get(index).and_then(|id| self.tree.text_at(*id, &["name"])).unwrap_or_default()
    }

    /// Returns the container or init container with a name.
    pub(crate) fn container_named(&self, name: &str) -> Option<TreeNodeId> {
        let all = self.init_containers.iter().chain(&self.containers).copied();
        all.into_iter().find(|id| self.tree.text_at(*id, &["name"]) == Some(name))
    }

    pub(crate) fn volume_named(&self, name: &str) -> Option<TreeNodeId> {
        let volumes = self.tree.get(self.spec, "volumes")?;
        self.tree.items(volumes).iter().copied().find(|id| self.tree.text_at(*id, &["name"]) == Some(name))
    }

    /// Returns all numbers of ports that containers declare or probe, on which Weir cannot listen.
    pub(crate) fn taken_ports(&self) -> BTreeSet<u16> {
        let mut taken: BTreeSet<u16> = self.ports.iter().map(|port| port.number).collect();
        taken.extend(self.probes.iter().filter_map(|probe| probe.port_text.parse::<u16>().ok()));
        for container in &self.init_containers {
            let declared = self.tree.get(*container, "ports");
            let items = declared.map(|list| self.tree.items(list)).unwrap_or_default();
            taken.extend(items.iter().filter_map(|item| number_at(self.tree, *item, "containerPort")));
        }
        taken
    }

    pub(crate) fn has_port_name(&self, name: &str) -> bool {
        self.ports.iter().any(|port| port.name.as_deref() == Some(name))
    }

    /// Returns the labels of the pods.
    pub(crate) fn labels(&self) -> Vec<(&str, &str)> {
        let Some(labels) = self.tree.at(self.node, &["metadata", "labels"]) else { return Vec::new() };
        let entries = self.tree.entries(labels).iter();
        entries.filter_map(|(key, value)| Some((self.tree.text(*key)?, self.tree.text(*value)?))).collect()
    }

    pub(crate) fn annotation(&self, name: &str) -> Option<&str> {
        self.tree.text_at(self.node, &["metadata", "annotations", name])
    }
}

fn number_at(tree: &ManifestTree, map: TreeNodeId, key: &str) -> Option<u16> {
    tree.text_at(map, &[key])?.parse().ok()
}

fn port(tree: &ManifestTree, container: usize, node: TreeNodeId) -> Option<PodPort> {
    let is_tcp = tree.text_at(node, &["protocol"]).is_none_or(|protocol| protocol == "TCP");
    let number = number_at(tree, node, "containerPort").filter(|_| is_tcp)?;
    let name = tree.text_at(node, &["name"]).map(str::to_owned);
    Some(PodPort { container, number, name, node, host_port: tree.get(node, "hostPort") })
}

fn container_probes(tree: &ManifestTree, container: usize, node: TreeNodeId) -> Vec<PodProbe> {
    const PROBES: [&[&str]; 5] = [
        &["readinessProbe"],
        &["livenessProbe"],
        &["startupProbe"],
        &["lifecycle", "postStart"],
        &["lifecycle", "preStop"],
    ];
    const ACTIONS: [&str; 3] = ["httpGet", "tcpSocket", "grpc"];
    let mut found = Vec::new();
    for keys in PROBES {
        let Some(probe) = tree.at(node, keys) else { continue };
        for action_key in ACTIONS {
            let Some(action) = tree.get(probe, action_key) else { continue };
            let Some(port) = tree.get(action, "port") else { continue };
            let text = |key: &str| tree.text_at(action, &[key]).map(str::to_owned);
            let is_http = action_key == "httpGet";
            found.push(PodProbe {
                container,
                port,
                port_text: tree.text(port).unwrap_or_default().to_owned(),
                path: is_http.then(|| text("path").unwrap_or_else(|| "/".to_owned())),
                is_https: is_http && text("scheme").as_deref() == Some("HTTPS"),
                is_probe: keys.len() == 1,
            });
        }
    }
    found
}
