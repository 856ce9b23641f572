//! What is read of responses, and which documents can have any of it.

use memchr::memmem::Finder;

use crate::fields::{FieldIndex, FieldName, FieldSet, Kind, Value};
use crate::path::{Path, Step};

/// Types of the last event of a stream: of Anthropic's Messages, and of OpenAI's Responses.
const FINAL_TYPES: [&str; 3] = ["message_stop", "response.completed", "response.incomplete"];

/// With this begins each escape that spells an ASCII character by its number (RFC 8259, section 7).
const ESCAPED_ASCII: &[u8] = br"\u00";

/// Fields of responses.
#[derive(Clone, Debug)]
pub struct ResponseFields {
    set: FieldSet,
    /// The field with the type of an event, of which only [`FINAL_TYPES`] count.
    event_type: Option<FieldIndex>,
    /// One text per field that a document with this field contains, unless it has [`ESCAPED_ASCII`]. `None` if any field may be spelt
    /// otherwise.
    needles: Option<Box<[Finder<'static>]>>,
}

impl ResponseFields {
    /// Creates the fields of `names`, of which `event_type` has the type of an event.
    pub fn new(names: impl IntoIterator<Item = FieldName>, event_type: Option<FieldIndex>) -> Self {
        let set = FieldSet::new(names);
        let keys = set.fields().iter().enumerate().map(|(index, name)| match name {
            _ if event_type == Some(index) => Some(FINAL_TYPES.to_vec()),
            FieldName::Json(path) => last_key(path).map(|key| vec![key]),
            _ => None,
        });
        let texts = keys.collect::<Option<Vec<_>>>().map(|texts| {
            let mut texts = texts.concat();
            texts.sort_unstable();
            texts.dedup();
            texts
        });
        let finder = |text: &str| Finder::new(&format!("\"{text}\"")).into_owned();
        let needles = texts.map(|texts| texts.into_iter().map(finder).collect());
        Self { set, event_type, needles }
    }

    /// Returns all fields.
    pub const fn set(&self) -> &FieldSet {
        &self.set
    }

    /// Whether the value counts.
    pub(super) fn counts(&self, field: FieldIndex, value: &Value) -> bool {
        self.event_type != Some(field) || value.kind != Kind::String || FINAL_TYPES.contains(&&*value.text)
    }

    /// Whether a document with these bytes can have a field. Most events of a stream have none, and searching them is many times faster
    /// than parsing them.
    pub(super) fn may_be_in(&self, document: &[u8]) -> bool {
        let Some(needles) = &self.needles else { return true };
        needles.iter().any(|needle| needle.find(document).is_some())
            || memchr::memmem::find(document, ESCAPED_ASCII).is_some()
    }
}

/// The needles follow from the others.
impl PartialEq for ResponseFields {
    fn eq(&self, other: &Self) -> bool {
        self.set == other.set && self.event_type == other.event_type
    }
}

impl Eq for ResponseFields {}

/// Returns the last key of a path, if JSON spells it as it is or with [`ESCAPED_ASCII`].
fn last_key(path: &Path) -> Option<&str> {
    let mut keys = path.steps().iter().filter_map(|step| match step {
        Step::Key(key) => Some(&**key),
        Step::Index(_) => None,
    });
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && !b"\"\\/".contains(&byte);
    keys.next_back().filter(|key| key.bytes().all(is_plain))
}
