//! Fields of bodies: the section `bodies`, and `json` and `form` in matchers and keys.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::context::{CompileContext, MatcherOwner};
use super::patterns::compile_scalars;
use crate::at::At;
use crate::defaults;
use crate::diagnostic::ValueError;
use crate::parse;
use crate::quoting::quoted;
use crate::raw;
use weir_bodies::fields::{FieldName, FieldSet, MAX_FIELDS};
use weir_bodies::path::Path;
use weir_policy::identify::body::{BodyField, BodySettings};
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::matcher::Condition;

/// The sizes that `bodies.max` may have.
const SIZES: std::ops::RangeInclusive<u64> = 1024..=16 * 1024 * 1024;

/// Compiles `bodies`, for the `fields` that rules read.
pub(super) fn compile(
    raw: Option<&raw::Bodies>,
    at: At<'_>,
    fields: Vec<FieldName>,
) -> Option<Arc<BodySettings>> {
    let empty = raw::Bodies::default();
    let raw::Bodies { max, on_unreadable } = raw.unwrap_or(&empty);
    let max = max
        .as_ref()
        .and_then(|size| at.key("max").ok(parse_max(&size.0)))
        .unwrap_or(defaults::MAX_BODY_PREFIX);
    if raw.is_some() && fields.is_empty() && !at.is_reported() {
        let note = ValueError::new("not used, because no rule has a `json`, `form` or `graphql` field");
        at.note(note.with_hint("add such a field to a rule, or remove `bodies`"));
    }
    let settings =
        BodySettings { fields: FieldSet::new(fields), max, on_unreadable: on_unreadable.unwrap_or_default() };
    (!settings.fields.is_empty()).then(|| Arc::new(settings))
}

fn parse_max(text: &str) -> Result<usize, ValueError> {
    let size = parse::size(text)?;
    let within = usize::try_from(size).ok().filter(|_| SIZES.contains(&size));
    within.ok_or_else(|| ValueError::new(format!("expected 1KiB to 16MiB, got {}", quoted(text))))
}

/// Parses the name of a field in one kind of body.
pub(super) type FieldParser = fn(&str) -> Result<FieldName, ValueError>;

/// Parses the path of a field in a JSON body.
pub(super) fn json_field(text: &str) -> Result<FieldName, ValueError> {
    if let Some(path) = text.strip_prefix("$.") {
        let error =
            ValueError::new(format!("a path begins with a key of the document, got {}", quoted(text)));
        return Err(error.with_hint(format!("write `{path}`")));
    }
    let path = text.parse::<Path>().map_err(|error| {
        let error = ValueError::new(format!("not a path: {error}, got {}", quoted(text)));
        error.with_hint("write keys with dots and indices, as in `params.name` or `items[0].id`")
    })?;
    Ok(FieldName::Json(Arc::new(path)))
}

/// Parses the name of a field in a form.
pub(super) fn form_field(text: &str) -> Result<FieldName, ValueError> {
    if text.is_empty() {
        Err(ValueError::new("empty, expected the name of a field"))
    } else {
        Ok(FieldName::Form(text.into()))
    }
}

/// Compiles `json` or `form` of a matcher.
pub(super) fn compile_conditions(
    map: &BTreeMap<String, raw::OneOrMany<raw::ClaimPattern>>,
    parse: FieldParser,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Vec<Condition> {
    if map.is_empty() && !at.is_reported() {
        at.error("empty map, expected at least one field");
    }
    let read = |(name, patterns): (&String, &raw::OneOrMany<raw::ClaimPattern>)| {
        let at = at.key(name);
        let attribute = Attribute::Body(register(parse(name), at, context)?);
        Some(Condition { attribute, patterns: compile_scalars(patterns, at) })
    };
    map.iter().filter_map(read).collect()
}

/// Compiles a part of a key that is a field of a body, of either kind if both have a name for it.
pub(super) fn compile_key_part(
    json: Option<&str>,
    form: Option<&str>,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Option<Attribute> {
    let json = json.map(|path| register(json_field(path), at.key("json"), context));
    let form = form.map(|name| register(form_field(name), at.key("form"), context));
    match (json, form) {
        (Some(json), Some(form)) => Some(Attribute::EitherBody(Box::new([json?, form?]))),
        (json, form) => json.or(form)?.map(Attribute::Body),
    }
}

/// Registers a field as used.
pub(super) fn register(
    field: Result<FieldName, ValueError>,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Option<BodyField> {
    if context.matcher_owner != MatcherOwner::Rule {
        let error = ValueError::new("fields of bodies are for rules of proxied requests only");
        at.key_error(
            error.with_hint("the body arrives after the upstream is chosen, and descriptors have none"),
        );
        return None;
    }
    add_used(field, &context.used_fields.requests, "bodies", at)
}

/// Adds a field to those that are `used` of requests or responses.
pub(super) fn add_used(
    field: Result<FieldName, ValueError>,
    used: &RefCell<Vec<FieldName>>,
    of: &str,
    at: At<'_>,
) -> Option<BodyField> {
    let field = match field {
        Ok(field) => field,
        Err(error) => {
            at.key_error(error);
            return None;
        }
    };
    let mut used = used.borrow_mut();
    let index = used.iter().position(|known| *known == field).unwrap_or(used.len());
    if index == MAX_FIELDS {
        at.key_error(format!("rules read at most {MAX_FIELDS} fields of {of}"));
        return None;
    }
    if index == used.len() {
        used.push(field.clone());
    }
    Some(BodyField { field, index })
}
