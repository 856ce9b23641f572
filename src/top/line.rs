//! Lines of a terminal: text with emphasis, cut to the terminal's width.

/// Emphasis of a piece of text. Colour is never the only sign: rejections have a column, errors a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    /// Ordinary text.
    Plain,
    /// Headings and names.
    Strong,
    /// Labels and zeros.
    Faint,
    /// What needs attention.
    Alert,
}

/// Whether emphasis is written as ANSI codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColorChoice {
    /// Colours and bold text.
    Ansi,
    /// No codes, as `NO_COLOR` asks for.
    Plain,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pieces: Vec<(Tone, String)>,
}

impl Line {
    /// Appends text. Control characters, which could change the terminal, are replaced.
    pub(super) fn push(&mut self, tone: Tone, text: &str) {
        self.pieces.push((tone, printable_text(text)));
    }

    /// Returns this line with more text.
    pub(super) fn with(mut self, tone: Tone, text: &str) -> Self {
        self.push(tone, text);
        self
    }

    /// Returns the text alone, without spaces at its end.
    pub(super) fn to_text(&self) -> String {
        let text: String = self.pieces.iter().map(|(_, text)| text.as_str()).collect();
        text.trim_end().to_owned()
    }

    /// Returns the text of at most `columns` columns, with ANSI codes if wanted.
    pub(super) fn to_terminal(&self, columns: usize, colors: ColorChoice) -> String {
        let mut written = String::new();
        let mut left = columns;
        for (tone, text) in &self.pieces {
            let cut = cut_to_width(text, left);
            left = left.saturating_sub(width(&cut));
            let code = match (colors, tone) {
                (ColorChoice::Plain, _) | (_, Tone::Plain) => "",
                (ColorChoice::Ansi, Tone::Strong) => "\x1b[1m",
                (ColorChoice::Ansi, Tone::Faint) => "\x1b[2m",
                (ColorChoice::Ansi, Tone::Alert) => "\x1b[1;31m",
            };
            written.push_str(code);
            written.push_str(&cut);
            if !code.is_empty() {
                written.push_str("\x1b[0m");
            }
        }
        written
    }
}

/// Replaces characters that a terminal does not show as they are: control characters, and those that reverse or
/// hide text.
fn printable(letter: char) -> char {
    let is_hidden = matches!(letter,
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e0fff}');
    if letter.is_control() || is_hidden { '\u{fffd}' } else { letter }
}

/// Returns a text with such characters replaced.
pub(crate) fn printable_text(text: &str) -> String {
    text.chars().map(printable).collect()
}

/// Returns the columns that a text takes in a terminal.
pub(crate) fn width(text: &str) -> usize {
    text.chars().map(letter_width).sum()
}

/// Returns the columns of a character: 2 for East Asian wide characters and emoji, 0 for combining marks. Rarer
/// cases count as 1.
const fn letter_width(letter: char) -> usize {
    match letter {
        '\u{300}'..='\u{36f}' | '\u{fe00}'..='\u{fe0f}' => 0,
        '\u{1100}'..='\u{115f}'
        | '\u{2e80}'..='\u{a4cf}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{fe30}'..='\u{fe6f}'
        | '\u{ff00}'..='\u{ff60}'
        | '\u{ffe0}'..='\u{ffe6}'
        | '\u{1f300}'..='\u{1faff}'
        | '\u{20000}'..='\u{3fffd}' => 2,
        _ => 1,
    }
}

/// Returns the longest beginning of `text` that fits into `columns`, with an ellipsis if it is cut.
pub(crate) fn cut_to_width(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut cut = String::new();
    let mut used = 0;
    for letter in text.chars() {
        used += letter_width(letter);
        if used >= columns {
            break;
        }
        cut.push(letter);
    }
    if columns > 0 {
        cut.push('…');
    }
    cut
}

/// Splits a text into lines of at most `columns` columns, between words where that is possible.
pub(super) fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line =
            lines.last_mut().filter(|line| line.is_empty() || width(line) + 1 + width(word) <= columns);
        match line {
            Some(line) => {
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Returns `text` in exactly `columns` columns, cut or with spaces at its end.
pub(crate) fn left_aligned(text: &str, columns: usize) -> String {
    let text: String = text.chars().map(printable).collect();
    let cut = cut_to_width(&text, columns);
    let padding = columns.saturating_sub(width(&cut));
    cut + &" ".repeat(padding)
}

/// Returns `text` with spaces before it, in at least `columns` columns.
pub(crate) fn right_aligned(text: &str, columns: usize) -> String {
    " ".repeat(columns.saturating_sub(width(text))) + text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn control_and_hidden_characters_never_reach_the_terminal() {
        let line = Line::default().with(Tone::Plain, "a\x1b[2J\u{9b}31m\r\n\u{202e}b\u{7}");
        assert_eq!(line.to_text(), "a\u{fffd}[2J\u{fffd}31m\u{fffd}\u{fffd}\u{fffd}b\u{fffd}");
    }

    #[test]
    fn emphasis_is_written_only_with_colors() {
        let line = Line::default().with(Tone::Alert, "12").with(Tone::Plain, " ok");
        assert_eq!(line.to_terminal(80, ColorChoice::Ansi), "\x1b[1;31m12\x1b[0m ok");
        assert_eq!(line.to_terminal(80, ColorChoice::Plain), "12 ok");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(left_aligned("規則", 5), "規則 ");
        assert_eq!(left_aligned("規則規則", 5), "規則…");
        assert_eq!(right_aligned("規", 4), "  規");
    }

    #[test]
    fn text_is_wrapped_between_words() {
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("a-long-word b", 4), ["a-long-word", "b"]);
        assert_eq!(wrapped("", 4), [""]);
    }

    proptest! {
        #[test]
        fn lines_are_never_wider_than_the_terminal(texts in prop::collection::vec(".{0,20}", 0..6), columns in 0_usize..60) {
            let mut line = Line::default();
            for text in &texts {
                line.push(Tone::Plain, text);
            }
            let shown = line.to_terminal(columns, ColorChoice::Plain);
            prop_assert!(width(&shown) <= columns, "{shown:?}");
            prop_assert!(!shown.chars().any(char::is_control));
        }

        #[test]
        fn aligned_text_has_its_width(text in "\\PC{0,20}", columns in 0_usize..40) {
            prop_assert_eq!(width(&left_aligned(&text, columns)), columns);
        }
    }
}
