//! Hints for YAML's own traps: characters that mean something else without quotes, tabs, and indentation.
//!
//! Works on the line of the error, and guesses: a hint is a suggestion beside the parser's message. Values may be
//! secret, so they are repeated only behind a key of the schema that is not.

use crate::foreign::line_hint;
use crate::schema::schema;
use weir_yaml::Position;

/// Maximum length of a value that a hint repeats, in characters.
const MAX_REPEATED_CHARS: usize = 80;

/// Words in the names of keys whose values are not repeated.
const SECRET_WORDS: [&str; 6] = ["secret", "password", "authorization", "token", "redis", "key"];

pub(super) fn syntax_hint(text: &str, at: Position) -> Option<String> {
    let line_at = |line: usize| text.lines().nth(line.checked_sub(1)?);
    // An unfinished value is reported behind the last line.
    let line = line_at(at.line).unwrap_or_default();
    if indentation(line).contains('\t') {
        return Some("indent with spaces, not with tabs".to_owned());
    }
    let above = at.line.checked_sub(1).and_then(line_at);
    let below = line_at(at.line.saturating_add(1));
    if below.is_some_and(|below| indentation(below).contains('\t')) {
        return Some("indent with spaces, not with tabs".to_owned());
    }
    if let Some(hint) = [above, Some(line)].into_iter().flatten().find_map(line_hint) {
        return Some(hint);
    }
    // The parser may report an unfinished value only in the line below.
    [Some(line), above]
        .into_iter()
        .flatten()
        .find_map(quoting_hint)
        .or_else(|| indentation_hint(line, above?))
}

fn indentation(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

/// A value in a line, up to the end of the line or, in a flow collection, up to the next delimiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlainValue<'t> {
    /// The key before it; empty for an item.
    key: &'t str,
    text: &'t str,
    is_in_flow: bool,
}

/// Returns a hint if a value in the line needs quotes.
fn quoting_hint(line: &str) -> Option<String> {
    let value = plain_values(line).into_iter().find(needs_quotes)?;
    let is_shown = schema_has_key(value.key)
        && !SECRET_WORDS.iter().any(|word| value.key.contains(word))
        && value.text.chars().count() <= MAX_REPEATED_CHARS;
    let name = value.text.strip_prefix('*').unwrap_or_default();
    if !name.is_empty() && is_shown && name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Some(format!("define the anchor `&{name}` first, or quote it: `\"*{name}\"`"));
    }
    Some(match is_shown {
        true => format!("quote it: `{}: {}`", value.key, quote(value.text)),
        false => format!("quote the value, as in {}", example(value.text)),
    })
}

fn needs_quotes(value: &PlainValue<'_>) -> bool {
    let text = value.text;
    let begins_with_indicator = text.starts_with(['*', '@', '%', '`', '&']);
    let is_bracketed_address = text.starts_with('[') && text.contains("]:");
    let has_braces = value.is_in_flow && text.contains('{') && !text.starts_with('{');
    let is_split =
        !value.is_in_flow && text.contains(": ") && !text.starts_with(['{', '[', '"', '\'', '|', '>']);
    begins_with_indicator || is_bracketed_address || has_braces || is_split
}

/// Returns an example of quoting for the kind of mistake, without the value.
fn example(text: &str) -> &'static str {
    match text.chars().next() {
        Some('*') => "`\"*.example.com\"`",
        Some('@') => "`\"@name\"`",
        Some('%') => "`\"%20\"`",
        Some('[') => "`\"[::]:8080\"`",
        _ if text.contains('{') => "`\"/users/{id}\"`",
        _ => "`\"a: b\"`",
    }
}

/// Quotes a value: in single quotes if double quotes would need escapes.
fn quote(text: &str) -> String {
    if text.contains(['"', '\\']) { format!("'{}'", text.replace('\'', "''")) } else { format!("\"{text}\"") }
}

/// Returns the values of a line that are not quoted.
fn plain_values(line: &str) -> Vec<PlainValue<'_>> {
    let mut content = line.trim();
    while let Some(rest) = content.strip_prefix("- ") {
        content = rest.trim_start();
    }
    let mut values = Vec::new();
    let (key, rest) = match split_key(content) {
        Some((key, rest)) => (key, rest),
        None => ("", content),
    };
    let rest = strip_comment(rest).trim();
    if rest.starts_with('{') || rest.starts_with('[') && !rest.contains("]:") {
        collect_flow_values(rest, key, &mut values);
    } else if !rest.is_empty() && !rest.starts_with(['"', '\'']) {
        values.push(PlainValue { key, text: rest, is_in_flow: false });
    }
    values
}

/// Splits `key: value`; `None` if there is no plain key.
fn split_key(content: &str) -> Option<(&str, &str)> {
    let (key, rest) = content.split_once(": ")?;
    let is_plain = !key.is_empty() && !key.contains(['{', '[', '"', '\'', ' ', '#']);
    is_plain.then_some((key, rest))
}

fn strip_comment(text: &str) -> &str {
    text.split_once(" #").map_or(text, |(value, _)| value)
}

/// Collects the scalars of a flow collection. Braces inside a scalar belong to it, as they were meant.
fn collect_flow_values<'t>(text: &'t str, outer_key: &'t str, values: &mut Vec<PlainValue<'t>>) {
    let (mut key, mut start, mut quoted, mut braces) = (outer_key, None::<usize>, None::<char>, 0_usize);
    let mut previous = ' ';
    for (at, letter) in text.char_indices() {
        let begun = std::mem::replace(&mut previous, letter);
        if let Some(quote) = quoted {
            quoted = (letter != quote).then_some(quote);
            continue;
        }
        match (letter, start) {
            ('"' | '\'', None) => quoted = Some(letter),
            ('{', Some(_)) => braces += 1,
            ('}', Some(_)) if braces > 0 => braces -= 1,
            (',' | ']' | '}', Some(from)) => {
                values.push(PlainValue { key, text: text[from..at].trim(), is_in_flow: true });
                start = None;
            }
            (' ', Some(from)) if begun == ':' => {
                key = text[from..at].trim_end_matches(':');
                start = None;
            }
            ('{' | '[' | '}' | ']' | ',' | ' ' | ':', None) => {}
            (_, None) => start = Some(at),
            (_, Some(_)) => {}
        }
    }
    if let Some(from) = start {
        values.push(PlainValue { key, text: text[from..].trim(), is_in_flow: true });
    }
}

/// Whether any map of the configuration has this key.
fn schema_has_key(key: &str) -> bool {
    let of =
        |schema: &serde_json::Value| schema.get("properties").is_some_and(|known| known.get(key).is_some());
    let definitions = schema().get("$defs").and_then(serde_json::Value::as_object);
    !key.is_empty()
        && (of(schema()) || definitions.into_iter().flatten().any(|(_, definition)| of(definition)))
}

/// Returns a hint if the line is a key that is indented further than the key above.
fn indentation_hint(line: &str, above: &str) -> Option<String> {
    let key = |line: &'_ str| {
        let content = line.trim_start();
        let content = content.strip_prefix("- ").map_or(content, str::trim_start);
        let (key, value) = content.split_once(':')?;
        let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_key.then(|| (line.len() - content.len(), key.to_owned(), !value.trim().is_empty()))
    };
    let ((column, name, _), (column_above, _, has_value)) = (key(line)?, key(above)?);
    (column > column_above && has_value)
        .then(|| format!("`{name}` is indented further than the key above, which has a value already"))
}

#[cfg(test)]
mod tests {
    use crate::tree;

    /// Returns the hint for a configuration with these lines.
    fn hint(text: &str) -> Option<String> {
        let problems = tree::parse(text, std::path::Path::new("w")).unwrap_err();
        assert!(problems[0].message.starts_with("not valid YAML"), "{problems:?}");
        problems[0].hint.clone()
    }

    #[test]
    fn values_that_need_quotes_are_shown_with_quotes() {
        for (text, expected) in [
            ("host: *.example.com", "quote it: `host: \"*.example.com\"`"),
            ("match: { host: *.example.com, path: /a }", "quote it: `host: \"*.example.com\"`"),
            ("match: { path: /users/{id} }", "quote it: `path: \"/users/{id}\"`"),
            ("match: { path: [/a, /users/{id}/*] }", "quote it: `path: \"/users/{id}/*\"`"),
            ("name: @team", "quote it: `name: \"@team\"`"),
            ("name: `a`", "quote it: `name: \"`a`\"`"),
            ("name: %a", "quote it: `name: \"%a\"`"),
            ("name: a: b", "quote it: `name: \"a: b\"`"),
            ("host: @\\d", "quote it: `host: '@\\d'`"),
            ("address: [::]:8080", "quote it: `address: \"[::]:8080\"`"),
        ] {
            assert_eq!(hint(text).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn values_that_may_be_secret_are_not_repeated() {
        for text in ["secret: @abc", "x-weir: *abc", "8c1f: @pro", "password: a: b", "- *abc"] {
            let hint = hint(text).unwrap();
            assert!(hint.starts_with("quote the value, as in") && !hint.contains("abc"), "{text}: {hint}");
        }
    }

    #[test]
    fn tabs_and_indentation_have_hints() {
        assert_eq!(hint("a:\n\t- b").as_deref(), Some("indent with spaces, not with tabs"));
        let deeper = "rules:\n  - name: a\n     limit: 5/s\n";
        assert_eq!(
            hint(deeper).as_deref(),
            Some("`limit` is indented further than the key above, which has a value already")
        );
    }

    #[test]
    fn other_errors_have_no_hint() {
        for text in ["key: [a\nlimit: 5/s", "a: \"b", "{ a: 1"] {
            assert_eq!(hint(text), None, "{text}");
        }
    }
}
