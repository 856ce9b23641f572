//! The cost of GraphQL requests.

use std::sync::Arc;

use super::map_items;
use crate::at::At;
use crate::defaults;
use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use crate::raw;
use weir_bodies::fields::{FieldName, GraphqlComplexity};

/// Maximum number of names in `lists`.
const MAX_LISTS: usize = 32;

/// Compiles `depth` and `lists` of a cost at `at`.
pub(super) fn complexity(raw: &raw::VariableCost, at: At<'_>) -> FieldName {
    let max_depth = raw.depth.unwrap_or(defaults::GRAPHQL_DEPTH);
    let lists_at = at.key("lists");
    let lists: Box<[Box<str>]> = match &raw.lists {
        None => defaults::GRAPHQL_LISTS.map(Into::into).into(),
        Some(names) => map_items(names, lists_at, |name, at| at.ok(parse_name(name))).into(),
    };
    if lists.len() > MAX_LISTS {
        lists_at.error(format!("expected at most {MAX_LISTS} names, got {}", lists.len()));
    }
    FieldName::Graphql(Arc::new(GraphqlComplexity { max_depth, lists }))
}

/// Parses the name of an argument (GraphQL, section 2.1.9).
fn parse_name(name: &str) -> Result<Box<str>, ValueError> {
    let is_valid = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
    let begins_with_digit = name.starts_with(|first: char| first.is_ascii_digit());
    if name.is_empty() || begins_with_digit || !name.bytes().all(is_valid) {
        return Err(ValueError::new(format!("expected the name of an argument, got {}", quoted(name))));
    }
    Ok(name.into())
}
