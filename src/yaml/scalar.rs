//! Scalars and their meaning.

use std::rc::Rc;

use super::events::ScalarStyle;
use super::{Dialect, Problem, core, go};

/// The prefix of YAML's own tags.
const OWN: &str = "tag:yaml.org,2002:";

/// A scalar, with its text and meaning.
#[derive(Clone, Debug)]
pub(crate) struct Scalar {
    pub(crate) text: Rc<str>,
    pub(crate) kind: Kind,
}

/// The meaning of a scalar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Null,
    Bool(bool),
    Int(i64),
    /// An integer above `i64::MAX`.
    Large(u64),
    Float(f64),
    /// `<<`, in Go's YAML.
    Merge,
    Text,
}

impl Scalar {
    pub(super) fn read(
        text: &str,
        style: ScalarStyle,
        tag: Option<&str>,
        dialect: Dialect,
    ) -> Result<Self, Problem> {
        let is_plain = style == ScalarStyle::Plain;
        let kind = match (tag.map(|tag| (tag, tag.strip_prefix(OWN))), dialect) {
            (None, Dialect::Core) if is_plain => core::plain(text)?,
            (Some((tag, _)), Dialect::Core) if is_plain && tag.starts_with('!') => core::plain(text)?,
            (Some((_, Some(wanted @ ("null" | "bool" | "int" | "float")))), Dialect::Core) => {
                core::tagged(text, wanted)?
            }
            (None, Dialect::Go) if is_plain => go::plain(text),
            (Some((_, Some("str" | "binary") | None)), Dialect::Go) => Kind::Text,
            (Some((_, Some(wanted))), Dialect::Go)
                if is_plain || matches!(wanted, "int" | "float" | "bool" | "null") =>
            {
                go::plain(text)
            }
            _ => Kind::Text,
        };
        Ok(Self { text: text.into(), kind })
    }
}
