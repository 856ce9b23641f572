//! Fields of a request's body. Reading the body is not part of identifying the request: it arrives later, and most rules do not need it.

use weir_bodies::Unreadable;
use weir_bodies::fields::{FieldIndex, FieldName, FieldSet, Record};

use super::lookup::Ambiguity;

/// What rules may read of bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodySettings {
    /// The fields that rules read.
    pub fields: FieldSet,
    /// Maximum number of bytes of a body that are held until its fields are known.
    pub max: usize,
    /// What follows if they stay unknown.
    pub on_unreadable: OnUnreadable,
}

/// What follows from a body whose fields are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnUnreadable {
    /// Its fields count as absent.
    Missing,
    /// A rule that depends on them rejects the request with 400.
    #[default]
    Deny,
}

/// What rules know of a request's body.
#[derive(Clone, Copy, Debug, Default)]
pub enum RequestFields<'a> {
    /// Its fields are absent: there is no body, or no rule that may apply reads it.
    #[default]
    Absent,
    /// It has not been read. Whether a rule applies that reads it is unclear.
    Unread,
    /// The values of its fields.
    Fields(&'a Record),
    /// Its fields are unknown, and a rule that reads them rejects it.
    Unreadable(Unreadable),
}

/// A field of bodies that a rule reads.
#[derive(Clone, Debug)]
pub struct BodyField {
    pub field: FieldName,
    /// Its position among all fields that rules read.
    pub index: FieldIndex,
}

/// The position is left out: other rules may change it.
impl PartialEq for BodyField {
    fn eq(&self, other: &Self) -> bool {
        self.field == other.field
    }
}

impl Eq for BodyField {}

impl std::hash::Hash for BodyField {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.field.hash(state);
    }
}

impl BodyField {
    /// Returns the keyword in the configuration.
    pub const fn word(&self) -> &'static str {
        match self.field {
            FieldName::Json(_) => "json",
            FieldName::Form(_) => "form",
        }
    }
}

impl<'a> RequestFields<'a> {
    /// Returns nothing if the fields are known.
    ///
    /// # Errors
    /// [`Ambiguity`] if they are not.
    pub const fn ensure_known(self) -> Result<(), Ambiguity> {
        match self {
            Self::Absent | Self::Fields(_) => Ok(()),
            Self::Unread => Err(Ambiguity::UnreadBody),
            Self::Unreadable(reason) => Err(Ambiguity::Body(reason)),
        }
    }

    /// Returns the text of the field at `index`, if the body has it.
    ///
    /// # Errors
    /// [`Ambiguity`] if that is unknown.
    pub fn field(self, index: FieldIndex) -> Result<Option<&'a str>, Ambiguity> {
        match self {
            Self::Absent => Ok(None),
            Self::Unread => Err(Ambiguity::UnreadBody),
            Self::Fields(record) => Ok(record.get(index).and_then(Option::as_ref).map(|value| &*value.text)),
            Self::Unreadable(reason) => Err(Ambiguity::Body(reason)),
        }
    }
}
