//! The events of a YAML text, each with its position.

use libyaml_safer::Parser;

use super::{Error, Position, Problem};

pub(crate) use libyaml_safer::{EventData as Event, ScalarStyle};

/// The events of a text, up to its end or to an error.
pub(crate) struct Events<'t> {
    text: &'t str,
    parser: Parser<&'t [u8]>,
    has_ended: bool,
}

impl<'t> Events<'t> {
    /// A byte order mark at its beginning is no part of a text.
    pub(crate) fn of(text: &'t str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut parser = Parser::new();
        parser.set_encoding(libyaml_safer::Encoding::Utf8);
        parser.set_input(text.as_bytes());
        Self { text, parser, has_ended: false }
    }

    fn error(&self, error: &libyaml_safer::Error) -> Error {
        let mut problem = error.problem().to_owned();
        if let Some(context) = error.context() {
            problem += &format!(", {context}");
        }
        let here = error.problem_mark();
        let elsewhere = error.context_mark().filter(|mark| Some(*mark) != here && mark.index > 0);
        if let Some(mark) = elsewhere {
            problem += &format!(" at {mark}");
        }
        let at = here.map_or_else(|| self.control_character(), position);
        Error { at, path: Vec::new(), problem: Problem::Syntax(problem) }
    }

    /// Where the first character stands that YAML does not allow: the parser does not say.
    fn control_character(&self) -> Position {
        let is_bad = |letter: char| match letter {
            '\t' | '\n' | '\r' | '\u{85}' => false,
            '\u{feff}' | '\u{fffe}' | '\u{ffff}' => true,
            letter => letter.is_control(),
        };
        let before = self.text.split(is_bad).next().unwrap_or_default();
        let line = before.rsplit('\n').next().unwrap_or_default();
        Position { line: before.matches('\n').count() + 1, column: line.chars().count() + 1 }
    }
}

impl Iterator for Events<'_> {
    type Item = Result<(Event, Position), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let next = self.parser.parse();
        self.has_ended = next.as_ref().is_ok_and(|event| event.data == Event::StreamEnd) || next.is_err();
        Some(match next {
            Ok(event) => Ok((event.data, position(event.start_mark))),
            Err(error) => Err(self.error(&error)),
        })
    }
}

/// The parser counts from 0.
fn position(mark: libyaml_safer::Mark) -> Position {
    let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX).saturating_add(1);
    Position { line: number(mark.line), column: number(mark.column) }
}
