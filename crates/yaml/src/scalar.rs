//! Scalars and their meaning.

use std::rc::Rc;

use super::events::ScalarStyle;
use super::{Dialect, YamlErrorKind, core_schema, go_schema};

/// The prefix of YAML's own tags.
const YAML_TAG_PREFIX: &str = "tag:yaml.org,2002:";

/// A scalar, with its text and meaning.
#[derive(Clone, Debug)]
pub struct Scalar {
    pub text: Rc<str>,
    pub kind: ScalarKind,
}

/// The meaning of a scalar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalarKind {
    Null,
    Bool(bool),
    Int(i64),
    /// An integer above `i64::MAX`.
    LargeInt(u64),
    Float(f64),
    /// `<<`, in Go's YAML.
    Merge,
    Text,
}

impl Scalar {
    pub(super) fn parse(
        text: &str,
        style: ScalarStyle,
        tag: Option<&str>,
        dialect: Dialect,
    ) -> Result<Self, YamlErrorKind> {
        let is_plain = style == ScalarStyle::Plain;
        let kind = match (tag.map(|tag| (tag, tag.strip_prefix(YAML_TAG_PREFIX))), dialect) {
            (None, Dialect::Core) if is_plain => core_schema::resolve_plain(text)?,
            (Some((tag, _)), Dialect::Core) if is_plain && tag.starts_with('!') => {
                core_schema::resolve_plain(text)?
            }
            (Some((_, Some(tag_name @ ("null" | "bool" | "int" | "float")))), Dialect::Core) => {
                core_schema::resolve_tagged(text, tag_name)?
            }
            (None, Dialect::Go) if is_plain => go_schema::resolve_plain(text),
            (Some((_, Some("str" | "binary") | None)), Dialect::Go) => ScalarKind::Text,
            (Some((_, Some(tag_name))), Dialect::Go)
                if is_plain || matches!(tag_name, "int" | "float" | "bool" | "null") =>
            {
                go_schema::resolve_plain(text)
            }
            _ => ScalarKind::Text,
        };
        Ok(Self { text: text.into(), kind })
    }
}
