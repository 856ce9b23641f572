//! Fields of a request's body. Reading the body is not part of identifying the request: it arrives later, and most rules do not need it.

use weir_bodies::Unreadable;
use weir_bodies::fields::{FieldIndex, FieldName, FieldSet, Record, Records};

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

/// What was read of a body: the values of its fields, of each element of a batch, or why they are unknown.
#[derive(Clone, Debug)]
pub struct BodyFields {
    pub read: Result<Records, Unreadable>,
    /// Size of the content, if all of it has been read.
    pub size: Option<u64>,
    pub on_unreadable: OnUnreadable,
}

/// A field of bodies that a rule reads.
#[derive(Clone, Debug)]
pub struct BodyField {
    pub field: FieldName,
    /// Its position among all fields that rules read.
    pub index: FieldIndex,
}

impl BodyFields {
    /// Returns those of a request without a body.
    pub fn absent() -> Self {
        Self { read: Ok(Records::new()), size: Some(0), on_unreadable: OnUnreadable::default() }
    }

    /// Returns what rules know of the body, once for each element of a batch.
    pub fn of_elements(&self) -> impl Iterator<Item = RequestFields<'_>> {
        let records = self.read.as_deref().unwrap_or_default();
        let whole = match (&self.read, self.on_unreadable) {
            (Err(reason), OnUnreadable::Deny) => Some(RequestFields::Unreadable(*reason)),
            // An empty batch has no fields either.
            _ => records.is_empty().then_some(RequestFields::Absent),
        };
        records.iter().map(RequestFields::Fields).chain(whole)
    }
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
            FieldName::Json(_) | FieldName::JsonObject(_) | FieldName::JsonCount(_) => "json",
            FieldName::Form(_) => "form",
            FieldName::Graphql(_) => "graphql",
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
