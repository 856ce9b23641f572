//! Injection and its removal over all files of one call.

use std::collections::BTreeMap;

use crate::edit::{Editor, NewValue};
use crate::manifest::{self, DocumentId, ManifestFile, ManifestObject, ManifestSource};
use crate::plan::{NoPlan, PlanContext, TrafficRoute, WorkloadPlan, is_object_name};
use crate::pod::{CONTAINER, PodTemplate, REDIRECT_CONTAINER, VOLUME};
use crate::port_change::{PortChanges, port_changes};
use crate::port_edit::{free_name, listener_names, take_host_ports, take_name};
use crate::record::{RecordingEditor, UndoRecord};
use crate::sidecar::{self, SidecarNames};
use crate::sidecar_config::SidecarConfig;
use crate::tree::TreeNodeId;
use crate::{ConfigSource, InjectOptions, InjectProblem, Injection, output, undo};

/// Time that a Service needs to remove an ending pod everywhere, in seconds. The application goes on for that long.
const PAUSE_SECONDS: u64 = 5;
/// Grace period of Kubernetes, in seconds.
const DEFAULT_GRACE_SECONDS: u64 = 30;
const DEFAULT_IMAGE: &str = concat!("weir:", env!("CARGO_PKG_VERSION"));

/// Adds the sidecar to every workload with a port.
///
/// # Errors
/// Returns every reason why a workload cannot have the sidecar. Nothing is changed then.
pub fn inject(sources: &[ManifestSource], options: &InjectOptions) -> Result<Injection, Vec<InjectProblem>> {
    let injected = parse(sources)?;
    let undone = undo::undo(&injected)?.edits;
    let clean = undone.clone().apply(sources, &injected);
    inject_clean(&clean, options).map_err(|mut problems| {
        // Lines are those of the input, which may have been injected before.
        for problem in problems.iter_mut().filter(|problem| problem.line > 0) {
            if let Some(file) = sources.iter().position(|source| source.name == problem.file) {
                let (source, edited) = (&sources[file].text, &clean[file].text);
                problem.line = undone.original_line(file, source, edited, problem.line);
            }
        }
        problems
    })
}

/// Adds the sidecar to manifests without it.
fn inject_clean(
    sources: &[ManifestSource],
    options: &InjectOptions,
) -> Result<Injection, Vec<InjectProblem>> {
    let files = parse(sources)?;
    let objects = manifest::objects(&files);
    let (plans, skipped) = plan_all(&files, &objects, options)?;
    let changes = port_changes(&files, &objects, &plans)?;
    let notes = skipped.iter().map(|reason| format!("{reason}: left as it is"));
    let mut injection = Injection { notes: notes.collect(), ..Injection::default() };
    for plan in &plans {
        let title = objects[plan.object].title();
        injection.notes.extend(plan.remarks.iter().map(|remark| format!("{title}: {remark}")));
        injection.titles.push(title);
    }
    injection.files = edit_files(&files, &objects, &plans, &changes, options).apply(sources, &files);
    match verify(sources, &injection.files, &files, &objects, &plans) {
        Some(problem) => Err(vec![problem]),
        None => Ok(injection),
    }
}

/// Workloads that get the sidecar, and the reasons of those that have no use for it.
type WorkloadPlans<'p> = (Vec<WorkloadPlan<'p>>, Vec<InjectProblem>);

fn plan_all<'p>(
    files: &'p [ManifestFile<'p>],
    objects: &'p [ManifestObject],
    options: &InjectOptions,
) -> Result<WorkloadPlans<'p>, Vec<InjectProblem>> {
    let file_config = match &options.config {
        Some(ConfigSource::File { name, text }) => Some(SidecarConfig::from_file(name, text)?),
        Some(ConfigSource::ConfigMap(name)) if !is_object_name(name) => {
            let message = format!("not a name of a ConfigMap, \"{name}\"");
            return Err(vec![InjectProblem::of_option("--config-map", message)]);
        }
        Some(ConfigSource::ConfigMap(name)) => config_of_input(files, objects, name)?,
        Some(ConfigSource::Limit(_)) | None => None,
    };
    let workloads: Vec<_> = objects
        .iter()
        .enumerate()
        .filter_map(|(index, object)| {
            let keys = manifest::template_keys(object)?;
            let tree = &files[object.document.file].documents[object.document.document].tree;
            Some((index, tree.at(object.node, keys)?))
        })
        .collect();
    let is_controlled = |index: usize| {
        let document = &files[objects[index].document.file].documents[objects[index].document.document];
        manifest::controller(&document.tree, objects[index].node).is_some()
    };
    let context = PlanContext {
        files,
        objects,
        options,
        file_config: file_config.as_ref(),
        is_only_workload: workloads.iter().filter(|(index, _)| !is_controlled(*index)).count() == 1,
    };
    let (mut plans, mut skipped, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for (object, node) in workloads {
        match context.plan(object, node) {
            Ok(plan) => plans.push(plan),
            Err(NoPlan::Skipped(reason)) => skipped.push(reason),
            Err(NoPlan::Problems(found)) => problems.extend(found),
        }
    }
    problems.extend(name_problems(files, objects, &plans));
    if plans.is_empty() && problems.is_empty() {
        problems = skipped.clone();
    }
    if plans.is_empty() && problems.is_empty() {
        problems.push(nothing_found(files, objects.len()));
    }
    if problems.is_empty() { Ok((plans, skipped)) } else { Err(problems) }
}

/// Checks that every workload has the sidecar, and that the removal restores the text. YAML has layouts that no list of cases covers.
fn verify(
    before: &[ManifestSource],
    after: &[ManifestSource],
    files: &[ManifestFile<'_>],
    objects: &[ManifestObject],
    plans: &[WorkloadPlan<'_>],
) -> Option<InjectProblem> {
    let restored = uninject(after).map(|removed| removed.files).unwrap_or_default();
    let same = |file: usize| restored.get(file).zip(before.get(file)).is_some_and(|(a, b)| a.text == b.text);
    let edited = parse(after).unwrap_or_default();
    let found = manifest::objects(&edited);
    let has_sidecar = |workload: &ManifestObject| {
        let mut candidates = found.iter().filter(|object| object.is_same(workload));
        candidates.any(|object| {
            let tree = &edited[object.document.file].documents[object.document.document].tree;
            let template = manifest::template_keys(object).and_then(|keys| tree.at(object.node, keys));
            let pod = template.and_then(|template| PodTemplate::read(tree, template));
            pod.is_some_and(|pod| {
                pod.container_named(CONTAINER).is_some() && pod.volume_named(VOLUME).is_some()
            })
        })
    };
    let workloads = plans.iter().map(|plan| (plan, &objects[plan.object]));
    let lost =
        workloads.into_iter().find(|(_, workload)| !same(workload.document.file) || !has_sidecar(workload));
    lost.map(|(plan, workload)| {
        let message = "the layout of this file cannot be edited and restored without a loss, write it in plain block style";
        InjectProblem::at(files, workload, plan.pod.spec, message)
    })
}

/// Removes the sidecar from every object that has it, and restores what was there before.
///
/// # Errors
/// Returns what is wrong with a manifest, or with the record of an injection.
pub fn uninject(sources: &[ManifestSource]) -> Result<Injection, Vec<InjectProblem>> {
    let files = parse(sources)?;
    let undone = undo::undo(&files)?;
    Ok(Injection { files: undone.edits.apply(sources, &files), titles: undone.titles, notes: undone.notes })
}

fn parse(sources: &[ManifestSource]) -> Result<Vec<ManifestFile<'_>>, Vec<InjectProblem>> {
    let (mut files, mut problems) = (Vec::new(), Vec::new());
    for source in sources {
        match ManifestFile::parse(source) {
            Ok(file) => files.push(file),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() { Ok(files) } else { Err(problems) }
}

/// Reads the configuration in the ConfigMap with a name, if it is part of the input.
fn config_of_input(
    files: &[ManifestFile<'_>],
    objects: &[ManifestObject],
    name: &str,
) -> Result<Option<SidecarConfig>, Vec<InjectProblem>> {
    let Some(object) = objects.iter().find(|object| object.kind == "ConfigMap" && object.name == name) else {
        return Ok(None);
    };
    let tree = &files[object.document.file].documents[object.document.document].tree;
    let Some(text) = tree.text_at(object.node, &["data", sidecar::CONFIG_KEY]) else {
        let message = format!("the ConfigMap has no key {}, which the sidecar reads", sidecar::CONFIG_KEY);
        return Err(vec![InjectProblem::at(files, object, object.node, &message)]);
    };
    let config = SidecarConfig::from_file(&format!("{}, {}", object.title(), sidecar::CONFIG_KEY), text)?;
    Ok(Some(SidecarConfig { text: None, ..config }))
}

fn nothing_found(files: &[ManifestFile<'_>], objects: usize) -> InjectProblem {
    let name = files.first().map_or("input", |file| file.name);
    let message = match objects {
        0 => "no Kubernetes objects, expected a manifest".to_owned(),
        _ => format!(
            "no workload among the objects, expected a Deployment or another kind with pods, got {objects} of other kinds"
        ),
    };
    InjectProblem::of_option(name, message)
}

/// Returns ConfigMaps of others whose names inject needs.
fn name_problems(
    files: &[ManifestFile<'_>],
    objects: &[ManifestObject],
    plans: &[WorkloadPlan<'_>],
) -> Vec<InjectProblem> {
    let mut found = Vec::new();
    for plan in plans.iter().filter(|plan| plan.config.text.is_some()) {
        let workload = &objects[plan.object];
        let taken = objects.iter().filter(|object| {
            object.kind == "ConfigMap"
                && object.name == plan.config_map
                && object.namespace == workload.namespace
        });
        let message =
            "the configuration of the sidecar needs this name, rename the ConfigMap, or use --config-map";
        found.extend(taken.map(|object| InjectProblem::at(files, object, object.node, message)));
    }
    for (index, plan) in plans.iter().enumerate().filter(|(_, plan)| plan.config.text.is_some()) {
        let namespace = |plan: &WorkloadPlan<'_>| &objects[plan.object].namespace;
        let is_same = |other: &&WorkloadPlan<'_>| {
            other.config_map == plan.config_map && namespace(other) == namespace(plan)
        };
        if let Some(other) = plans[..index].iter().find(is_same) {
            let workload = &objects[plan.object];
            let message = format!(
                "the ConfigMap {} is that of {}, too, rename one of both, or use --config-map",
                plan.config_map,
                objects[other.object].title()
            );
            found.push(InjectProblem::at(files, workload, workload.node, &message));
        }
    }
    found
}

/// Edits of the documents, by their places in the text.
type DocumentEditors<'e> = BTreeMap<DocumentId, Editor<'e>>;

fn edit_files<'e>(
    files: &'e [ManifestFile<'e>],
    objects: &[ManifestObject],
    plans: &[WorkloadPlan<'e>],
    changes: &PortChanges,
    options: &InjectOptions,
) -> output::FileEdits {
    let mut edits = output::FileEdits::default();
    let mut editors = DocumentEditors::new();
    for document in output::documents(objects) {
        let file = &files[document.file];
        let tree = &file.documents[document.document].tree;
        editors.insert(document, Editor::new(file.document_text(document.document), tree));
    }
    let image = options.image.as_deref().unwrap_or(DEFAULT_IMAGE);
    for plan in plans {
        let workload = &objects[plan.object];
        let Some(editor) = editors.get_mut(&workload.document) else { continue };
        edit_pod(editor, plan, image);
        if let Some(text) = &plan.config.text {
            let block = sidecar::config_map(&plan.config_map, workload, text);
            match editor.tree.node(workload.node).parent.filter(|_| workload.is_item) {
                Some(list) => editor.add_item_before(list, workload.node, &block),
                None => {
                    let file = workload.document.file;
                    edits.push(
                        file,
                        output::document_before(&files[file], workload.document.document, &block),
                    );
                }
            }
        }
    }
    edit_references(&mut editors, objects, changes);
    for (document, editor) in editors {
        edits.extend(
            document.file,
            files[document.file].documents[document.document].range.start,
            editor.edits,
        );
    }
    edits
}

fn edit_pod(editor: &mut Editor<'_>, plan: &WorkloadPlan<'_>, image: &str) {
    let (pod, tree) = (&plan.pod, plan.pod.tree);
    let mut recording = RecordingEditor { editor, base: pod.node, record: UndoRecord::default() };
    let mut listener = free_name(pod, "http");
    if let TrafficRoute::Name(name, _) = &plan.route {
        listener.clone_from(name);
        take_name(&mut recording, pod, &plan.port, name);
    }
    add_pause(&mut recording, pod.containers[plan.port.container]);
    let host_ports = match plan.route {
        TrafficRoute::Redirect => Vec::new(),
        TrafficRoute::References(_) | TrafficRoute::Name(..) => {
            take_host_ports(&mut recording, pod, plan.port.number)
        }
    };
    let names = SidecarNames {
        image,
        listeners: listener_names(pod, &listener, plan.config.listeners.len()),
        probes: &free_name(pod, "probes"),
        host_ports,
        user: plan.user,
    };
    let mut containers = Vec::new();
    if matches!(plan.route, TrafficRoute::Redirect) {
        let rules = sidecar::redirect_container(&plan.config, image, plan.port.number, plan.user);
        containers.push((REDIRECT_CONTAINER, rules));
    }
    containers.push((CONTAINER, sidecar::container(&plan.config, &names)));
    recording.add_named_items(pod.spec, "initContainers", &containers);
    recording.add_named_items(pod.spec, "volumes", &[(VOLUME, sidecar::volume(&plan.config_map))]);
    extend_grace_period(&mut recording, pod, plan.config.drain);
    recording.finish(tree.entry(pod.node, "metadata").map(|(_, metadata)| metadata));
}

/// Lets the application go on until its endpoint is removed. The kubelet stops it before its sidecars.
fn add_pause(recording: &mut RecordingEditor<'_, '_>, container: TreeNodeId) {
    let tree = recording.editor.tree;
    let pause = format!("sleep:\n  seconds: {PAUSE_SECONDS}\n");
    match tree.entry(container, "lifecycle") {
        Some((_, lifecycle)) if !tree.is_empty(lifecycle) => {
            if tree.get(lifecycle, "preStop").is_none() {
                recording.put(lifecycle, "preStop", &NewValue::Map(pause));
            }
        }
        _ => {
            let lines: Vec<_> = pause.lines().map(|line| format!("  {line}\n")).collect();
            recording.put(container, "lifecycle", &NewValue::Map(format!("preStop:\n{}", lines.concat())));
            recording.record_child(container, "lifecycle", "preStop");
        }
    }
}

/// Extends the grace period by the pause and the drain, so that the application keeps its time.
fn extend_grace_period(recording: &mut RecordingEditor<'_, '_>, pod: &PodTemplate<'_>, drain: u64) {
    const KEY: &str = "terminationGracePeriodSeconds";
    let given = pod.tree.entry(pod.spec, KEY).map(|(_, value)| value);
    let seconds =
        given.and_then(|value| pod.tree.text(value)?.parse::<u64>().ok()).unwrap_or(DEFAULT_GRACE_SECONDS);
    let extended = seconds.saturating_add(PAUSE_SECONDS).saturating_add(drain).to_string();
    match given {
        Some(value) if !pod.tree.is_empty(value) => recording.set(value, &extended),
        Some(_) | None => recording.put(pod.spec, KEY, &NewValue::Inline(extended)),
    }
}

/// Directs Services and NetworkPolicies to the sidecars.
fn edit_references(editors: &mut DocumentEditors<'_>, objects: &[ManifestObject], changes: &PortChanges) {
    for (index, changes) in changes {
        let object = &objects[*index];
        let Some(editor) = editors.get_mut(&object.document) else { continue };
        let mut recording = RecordingEditor { editor, base: object.node, record: UndoRecord::default() };
        for change in changes {
            change.apply(&mut recording);
        }
        if recording.record == UndoRecord::default() {
            continue;
        }
        let metadata = recording.editor.tree.entry(object.node, "metadata").map(|(_, metadata)| metadata);
        recording.finish(metadata);
    }
}
