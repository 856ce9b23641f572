//! One document of a response.

use super::LatestValues;
use crate::Unreadable;
use crate::fields::FieldSet;
use crate::json::JsonReader;

/// Maximum length of a value. Numbers are read, and a longer one is not a number that means anything.
const MAX_VALUE: usize = 64;

/// A document that is being read.
#[derive(Debug, Default)]
pub(super) enum Document {
    /// Nothing of it has arrived.
    #[default]
    Empty,
    Reading(Box<JsonReader>),
    Failed(Unreadable),
}

impl Document {
    /// Reads more of the document.
    pub(super) fn read(&mut self, fields: &FieldSet, piece: &[u8]) -> Result<(), Unreadable> {
        if matches!(self, Self::Empty) {
            *self = Self::Reading(Box::new(JsonReader::of_last_values(MAX_VALUE)));
        }
        let read = match self {
            Self::Empty => Ok(()),
            Self::Failed(reason) => return Err(*reason),
            Self::Reading(reader) => reader.read(fields, piece),
        };
        read.inspect_err(|reason| *self = Self::Failed(*reason))
    }

    /// Ends the document: its values replace those in `latest`.
    pub(super) fn end(&mut self, fields: &FieldSet, latest: &mut LatestValues) -> Result<(), Unreadable> {
        match std::mem::take(self) {
            Self::Empty => Ok(()),
            Self::Failed(reason) => Err(reason),
            Self::Reading(reader) => {
                reader.finish(fields)?.into_iter().for_each(|record| latest.replace(record));
                Ok(())
            }
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }
}
