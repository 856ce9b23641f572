//! A document as sent by the server.

use std::sync::Arc;

/// A fetched document. Two documents are equal if their texts are.
#[derive(Clone, Debug)]
pub struct FetchedDocument {
    /// The text.
    pub text: Arc<str>,
    /// The URL it comes from, without secrets, for display.
    pub url: Arc<str>,
    /// The validators of this version.
    pub validators: Validators,
}

impl PartialEq for FetchedDocument {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for FetchedDocument {}

/// Validators that identify a version of a document (RFC 9110 section 8.8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Validators {
    /// Its ETag.
    pub etag: Option<Box<str>>,
    /// Its Last-Modified.
    pub last_modified: Option<Box<str>>,
}

impl Validators {
    /// Whether a conditional request is possible.
    pub fn has_any(&self) -> bool {
        self.etag.is_some() || self.last_modified.is_some()
    }
}
