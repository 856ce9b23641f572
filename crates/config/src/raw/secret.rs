//! Secret values of a configuration.

#[cfg(test)]
use std::borrow::Cow;
use std::fmt;

#[cfg(test)]
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;

use super::values::FileName;

/// Path of the map whose keys are secrets: they identify members of plans.
pub(crate) const SECRET_KEYED_MAP: &str = "plans.members";

/// Returns a path with its secret part replaced.
pub(crate) fn redact_path(path: &str) -> &str {
    match path.strip_prefix(SECRET_KEYED_MAP) {
        None | Some("" | ".file") => path,
        Some(_) => "plans.members[…]",
    }
}

/// A value that is never shown. `Debug` masks it. Its schema has `writeOnly`, so problems do not quote it and
/// `/config_dump` omits it.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Returns the value.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
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

/// A secret, or a map with the name of a file that holds it.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum SecretOrFile {
    /// Text of the secret, best taken from the environment, as in `${SECRET}`.
    Text(Secret<String>),
    /// File with the secret. A line break at the end of the file is not part of it.
    File(FileName),
}
