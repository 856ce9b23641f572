//! Files with Kubernetes objects: their documents, and the objects in them.

use std::ops::Range;

use serde::de::IgnoredAny;
use weir_yaml::YamlErrorKind;

use crate::problem::InjectProblem;
use crate::tree::{ManifestTree, TreeNodeId};

/// A manifest, as the caller has read it.
#[derive(Clone, Debug)]
pub struct ManifestSource {
    /// Name for messages.
    pub name: String,
    pub text: String,
}

#[derive(Debug)]
pub(crate) struct ManifestFile<'s> {
    pub(crate) name: &'s str,
    /// Without a byte order mark.
    pub(crate) text: &'s str,
    pub(crate) is_json: bool,
    pub(crate) documents: Vec<ManifestDocument>,
}

/// One document of a file, with the line that separates it from the one before.
#[derive(Debug)]
pub(crate) struct ManifestDocument {
    /// Bytes in the file.
    pub(crate) range: Range<usize>,
    /// Lines of the file before the document.
    pub(crate) lines_before: usize,
    pub(crate) tree: ManifestTree,
}

/// Place of an object among all files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DocumentId {
    pub(crate) file: usize,
    pub(crate) document: usize,
}

/// A Kubernetes object.
#[derive(Clone, Debug)]
pub(crate) struct ManifestObject {
    pub(crate) document: DocumentId,
    pub(crate) node: TreeNodeId,
    pub(crate) api_group: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    /// Empty if it is not given.
    pub(crate) namespace: String,
    /// Whether the object is an item of a `List`.
    pub(crate) is_item: bool,
}

impl ManifestObject {
    /// Whether this is the same object as another one, of an edited file.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let key = |object: &Self| {
            (object.document.file, object.kind.clone(), object.name.clone(), object.namespace.clone())
        };
        key(self) == key(other)
    }

    /// Kind and name for messages.
    pub(crate) fn title(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }
}

const BYTE_ORDER_MARK: &str = "\u{feff}";

impl<'s> ManifestFile<'s> {
    pub(crate) fn parse(source: &'s ManifestSource) -> Result<Self, InjectProblem> {
        let text = source.text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&source.text);
        let json = json_documents(text);
        let is_json = json.is_some();
        let mut documents = Vec::new();
        for range in json.unwrap_or_else(|| yaml_documents(text)) {
            let lines_before = text[..range.start].matches('\n').count();
            if is_without_content(&text[range.clone()]) {
                continue;
            }
            match ManifestTree::parse(&text[range.clone()]) {
                Ok(Some(tree)) => documents.push(ManifestDocument { range, lines_before, tree }),
                Ok(None) => {}
                Err(error) => {
                    let hint = match error.kind {
                        YamlErrorKind::Syntax(_) if text.contains("{{") => {
                            " (render templates first, as with `helm template`)"
                        }
                        _ => "",
                    };
                    return Err(InjectProblem {
                        file: source.name.clone(),
                        line: error.position.line + lines_before,
                        column: error.position.column,
                        path: String::new(),
                        message: format!("{}{hint}", error.kind),
                    });
                }
            }
        }
        Ok(Self { name: &source.name, text, is_json, documents })
    }

    pub(crate) fn document_text(&self, document: usize) -> &'s str {
        &self.text[self.documents[document].range.clone()]
    }
}

/// Returns the documents of a stream of JSON objects; `None` if the text is something else.
fn json_documents(text: &str) -> Option<Vec<Range<usize>>> {
    if !text.trim_start().starts_with('{') {
        return None;
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let (mut ranges, mut start) = (Vec::new(), 0);
    while let Some(next) = values.next() {
        next.ok()?;
        let end = values.byte_offset();
        ranges.push(start..end);
        start = end;
    }
    Some(ranges)
}

/// Splits a stream of YAML documents at its separators. A line that begins with `---` is one, even inside a scalar.
fn yaml_documents(text: &str) -> Vec<Range<usize>> {
    let (mut ranges, mut start, mut at) = (Vec::new(), 0, 0);
    for line in text.split_inclusive('\n') {
        let is_separator = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        if is_separator && at > start {
            ranges.push(start..at);
            start = at;
        }
        at += line.len();
    }
    ranges.push(start..at);
    ranges
}

/// Whether a text has only comments, directives and separators.
fn is_without_content(text: &str) -> bool {
    text.lines().all(|line| {
        let begun = line.trim_start();
        begun.is_empty()
            || begun.starts_with('#')
            || line.starts_with('%')
            || matches!(line.trim_end(), "---" | "...")
    })
}

/// Returns all objects, in the order of the files.
pub(crate) fn objects(files: &[ManifestFile<'_>]) -> Vec<ManifestObject> {
    let mut found = Vec::new();
    for (file, manifest) in files.iter().enumerate() {
        for (index, document) in manifest.documents.iter().enumerate() {
            let (tree, id) = (&document.tree, DocumentId { file, document: index });
            let root = tree.root();
            let kind = tree.text_at(root, &["kind"]).unwrap_or_default();
            match tree.get(root, "items") {
                Some(items) if kind.ends_with("List") => {
                    found.extend(tree.items(items).iter().map(|item| object(tree, id, *item, true)));
                }
                _ => found.push(object(tree, id, root, false)),
            }
        }
    }
    found
}

fn object(tree: &ManifestTree, document: DocumentId, node: TreeNodeId, is_item: bool) -> ManifestObject {
    let text = |keys: &[&str]| tree.text_at(node, keys).unwrap_or_default().to_owned();
    let version = text(&["apiVersion"]);
    let name = match text(&["metadata", "name"]) {
        name if name.is_empty() => text(&["metadata", "generateName"]).trim_end_matches('-').to_owned(),
        name => name,
    };
    ManifestObject {
        document,
        node,
        api_group: version.split_once('/').map_or("", |(group, _)| group).to_owned(),
        kind: text(&["kind"]),
        name,
        namespace: text(&["metadata", "namespace"]),
        is_item,
    }
}

/// Returns the kind and name of the object that controls another one, and undoes changes of it.
pub(crate) fn controller(tree: &ManifestTree, object: TreeNodeId) -> Option<String> {
    let owners = tree.at(object, &["metadata", "ownerReferences"]).map(|list| tree.items(list))?;
    let controls = |owner: &&TreeNodeId| tree.text_at(**owner, &["controller"]) == Some("true");
    let text = |owner: TreeNodeId, key: &str| tree.text_at(owner, &[key]).unwrap_or_default().to_owned();
    owners.iter().find(controls).map(|owner| format!("{} {}", text(*owner, "kind"), text(*owner, "name")))
}

/// Returns the keys from a workload to its pod template; `None` for other kinds.
pub(crate) fn template_keys(object: &ManifestObject) -> Option<&'static [&'static str]> {
    match (object.api_group.as_str(), object.kind.as_str()) {
        ("apps" | "extensions", "Deployment" | "DaemonSet" | "ReplicaSet") | ("apps", "StatefulSet") => {
            Some(&["spec", "template"])
        }
        ("", "ReplicationController") | ("batch", "Job") => Some(&["spec", "template"]),
        ("batch", "CronJob") => Some(&["spec", "jobTemplate", "spec", "template"]),
        ("", "Pod") => Some(&[]),
        _ => None,
    }
}
