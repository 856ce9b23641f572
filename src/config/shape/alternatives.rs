//! The values that the schema allows in one place, and how messages describe them.

use serde_json::Value as Schema;
use serde_yaml::{Number, Value};

use crate::config::parse::nearest;
use crate::config::problem::{Fault, listed, named, quoted};
use crate::config::schema::{is_secret, schema};

const WITHOUT_QUOTES: &str = "write it without quotes";

/// The schemas that apply to one value, with references and choices resolved.
#[derive(Debug)]
pub(in crate::config) struct Alternatives<'a>(Vec<&'a Schema>);

impl<'a> Alternatives<'a> {
    pub(in crate::config) fn of(schema: &'a Schema) -> Self {
        let mut flat = Vec::new();
        collect(schema, &mut flat);
        Self(flat)
    }

    /// Whether any value is allowed.
    pub(super) fn any(&self) -> bool {
        self.0.iter().any(|schema| kind(schema).is_none())
    }

    /// Returns the alternative of this kind. `raw` has at most one map and one list in any place.
    pub(in crate::config) fn one(&self, wanted: &str) -> Option<&'a Schema> {
        self.0.iter().copied().find(|schema| kind(schema) == Some(wanted))
    }

    /// Returns the problem of a word, if only certain other words are allowed.
    pub(super) fn refuses_word(&self, text: &str) -> Option<Fault> {
        let strings = || self.0.iter().filter(|schema| kind(schema) == Some("string"));
        if strings().any(|schema| words(schema).is_empty()) {
            return None;
        }
        let known: Vec<_> = strings().flat_map(|schema| words(schema)).collect();
        if known.is_empty() || known.contains(&text) {
            return None;
        }
        let expected = if self.one("integer").is_some() {
            format!("expected {}", self.nouns())
        } else {
            format!("expected one of {}", known.join(", "))
        };
        let fault = Fault::new(format!("unknown value {}, {expected}", quoted(text)));
        let map = self.one("object").and_then(|map| map.get("properties"));
        Some(match nearest(text, known) {
            _ if map.is_some_and(|known| known.get(text).is_some()) => {
                fault.hint(format!("write `{{ {text}: NAME }}`"))
            }
            Some(word) => fault.hint(format!("did you mean `{word}`?")),
            None if self.plain(text).is_some() => fault.hint(WITHOUT_QUOTES),
            None => fault,
        })
    }

    /// Converts `text` to the number or boolean that is expected here.
    pub(super) fn plain(&self, text: &str) -> Option<Value> {
        let value = plain_scalar(text)?;
        let wanted = if value.is_bool() { "boolean" } else { "integer" };
        self.one(wanted).map(|_| value)
    }

    /// Describes the problem of a value of a kind that is not allowed.
    pub(super) fn mismatch(&self, value: &Value) -> Fault {
        let got = if self.are_secret() { describe_type(value) } else { describe(value) };
        let fault = Fault::new(format!("expected {}, got {got}", self.nouns()));
        match self.advice(value) {
            Some(hint) => fault.hint(hint),
            None => fault,
        }
    }

    fn advice(&self, value: &Value) -> Option<String> {
        let title = self.one("string").and_then(|schema| schema.get("title")).and_then(Schema::as_str);
        match (value, title) {
            (Value::Number(number), Some("rate")) if number.is_u64() => {
                Some(format!("add the period, as in `{number}/s`"))
            }
            (Value::Number(number), Some("duration")) if number.is_u64() => {
                Some(format!("add the unit, as in `{number}s`"))
            }
            (Value::Number(_), None | Some("header pattern")) if self.takes_text() => {
                Some("put it in quotes".to_owned())
            }
            // Norway's code `NO`, as YAML 1.1 parsers read it.
            (Value::Bool(false), Some("country")) => Some("quote NO".to_owned()),
            (Value::Bool(_), _) if self.takes_text() => Some("put it in quotes to make it text".to_owned()),
            (Value::String(text), _) if self.plain(text).is_some() => Some(WITHOUT_QUOTES.to_owned()),
            (Value::String(_), None) if self.names_a_file() => Some("write `{ file: NAME }`".to_owned()),
            (Value::Null, _)
                if self.one("array").is_some_and(|list| list.get("minItems") == Some(&Schema::from(0))) =>
            {
                Some("write `[]` for none".to_owned())
            }
            _ => None,
        }
    }

    /// Whether text here is secret. A secret map of patterns is not secret itself, because problems quote its
    /// patterns.
    pub(in crate::config) fn are_secret(&self) -> bool {
        self.0.iter().any(|schema| is_secret(schema))
    }

    fn names_a_file(&self) -> bool {
        let properties = self.one("object").and_then(|map| map.get("properties")).and_then(Schema::as_object);
        properties.is_some_and(|known| known.len() == 1 && known.contains_key("file"))
    }

    fn takes_text(&self) -> bool {
        self.one("string").is_some()
    }

    fn nouns(&self) -> String {
        let mut nouns: Vec<String> = Vec::new();
        let (collections, scalars): (Vec<_>, Vec<_>) =
            self.0.iter().partition(|schema| matches!(kind(schema), Some("array" | "object")));
        for schema in scalars.into_iter().chain(collections) {
            let noun = noun(schema);
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
pub(super) fn plain_scalar(text: &str) -> Option<Value> {
    match text {
        "true" => Some(Value::Bool(true)),
        "false" => Some(Value::Bool(false)),
        _ if text.starts_with(|first: char| first.is_ascii_digit() || first == '-') => {
            let number =
                text.parse::<u64>().map(Number::from).or_else(|_| text.parse::<i64>().map(Number::from));
            number.ok().map(Value::Number)
        }
        _ => None,
    }
}

/// Describes a value in messages.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(bool) => bool.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Sequence(_) => "a list".to_owned(),
        Value::Mapping(_) => "a map".to_owned(),
        Value::Tagged(tagged) => format!("the tag {}", named(&tagged.tag.to_string())),
    }
}

/// Describes a value that may be secret in messages.
fn describe_type(value: &Value) -> String {
    match value {
        Value::Bool(_) => "a boolean".to_owned(),
        Value::Number(_) => "a number".to_owned(),
        Value::String(_) => "text".to_owned(),
        Value::Null | Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_) => describe(value),
    }
}

/// Returns the schema that a reference points to.
pub(super) fn resolve(mut given: &Schema) -> &Schema {
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

fn collect<'a>(schema: &'a Schema, flat: &mut Vec<&'a Schema>) {
    let schema = resolve(schema);
    match schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Schema::as_array) {
        Some(choices) => choices.iter().for_each(|choice| collect(choice, flat)),
        None => flat.push(schema),
    }
}

fn kind(schema: &Schema) -> Option<&str> {
    schema.get("type").and_then(Schema::as_str)
}

/// Returns the allowed words of a text; empty if any text is allowed.
fn words(schema: &Schema) -> Vec<&str> {
    let listed = schema.get("enum").and_then(Schema::as_array).into_iter().flatten();
    listed.chain(schema.get("const")).filter_map(Schema::as_str).collect()
}

fn noun(schema: &Schema) -> String {
    let title = schema.get("title").and_then(Schema::as_str);
    let example = schema.get("examples").and_then(|examples| examples.get(0)).and_then(Schema::as_str);
    match (kind(schema), title, example) {
        (Some("string"), Some(title), Some(example)) => {
            let article = if title.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
            format!("{article} {title} such as `{example}`")
        }
        (Some("string"), ..) if !words(schema).is_empty() => listed(words(schema)),
        (Some("string"), ..) => "text".to_owned(),
        (Some("integer"), ..) => "a whole number".to_owned(),
        (Some("boolean"), ..) => match schema.get("const") {
            Some(only) => format!("`{only}`"),
            None => "`true` or `false`".to_owned(),
        },
        (Some("array"), ..) => "a list".to_owned(),
        _ => "a map".to_owned(),
    }
}
