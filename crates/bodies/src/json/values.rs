//! What is kept of a document: the values of fields, and the text of the one that is being read.

use std::mem;

use super::{Container, JsonReader, MAX_BATCH};
use crate::Unreadable;
use crate::fields::{FieldIndex, FieldSet, Kind, Record, Value};

impl JsonReader {
    /// Returns the values that have been read so far of a document that is not a batch.
    pub(crate) fn record(&self) -> Option<&Record> {
        self.records.first().filter(|_| !self.is_batch)
    }

    /// As [`Self::record`], and keeps them no longer.
    pub(crate) fn take_record(&mut self) -> Option<Record> {
        if self.is_batch { None } else { self.records.pop() }
    }

    /// Returns the bytes that are kept, with the values that have been returned.
    pub(crate) fn kept_size(&self) -> usize {
        let object = self.object.as_ref().map_or(0, |object| object.text.capacity());
        let open = if self.open.spilled() { self.open.capacity() * size_of::<Container>() } else { 0 };
        self.records_size.saturating_add(self.text.capacity()).saturating_add(object).saturating_add(open)
    }

    /// Returns the values that have been read so far of the last document.
    pub(crate) fn last_record(&self) -> Option<&Record> {
        self.records.last()
    }

    /// Adds a record if a document begins: the body, or an element of a batch.
    pub(super) fn begin_record(&mut self, fields: &FieldSet, is_array: bool) -> Result<(), Unreadable> {
        match self.open.len() {
            0 if is_array => self.is_batch = true,
            0 => self.add_record(fields),
            1 if self.is_batch && !self.keeps_elements && !self.records.is_empty() => {}
            1 if self.is_batch && self.records.len() == MAX_BATCH => return Err(Unreadable::TooManyElements),
            1 if self.is_batch => self.add_record(fields),
            _ => {}
        }
        Ok(())
    }

    fn add_record(&mut self, fields: &FieldSet) {
        let record = fields.empty_record();
        self.records_size = self.records_size.saturating_add(size_of_val(&*record));
        self.records.push(record);
    }

    /// Keeps text of the object that is a field, and its value once it has ended.
    pub(super) fn keep_object(&mut self, text: &[u8]) -> Result<(), Unreadable> {
        let Some(object) = &mut self.object else { return Ok(()) };
        object.text.extend_from_slice(text);
        if self.open.len() >= object.depth {
            return Ok(());
        }
        let Some(object) = self.object.take() else { return Ok(()) };
        let text = String::from_utf8(object.text).map_err(|_| Unreadable::Invalid)?;
        self.keep_value(object.field, Value { kind: Kind::Object, text: text.into() });
        Ok(())
    }

    pub(super) fn keep_value(&mut self, field: FieldIndex, value: Value) {
        if let Some(record) = self.records.last_mut() {
            self.records_size = self.records_size.saturating_add(value.text.len());
            record[field] = Some(value);
        }
    }

    pub(super) fn begin_text(&mut self, max: usize) {
        self.text.clear();
        self.max_text = max;
    }

    /// Keeps text of a key or scalar, up to the maximum.
    pub(super) fn keep(&mut self, text: &[u8]) {
        let room = self.max_text.saturating_sub(self.text.len());
        self.text.extend_from_slice(&text[..text.len().min(room)]);
    }

    pub(super) fn end_scalar(&mut self, fields: &FieldSet, kind: Kind) -> Result<(), Unreadable> {
        self.end_value();
        let Some(node) = self.node else { return Ok(()) };
        // The memory of a long text is not needed for those that follow.
        let text = String::from_utf8(mem::take(&mut self.text)).map_err(|_| Unreadable::Invalid)?;
        let text = text.into_boxed_str();
        let node = fields.node(node);
        if let Some(field) = node.counted(self.wanted).filter(|_| kind == Kind::String) {
            self.keep_value(field, Value::count(1));
        }
        let mut scalars = node.scalars(self.wanted);
        let (first, second) = (scalars.next(), scalars.next());
        if let Some(field) = second {
            self.keep_value(field, Value { kind, text: text.clone() });
        }
        if let Some(field) = first {
            self.keep_value(field, Value { kind, text });
        }
        Ok(())
    }
}
