//! The documents of a response, read one after the other.

use std::sync::Arc;

use super::fields::ResponseFields;
use super::{Extent, LatestValues};
use crate::Unreadable;
use crate::json::JsonReader;

/// Maximum length of a value. Numbers are read, and a longer one is not a number that means anything.
const MAX_VALUE: usize = 64;

/// The data of the last event of OpenAI's streams.
const DONE: &[u8] = b"[DONE]";

/// The fields of documents.
#[derive(Debug)]
pub(super) struct ResponseDocuments {
    fields: Arc<ResponseFields>,
    latest: LatestValues,
    current: Document,
    /// Number of bytes of [`DONE`] that the current document consists of; `None` if it is another one.
    matched: Option<usize>,
}

/// A document that is being read.
#[derive(Debug, Default)]
enum Document {
    /// Nothing of it has arrived.
    #[default]
    Empty,
    Reading(Box<JsonReader>),
    Failed(Unreadable),
}

impl ResponseDocuments {
    pub(super) fn new(fields: &Arc<ResponseFields>) -> Self {
        let values = vec![None; fields.set().fields().len()].into();
        let latest = LatestValues { values, documents: 0, extent: Extent::Part, is_done: false };
        Self { fields: Arc::clone(fields), latest, current: Document::Empty, matched: Some(0) }
    }

    /// Whether `document` is a whole document that has no values, so that it need not be read.
    pub(super) fn may_skip(&self, document: &[u8]) -> bool {
        self.is_empty() && !document.trim_ascii_start().starts_with(DONE) && !self.fields.may_be_in(document)
    }

    /// Reads more of the current document.
    pub(super) fn read(&mut self, piece: &[u8]) -> Result<(), Unreadable> {
        if matches!(self.current, Document::Empty) {
            self.current = Document::Reading(Box::new(JsonReader::of_last_values(MAX_VALUE)));
        }
        self.matched = self
            .matched
            .and_then(|matched| piece.iter().try_fold(matched, |matched, byte| followed_by(matched, *byte)));
        let read = match &mut self.current {
            Document::Empty => Ok(()),
            Document::Failed(reason) => return Err(*reason),
            Document::Reading(reader) => reader.read(self.fields.set(), piece),
        };
        read.inspect_err(|reason| self.current = Document::Failed(*reason))
    }

    /// Ends the current document: its values replace those of earlier ones. Returns whether it is an array of documents.
    pub(super) fn end(&mut self) -> Result<bool, Unreadable> {
        self.latest.is_done |= self.matched.replace(0) == Some(DONE.len());
        match std::mem::take(&mut self.current) {
            Document::Empty => Ok(false),
            Document::Failed(reason) => Err(reason),
            Document::Reading(reader) => {
                let is_array = reader.is_batch();
                let records = reader.finish(self.fields.set())?;
                records.into_iter().for_each(|record| self.latest.replace(&self.fields, record));
                Ok(is_array)
            }
        }
    }

    /// Whether nothing of the current document has arrived.
    pub(super) const fn is_empty(&self) -> bool {
        matches!(self.current, Document::Empty)
    }

    /// Returns how much of a body that is one document has arrived; [`Extent::Part`] if it cannot be read.
    pub(super) fn extent(&self) -> Extent {
        match &self.current {
            Document::Reading(reader) if reader.is_closed() => Extent::of_document(reader.is_batch()),
            Document::Empty | Document::Reading(_) | Document::Failed(_) => Extent::Part,
        }
    }

    /// Whether the current document can be read, and is not complete.
    pub(super) fn is_within(&self) -> bool {
        matches!(&self.current, Document::Reading(reader) if !reader.is_closed())
    }

    /// Returns the values of the documents that have ended, of a body of which this much has arrived.
    pub(super) const fn latest(&mut self, extent: Extent) -> &LatestValues {
        self.latest.extent = extent;
        &self.latest
    }

    /// As [`Self::latest`], with what has been read of the current document.
    pub(super) fn latest_so_far(&mut self, extent: Extent) -> &LatestValues {
        if let Document::Reading(reader) = &self.current
            && let Some(record) = reader.last_record()
        {
            self.latest.replace(&self.fields, record.iter().cloned());
        }
        self.latest(extent)
    }
}

/// Returns how many bytes of [`DONE`], surrounded by white space, there are with the next byte.
fn followed_by(matched: usize, byte: u8) -> Option<usize> {
    match DONE.get(matched) {
        Some(next) if *next == byte => Some(matched + 1),
        _ if byte.is_ascii_whitespace() && (matched == 0 || matched == DONE.len()) => Some(matched),
        _ => None,
    }
}
