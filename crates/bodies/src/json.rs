//! JSON (RFC 8259), read in pieces without recursion.

mod count;
mod number;
mod string;
mod token;
mod values;

use smallvec::SmallVec;

use self::token::{Escape, JsonLiteral, NumberState};
use crate::Unreadable;
use crate::fields::{FieldIndex, FieldMask, FieldSet, KeyMatch, Kind, PathNodeIndex, ROOT, Records};
use crate::utf8::Utf8;

/// Maximum depth of nested arrays and objects.
pub const MAX_DEPTH: usize = 64;

/// Maximum depth of responses. They may repeat what is in a request, such as the schema of a tool, some levels deeper.
const MAX_RESPONSE_DEPTH: usize = 4 * MAX_DEPTH;

/// Maximum number of elements of a batch. Each is charged.
pub const MAX_BATCH: usize = 100;

/// Reads the fields of one document, or of each element of a batch.
#[derive(Debug)]
pub struct JsonReader {
    state: JsonState,
    /// The fields whose values are kept. Duplicates of the others are found as well.
    wanted: FieldMask,
    /// The arrays and objects that are open, the outermost first.
    open: SmallVec<[Container; 8]>,
    /// Position of the value that is next or being read, if it is on the path of a field.
    node: Option<PathNodeIndex>,
    /// Text of a key or scalar that is kept.
    text: Vec<u8>,
    /// Maximum length of `text`. What is longer is kept up to here.
    max_text: usize,
    /// Maximum depth of nested arrays and objects.
    max_depth: usize,
    /// Maximum length of a value.
    max_value: usize,
    utf8: Utf8,
    records: Records,
    /// Bytes of all records, with those that have been taken.
    records_size: usize,
    is_batch: bool,
    object: Option<Box<OpenObject>>,
    /// Whether each element of a batch has a record. Otherwise, values replace those of the elements before.
    keeps_elements: bool,
}

/// An object whose text is a field.
#[derive(Debug)]
struct OpenObject {
    field: FieldIndex,
    /// Number of containers that are open within it and around it, with itself.
    depth: usize,
    text: Vec<u8>,
}

#[derive(Debug)]
struct Container {
    is_object: bool,
    node: Option<PathNodeIndex>,
    /// Index of the current element.
    index: u32,
    /// The field that is the number of texts in this array, and those so far.
    count: Option<(FieldIndex, u32)>,
    /// Children of the node that have been found, by position.
    found: SmallVec<[usize; 4]>,
}

/// What may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JsonState {
    Value,
    /// The first element of an array, or its end.
    ValueOrEnd,
    Key,
    /// The first key of an object, or its end.
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    /// More of a string, which is a key or a value.
    String {
        is_key: bool,
        escape: Escape,
    },
    Number(NumberState),
    JsonLiteral(JsonLiteral),
    /// White space only.
    End,
}

/// Where a reader is, after a colon or an opening brace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JsonPosition {
    /// Before the first member of the document.
    Document,
    /// Before the value of this field.
    Value(FieldIndex),
}

impl JsonReader {
    /// Creates a reader of the fields `wanted`.
    pub fn new(wanted: FieldMask) -> Self {
        Self {
            state: JsonState::Value,
            wanted,
            open: SmallVec::new(),
            node: Some(ROOT),
            text: Vec::new(),
            max_text: 0,
            max_depth: MAX_DEPTH,
            max_value: usize::MAX,
            utf8: Utf8::default(),
            records: Records::new(),
            records_size: 0,
            is_batch: false,
            object: None,
            keeps_elements: true,
        }
    }

    /// Creates a reader of the last value of each field, in a document or an array of any number of documents. Values are cut
    /// after `max_value` bytes.
    pub(crate) fn of_last_values(max_value: usize) -> Self {
        let all = Self::new(FieldMask::ALL);
        Self { max_value, max_depth: MAX_RESPONSE_DEPTH, keeps_elements: false, ..all }
    }

    /// Reads the next piece of the document.
    ///
    /// # Errors
    /// Why its fields are unknown. Then, nothing more is to be read.
    pub fn read(&mut self, fields: &FieldSet, piece: &[u8]) -> Result<(), Unreadable> {
        // What precedes the first byte that is not UTF-8 may be unreadable for another reason, whatever the pieces are.
        let (valid, invalid) = piece.split_at(self.utf8.valid_len(piece));
        let mut rest = valid;
        while let Some((byte, after)) = rest.split_first() {
            let before = rest;
            rest = match self.state {
                JsonState::String { is_key, escape } => self.string(fields, is_key, escape, rest)?,
                JsonState::Number(state) => self.number(fields, state, rest)?,
                JsonState::JsonLiteral(literal) => self.literal(fields, literal, *byte, after)?,
                _ if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') => after,
                _ => {
                    self.structure(fields, *byte)?;
                    // The first byte of a number or literal is read once more, as a part of it.
                    if matches!(self.state, JsonState::Number(_) | JsonState::JsonLiteral(_)) {
                        rest
                    } else {
                        after
                    }
                }
            };
            if self.object.is_some() {
                self.keep_object(&before[..before.len() - rest.len()])?;
            }
        }
        if invalid.is_empty() { Ok(()) } else { Err(Unreadable::Invalid) }
    }

    /// Returns where it is, if that is one of the positions of [`JsonPosition`] in a document that is not a batch.
    pub(crate) fn position(&self, fields: &FieldSet) -> Option<JsonPosition> {
        match self.state {
            _ if self.is_batch => None,
            JsonState::KeyOrEnd => (self.open.len() == 1).then_some(JsonPosition::Document),
            JsonState::Value => fields.node(self.node?).field.map(JsonPosition::Value),
            _ => None,
        }
    }

    /// Whether the document, or the array of documents, has been closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.state == JsonState::End
    }

    /// Whether it reads an array of documents.
    pub(crate) const fn is_batch(&self) -> bool {
        self.is_batch
    }

    /// Returns the values of each document at the end of the body.
    ///
    /// # Errors
    /// Why they are unknown.
    pub fn finish(mut self, fields: &FieldSet) -> Result<Records, Unreadable> {
        if let JsonState::Number(state) = self.state {
            self.end_number(fields, state)?;
        }
        if self.state == JsonState::End && self.utf8.is_complete() {
            Ok(self.records)
        } else {
            Err(Unreadable::Invalid)
        }
    }

    /// Reads the first byte of a value, or one of the six structural characters.
    fn structure(&mut self, fields: &FieldSet, byte: u8) -> Result<(), Unreadable> {
        match (self.state, byte) {
            (JsonState::Value | JsonState::ValueOrEnd, b'{') => self.begin_container(fields, true),
            (JsonState::Value | JsonState::ValueOrEnd, b'[') => self.begin_container(fields, false),
            (JsonState::ValueOrEnd | JsonState::CommaOrEnd, b']') => self.end_container(false),
            (JsonState::KeyOrEnd | JsonState::CommaOrEnd, b'}') => self.end_container(true),
            (JsonState::Value | JsonState::ValueOrEnd, _) => self.begin_scalar(fields, byte),
            (JsonState::Key | JsonState::KeyOrEnd, b'"') => {
                let node = self.open.last().and_then(|object| object.node);
                self.begin_text(node.map_or(0, |node| fields.node(node).max_key_len()));
                self.state = JsonState::String { is_key: true, escape: Escape::None };
                Ok(())
            }
            (JsonState::Colon, b':') => {
                self.state = JsonState::Value;
                Ok(())
            }
            (JsonState::CommaOrEnd, b',') => self.next_member(fields),
            _ => Err(Unreadable::Invalid),
        }
    }

    fn begin_container(&mut self, fields: &FieldSet, is_object: bool) -> Result<(), Unreadable> {
        if self.open.len() == self.max_depth {
            return Err(Unreadable::TooDeep);
        }
        self.begin_record(fields, !is_object)?;
        self.count_element();
        let node = self.node.map(|node| fields.node(node));
        let text = node.and_then(|node| node.object);
        let text = text.filter(|field| is_object && self.wanted.contains(*field));
        let count = node.and_then(|node| node.counted(self.wanted)).filter(|_| !is_object);
        let is_on_path = |node: &PathNodeIndex| {
            let node = fields.node(*node);
            if is_object { node.has_keys } else { node.has_indices }
        };
        let node = self.node.filter(is_on_path);
        let count = count.map(|field| (field, 0));
        self.open.push(Container { is_object, node, index: 0, count, found: SmallVec::new() });
        if let (Some(field), None) = (text, &self.object) {
            self.object = Some(Box::new(OpenObject { field, depth: self.open.len(), text: Vec::new() }));
        }
        self.state = if is_object { JsonState::KeyOrEnd } else { JsonState::ValueOrEnd };
        if !is_object {
            self.node = self.element(fields);
        }
        Ok(())
    }

    /// Returns the position of the current element of the innermost array.
    fn element(&self, fields: &FieldSet) -> Option<PathNodeIndex> {
        if self.is_batch && self.open.len() == 1 {
            return Some(ROOT);
        }
        let array = self.open.last()?;
        fields.node(array.node?).by_index(array.index)
    }

    fn next_member(&mut self, fields: &FieldSet) -> Result<(), Unreadable> {
        let container = self.open.last_mut().ok_or(Unreadable::Invalid)?;
        if container.is_object {
            self.state = JsonState::Key;
        } else {
            container.index = container.index.saturating_add(1);
            self.node = self.element(fields);
            self.state = JsonState::Value;
        }
        Ok(())
    }

    fn end_container(&mut self, is_object: bool) -> Result<(), Unreadable> {
        let container = self.open.pop().filter(|container| container.is_object == is_object);
        let container = container.ok_or(Unreadable::Invalid)?;
        self.keep_count(container.count);
        self.end_value();
        Ok(())
    }

    fn end_value(&mut self) {
        self.state = if self.open.is_empty() { JsonState::End } else { JsonState::CommaOrEnd };
    }

    fn begin_scalar(&mut self, fields: &FieldSet, byte: u8) -> Result<(), Unreadable> {
        self.begin_record(fields, false)?;
        if !matches!(byte, b'-' | b'0'..=b'9') {
            self.count_element();
        }
        let is_text = |node| fields.node(node).scalars(self.wanted).next().is_some();
        let is_field = |node| is_text(node) || fields.node(node).counted(self.wanted).is_some();
        self.node = self.node.filter(|node| is_field(*node));
        let is_kept = self.node.is_some_and(is_text);
        self.begin_text(if is_kept { self.max_value } else { 0 });
        self.state = match byte {
            b'"' => JsonState::String { is_key: false, escape: Escape::None },
            b'-' | b'0'..=b'9' => JsonState::Number(NumberState::Start),
            _ => JsonState::JsonLiteral(JsonLiteral::beginning_with(byte).ok_or(Unreadable::Invalid)?),
        };
        Ok(())
    }

    fn end_string(&mut self, fields: &FieldSet, is_key: bool) -> Result<(), Unreadable> {
        if is_key {
            self.state = JsonState::Colon;
            return self.end_key(fields);
        }
        self.end_scalar(fields, Kind::String)
    }

    /// Finds the position of the value that follows the key.
    fn end_key(&mut self, fields: &FieldSet) -> Result<(), Unreadable> {
        self.node = None;
        let Some(object) = self.open.last_mut() else { return Err(Unreadable::Invalid) };
        let Some(node) = object.node else { return Ok(()) };
        let key = match std::str::from_utf8(&self.text) {
            Ok(key) => key,
            // A key that is longer than any of a field may end within a character here. Only a NUL may end it earlier.
            Err(error) => match std::str::from_utf8(&self.text[..error.valid_up_to()]) {
                Ok(beginning) if beginning.contains('\0') => beginning,
                _ => return Ok(()),
            },
        };
        match fields.node(node).by_key(key) {
            KeyMatch::None => Ok(()),
            KeyMatch::Child(position, _) if object.found.contains(&position) => Err(Unreadable::Duplicate),
            KeyMatch::Child(position, child) => {
                object.found.push(position);
                self.node = Some(child);
                Ok(())
            }
            // A response does not spell a field in two ways to evade a limit.
            KeyMatch::Similar if !self.keeps_elements => Ok(()),
            KeyMatch::Similar => Err(Unreadable::Duplicate),
        }
    }

    /// Reads more of a number, up to the byte that follows it.
    fn number<'p>(
        &mut self,
        fields: &FieldSet,
        mut state: NumberState,
        rest: &'p [u8],
    ) -> Result<&'p [u8], Unreadable> {
        for (position, byte) in rest.iter().enumerate() {
            let Some(next) = state.followed_by(*byte) else {
                self.keep(&rest[..position]);
                self.end_number(fields, state)?;
                return Ok(&rest[position..]);
            };
            state = next;
        }
        self.keep(rest);
        self.state = JsonState::Number(state);
        Ok(&[])
    }

    fn end_number(&mut self, fields: &FieldSet, state: NumberState) -> Result<(), Unreadable> {
        if !state.may_end() {
            return Err(Unreadable::Invalid);
        }
        if self.max_text > 0 {
            self.text = number::canonical(&self.text).ok_or(Unreadable::Invalid)?;
        }
        self.end_scalar(fields, Kind::Number)
    }

    fn literal<'p>(
        &mut self,
        fields: &FieldSet,
        literal: JsonLiteral,
        byte: u8,
        after: &'p [u8],
    ) -> Result<&'p [u8], Unreadable> {
        let next = literal.followed_by(byte).ok_or(Unreadable::Invalid)?;
        self.state = JsonState::JsonLiteral(next);
        if next.is_complete() {
            self.keep(next.word.as_bytes());
            if next.word == "null" {
                self.end_value();
            } else {
                self.end_scalar(fields, Kind::Bool)?;
            }
        }
        Ok(after)
    }
}

#[cfg(test)]
mod tests;
