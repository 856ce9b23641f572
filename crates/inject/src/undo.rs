//! Undoes injections by their records.

use std::collections::HashSet;

use crate::edit::{Editor, NewValue};
use crate::manifest::{self, ManifestFile, ManifestObject};
use crate::record::{self, ANNOTATION, UndoRecord};
use crate::tree::{ManifestTree, TreeNodeId};
use crate::{InjectProblem, output};

/// The texts without injections.
#[derive(Debug, Default)]
pub(crate) struct Undone {
    pub(crate) edits: output::FileEdits,
    /// Objects that were changed.
    pub(crate) titles: Vec<String>,
    pub(crate) notes: Vec<String>,
}

/// Finds what undoes all injections in these files.
pub(crate) fn undo(files: &[ManifestFile<'_>]) -> Result<Undone, Vec<InjectProblem>> {
    let objects = manifest::objects(files);
    let (mut undone, mut problems) = (Undone::default(), Vec::new());
    for document in output::documents(&objects) {
        let file = &files[document.file];
        let tree = &file.documents[document.document].tree;
        let mut editor = Editor::new(file.document_text(document.document), tree);
        let created: HashSet<_> = objects
            .iter()
            .filter(|object| object.document == document && is_created(tree, object))
            .map(|object| object.node)
            .collect();
        for object in objects.iter().filter(|object| object.document == document) {
            if created.contains(&object.node) {
                undone.titles.push(object.title());
                match object.is_item {
                    true => editor.remove(object.node, &|sibling| !created.contains(&sibling)),
                    false => {
                        undone.edits.push(document.file, output::document_removal(file, document.document))
                    }
                }
                continue;
            }
            match undo_object(&mut editor, object) {
                Ok(Some(notes)) => {
                    undone.titles.push(object.title());
                    undone.notes.extend(notes.into_iter().map(|note| format!("{}: {note}", object.title())));
                }
                Ok(None) => {}
                Err((node, message)) => problems.push(InjectProblem::at(files, object, node, &message)),
            }
        }
        undone.edits.extend(document.file, file.documents[document.document].range.start, editor.edits);
    }
    if problems.is_empty() { Ok(undone) } else { Err(problems) }
}

/// Whether inject has created an object.
pub(crate) fn is_created(tree: &ManifestTree, object: &ManifestObject) -> bool {
    object.kind == "ConfigMap" && tree.at(object.node, &["metadata", "annotations", ANNOTATION]).is_some()
}

/// Undoes the injection into an object; `None` if there is none.
fn undo_object(
    editor: &mut Editor<'_>,
    object: &ManifestObject,
) -> Result<Option<Vec<String>>, (TreeNodeId, String)> {
    let tree = editor.tree;
    let template = manifest::template_keys(object).and_then(|keys| tree.at(object.node, keys));
    let bases = template.into_iter().chain([object.node]);
    let annotated =
        bases.filter_map(|base| Some((base, tree.at(base, &["metadata", "annotations", ANNOTATION])?)));
    let Some((base, annotation)) = annotated.into_iter().next() else { return Ok(None) };
    let text = tree.text(annotation).unwrap_or_default();
    let record: UndoRecord = serde_json::from_str(text).map_err(|error| {
        (annotation, format!("not a record of an injection, which uninject needs: {error}"))
    })?;
    Ok(Some(undo_record(editor, base, annotation, &record)))
}

fn undo_record(
    editor: &mut Editor<'_>,
    base: TreeNodeId,
    annotation: TreeNodeId,
    record: &UndoRecord,
) -> Vec<String> {
    let (tree, mut notes) = (editor.tree, Vec::new());
    let mut recorded: Vec<(TreeNodeId, Option<&str>)> = vec![(annotation, None)];
    for (path, raw) in record
        .added
        .iter()
        .map(|path| (path, None))
        .chain(record.filled.iter().map(|(path, raw)| (path, Some(raw.as_str()))))
    {
        match record::find(tree, base, path) {
            Some(node) => recorded.push((node, raw)),
            None => notes.push(format!("{path} is gone since the injection")),
        }
    }
    let Unrecorded { removed, emptied } = unrecorded(tree, base, &mut recorded);
    let is_gone =
        |node: TreeNodeId| removed.contains(&node) || emptied.iter().any(|(other, _)| *other == node);
    let is_inside = |node: TreeNodeId| {
        let mut above = tree.node(node).parent;
        std::iter::from_fn(|| {
            let next = above?;
            above = tree.node(next).parent;
            Some(next)
        })
        .any(is_gone)
    };
    for (node, _) in &recorded {
        if removed.contains(node) && !is_inside(*node) {
            editor.remove(*node, &|sibling| !removed.contains(&sibling));
        }
    }
    for (node, raw) in &emptied {
        if let Some(key) = editor.key_of(*node).filter(|_| !is_inside(*node)) {
            editor.unfill(key, *node, raw);
        }
    }
    notes.extend(restore_scalars(editor, base, record));
    notes
}

/// What an injection has added, without values that contain additions of others.
#[derive(Debug, Default)]
struct Unrecorded<'r> {
    removed: HashSet<TreeNodeId>,
    /// Values that were empty, with what was written there.
    emptied: Vec<(TreeNodeId, &'r str)>,
}

fn unrecorded<'r>(
    tree: &ManifestTree,
    base: TreeNodeId,
    recorded: &mut [(TreeNodeId, Option<&'r str>)],
) -> Unrecorded<'r> {
    // Inner values first, so that a value is removed with all that it contains, or kept for what others have added to it.
    recorded.sort_by_key(|(node, _)| std::cmp::Reverse(tree.places(base, *node).len()));
    let mut found = Unrecorded::default();
    for (node, raw) in recorded.iter() {
        let is_wrapper = recorded.iter().any(|(other, _)| other != node && is_below(tree, *other, *node));
        let is_empty = children(tree, *node).iter().all(|child| found.removed.contains(child));
        match raw {
            _ if is_wrapper && !is_empty => {}
            Some(raw) => found.emptied.push((*node, *raw)),
            None => {
                found.removed.insert(*node);
            }
        }
    }
    found
}

fn restore_scalars(editor: &mut Editor<'_>, base: TreeNodeId, record: &UndoRecord) -> Vec<String> {
    let mut notes = Vec::new();
    for (path, changed) in &record.changed {
        let Some(node) = record::find(editor.tree, base, path) else {
            // Kubernetes leaves out what it reads as a default.
            let parent = path
                .rsplit_once('.')
                .and_then(|(map, key)| Some((record::find(editor.tree, base, map)?, key)));
            match parent.filter(|(map, _)| !editor.tree.entries(*map).is_empty()) {
                Some((map, key)) => editor.add_entry(map, key, &NewValue::Inline(changed.from.clone())),
                None => notes.push(format!("{path} is gone since the injection")),
            }
            continue;
        };
        let written = serde_yaml::from_str::<serde_json::Value>(&changed.to).ok();
        let written = written.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        if editor.tree.text(node) == written.as_deref() {
            editor.set(node, &changed.from);
        } else {
            notes.push(format!("{path} has changed since the injection and stays"));
        }
    }
    notes
}

fn children(tree: &ManifestTree, node: TreeNodeId) -> Vec<TreeNodeId> {
    let entries = tree.entries(node).iter().map(|(_, value)| *value);
    entries.chain(tree.items(node).iter().copied()).collect()
}

/// Whether `node` is inside `outer`.
fn is_below(tree: &ManifestTree, node: TreeNodeId, outer: TreeNodeId) -> bool {
    let mut above = tree.node(node).parent;
    while let Some(next) = above {
        if next == outer {
            return true;
        }
        above = tree.node(next).parent;
    }
    false
}
