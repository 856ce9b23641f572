//! What happens to the ports of Services and NetworkPolicies, decided over all workloads of one call: several of them, and pods without
//! the sidecar, can share a Service or a policy.

use std::collections::{BTreeMap, BTreeSet};

use crate::InjectProblem;
use crate::edit::NewValue;
use crate::manifest::{self, ManifestFile, ManifestObject};
use crate::plan::{TrafficRoute, WorkloadPlan};
use crate::pod::PodTemplate;
use crate::record::RecordingEditor;
use crate::selector;
use crate::service::{PortReference, ReferenceKind};
use crate::tree::TreeNodeId;

/// A change of one entry of `ports`.
#[derive(Clone, Debug)]
pub(crate) struct PortChange {
    pub(crate) reference: PortReference,
    /// Ports of the sidecars behind the entry.
    listeners: BTreeSet<u16>,
    /// Indices of the workloads behind the entry that get the sidecar.
    workloads: BTreeSet<usize>,
    /// Whether the entry stays, because it also leads to pods without the sidecar.
    is_kept: bool,
}

/// Changes by the index of their object.
pub(crate) type PortChanges = BTreeMap<usize, Vec<PortChange>>;

/// Decides the changes.
///
/// # Errors
/// Returns Services whose clients would no longer reach some of their pods.
pub(crate) fn port_changes(
    files: &[ManifestFile<'_>],
    objects: &[ManifestObject],
    plans: &[WorkloadPlan<'_>],
) -> Result<PortChanges, Vec<InjectProblem>> {
    let (mut changes, mut problems) = (PortChanges::new(), Vec::new());
    for mut change in by_entry(plans).into_values() {
        let object = &objects[change.reference.object];
        let tree = &files[object.document.file].documents[object.document.document].tree;
        let selected = selected_workloads(files, objects, &change.reference);
        let without: Vec<_> = selected.difference(&change.workloads).copied().collect();
        match change.reference.kind {
            ReferenceKind::Service => problems.extend(
                service_problem(&change, &without, objects)
                    .map(|message| InjectProblem::at(files, object, change.reference.entry, &message)),
            ),
            ReferenceKind::Ingress => {
                let selector = tree.at(object.node, &["spec", "podSelector"]);
                let is_of_all = selector.is_none_or(|selector| selector::is_of_all(tree, selector));
                let is_range = change.reference.end.is_some();
                change.is_kept = is_of_all || is_range || !without.is_empty() || change.listeners.len() > 1;
            }
            ReferenceKind::Egress => change.is_kept = true,
        }
        changes.entry(change.reference.object).or_default().push(change);
    }
    if problems.is_empty() { Ok(changes) } else { Err(problems) }
}

/// Collects the entries to which the workloads refer.
fn by_entry(plans: &[WorkloadPlan<'_>]) -> BTreeMap<(usize, TreeNodeId), PortChange> {
    let mut found = BTreeMap::new();
    for plan in plans {
        let (TrafficRoute::References(references) | TrafficRoute::Name(_, references)) = &plan.route else {
            continue;
        };
        for reference in references.services.iter().chain(&references.policies) {
            let change = found.entry((reference.object, reference.entry)).or_insert_with(|| PortChange {
                reference: reference.clone(),
                listeners: BTreeSet::new(),
                workloads: BTreeSet::new(),
                is_kept: false,
            });
            change.listeners.extend(plan.config.listeners.first());
            change.workloads.insert(plan.object);
        }
    }
    found
}

/// Returns the workloads of the input to whose pods a reference leads. Pods without such a port, as of jobs with the labels of a
/// server, do not count for a Service.
fn selected_workloads(
    files: &[ManifestFile<'_>],
    objects: &[ManifestObject],
    reference: &PortReference,
) -> BTreeSet<usize> {
    let by = &objects[reference.object];
    let tree = &files[by.document.file].documents[by.document.document].tree;
    let written = tree.text_at(reference.entry, &[reference.key]);
    let is_selected = |workload: &ManifestObject| {
        let keys = manifest::template_keys(workload).filter(|_| workload.namespace == by.namespace)?;
        let pods = &files[workload.document.file].documents[workload.document.document].tree;
        let is_own = manifest::controller(pods, workload.node).is_none();
        let pod = PodTemplate::read(pods, pods.at(workload.node, keys)?).filter(|_| is_own)?;
        let selector = tree.at(by.node, &["spec", "podSelector"]);
        let mut ports = pod.ports.iter();
        Some(match reference.kind {
            ReferenceKind::Service => {
                selector::service_selects(tree, by.node, &pod.labels())
                    && ports.any(|port| {
                        reference.has(port.number) || port.name.is_some() && port.name.as_deref() == written
                    })
            }
            ReferenceKind::Ingress | ReferenceKind::Egress => {
                selector.is_none_or(|selector| selector::selects(tree, selector, &pod.labels()))
            }
        })
    };
    let indexed = objects.iter().enumerate();
    indexed.filter(|(_, object)| is_selected(object) == Some(true)).map(|(index, _)| index).collect()
}

fn service_problem(change: &PortChange, without: &[usize], objects: &[ManifestObject]) -> Option<String> {
    let first = change.workloads.first().map(|index| objects[*index].title()).unwrap_or_default();
    if let Some(other) = without.first() {
        return Some(format!(
            "the port leads to {first} and to {}, which gets no sidecar for it, use --redirect, or a Service for each",
            objects[*other].title()
        ));
    }
    let listeners: Vec<_> = change.listeners.iter().map(ToString::to_string).collect();
    (listeners.len() > 1).then(|| {
        format!(
            "the port leads to sidecars with different ports, {}, set one that is free in all pods by --config, or use --redirect",
            listeners.join(" and ")
        )
    })
}

impl PortChange {
    /// Changes the entry, or adds one for each sidecar beside it.
    pub(crate) fn apply(&self, editor: &mut RecordingEditor<'_, '_>) {
        let (entry, tree) = (self.reference.entry, editor.editor.tree);
        if self.is_kept {
            let Some(list) = tree.node(entry).parent else { return };
            for port in self.listeners.iter().filter(|port| !self.reference.has(**port)) {
                editor.add_item(list, &format!("port: {port}\nprotocol: TCP\n"));
            }
            return;
        }
        let Some(number) = self.listeners.first().map(ToString::to_string) else { return };
        match tree.entry(entry, self.reference.key) {
            Some((_, value)) => editor.set(value, &number),
            None => editor.put(entry, self.reference.key, &NewValue::Inline(number)),
        }
    }
}
