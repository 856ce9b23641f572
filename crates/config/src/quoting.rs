//! Texts of a configuration, as messages quote them.

/// Maximum length of a quoted value, in characters. Longer values are cut, because the position leads to the
/// rest.
const MAX_QUOTED_CHARS: usize = 60;

/// Formats `text` in double quotes, on one line; cuts long text.
pub(super) fn quoted(text: &str) -> String {
    quote_with(text, '"')
}

/// Formats `text` in backquotes, as names are written.
pub(super) fn backquoted(text: &str) -> String {
    quote_with(text, '`')
}

fn quote_with(text: &str, quote: char) -> String {
    let cut = text.char_indices().nth(MAX_QUOTED_CHARS).map_or(text.len(), |(at, _)| at);
    let mut enclosed = String::from(quote);
    for character in text[..cut].chars() {
        match character {
            '\n' => enclosed.push_str("\\n"),
            '\r' => enclosed.push_str("\\r"),
            '\t' => enclosed.push_str("\\t"),
            control if control.is_control() => enclosed.extend(control.escape_default()),
            other => enclosed.push(other),
        }
    }
    if cut < text.len() {
        enclosed.push('…');
    }
    enclosed.push(quote);
    enclosed
}

/// Formats `a`, `b` and `c` as `` `a`, `b`, `c` ``.
pub(super) fn backquoted_list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_value_is_escaped_and_cut() {
        assert_eq!(quoted("a\nb\u{7}"), "\"a\\nb\\u{7}\"");
        assert_eq!(quoted(&"ä".repeat(100)), format!("\"{}…\"", "ä".repeat(60)));
    }
}
