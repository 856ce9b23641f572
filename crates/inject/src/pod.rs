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
    /// The number on the node as written, if there is one. As Kubernetes reads it, 0 is none.
    pub(crate) host_port: Option<TreeNodeId>,
}

/// How a probe asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeAction {
    Http,
    Tcp,
    Grpc,
}

/// A probe, or a hook that asks as one.
#[derive(Clone, Debug)]
pub(crate) struct PodProbe {
    pub(crate) container: usize,
    /// Key of the probe or of the hook.
    pub(crate) key: &'static str,
    pub(crate) action: ProbeAction,
    /// The number or the name of its port, as written; an alias where one is written.
    pub(crate) port: TreeNodeId,
    pub(crate) port_text: String,
    /// The port, by its number or by the name that it has in the probe's container.
    pub(crate) number: Option<u16>,
    /// Path of the request; `None` without one.
    pub(crate) path: Option<String>,
    pub(crate) is_https: bool,
    /// Whether the probe decides that the pod is ready or alive, and not only a hook.
    pub(crate) is_probe: bool,
}

/// Path of the call that a gRPC probe makes.
///
/// <https://github.com/grpc/grpc/blob/master/doc/health-checking.md>
const GRPC_HEALTH_PATH: &str = "/grpc.health.v1.Health/Check";

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
            let declared: Vec<_> = items.iter().filter_map(|item| port(tree, index, *item)).collect();
            probes.extend(container_probes(tree, index, *container, &declared));
            ports.extend(declared);
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

    /// Returns the names of all ports with their containers, also of init containers and of other protocols.
    pub(crate) fn port_names(&self) -> Vec<(TreeNodeId, &str)> {
        let names = |container: &TreeNodeId| {
            let list = self.tree.get(*container, "ports");
            let items = list.map(|list| self.tree.items(list)).unwrap_or_default();
            let named = items.iter().filter_map(|item| self.tree.text_at(*item, &["name"]));
            named.map(|name| (*container, name)).collect::<Vec<_>>()
        };
        self.containers.iter().chain(&self.init_containers).flat_map(names).collect()
    }

    /// Returns the declarations of a port: there may be several, for several addresses of the node.
    pub(crate) fn declarations(&self, number: u16) -> impl Iterator<Item = &PodPort> {
        self.ports.iter().filter(move |port| port.number == number)
    }

    /// Returns the users as which containers run, as far as the manifest says.
    pub(crate) fn users(&self) -> BTreeSet<u32> {
        let user = |node: &TreeNodeId| {
            self.tree.text_at(*node, &["securityContext", "runAsUser"]).and_then(|uid| uid.parse().ok())
        };
        let containers = self.containers.iter().chain(&self.init_containers);
        containers.chain([&self.spec]).filter_map(user).collect()
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
    let is_given = |value: &TreeNodeId| !tree.is_empty(*value) && tree.text(*value) != Some("0");
    let host_port = tree.written(node, "hostPort").filter(is_given);
    Some(PodPort { container, number, name, node, host_port })
}

fn container_probes(
    tree: &ManifestTree,
    container: usize,
    node: TreeNodeId,
    ports: &[PodPort],
) -> Vec<PodProbe> {
    const PROBES: [&[&str]; 5] = [
        &["readinessProbe"],
        &["livenessProbe"],
        &["startupProbe"],
        &["lifecycle", "postStart"],
        &["lifecycle", "preStop"],
    ];
    const ACTIONS: [(&str, ProbeAction); 3] =
        [("httpGet", ProbeAction::Http), ("tcpSocket", ProbeAction::Tcp), ("grpc", ProbeAction::Grpc)];
    let mut found = Vec::new();
    for keys in PROBES {
        let Some(probe) = tree.at(node, keys) else { continue };
        for (action_key, action) in ACTIONS {
            let Some(map) = tree.get(probe, action_key) else { continue };
            let Some(port) = tree.written(map, "port") else { continue };
            let text = |key: &str| tree.text_at(map, &[key]).map(str::to_owned);
            let port_text = tree.text(port).unwrap_or_default().to_owned();
            let by_name = |one: &&PodPort| one.name.as_deref() == Some(port_text.as_str());
            found.push(PodProbe {
                container,
                key: keys[keys.len() - 1],
                action,
                port,
                number: port_text.parse().ok().or_else(|| ports.iter().find(by_name).map(|port| port.number)),
                port_text,
                path: match action {
                    ProbeAction::Http => Some(text("path").unwrap_or_else(|| "/".to_owned())),
                    ProbeAction::Grpc => Some(GRPC_HEALTH_PATH.to_owned()),
                    ProbeAction::Tcp => None,
                },
                is_https: action == ProbeAction::Http && text("scheme").as_deref() == Some("HTTPS"),
                is_probe: keys.len() == 1,
            });
        }
    }
    found
}
