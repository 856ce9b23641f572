//! The values that the schema allows in one place, and how messages describe them.

use serde_json::Value as Schema;
use serde_yaml::{Number, Value};

use crate::diagnostic::ValueError;
use crate::foreign::foreign_word;
use crate::parse::nearest_name;
use crate::quoting::{backquoted, backquoted_list, quoted};
use crate::schema::{is_secret, schema};

const UNQUOTED_HINT: &str = "write it without quotes";

/// The schemas that apply to one value, with references and choices resolved.
#[derive(Debug)]
pub(crate) struct Alternatives<'a> {
    all: Vec<Alternative<'a>>,
    /// The only words that are allowed; empty if any text is, or none.
    words: Vec<&'a str>,
}

/// One of them, and its type.
#[derive(Clone, Copy, Debug)]
struct Alternative<'a> {
    schema: &'a Schema,
    kind: Option<&'a str>,
}

impl<'a> Alternatives<'a> {
    pub(crate) fn from_schema(schema: &'a Schema) -> Self {
        let mut flat = Vec::new();
        collect_alternatives(schema, &mut flat);
        let all: Vec<_> =
            flat.into_iter().map(|schema| Alternative { schema, kind: schema_type(schema) }).collect();
        let strings = all.iter().filter(|one| one.kind == Some("string"));
        let words: Vec<_> = strings.map(|one| allowed_words(one.schema)).collect();
        let is_any_text_allowed = words.iter().any(Vec::is_empty);
        Self { all, words: if is_any_text_allowed { Vec::new() } else { words.concat() } }
    }

    pub(super) fn is_any_allowed(&self) -> bool {
        self.all.iter().any(|one| one.kind.is_none())
    }

    /// Returns the alternative of this kind. `raw` has at most one map and one list in any place.
    pub(crate) fn of_type(&self, type_name: &str) -> Option<&'a Schema> {
        // A whole number is a number.
        let names = [type_name, if type_name == "integer" { "number" } else { type_name }];
        let found = names.into_iter().find_map(|name| self.all.iter().find(|one| one.kind == Some(name)));
        found.map(|one| one.schema)
    }

    /// Returns the problem of a word, if only certain other words are allowed.
    pub(super) fn check_word(&self, text: &str) -> Option<ValueError> {
        let known = &self.words;
        if known.is_empty() || known.contains(&text) {
            return None;
        }
        let expected = if self.of_type("integer").is_some() || known.len() == 1 {
            format!("expected {}", self.describe_all())
        } else {
            format!("expected one of {}", known.join(", "))
        };
        let error = ValueError::new(format!("unknown value {}, {expected}", quoted(text)));
        let map = self.of_type("object").and_then(|map| map.get("properties"));
        if let Some(hint) = foreign_word(text, known) {
            return Some(error.with_hint(hint));
        }
        Some(match nearest_name(text, known.iter().copied()) {
            _ if map.is_some_and(|known| known.get(text).is_some()) => {
                error.with_hint(format!("write `{{ {text}: NAME }}`"))
            }
            Some(word) => error.with_hint(format!("did you mean `{word}`?")),
            None if self.convert_plain(text).is_some() => error.with_hint(UNQUOTED_HINT),
            None => error,
        })
    }

    /// Converts `text` to the number or boolean that is expected here.
    pub(super) fn convert_plain(&self, text: &str) -> Option<Value> {
        let value = parse_plain_scalar(text)?;
        self.of_type(super::type_name(&value)).map(|_| value)
    }

    /// Describes the problem of a value of a kind that is not allowed.
    pub(super) fn mismatch_error(&self, value: &Value) -> ValueError {
        let got = if self.has_secret() { describe_type(value) } else { describe_value(value) };
        let error = ValueError::new(format!("expected {}, got {got}", self.describe_all()));
        match self.mismatch_hint(value) {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }

    fn mismatch_hint(&self, value: &Value) -> Option<String> {
        let title = self.of_type("string").and_then(|schema| schema.get("title")).and_then(Schema::as_str);
        match (value, title) {
            (Value::Number(number), Some("rate")) if number.as_u64() == Some(0) => {
                Some("a limit is at least 1; `action: deny` rejects every request".to_owned())
            }
            (Value::Number(number), Some("rate")) if number.is_u64() => {
                Some(format!("add the period, as in `{number}/s`"))
            }
            (Value::Number(number), Some("duration")) if number.is_u64() => {
                Some(format!("add the unit, as in `{number}s`"))
            }
            (Value::Number(number), Some(kind @ ("address" | "upstream address"))) if is_port(number) => {
                let all = format!(", or `0.0.0.0:{number}` for all addresses");
                let all = if kind == "address" { all.as_str() } else { "" };
                Some(format!("write `127.0.0.1:{number}`{all}"))
            }
            (Value::Number(_), None | Some("header pattern")) if self.is_text_allowed() => {
                Some("put it in quotes".to_owned())
            }
            // Norway's code `NO`, as YAML 1.1 parsers read it.
            (Value::Bool(false), Some("country")) => Some("quote NO".to_owned()),
            (Value::Bool(_), _) if self.is_text_allowed() => {
                Some("put it in quotes to make it text".to_owned())
            }
            (Value::String(text), _) if self.convert_plain(text).is_some() => Some(UNQUOTED_HINT.to_owned()),
            (Value::String(_), None) if self.is_file_reference() => Some("write `{ file: NAME }`".to_owned()),
            (Value::Tagged(tagged), _) if self.is_text_allowed() => {
                let is_text = tagged.value.is_null() && !self.has_secret();
                Some(match is_text {
                    true => format!("quote it: `\"{}\"`", tagged.tag),
                    false => "text that begins with `!` needs quotes".to_owned(),
                })
            }
            // `{id}` without quotes is a map with a key and no value.
            (Value::Mapping(map), _) if self.is_text_allowed() => match map.iter().next() {
                Some((Value::String(name), Value::Null)) if map.len() == 1 && !self.has_secret() => {
                    Some(format!("quote it: `\"{{{name}}}\"`"))
                }
                Some((Value::String(_), Value::Null)) => Some("text with braces needs quotes".to_owned()),
                _ => None,
            },
            (Value::Null, _)
                if self
                    .of_type("array")
                    .is_some_and(|list| list.get("minItems") == Some(&Schema::from(0))) =>
            {
                Some("write `[]` for none".to_owned())
            }
            _ => None,
        }
    }

    /// Whether text here is secret. A secret map of patterns is not secret itself, because problems quote its
    /// patterns.
    pub(crate) fn has_secret(&self) -> bool {
        self.all.iter().any(|one| is_secret(one.schema))
    }

    fn is_file_reference(&self) -> bool {
        let properties =
            self.of_type("object").and_then(|map| map.get("properties")).and_then(Schema::as_object);
        properties.is_some_and(|known| known.len() == 1 && known.contains_key("file"))
    }

    fn is_text_allowed(&self) -> bool {
        self.of_type("string").is_some()
    }

    fn describe_all(&self) -> String {
        let mut nouns: Vec<String> = Vec::new();
        let (collections, scalars): (Vec<_>, Vec<_>) =
            self.all.iter().partition(|one| matches!(one.kind, Some("array" | "object")));
        for Alternative { schema, .. } in scalars.into_iter().chain(collections) {
            let noun = describe_schema(schema);
            if !nouns.contains(&noun) {
                nouns.push(noun);
            }
        }
        match nouns.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => nouns.concat(),
        }
    }
}

/// Returns the number or boolean that `text` is if written without quotes.
pub(super) fn parse_plain_scalar(text: &str) -> Option<Value> {
    match text {
        "true" => Some(Value::Bool(true)),
        "false" => Some(Value::Bool(false)),
        _ if text.starts_with(|first: char| first.is_ascii_digit() || first == '-') => {
            let whole =
                text.parse::<u64>().map(Number::from).or_else(|_| text.parse::<i64>().map(Number::from));
            let number = whole.ok().or_else(|| text.parse::<f64>().ok().map(Number::from));
            number.map(Value::Number)
        }
        _ => None,
    }
}

fn is_port(number: &Number) -> bool {
    number.as_u64().is_some_and(|number| (1..=u64::from(u16::MAX)).contains(&number))
}

/// Describes a value in messages.
pub(super) fn describe_value(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(bool) => bool.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Sequence(_) => "a list".to_owned(),
        Value::Mapping(_) => "a map".to_owned(),
        Value::Tagged(tagged) => format!("the tag {}", backquoted(&tagged.tag.to_string())),
    }
}

/// Describes a value that may be secret in messages.
fn describe_type(value: &Value) -> String {
    match value {
        Value::Bool(_) => "a boolean".to_owned(),
        Value::Number(_) => "a number".to_owned(),
        Value::String(_) => "text".to_owned(),
        Value::Null | Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_) => describe_value(value),
    }
}

/// Returns the schema that a reference points to.
pub(super) fn resolve_reference(mut given: &Schema) -> &Schema {
    while let Some(name) = given.get("$ref").and_then(Schema::as_str).and_then(|path| path.strip_prefix("#/"))
    {
        let mut target = Some(schema());
        for step in name.split('/') {
            target = target.and_then(|schema| schema.get(step));
        }
        match target {
            Some(target) => given = target,
            None => break,
        }
    }
    given
}

fn collect_alternatives<'a>(schema: &'a Schema, flat: &mut Vec<&'a Schema>) {
    let schema = resolve_reference(schema);
    match schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Schema::as_array) {
        Some(choices) => choices.iter().for_each(|choice| collect_alternatives(choice, flat)),
        None => flat.push(schema),
    }
}

fn schema_type(schema: &Schema) -> Option<&str> {
    schema.get("type").and_then(Schema::as_str)
}

/// Returns the allowed words of a text; empty if any text is allowed.
fn allowed_words(schema: &Schema) -> Vec<&str> {
    let listed = schema.get("enum").and_then(Schema::as_array).into_iter().flatten();
    listed.chain(schema.get("const")).filter_map(Schema::as_str).collect()
}

fn describe_schema(schema: &Schema) -> String {
    let title = schema.get("title").and_then(Schema::as_str);
    let example = schema.get("examples").and_then(|examples| examples.get(0)).and_then(Schema::as_str);
    match (schema_type(schema), title, example) {
        (Some("string"), Some(title), Some(example)) => {
            let article = if title.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
            format!("{article} {title} such as `{example}`")
        }
        (Some("string"), ..) if !allowed_words(schema).is_empty() => backquoted_list(allowed_words(schema)),
        (Some("string"), ..) => "text".to_owned(),
        (Some("integer"), ..) => "a whole number".to_owned(),
        (Some("number"), ..) => "a number".to_owned(),
        (Some("boolean"), ..) => match schema.get("const") {
            Some(only) => format!("`{only}`"),
            None => "`true` or `false`".to_owned(),
        },
        (Some("array"), ..) => "a list".to_owned(),
        _ => "a map".to_owned(),
    }
}
