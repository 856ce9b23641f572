//! The documents of a response, read one after the other.

use std::sync::Arc;

use super::LatestValues;
use crate::Unreadable;
use crate::fields::FieldSet;
use crate::json::JsonReader;

/// Maximum length of a value. Numbers are read, and a longer one is not a number that means anything.
const MAX_VALUE: usize = 64;

/// The fields of documents.
#[derive(Debug)]
pub(super) struct ResponseDocuments {
    fields: Arc<FieldSet>,
    latest: LatestValues,
    current: Document,
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
    pub(super) fn new(fields: &Arc<FieldSet>) -> Self {
        let latest = LatestValues { values: vec![None; fields.fields().len()].into(), documents: 0 };
        Self { fields: Arc::clone(fields), latest, current: Document::Empty }
    }

    /// Reads more of the current document.
    pub(super) fn read(&mut self, piece: &[u8]) -> Result<(), Unreadable> {
        if matches!(self.current, Document::Empty) {
            self.current = Document::Reading(Box::new(JsonReader::of_last_values(MAX_VALUE)));
        }
        let read = match &mut self.current {
            Document::Empty => Ok(()),
            Document::Failed(reason) => return Err(*reason),
            Document::Reading(reader) => reader.read(&self.fields, piece),
        };
        read.inspect_err(|reason| self.current = Document::Failed(*reason))
    }

    /// Ends the current document: its values replace those of earlier ones.
    pub(super) fn end(&mut self) -> Result<(), Unreadable> {
        match std::mem::take(&mut self.current) {
            Document::Empty => Ok(()),
            Document::Failed(reason) => Err(reason),
            Document::Reading(reader) => {
                let records = reader.finish(&self.fields)?;
                records.into_iter().for_each(|record| self.latest.replace(record));
                Ok(())
            }
        }
    }

    /// Whether nothing of the current document has arrived.
    pub(super) const fn is_empty(&self) -> bool {
        matches!(self.current, Document::Empty)
    }

    /// Returns the values of the documents that have ended.
    pub(super) const fn latest(&self) -> &LatestValues {
        &self.latest
    }

    /// As [`Self::latest`], with what has been read of the current document.
    pub(super) fn latest_so_far(&mut self) -> &LatestValues {
        if let Document::Reading(reader) = &self.current
            && let Some(record) = reader.last_record()
        {
            self.latest.replace(record.iter().cloned());
        }
        &self.latest
    }
}
