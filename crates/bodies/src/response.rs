//! Fields of responses: of JSON documents, and of streams of documents, in which the last one that has a field counts.
//!
//! Unlike the body of a request, a response is not written to evade a limit. It is read as it passes and never held.

mod document;
mod event_stream;
mod lines;

use std::sync::Arc;

use self::document::Document;
use self::event_stream::EventStreamReader;
use self::lines::LineReader;
use crate::Unreadable;
use crate::fields::{FieldIndex, FieldSet, Value};
use crate::reader::media_type;

/// Reads the fields of one response.
#[derive(Debug)]
pub struct ResponseReader {
    fields: Arc<FieldSet>,
    latest: LatestValues,
    document: Document,
    format: ResponseFormat,
    failed: Option<Unreadable>,
}

#[derive(Debug)]
enum ResponseFormat {
    /// One JSON document, or an array of them.
    Json,
    /// Documents in lines.
    Lines(LineReader),
    /// Documents in binary messages.
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
        let coding = content_encoding.unwrap_or_default().trim_ascii();
        if !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity") {
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
            json if json == b"application/json" || json.ends_with(b"+json") => ResponseFormat::Json,
            _ => return Err(Unreadable::ContentType),
        };
        let latest = LatestValues { values: vec![None; fields.fields().len()].into(), documents: 0 };
        let (fields, document) = (Arc::clone(fields), Document::default());
        Ok(Self { fields, latest, document, format, failed: None })
    }

    /// Reads the next piece of the body.
    pub fn read(&mut self, piece: &[u8]) {
        let Self { fields, latest, document, format, failed } = self;
        if failed.is_some() {
            return;
        }
        let read = match format {
            ResponseFormat::Json => document.read(fields, piece),
            ResponseFormat::Lines(lines) => {
                lines.read(fields, piece, document, latest);
                Ok(())
            }
            ResponseFormat::EventStream(messages) => messages.read(fields, piece, document, latest),
        };
        *failed = read.err();
    }

    /// Reads the end of a complete body.
    ///
    /// # Errors
    /// Why values are unknown. Documents of a stream that are not JSON are passed over.
    pub fn end(&mut self) -> Result<&LatestValues, Unreadable> {
        let ended = self.document.end(&self.fields, &mut self.latest);
        match (self.failed, &self.format) {
            (Some(reason), _) => Err(reason),
            (None, ResponseFormat::Json) => ended.map(|()| &self.latest),
            (None, ResponseFormat::Lines(_) | ResponseFormat::EventStream(_)) => Ok(&self.latest),
        }
    }

    /// Returns the values that have been read so far, of a body that ends before its end.
    pub fn latest(&mut self) -> &LatestValues {
        if let (ResponseFormat::Json, Document::Reading(reader)) = (&self.format, &self.document)
            && let Some(record) = reader.last_record()
        {
            self.latest.replace(record.iter().cloned());
        }
        &self.latest
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
