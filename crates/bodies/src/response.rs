//! Fields of responses: of JSON documents, and of streams of documents, in which the last one that has a field counts.
//!
//! Unlike the body of a request, a response is not written to evade a limit. It is read as it passes and never held.

mod document;
mod event_stream;
mod fields;
mod lines;

use std::sync::Arc;

use self::document::ResponseDocuments;
use self::event_stream::EventStreamReader;
pub use self::fields::ResponseFields;
use self::lines::LineReader;
use crate::Unreadable;
use crate::coding::Coding;
use crate::fields::{FieldIndex, Value};
use crate::reader::{is_json, media_type};

/// Reads the fields of one response.
#[derive(Debug)]
pub struct ResponseReader {
    documents: ResponseDocuments,
    format: ResponseFormat,
    failed: Option<Unreadable>,
    /// Whether the body ends with its connection, however that ends.
    ends_with_connection: bool,
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
    extent: Extent,
    is_done: bool,
}

/// How much of a response its values are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// One document, which is complete.
    Document,
    /// A series of documents, whose end has arrived. The last of them may say that there should have been more.
    Series,
    /// A part.
    Part,
}

impl ResponseReader {
    /// Creates a reader of all `fields` in a response of this type and coding.
    ///
    /// # Errors
    /// Why responses like this have no fields.
    pub fn new(
        fields: &Arc<ResponseFields>,
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
        Ok(Self {
            documents: ResponseDocuments::new(fields),
            format,
            failed: None,
            ends_with_connection: false,
        })
    }

    /// Notes that the body ends with its connection: then, the end of a series does not tell whether it is complete.
    pub const fn end_with_connection(&mut self) {
        self.ends_with_connection = true;
    }

    /// Reads the next piece of the body.
    pub fn read(&mut self, piece: &[u8]) {
        let Self { documents, format, failed, .. } = self;
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
        let extent = match (self.failed, &self.format) {
            (Some(reason), _) => return Err(reason),
            (None, ResponseFormat::Json) => Extent::of_document(ended?),
            (None, _) if self.ends_with_connection => Extent::Part,
            (None, ResponseFormat::Lines(_) | ResponseFormat::EventStream(_)) => Extent::Series,
        };
        Ok(self.documents.latest(extent))
    }

    /// Whether what has been read ends within a document, so that a body with this end is cut off.
    pub fn is_within_document(&self) -> bool {
        self.failed.is_none()
            && match &self.format {
                ResponseFormat::Json => self.documents.is_within(),
                // The last event may lack its empty line, and the last line its end.
                ResponseFormat::Lines(_) => false,
                ResponseFormat::EventStream(messages) => messages.is_within_message(),
            }
    }

    /// Returns the values that have been read so far, of a body that ends before its end.
    pub fn latest(&mut self) -> &LatestValues {
        match self.format {
            ResponseFormat::Json => {
                let extent = self.documents.extent();
                self.documents.latest_so_far(extent)
            }
            ResponseFormat::Lines(_) | ResponseFormat::EventStream(_) => self.documents.latest(Extent::Part),
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

    /// Returns how much of the response they are from.
    pub const fn extent(&self) -> Extent {
        self.extent
    }

    /// Whether there was a document `[DONE]`, with which streams of OpenAI's format end.
    pub const fn is_done(&self) -> bool {
        self.is_done
    }

    fn replace(&mut self, fields: &ResponseFields, values: impl IntoIterator<Item = Option<Value>>) {
        self.documents = self.documents.saturating_add(1);
        for (index, (latest, value)) in self.values.iter_mut().zip(values).enumerate() {
            if let Some(value) = value.filter(|value| fields.counts(index, value)) {
                *latest = Some((self.documents, value));
            }
        }
    }
}

impl Extent {
    /// Returns that of a complete document.
    const fn of_document(is_array: bool) -> Self {
        if is_array { Self::Series } else { Self::Document }
    }
}

#[cfg(test)]
mod tests;
