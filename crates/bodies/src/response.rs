//! Fields of responses: of JSON documents, and of streams of documents, in which the last one that has a field counts.
//!
//! Unlike the body of a request, a response is not written to evade a limit. It is read as it passes and never held.

mod document;
mod event_stream;
mod lines;

use std::sync::Arc;

use self::document::ResponseDocuments;
use self::event_stream::EventStreamReader;
use self::lines::LineReader;
use crate::Unreadable;
use crate::coding::Coding;
use crate::fields::{FieldIndex, FieldSet, Value};
use crate::reader::{is_json, media_type};

/// Reads the fields of one response.
#[derive(Debug)]
pub struct ResponseReader {
    documents: ResponseDocuments,
    format: ResponseFormat,
    failed: Option<Unreadable>,
}

#[derive(Debug)]
enum ResponseFormat {
    /// One JSON document, or an array of them.
    Json,
    /// ResponseDocuments in lines.
    Lines(LineReader),
    /// ResponseDocuments in binary messages.
    EventStream(EventStreamReader),
}

/// The last value of each field in a series of documents.
#[derive(Clone, Debug)]
pub struct LatestValues {
    /// The values, with the number of the document that has them.
    values: Box<[Option<(u32, Value)>]>,
    documents: u32,
}

impl ResponseReader {
    /// Creates a reader of all `fields` in a response of this type and coding.
    ///
    /// # Errors
    /// Why responses like this have no fields.
    pub fn new(
        fields: &Arc<FieldSet>,
        content_type: Option<&[u8]>,
        content_encoding: Option<&[u8]>,
    ) -> Result<Self, Unreadable> {
        if Coding::from_values(content_encoding.into_iter())?.is_some() {
            return Err(Unreadable::Coding);
        }
        let format = match media_type(content_type.unwrap_or_default()).as_slice() {
            b"text/event-stream" => ResponseFormat::Lines(LineReader::of_events()),
            b"application/x-ndjson" | b"application/jsonl" => {
                ResponseFormat::Lines(LineReader::of_documents())
            }
            b"application/vnd.amazon.eventstream" => {
                ResponseFormat::EventStream(EventStreamReader::default())
            }
            media_type if is_json(media_type) => ResponseFormat::Json,
            _ => return Err(Unreadable::ContentType),
        };
        Ok(Self { documents: ResponseDocuments::new(fields), format, failed: None })
    }

    /// Reads the next piece of the body.
    pub fn read(&mut self, piece: &[u8]) {
        let Self { documents, format, failed } = self;
        if failed.is_some() {
            return;
        }
        let read = match format {
            ResponseFormat::Json => documents.read(piece),
            ResponseFormat::Lines(lines) => {
                lines.read(piece, documents);
                Ok(())
            }
            ResponseFormat::EventStream(messages) => messages.read(piece, documents),
        };
        *failed = read.err();
    }

    /// Reads the end of a complete body.
    ///
    /// # Errors
    /// Why values are unknown. ResponseDocuments of a stream that are not JSON are passed over.
    pub fn end(&mut self) -> Result<&LatestValues, Unreadable> {
        let ended = self.documents.end();
        let latest = self.documents.latest();
        match (self.failed, &self.format) {
            (Some(reason), _) => Err(reason),
            (None, ResponseFormat::Json) => ended.map(|()| latest),
            (None, ResponseFormat::Lines(_) | ResponseFormat::EventStream(_)) => Ok(latest),
        }
    }

    /// Returns the values that have been read so far, of a body that ends before its end.
    pub fn latest(&mut self) -> &LatestValues {
        match self.format {
            ResponseFormat::Json => self.documents.latest_so_far(),
            ResponseFormat::Lines(_) | ResponseFormat::EventStream(_) => self.documents.latest(),
        }
    }
}

impl LatestValues {
    /// Returns the text of the value that was stated last in any of `fields`; the first of them if one document states several.
    pub fn last_of(&self, fields: impl IntoIterator<Item = FieldIndex>) -> Option<&str> {
        let values = fields.into_iter().filter_map(|field| self.values.get(field)?.as_ref());
        let last = values.reduce(|last, value| if value.0 > last.0 { value } else { last });
        last.map(|(_, value)| &*value.text)
    }

    fn replace(&mut self, values: impl IntoIterator<Item = Option<Value>>) {
        self.documents = self.documents.saturating_add(1);
        for (latest, value) in self.values.iter_mut().zip(values) {
            if let Some(value) = value {
                *latest = Some((self.documents, value));
            }
        }
    }
}

#[cfg(test)]
mod tests;
