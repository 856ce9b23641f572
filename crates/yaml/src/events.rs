//! The parser events of a YAML text, each with its position.

use std::ops::Range;

use granit_parser::{ErrorKind, Marker, Parser, ScanError, StrInput, Tag};
use serde::de::IgnoredAny;

use super::{Position, YamlError, YamlErrorKind};

pub use granit_parser::{Event, ScalarStyle, StructureStyle};

/// Maximum nesting of maps and lists.
const MAX_DEPTH: usize = 128;

/// Maximum number of bytes after an error that are used for its message.
const MAX_BYTES_AFTER_ERROR: usize = 1 << 10;

/// An event with its place in the text.
#[derive(Debug)]
pub struct SpannedEvent<'t> {
    pub event: Event<'t>,
    pub position: Position,
    /// Bytes of a scalar as written, or of the bracket that opens or closes a flow collection; without anchor and tag. They
    /// count from the end of a byte order mark.
    pub bytes: Range<usize>,
}

/// Iterator over the events of a text, up to its end or the first error.
pub struct Events<'t> {
    text: &'t str,
    parser: Parser<'t, StrInput<'t>>,
}

impl<'t> Events<'t> {
    /// Creates the iterator; skips a byte order mark.
    pub fn new(text: &'t str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        // Makes the parser accept the same texts as libyaml.
        let options = granit_parser::options! {
            block_scalar_eof_without_line_feed: true,
            flow_nesting_limit: MAX_DEPTH,
            block_nesting_limit: MAX_DEPTH,
        };
        Self { text, parser: Parser::new_from_str_with_options(text, options) }
    }

    /// Returns the next event with its bytes, for editing the text.
    pub fn next_spanned(&mut self) -> Option<Result<SpannedEvent<'t>, YamlError>> {
        Some(match self.parser.next()? {
            Ok((event, span)) => {
                let start =
                    span.tag_start.filter(|tag| tag.index() < span.start.index()).unwrap_or(span.start);
                let event = self.restore_missing_scalar(event, &span.start);
                let bytes = span.byte_range().unwrap_or_default();
                Ok(SpannedEvent { event, position: marker_position(&start), bytes })
            }
            Err(error) => Err(self.describe_error(&error)),
        })
    }

    /// Restores the empty text of a missing value, for which the parser reports `~`.
    fn restore_missing_scalar(&self, event: Event<'t>, start: &Marker) -> Event<'t> {
        let is_written = || {
            let at = start.byte_offset().and_then(|start| self.text.get(start..));
            at.is_some_and(|text| text.starts_with('~'))
        };
        match event {
            Event::Scalar(text, ScalarStyle::Plain, anchor, tag) if text == "~" && !is_written() => {
                Event::Scalar("".into(), ScalarStyle::Plain, anchor, tag)
            }
            event => event,
        }
    }

    /// Describes a syntax error with `serde_yaml`, which has the better messages. Passes only the text that
    /// has been parsed, because the rest may be crafted to take minutes.
    fn describe_error(&self, error: &ScanError) -> YamlError {
        if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
            let problem = YamlErrorKind::TooDeep(MAX_DEPTH);
            return YamlError { position: marker_position(error.marker()), path: Vec::new(), kind: problem };
        }
        let read = error.marker().byte_offset().unwrap_or(self.text.len());
        let (read, rest) = self.text.split_at_checked(read).unwrap_or((self.text, ""));
        let line = rest.lines().next().unwrap_or_default();
        let needed = line.char_indices().nth(MAX_BYTES_AFTER_ERROR).map_or(line.len(), |(end, _)| end);
        let read = &self.text[..read.len() + needed];
        let described = serde_yaml::from_str::<IgnoredAny>(read).err().and_then(|error| {
            let at = error.location()?;
            let here = format!(" at line {} column {}", at.line(), at.column());
            let at = Position { line: at.line(), column: at.column() };
            Some((at, error.to_string().replacen(&here, "", 1)))
        });
        let (at, problem) = described.unwrap_or_else(|| (marker_position(error.marker()), error.info()));
        YamlError { position: at, path: Vec::new(), kind: YamlErrorKind::Syntax(problem) }
    }
}

impl std::fmt::Debug for Events<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("bytes", &self.text.len()).finish_non_exhaustive()
    }
}

impl<'t> Iterator for Events<'t> {
    type Item = Result<(Event<'t>, Position), YamlError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_spanned().map(|next| next.map(|spanned| (spanned.event, spanned.position)))
    }
}

/// Returns the full name of a tag.
pub(super) fn tag_name(tag: &Tag) -> String {
    [tag.handle(), tag.suffix()].concat()
}

/// Converts a marker, which counts lines from 1 and columns from 0.
fn marker_position(marker: &Marker) -> Position {
    Position { line: marker.line().max(1), column: marker.col() + 1 }
}
