//! Formatting of rules as YAML.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::remark::{Effect, Remark};

/// Maximum length of a generated name. The limit is 128; the rest is reserved for a number suffix.
const MAX_NAME_LENGTH: usize = 120;

/// A rule to be written: its keys with their values in flow style.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleText {
    /// Comments above the rule.
    pub(super) comments: Vec<Remark>,
    /// Keys and values, in order.
    pub(super) fields: Vec<(&'static str, String)>,
}

impl RuleText {
    pub(super) fn add_comment(&mut self, comment: impl Into<String>) {
        self.add_remark(Remark::new(Effect::None, comment));
    }

    /// Adds a comment, unless it is there.
    pub(super) fn add_remark(&mut self, remark: Remark) {
        if !self.comments.contains(&remark) {
            self.comments.push(remark);
        }
    }

    /// Returns the value of a key, as written.
    pub(super) fn field(&self, key: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| *known == key).map(|(_, value)| value.as_str())
    }

    pub(super) fn set(&mut self, key: &'static str, value: impl Into<String>) {
        self.fields.push((key, value.into()));
    }
}

/// An element of a list of rules.
#[derive(Clone, Debug)]
pub(super) enum RuleListItem {
    /// A part that could not be expressed as a rule.
    Comment(Remark),
    Rule(RuleText),
}

/// Returns the whole text: `head` as comments, then the rules, then `tail` as comments.
pub(super) fn format_rules(head: &[String], items: &[RuleListItem], tail: &[Remark]) -> String {
    let mut text = String::new();
    head.iter().for_each(|line| write_comment(&mut text, "", line));
    let is_empty = !items.iter().any(|item| matches!(item, RuleListItem::Rule(_)));
    text.push_str(if is_empty { "rules: []\n" } else { "rules:\n" });
    for item in items {
        match item {
            RuleListItem::Comment(remark) => write_comment(&mut text, "  ", &remark.comment()),
            RuleListItem::Rule(rule) => {
                rule.comments.iter().for_each(|remark| write_comment(&mut text, "  ", &remark.comment()));
                for (index, (key, value)) in rule.fields.iter().enumerate() {
                    let bullet = if index == 0 { "- " } else { "  " };
                    // Writing to a `String` cannot fail.
                    let _ = writeln!(text, "  {bullet}{key}: {value}");
                }
            }
        }
    }
    if !tail.is_empty() {
        write_comment(&mut text, "", "Not imported, by position:");
        tail.iter().for_each(|remark| write_comment(&mut text, "", &remark.comment()));
    }
    text
}

fn write_comment(text: &mut String, indent: &str, line: &str) {
    let _ = write!(text, "{indent}# ");
    // Escapes line breaks, because the comment may contain text from the file and must stay on one line.
    line.chars().for_each(|letter| match letter.is_control() || is_line_break(letter) {
        true => text.extend(letter.escape_unicode()),
        false => text.push(letter),
    });
    text.push('\n');
}

/// Characters that some YAML parsers treat as line breaks or do not accept.
fn is_line_break(letter: char) -> bool {
    matches!(letter, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// Formats `text` as a scalar, quoted unless it is a plain word. Escapes references to variables.
pub(super) fn scalar(text: &str) -> String {
    const RESERVED_WORDS: [&str; 10] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n", "nan"];
    let is_word = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
        && !RESERVED_WORDS.contains(&text.to_ascii_lowercase().as_str());
    if is_word {
        return text.to_owned();
    }
    let mut quoted = String::from('"');
    for letter in text.replace("${", "$${").chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            _ if letter.is_control() || is_line_break(letter) => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(letter));
            }
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// Formats keys and values as a map on one line.
pub(super) fn map<K: AsRef<str>, V: AsRef<str>>(entries: impl IntoIterator<Item = (K, V)>) -> String {
    let entry = |(key, value): (K, V)| format!("{}: {}", scalar(key.as_ref()), value.as_ref());
    let entries: Vec<String> = entries.into_iter().map(entry).collect();
    if entries.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", entries.join(", ")) }
}

/// Formats values as a list on one line.
pub(super) fn list(values: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let values: Vec<String> = values.into_iter().map(|value| value.as_ref().to_owned()).collect();
    format!("[{}]", values.join(", "))
}

/// Formats a single value as itself, and several as a list.
pub(super) fn one_or_list(values: &[String]) -> String {
    match values {
        [only] => only.clone(),
        values => list(values),
    }
}

/// Formats a value as a pattern that matches exactly it.
pub(super) fn exact_pattern(value: &str) -> String {
    scalar(&literal_pattern(value))
}

/// Returns a pattern, without quotes, that matches exactly this value. Values with a special meaning as patterns become
/// regexes.
pub(super) fn literal_pattern(value: &str) -> String {
    if value == "*" || value == "!present" || value.starts_with('~') {
        return format!("~^{}$", regex::escape(value));
    }
    value.to_owned()
}

/// Formats a regex as a pattern.
pub(super) fn regex_pattern(regex: &str) -> String {
    scalar(&format!("~{regex}"))
}

/// The names in use.
#[derive(Debug, Default)]
pub(super) struct UniqueNames(HashSet<String>);

impl UniqueNames {
    /// Returns `requested` with invalid characters replaced, and with a number suffix if it is in use.
    pub(super) fn make_unique(&mut self, requested: &str) -> String {
        let allowed = |letter: char| letter.is_ascii_graphic() && !matches!(letter, '"' | '\\' | '$');
        let name: String =
            requested.chars().map(|letter| if allowed(letter) { letter } else { '-' }).collect();
        let name = if name.is_empty() { "rule" } else { &name[..name.len().min(MAX_NAME_LENGTH)] };
        let numbered = (2_u64..).map(|number| format!("{name}-{number}"));
        let mut names = std::iter::once(name.to_owned()).chain(numbered);
        // There is always another number.
        names.find(|name| self.0.insert(name.clone())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imported_scalars_that_yaml_could_misread_are_quoted() {
        let written =
            ["a-b_c.d", "no", "12", "", "~x", "a: b", "a\"\\\n", "${HOME}", "{", "ü\u{85}"].map(scalar);
        let expected = [
            "a-b_c.d",
            "\"no\"",
            "\"12\"",
            "\"\"",
            "\"~x\"",
            "\"a: b\"",
            "\"a\\\"\\\\\\u000a\"",
            "\"$${HOME}\"",
            "\"{\"",
            "\"ü\\u0085\"",
        ];
        assert_eq!(written, expected);
    }

    #[test]
    fn imported_values_with_pattern_syntax_match_literally() {
        assert_eq!(
            ["a", "*", "~a", "!present"].map(exact_pattern),
            ["a", "\"~^\\\\*$\"", "\"~^\\\\~a$\"", "\"~^!present$\""]
        );
    }

    #[test]
    fn imported_rule_names_are_made_unique() {
        let mut names = UniqueNames::default();
        let given = ["a", "a", "a b", "a-b", "", "é\""].map(|name| names.make_unique(name));
        assert_eq!(given, ["a", "a-2", "a-b", "a-b-2", "rule", "--"]);
        assert_eq!(names.make_unique(&"x".repeat(500)).len(), 120);
    }
}
