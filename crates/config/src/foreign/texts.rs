//! Texts that are not what they look like: letters that resemble others, templates that have not been rendered, and
//! variables in the syntax of other programs.

/// Letters that look like one of the syntax here, their name, and what to write.
const ODD_LETTERS: &[(char, &str, &str)] = &[
    ('\u{a0}', "a no-break space", "a space"),
    ('\u{202f}', "a narrow no-break space", "a space"),
    ('\u{2007}', "a figure space", "a space"),
    ('\u{3000}', "an ideographic space", "a space"),
    ('\u{200b}', "a zero-width space", "nothing"),
    ('\u{200c}', "a zero-width character", "nothing"),
    ('\u{200d}', "a zero-width character", "nothing"),
    ('\u{2060}', "a zero-width character", "nothing"),
    ('\u{feff}', "a byte order mark", "nothing"),
    ('\u{201c}', "a curly quote", "`\"`"),
    ('\u{201d}', "a curly quote", "`\"`"),
    ('\u{201e}', "a low quote", "`\"`"),
    ('\u{2018}', "a curly quote", "`'`"),
    ('\u{2019}', "a curly quote", "`'`"),
    ('\u{ab}', "an angle quote", "`\"`"),
    ('\u{bb}', "an angle quote", "`\"`"),
    ('\u{2013}', "an en dash", "`-`"),
    ('\u{2014}', "an em dash", "`-`"),
    ('\u{2212}', "a minus sign", "`-`"),
    ('\u{2010}', "a typographic hyphen", "`-`"),
    ('\u{2011}', "a no-break hyphen", "`-`"),
    ('\u{2215}', "a division slash", "`/`"),
    ('\u{2044}', "a fraction slash", "`/`"),
    ('\u{ff0f}', "a full-width slash", "`/`"),
    ('\u{ff1a}', "a full-width colon", "`: `"),
    ('\u{ff0c}', "a full-width comma", "`,`"),
    ('\u{2026}', "an ellipsis", "the value"),
];

/// Hint for a template that has not been rendered.
pub(crate) const UNRENDERED: &str =
    "a template that has not been rendered: check the output of Helm or of the template engine";

/// Returns the hint for a text that its parser has rejected, if it is not what it looks like.
pub(crate) fn text_hint(text: &str) -> Option<String> {
    if is_template(text) {
        return Some(UNRENDERED.to_owned());
    }
    odd_letter_hint(text).or_else(|| variable_hint(text))
}

/// As [`text_hint`], for the text of a key, in which letters of other scripts are mistakes too.
pub(crate) fn key_text_hint(key: &str) -> Option<String> {
    let other = key.chars().find(|letter| letter.is_alphabetic() && !letter.is_ascii());
    let is_mixed = key.chars().any(|letter| letter.is_ascii_alphabetic());
    text_hint(key).or_else(|| {
        let letter = other.filter(|_| is_mixed)?;
        Some(format!("it has a letter of another script, `{letter}` (U+{:04X})", u32::from(letter)))
    })
}

/// Returns the hint for a line that is not valid YAML.
pub(crate) fn line_hint(line: &str) -> Option<String> {
    if is_template(line) || line.trim_start().starts_with("{%") {
        return Some(UNRENDERED.to_owned());
    }
    let content = line.split(" #").next().unwrap_or(line);
    odd_letter_hint(content)
}

/// Returns a note on a valid text that is probably not what was meant.
pub(crate) fn note_on_text(text: &str) -> Option<(&'static str, String)> {
    let is_quote = |letter: char| "\u{201c}\u{201d}\u{201e}\u{2018}\u{2019}\u{ab}\u{bb}".contains(letter);
    if is_template(text) {
        return Some(("the text has `{{` and `}}`", UNRENDERED.to_owned()));
    }
    let is_enclosed = text.chars().count() > 1 && text.starts_with(is_quote) && text.ends_with(is_quote);
    if is_enclosed {
        return Some(("the typographic quotes are part of the text", "write `\"`".to_owned()));
    }
    let is_invisible = |letter: char| {
        matches!(
            letter,
            '\u{a0}' | '\u{202f}' | '\u{3000}' | '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}'
        )
    };
    let is_padded = text.starts_with(is_invisible) || text.ends_with(is_invisible);
    is_padded.then(|| {
        ("the text begins or ends with an invisible letter", odd_letter_hint(text).unwrap_or_default())
    })
}

fn is_template(text: &str) -> bool {
    text.split_once("{{").is_some_and(|(_, rest)| rest.contains("}}")) || text.contains("<%=")
}

/// Names the first odd letter of a text.
fn odd_letter_hint(text: &str) -> Option<String> {
    let known = |letter: char| ODD_LETTERS.iter().find(|(odd, ..)| *odd == letter);
    let letter = text.chars().find(|letter| known(*letter).is_some() || is_full_width(*letter))?;
    Some(match known(letter) {
        Some((_, name, instead)) => {
            let code = u32::from(letter);
            match *instead {
                "nothing" => format!("it has {name} (U+{code:04X}): remove it"),
                instead => format!("it has {name} (U+{code:04X}): write {instead}"),
            }
        }
        None => format!("it has a full-width letter (U+{:04X}): write it in ASCII", u32::from(letter)),
    })
}

const fn is_full_width(letter: char) -> bool {
    matches!(letter, '\u{ff01}'..='\u{ff5e}')
}

/// Returns the hint for a variable in the syntax of a shell, of Kubernetes or of Windows.
fn variable_hint(text: &str) -> Option<String> {
    let text = text.trim();
    let is_name = |name: &&str| {
        name.starts_with(|first: char| first.is_ascii_uppercase() || first == '_')
            && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
    };
    let dollar = || text.strip_prefix('$').filter(is_name);
    let parentheses = || text.strip_prefix("$(")?.strip_suffix(')').filter(is_name);
    let percent = || text.strip_prefix('%')?.strip_suffix('%').filter(is_name);
    let at = || text.strip_prefix('@')?.strip_suffix('@').filter(is_name);
    let name = dollar().or_else(parentheses).or_else(percent).or_else(at)?;
    Some(format!("write `${{{name}}}` for the environment variable"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_letters_are_named() {
        assert_eq!(text_hint("10\u{a0}/s").unwrap(), "it has a no-break space (U+00A0): write a space");
        assert_eq!(text_hint("\u{200b}10/s").unwrap(), "it has a zero-width space (U+200B): remove it");
        assert_eq!(text_hint("\u{201c}/a\u{201d}").unwrap(), "it has a curly quote (U+201C): write `\"`");
        assert_eq!(
            text_hint("\u{ff11}0/s").unwrap(),
            "it has a full-width letter (U+FF11): write it in ASCII"
        );
        assert!(key_text_hint("\u{441}ost").unwrap().contains("U+0441"));
        assert_eq!(text_hint("10/fortnight"), None);
    }

    #[test]
    fn variables_of_other_programs_are_suggested_as_written_here() {
        for text in ["$LIMIT", "$(LIMIT)", "%LIMIT%", "@LIMIT@"] {
            assert_eq!(
                text_hint(text).as_deref(),
                Some("write `${LIMIT}` for the environment variable"),
                "{text}"
            );
        }
        assert_eq!(text_hint("$binary_remote_addr"), None);
    }

    #[test]
    fn templates_are_recognised() {
        for text in ["{{ .Values.limit }}", "{{- if .Values.a }}", "a{{b}}c"] {
            assert!(line_hint(text).is_some_and(|hint| hint.starts_with("a template")), "{text}");
        }
        assert!(line_hint("{% for a in b %}").is_some());
        assert_eq!(line_hint("match: { path: \"/{id}\" }"), None);
    }
}
