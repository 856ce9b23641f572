//! Fingerprints of contents that a compiled configuration does not show, for finding changes between two
//! configurations.
//!
//! Members, secrets and data files are kept only as salted hashes or in a derived form. For comparison they
//! are hashed as written.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::data_files::{DataFiles, FileHash, hash_bytes};
use super::raw;

/// Hashes of the contents that are not shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ContentHashes {
    pub(super) plans: Option<u128>,
    pub(super) secrets: Option<u128>,
    pub(super) admin_token: Option<u128>,
    /// Keyed by file name, relative to the configuration if possible.
    files: BTreeMap<String, FileHash>,
}

impl ContentHashes {
    /// Hashes what `raw` and its data files contain.
    pub(super) fn compute(raw: &raw::Root, files: &DataFiles) -> Self {
        let written = |secret: &raw::SecretOrFile| match secret {
            raw::SecretOrFile::Text(text) => Some(text.expose().clone()),
            raw::SecretOrFile::File(_) => None,
        };
        let secrets = raw.jwt.as_ref().and_then(|jwt| jwt.secret.as_ref());
        let secrets = secrets.map(|secrets| {
            let mut all = String::new();
            for text in secrets.items().filter_map(|(_, secret)| written(secret)) {
                // Writing to a `String` cannot fail.
                let _ = write!(all, "{}:{text}", text.len());
            }
            hash_bytes(all.as_bytes())
        });
        Self {
            plans: raw.plans.as_ref().map(|plans| hash_bytes(format!("{plans:?}").as_bytes())),
            secrets,
            admin_token: raw
                .admin
                .as_ref()
                .and_then(|admin| match admin {
                    raw::Admin::Map(admin) => written(admin.token.as_ref()?),
                    raw::Admin::Address(_) => None,
                })
                .map(|token| hash_bytes(token.as_bytes())),
            files: files.hashes_by_name(),
        }
    }

    /// Returns the differences of the data files from those of `old`, one line each.
    pub(super) fn file_changes_since(&self, old: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for name in old.files.keys().filter(|name| !self.files.contains_key(*name)) {
            lines.push(format!("file {name}: no longer read"));
        }
        for (name, hash) in &self.files {
            match old.files.get(name) {
                Some(before) if before == hash => {}
                Some(_) => lines.push(format!("file {name}: changed")),
                None => lines.push(format!("file {name}: now read")),
            }
        }
        lines
    }
}
