//! The annotation by which an injection is undone: what was added, and what was there before.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::edit::{Editor, NewValue};
use crate::tree::{ManifestTree, NodePlace, TreeNodeId};

/// Annotation of everything that inject has added or changed.
pub(crate) const ANNOTATION: &str = "weir.dev/injected";

/// Lists whose items are found by their names, because their order may change.
const NAMED_LISTS: [&str; 3] = ["containers", "initContainers", "volumes"];

/// A changed scalar, as written before and after.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct ChangedScalar {
    pub(crate) from: String,
    pub(crate) to: String,
}

/// Undoes an injection. Paths begin at the object, or at the pod template of a workload.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct UndoRecord {
    /// Entries and items that were added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) added: Vec<String>,
    /// Entries that were missing a value, null or empty: what was written behind the colon.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) filled: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) changed: BTreeMap<String, ChangedScalar>,
}

/// Edits below one node, with the record that undoes them.
#[derive(Debug)]
pub(crate) struct RecordingEditor<'e, 'd> {
    pub(crate) editor: &'e mut Editor<'d>,
    /// Where paths begin.
    pub(crate) base: TreeNodeId,
    pub(crate) record: UndoRecord,
}

impl RecordingEditor<'_, '_> {
    pub(crate) fn set(&mut self, scalar: TreeNodeId, raw: &str) {
        let bytes = self.editor.tree.node(scalar).bytes.clone();
        let from = self.editor.text.get(bytes).unwrap_or_default().to_owned();
        self.editor.set(scalar, raw);
        self.record.changed.insert(self.path(scalar), ChangedScalar { from, to: raw.to_owned() });
    }

    /// Adds an entry, or puts the value in the place of an empty one.
    pub(crate) fn put(&mut self, map: TreeNodeId, key: &str, value: &NewValue) {
        let path = self.child(map, key);
        match self.editor.tree.entry(map, key) {
            Some((key, old)) => {
                let raw = self.editor.fill(map, key, old, value);
                self.record.filled.insert(path, raw);
            }
            None => {
                self.editor.add_entry(map, key, value);
                self.record.added.push(path);
            }
        }
    }

    /// Adds an item with a name to the list under `key`, which need not exist.
    pub(crate) fn add_named_items(&mut self, map: TreeNodeId, key: &str, items: &[(&str, String)]) {
        let blocks: Vec<_> = items.iter().map(|(_, block)| block.clone()).collect();
        let list = self.editor.tree.entry(map, key).map(|(_, list)| list);
        match list.filter(|list| !self.editor.tree.is_empty(*list)) {
            Some(list) => blocks.iter().for_each(|block| self.editor.add_item(list, block)),
            None => self.put(map, key, &NewValue::List(blocks)),
        }
        let path = self.child(map, key);
        self.record.added.extend(items.iter().map(|(name, _)| format!("{path}[{name}]")));
    }

    /// Adds an item at the end of a list whose order does not change.
    pub(crate) fn add_item(&mut self, list: TreeNodeId, block: &str) {
        self.editor.add_item(list, block);
        let path = self.path(list);
        let start = format!("{path}[#");
        let added = self.record.added.iter().filter(|added| added.starts_with(&start)).count();
        let index = self.editor.tree.items(list).len() + added;
        self.record.added.push(format!("{start}{index}]"));
    }

    /// Adds the annotation with the record itself. Everything else has been edited before.
    pub(crate) fn finish(mut self, metadata: Option<TreeNodeId>) {
        let tree = self.editor.tree;
        let annotations = metadata.and_then(|metadata| tree.entry(metadata, "annotations"));
        let has_annotations = annotations.is_some_and(|(_, value)| !tree.is_empty(value));
        let metadata_entry = tree.entry(self.base, "metadata");
        match (metadata.filter(|metadata| !tree.is_empty(*metadata)), annotations) {
            (Some(_), Some((_, value))) if has_annotations => {
                let raw = quoted(&self.record);
                self.editor.add_entry(value, ANNOTATION, &NewValue::Inline(raw));
            }
            (Some(metadata), Some((key, old))) => {
                let raw = self.editor.text.get(self.editor.gap(key, old)).unwrap_or_default().to_owned();
                self.record.filled.insert("metadata.annotations".to_owned(), raw);
                self.editor.fill(metadata, key, old, &annotation_entry(&self.record));
            }
            (Some(metadata), None) => {
                self.record.added.push("metadata.annotations".to_owned());
                self.editor.add_entry(metadata, "annotations", &annotation_entry(&self.record));
            }
            (None, _) => match metadata_entry {
                Some((key, old)) => {
                    let raw = self.editor.text.get(self.editor.gap(key, old)).unwrap_or_default().to_owned();
                    self.record.filled.insert("metadata".to_owned(), raw);
                    self.record.added.push("metadata.annotations".to_owned());
                    self.editor.fill(self.base, key, old, &annotated_metadata(&self.record));
                }
                None => {
                    self.record.added.extend(["metadata", "metadata.annotations"].map(str::to_owned));
                    self.editor.add_entry(self.base, "metadata", &annotated_metadata(&self.record));
                }
            },
        }
    }

    /// Records an entry of an entry that was added, so that what others add beside it stays.
    pub(crate) fn record_child(&mut self, map: TreeNodeId, key: &str, child: &str) {
        let path = self.child(map, key);
        self.record.added.push(format!("{path}.{child}"));
    }

    fn path(&self, node: TreeNodeId) -> String {
        record_path(self.editor.tree, self.base, node)
    }

    fn child(&self, map: TreeNodeId, key: &str) -> String {
        match self.path(map) {
            path if path.is_empty() => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }
}

fn quoted(record: &UndoRecord) -> String {
    let json = serde_json::to_string(record).unwrap_or_default();
    format!("'{}'", json.replace('\'', "''"))
}

fn annotation_entry(record: &UndoRecord) -> NewValue {
    NewValue::Map(format!("{ANNOTATION}: {}", quoted(record)))
}

fn annotated_metadata(record: &UndoRecord) -> NewValue {
    NewValue::Map(format!("annotations:\n  {ANNOTATION}: {}", quoted(record)))
}

/// Returns the path of a node below `base`: `spec.containers[app].ports[#0].name`.
fn record_path(tree: &ManifestTree, base: TreeNodeId, node: TreeNodeId) -> String {
    let (mut path, mut at, mut list) = (String::new(), base, "");
    for place in tree.places(base, node) {
        match place {
            NodePlace::Root => {}
            NodePlace::Key(key) => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(key);
                list = key;
                at = tree.get(at, key).unwrap_or(at);
            }
            NodePlace::Item(index) => {
                at = tree.items(at).get(*index).copied().unwrap_or(at);
                let name = tree.text_at(at, &["name"]).filter(|_| NAMED_LISTS.contains(&list));
                path.push_str(&name.map_or_else(|| format!("[#{index}]"), |name| format!("[{name}]")));
            }
        }
    }
    path
}

/// Finds the value at a path of a record.
pub(crate) fn find(tree: &ManifestTree, base: TreeNodeId, path: &str) -> Option<TreeNodeId> {
    let mut at = base;
    for step in path.split('.') {
        let (key, item) =
            step.split_once('[').map_or((step, None), |(key, rest)| (key, rest.strip_suffix(']')));
        at = tree.entry(at, key)?.1;
        if let Some(item) = item {
            let items = tree.items(at);
            at = match item.strip_prefix('#') {
                Some(index) => *items.get(index.parse::<usize>().ok()?)?,
                None => *items.iter().find(|id| tree.text_at(**id, &["name"]) == Some(item))?,
            };
        }
    }
    Some(at)
}
