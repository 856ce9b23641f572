//! The sidecar as text: its container, the init container that redirects ports to it, and its ConfigMap.

use crate::edit::{Editor, NewValue, apply_edits};
use crate::manifest::ManifestObject;
use crate::obstacle::WEIR_USER;
use crate::pod::{REDIRECT_CONTAINER, VOLUME};
use crate::record::ANNOTATION;
use crate::sidecar_config::SidecarConfig;
use crate::tree::{ManifestTree, TreeNodeId};

/// The container that the chart and the manifests in `deploy` have, too.
const CONTAINER_YAML: &str = include_str!("sidecar.yaml");

/// Maximum length of a port's name in Kubernetes.
pub(crate) const MAX_PORT_NAME: usize = 15;

/// Key of the configuration in its ConfigMap.
pub(crate) const CONFIG_KEY: &str = "weir.yaml";

/// Names and image of a sidecar.
#[derive(Clone, Debug)]
pub(crate) struct SidecarNames<'a> {
    pub(crate) image: &'a str,
    /// Names of the ports of the listeners.
    pub(crate) listeners: Vec<String>,
    /// Name of the port for probes.
    pub(crate) probes: &'a str,
    /// The ports of the node at which clients connect.
    pub(crate) host_ports: Vec<HostPort>,
    pub(crate) user: u32,
}

/// A port of the node.
#[derive(Clone, Debug)]
pub(crate) struct HostPort {
    pub(crate) number: String,
    /// The address of the node; `None` for all.
    pub(crate) address: Option<String>,
}

/// Returns the container of the sidecar.
pub(crate) fn container(config: &SidecarConfig, names: &SidecarNames<'_>) -> String {
    let text = container_template();
    let Ok(Some(tree)) = ManifestTree::parse(&text) else { return text };
    let mut editor = Editor::new(&text, &tree);
    let mut set = |keys: &[&str], raw: &str| {
        if let Some(node) = tree.at(tree.root(), keys) {
            editor.set(node, raw);
        }
    };
    let probes = config.probes.to_string();
    set(&["image"], &scalar(names.image));
    set(&["startupProbe", "httpGet", "port"], &probes);
    set(&["readinessProbe", "httpGet", "port"], &probes);
    if names.user != WEIR_USER {
        set(&["securityContext", "runAsUser"], &names.user.to_string());
    }
    let ports = tree.at(tree.root(), &["ports"]);
    if let Some((list, &[first, last])) = ports.map(|list| (list, tree.items(list))) {
        let mut listeners = names.listeners.iter().zip(&config.listeners);
        if let Some((name, port)) = listeners.next() {
            set_port(&mut editor, first, name, *port);
        }
        set_port(&mut editor, last, names.probes, config.probes);
        add_host_ports(&mut editor, list, first, config, names);
        for (name, port) in listeners {
            editor.add_item(list, &format!("name: {name}\ncontainerPort: {port}"));
        }
    }
    let edits = editor.edits;
    apply_edits(&text, edits)
}

/// Adds the ports of the node: the first one to the port of the listener, and the others beside it.
fn add_host_ports(
    editor: &mut Editor<'_>,
    list: TreeNodeId,
    listener: TreeNodeId,
    config: &SidecarConfig,
    names: &SidecarNames<'_>,
) {
    let number = config.listeners.first().copied().unwrap_or_default();
    for (index, host) in names.host_ports.iter().enumerate() {
        let address = host.address.as_deref().map(scalar);
        if index == 0 {
            editor.add_entry(listener, "hostPort", &NewValue::Inline(host.number.clone()));
            address.into_iter().for_each(|ip| editor.add_entry(listener, "hostIP", &NewValue::Inline(ip)));
        } else {
            let address = address.map(|ip| format!("\nhostIP: {ip}")).unwrap_or_default();
            editor.add_item(list, &format!("containerPort: {number}\nhostPort: {}{address}", host.number));
        }
    }
}

/// The template without the comment at its start.
fn container_template() -> String {
    let lines = CONTAINER_YAML.split_inclusive('\n');
    lines.skip_while(|line| line.starts_with('#')).collect()
}

fn set_port(editor: &mut Editor<'_>, port: TreeNodeId, name: &str, number: u16) {
    let tree = editor.tree;
    if let (Some(name_node), Some(number_node)) = (tree.get(port, "name"), tree.get(port, "containerPort")) {
        editor.set(name_node, name);
        editor.set(number_node, &number.to_string());
    }
}

/// Returns the init container that redirects connections to `port` to the sidecar.
pub(crate) fn redirect_container(config: &SidecarConfig, image: &str, port: u16, user: u32) -> String {
    let listener = config.listeners.first().copied().unwrap_or_default();
    let mut excluded = vec![config.probes];
    excluded.extend(config.admin);
    let excluded: Vec<_> = excluded.iter().map(|port| format!(", --exclude, \"{port}\"")).collect();
    format!(
        "name: {REDIRECT_CONTAINER}\n\
         image: {image}\n\
         imagePullPolicy: IfNotPresent\n\
         args: [redirect, --port, \"{port}\", --to, \"{listener}\", --uid, \"{user}\"{excluded}]\n\
         resources:\n  requests:\n    cpu: 10m\n    memory: 16Mi\n  limits:\n    memory: 64Mi\n\
         securityContext:\n  \
           # Rules of the pod's network need NET_ADMIN, which a process has only as root. No other container has it.\n  \
           runAsUser: 0\n  runAsGroup: 0\n  runAsNonRoot: false\n  allowPrivilegeEscalation: false\n  readOnlyRootFilesystem: true\n  \
           capabilities:\n    drop: [ALL]\n    add: [NET_ADMIN]\n  \
           seccompProfile:\n    type: RuntimeDefault\n",
        image = scalar(image),
        excluded = excluded.concat(),
    )
}

/// Returns the volume with the configuration.
pub(crate) fn volume(config_map: &str) -> String {
    format!("name: {VOLUME}\nconfigMap:\n  name: {}\n", scalar(config_map))
}

/// Returns the ConfigMap of a workload.
pub(crate) fn config_map(name: &str, workload: &ManifestObject, text: &str) -> String {
    let namespace = match workload.namespace.as_str() {
        "" => String::new(),
        namespace => format!("  namespace: {}\n", scalar(namespace)),
    };
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n{namespace}  annotations:\n    \
         {ANNOTATION}: '{{\"for\":\"{}/{}\"}}'\ndata:\n  {CONFIG_KEY}: {}\n",
        workload.kind,
        workload.name,
        literal(text, 4),
    )
}

/// Returns a text as a block scalar, or quoted if it contains what a block scalar cannot.
fn literal(text: &str, columns: usize) -> String {
    let text = text.replace("\r\n", "\n");
    let is_printable =
        |letter: char| letter == '\n' || letter == '\t' || !letter.is_control() && letter != '\u{feff}';
    if !text.chars().all(is_printable) {
        return serde_json::Value::String(text).to_string();
    }
    let indicator = if text.starts_with([' ', '\n']) { "|2" } else { "|" };
    let indent = " ".repeat(columns);
    let lines = text.trim_end().lines().map(|line| match line.trim_end() {
        "" => String::new(),
        line => format!("{indent}{line}"),
    });
    let lines: Vec<_> = std::iter::once(indicator.to_owned()).chain(lines).collect();
    lines.join("\n")
}

/// Returns a text as a plain scalar if it reads as one, or else quoted.
fn scalar(text: &str) -> String {
    let is_plain = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_./:@".contains(letter))
        && !text.ends_with(':')
        && serde_yaml::from_str::<serde_json::Value>(text).is_ok_and(|value| value.is_string());
    if is_plain { text.to_owned() } else { serde_json::Value::String(text.to_owned()).to_string() }
}
