//! Secrets of a configuration.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;

use super::values::FileName;

/// The map whose keys are secrets: members of plans are known by them.
pub(in crate::config) const SECRET_KEYS: &str = "plans.members";

/// A path without the secrets that stand in it.
pub(in crate::config) fn shown_path(path: &str) -> &str {
    match path.strip_prefix(SECRET_KEYS) {
        None | Some("" | ".file") => path,
        Some(_) => "plans.members[…]",
    }
}

/// A value that must not be shown. Its type alone says so: `Debug` masks it, and its schema has `writeOnly`, by which
/// problems do not repeat it and `/config_dump` leaves it out.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// The value, for what needs it.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl<T: JsonSchema> JsonSchema for Secret<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Secret_{}", T::schema_name()).into()
    }

    fn schema_id() -> Cow<'static, str> {
        format!("Secret<{}>", T::schema_id()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = T::json_schema(generator);
        schema.insert("writeOnly".to_owned(), true.into());
        schema
    }
}

/// A secret, or the name of a file that holds it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SecretOrFile {
    /// As it is; better from the environment, as in `${SECRET}`.
    Text(Secret<String>),
    /// What a file holds, without a line break at its end.
    File(FileName),
}
