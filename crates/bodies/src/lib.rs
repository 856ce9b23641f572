//! Fields of bodies that rules use: of JSON documents and of forms.
//!
//! This is the only code that looks into bodies. It reads a body in the pieces in which it arrives, without a tree of its values and without
//! recursion, and keeps only the fields of a [`fields::FieldSet`]. A body that other programs may read differently is [`Unreadable`], so that
//! a second spelling of a field never evades a limit.

pub mod coding;
pub mod computed;
pub mod fields;
pub mod form;
pub mod graphql;
pub mod json;
pub mod path;
pub mod reader;
pub mod response;
pub mod usage_option;
mod utf8;

/// Why the fields of a body are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unreadable {
    /// It is not JSON (RFC 8259), or not UTF-8.
    #[error("the body is not valid JSON")]
    Invalid,
    /// It is nested deeper than [`json::MAX_DEPTH`].
    #[error("the body is nested deeper than 64 levels")]
    TooDeep,
    /// It states a field twice, or once more in other letters of the same name, of which programs use one or the other.
    #[error("the body has two values of one field")]
    Duplicate,
    /// It is longer than what may be held, before all fields are known.
    #[error("the body is longer than `bodies.max`")]
    TooLong,
    /// It is a batch of more than [`json::MAX_BATCH`] elements.
    #[error("the body is a batch of more than 100 elements")]
    TooManyElements,
    /// Its content type is none that is read.
    #[error("the body has a content type without fields")]
    ContentType,
    /// Its content coding is not known, or its content does not have it.
    #[error("the body cannot be decoded")]
    Coding,
    /// It is no GraphQL request that a service would execute.
    #[error("the request has no valid GraphQL operation")]
    Graphql,
    /// Its GraphQL document is deeper than the rule allows, or longer than [`graphql::MAX_TOKENS`].
    #[error("the GraphQL operation is too deep or too long")]
    GraphqlTooLarge,
}

impl Unreadable {
    /// All reasons, in order of declaration.
    pub const ALL: [Self; 9] = [
        Self::Invalid,
        Self::TooDeep,
        Self::Duplicate,
        Self::TooLong,
        Self::TooManyElements,
        Self::ContentType,
        Self::Coding,
        Self::Graphql,
        Self::GraphqlTooLarge,
    ];

    /// Returns the name of the reason in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::TooDeep => "too_deep",
            Self::Duplicate => "duplicate",
            Self::TooLong => "too_long",
            Self::TooManyElements => "too_many_elements",
            Self::ContentType => "content_type",
            Self::Coding => "coding",
            Self::Graphql => "graphql",
            Self::GraphqlTooLarge => "graphql_too_large",
        }
    }
}
