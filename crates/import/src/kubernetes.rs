//! Kubernetes objects in files: several documents, and objects of a `List`.
//!
//! Objects of other kinds get a remark without their values, which may be secrets.

use super::ImportError;
use super::importer::ImportSource;
use super::ledger::{Ledger, Message};
use super::remark::{Effect, Remark};
use super::tree::{Documents, entries, field_text, get, items, read_documents, scalar_text};
use weir_yaml::Node;

/// The fields around the content of every object.
static ENVELOPE: Message = Message {
    name: "a Kubernetes object",
    read: &["apiVersion", "kind", "metadata", "spec"],
    lost: &[],
    other: &["status"],
};
static LIST: Message = Message {
    name: "a list of Kubernetes objects",
    read: &["apiVersion", "kind", "items"],
    lost: &[],
    other: &["metadata"],
};
/// `meta/v1.ObjectMeta`
pub(super) static METADATA: Message = Message {
    name: "metadata",
    read: &["name", "namespace"],
    lost: &[],
    other: &[
        "annotations",
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "labels",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    ],
};

/// The files of an import, read.
#[derive(Debug)]
pub(super) struct ManifestFiles {
    files: Vec<(String, Documents)>,
}

/// A Kubernetes object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manifest<'n> {
    pub(super) node: &'n Node,
    pub(super) kind: &'n str,
    /// The part of `apiVersion` before the slash; empty for the core group.
    pub(super) group: &'n str,
    pub(super) version: &'n str,
    pub(super) name: &'n str,
    pub(super) namespace: Option<&'n str>,
}

impl ManifestFiles {
    /// Reads the documents of files.
    ///
    /// # Errors
    /// Returns syntax errors, and files without a document.
    pub(super) fn read(sources: &[ImportSource]) -> Result<Self, Vec<ImportError>> {
        let mut files = Vec::new();
        let mut errors = Vec::new();
        for source in sources {
            match read_documents(&source.name, &source.text) {
                Ok(documents) => files.push((source.name.clone(), documents)),
                Err(problems) => errors.extend(problems),
            }
        }
        if errors.is_empty() { Ok(Self { files }) } else { Err(errors) }
    }

    /// The documents, in order.
    pub(super) fn documents(&self) -> impl Iterator<Item = &Node> {
        self.files.iter().flat_map(|(_, documents)| &documents.nodes)
    }

    /// Returns all objects, in order. Marks the lists around them.
    pub(super) fn manifests<'n>(&'n self, ledger: &Ledger) -> Vec<Manifest<'n>> {
        let mut found = Vec::new();
        self.documents().for_each(|document| add_manifests(document, ledger, &mut found));
        found
    }

    /// The names of the files, for the first line of the output.
    pub(super) fn names(&self) -> String {
        self.files.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Returns the remarks on all values that are not in the rules.
    pub(super) fn remarks(&self, ledger: &Ledger, defaults: &[(&str, &str)]) -> Vec<Remark> {
        let mut remarks = Vec::new();
        for (name, documents) in &self.files {
            let duplicates = documents.duplicates.iter();
            remarks.extend(duplicates.map(|text| Remark::new(Effect::Differs, text.clone())));
            remarks.extend(ledger.remarks(name, &documents.nodes, defaults));
        }
        remarks
    }

    /// Returns the error of files in which `expected` was not found.
    pub(super) fn nothing_found(&self, expected: &str) -> Vec<ImportError> {
        const MAX_SHOWN: usize = 5;
        let ledger = Ledger::default();
        let manifests = self.manifests(&ledger);
        let title = |one: &Manifest<'_>| {
            let slash = if one.group.is_empty() { "" } else { "/" };
            format!("{} ({}{slash}{})", one.title(), one.group, one.version)
        };
        let mut found = manifests.iter().take(MAX_SHOWN).map(title).collect::<Vec<_>>().join(", ");
        match manifests.len() {
            0 => found.push_str("no Kubernetes object"),
            count if count > MAX_SHOWN => found.push_str(&format!(" and {} more", count - MAX_SHOWN)),
            _ => {}
        }
        let message = format!("no {expected}, found {found}");
        vec![ImportError { file: self.names(), position: None, message }]
    }
}

fn add_manifests<'n>(node: &'n Node, ledger: &Ledger, found: &mut Vec<Manifest<'n>>) {
    let Some(manifest) = Manifest::read(node) else { return };
    if manifest.kind.ends_with("List") && get(node, "items").is_some() {
        ledger.message(node, &LIST);
        ["apiVersion", "kind"]
            .into_iter()
            .filter_map(|name| get(node, name))
            .for_each(|value| ledger.lose(value, Effect::None, "a list, whose items are read"));
        return items(get(node, "items")).iter().for_each(|item| add_manifests(item, ledger, found));
    }
    found.push(manifest);
}

impl<'n> Manifest<'n> {
    fn read(node: &'n Node) -> Option<Self> {
        let kind = field_text(node, "kind")?;
        let version = field_text(node, "apiVersion")?;
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let metadata = get(node, "metadata");
        let text = |name: &str| metadata.and_then(|metadata| field_text(metadata, name));
        let name = text("name").unwrap_or_default();
        Some(Self { node, kind, group, version, name, namespace: text("namespace") })
    }

    pub(super) fn is(&self, group: &str, kind: &str) -> bool {
        self.group == group && self.kind == kind
    }

    pub(super) fn spec(&self) -> Option<&'n Node> {
        get(self.node, "spec")
    }

    pub(super) fn metadata(&self, name: &str) -> Option<&'n Node> {
        get(self.node, "metadata").and_then(|metadata| get(metadata, name))
    }

    /// Returns the value of a label.
    pub(super) fn label(&self, name: &str) -> Option<&'n str> {
        let labels = entries(self.metadata("labels")?);
        let label = labels.iter().find(|(key, _)| scalar_text(key) == Some(name));
        label.and_then(|(_, value)| scalar_text(value))
    }

    /// Returns the order of objects by age, if both have a time.
    pub(super) fn created(&self) -> &'n str {
        self.metadata("creationTimestamp").and_then(scalar_text).unwrap_or_default()
    }

    /// Its kind and name, for comments: `Ingress shop/web`.
    pub(super) fn title(&self) -> String {
        format!("{} {}", self.kind, self.address())
    }

    /// Its namespace and name, for comments: `shop/web`.
    pub(super) fn address(&self) -> String {
        self.namespace.map_or_else(|| self.name.to_owned(), |space| format!("{space}/{}", self.name))
    }

    /// Its namespace and name as the begin of a rule's name: `shop.web`.
    pub(super) fn rule_name(&self) -> String {
        self.namespace.map_or_else(|| self.name.to_owned(), |space| format!("{space}.{}", self.name))
    }

    /// Whether the namespaces are the same, as far as they are given.
    pub(super) fn may_share_namespace(&self, namespace: Option<&str>) -> bool {
        match (self.namespace, namespace) {
            (Some(own), Some(other)) => own == other,
            _ => true,
        }
    }

    /// Marks the fields around the spec. A version that is not among these gets a remark.
    pub(super) fn mark(&self, ledger: &Ledger, versions: &[&str]) {
        ledger.message(self.node, &ENVELOPE);
        get(self.node, "kind").into_iter().for_each(|kind| ledger.use_all(kind));
        if let Some(version) = get(self.node, "apiVersion") {
            match versions.contains(&self.version) {
                true => ledger.use_all(version),
                false => {
                    let reason = format!("an unknown version, read as {}", versions.join(" or "));
                    ledger.lose(version, Effect::Differs, reason);
                }
            }
        }
        if let Some(metadata) = get(self.node, "metadata") {
            ledger.message(metadata, &METADATA);
            ["name", "namespace"]
                .into_iter()
                .filter_map(|name| get(metadata, name))
                .for_each(|value| ledger.use_all(value));
        }
    }

    /// Says that an object has no limits, without its values.
    pub(super) fn skip(&self, ledger: &Ledger) {
        ledger.skip(self.node, format!("{}, which has no limits", self.title()));
    }
}
