//! Changes of the application's ports in its pod: the sidecar takes over the name, and the ports of the node.

use std::collections::BTreeMap;

use crate::application_port::ApplicationPort;
use crate::pod::{PodProbe, PodTemplate};
use crate::record::RecordingEditor;
use crate::sidecar::{HostPort, MAX_PORT_NAME};
use crate::tree::TreeNodeId;

/// Returns a name of a port that no container of the pod uses.
pub(crate) fn free_name(pod: &PodTemplate<'_>, name: &str) -> String {
    match is_used(pod, name) {
        true => prefixed_name(pod, "weir", name),
        false => name.to_owned(),
    }
}

/// Returns names for the ports of listeners, made of that of the first one, that no container of the pod uses.
pub(crate) fn listener_names(pod: &PodTemplate<'_>, first: &str, count: usize) -> Vec<String> {
    let numbered = |number: usize| {
        let suffix = format!("-{number}");
        let base: String = first.chars().take(MAX_PORT_NAME - suffix.len()).collect();
        format!("{}{suffix}", base.trim_end_matches('-'))
    };
    let further = (2..=usize::from(u16::MAX)).map(numbered).filter(|name| !is_used(pod, name));
    std::iter::once(first.to_owned()).chain(further).take(count).collect()
}

/// Returns a name of a port that no container of the pod uses, made of a prefix and a name. It has at most the length that
/// Kubernetes accepts.
fn prefixed_name(pod: &PodTemplate<'_>, prefix: &str, name: &str) -> String {
    let candidate = |count: u32| {
        let number = if count > 1 { count.to_string() } else { String::new() };
        let whole = format!("{prefix}{number}-{name}");
        let cut: String = whole.chars().take(MAX_PORT_NAME).collect();
        cut.trim_end_matches('-').to_owned()
    };
    // A pod has fewer ports than there are candidates.
    let mut candidates = (1..=u32::from(u16::MAX)).map(candidate);
    candidates.find(|name| !is_used(pod, name)).unwrap_or_else(|| candidate(1))
}

fn is_used(pod: &PodTemplate<'_>, name: &str) -> bool {
    pod.port_names().iter().any(|(_, used)| *used == name)
}

/// Returns what prevents that the sidecar takes over the name of the application's port.
pub(crate) fn name_problem(
    pod: &PodTemplate<'_>,
    port: &ApplicationPort,
    name: &str,
) -> Option<(TreeNodeId, String)> {
    let own = pod.containers.get(port.container).copied();
    let others =
        pod.port_names().into_iter().filter(|(container, used)| Some(*container) != own && *used == name);
    if let Some((container, _)) = others.into_iter().next() {
        let title = pod.tree.text_at(container, &["name"]).unwrap_or_default();
        let message = format!(
            "container `{title}` has a port with the name `{name}` of the application's, too, which a Service would find in place of the \
             sidecar's, rename it, or add the Service to the input"
        );
        return Some((container, message));
    }
    let edited = name_places(pod, port, name);
    let elsewhere = edited.iter().find(|(node, count)| {
        let is_alias = |other: &&TreeNodeId| *other != *node && pod.tree.resolve(**other) == **node;
        let by_aliases: usize = edited.keys().filter(is_alias).map(|alias| pod.tree.uses(*alias)).sum();
        pod.tree.uses(**node) > *count + by_aliases
    });
    elsewhere.map(|(node, _)| {
        let message = format!(
            "the name `{name}` of the application's port is shared by an anchor and an alias with a place that is no probe of this port, \
             write it out at each"
        );
        (*node, message)
    })
}

/// Returns the values that change with the name, each with the number of places at which it counts: that of the port itself, and
/// those of its probes. Probes may share one by an anchor and an alias.
fn name_places(pod: &PodTemplate<'_>, port: &ApplicationPort, name: &str) -> BTreeMap<TreeNodeId, usize> {
    let mut places = BTreeMap::new();
    let declared = port.declared.as_ref();
    places
        .extend(declared.and_then(|declared| pod.tree.written(declared.node, "name")).map(|node| (node, 1)));
    for probe in named_probes(pod, port, name) {
        *places.entry(probe.port).or_default() += 1;
    }
    places
}

/// Returns the probes that find the application's port by its name.
fn named_probes<'p>(
    pod: &'p PodTemplate<'_>,
    port: &'p ApplicationPort,
    name: &'p str,
) -> impl Iterator<Item = &'p PodProbe> {
    pod.probes.iter().filter(move |probe| probe.container == port.container && probe.port_text == name)
}

/// Gives the application's port another name, and its probes the number in place of the name.
pub(crate) fn take_name(
    recording: &mut RecordingEditor<'_, '_>,
    pod: &PodTemplate<'_>,
    port: &ApplicationPort,
    name: &str,
) {
    let renamed = prefixed_name(pod, "app", name);
    let own = port.declared.as_ref().and_then(|declared| pod.tree.written(declared.node, "name"));
    for node in name_places(pod, port, name).into_keys() {
        match Some(node) == own {
            true => recording.set(node, &renamed),
            false => recording.set(node, &port.number.to_string()),
        }
    }
}

/// Returns a number of a port on the node that also is another value of the manifest, by an anchor and an alias.
pub(crate) fn shared_host_port(pod: &PodTemplate<'_>, number: u16) -> Option<TreeNodeId> {
    pod.declarations(number).filter_map(|port| port.host_port).find(|node| pod.tree.uses(*node) > 1)
}

/// Takes the ports of the node from the application, and returns them. Two containers cannot have the same one.
pub(crate) fn take_host_ports(
    recording: &mut RecordingEditor<'_, '_>,
    pod: &PodTemplate<'_>,
    number: u16,
) -> Vec<HostPort> {
    let mut taken = Vec::new();
    for port in pod.declarations(number) {
        let Some(node) = port.host_port else { continue };
        taken.push(HostPort {
            number: pod.tree.text(node).unwrap_or_default().to_owned(),
            address: pod.tree.text_at(port.node, &["hostIP"]).map(str::to_owned),
        });
        recording.set(node, "0");
    }
    taken
}
