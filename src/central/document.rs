//! A document as the server has sent it.

use std::sync::Arc;

/// A fetched document. Two of them are equal if they say the same.
#[derive(Clone, Debug)]
pub struct Document {
    /// What it says.
    pub text: Arc<str>,
    /// Where it comes from, as people are shown it.
    pub url: Arc<str>,
    /// What the server knows this version by.
    pub validators: Validators,
}

impl PartialEq for Document {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Document {}

/// What a server tells versions of a document by (RFC 9110 section 8.8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Validators {
    /// Its ETag.
    pub etag: Option<Box<str>>,
    /// Its Last-Modified.
    pub modified: Option<Box<str>>,
}

impl Validators {
    /// Whether the server can be asked for another version than this one.
    pub fn any(&self) -> bool {
        self.etag.is_some() || self.modified.is_some()
    }
}
