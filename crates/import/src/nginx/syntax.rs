//! nginx's configuration as a tree of directives, with the files of `include` in place of that directive.

use std::fmt;
use std::rc::Rc;

use super::super::ImportError;
use super::super::remark::{Effect, Remark};
use super::lexer::{LexError, Lexer, TokenKind};

/// Maximum nesting of blocks; nginx itself needs six.
const MAX_DEPTH: usize = 32;
/// Maximum nesting of included files.
const MAX_INCLUDE_DEPTH: usize = 16;
/// Maximum number of directives in all files.
const MAX_DIRECTIVES: usize = 100_000;
/// Maximum size of all files together, in bytes.
const MAX_TOTAL_SIZE: usize = 16 << 20;

/// A file and a position in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) file: Rc<str>,
    pub(super) line: usize,
    pub(super) column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A directive: its name, its parameters, and its block if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directive {
    pub(super) name: String,
    pub(super) arguments: Vec<String>,
    pub(super) block: Option<Vec<Self>>,
    pub(super) place: Place,
}

impl Directive {
    /// Returns a parameter, or an empty text.
    pub(super) fn argument(&self, index: usize) -> &str {
        self.arguments.get(index).map_or("", String::as_str)
    }

    /// Returns the directives of the block; none without a block.
    pub(super) fn children(&self) -> &[Self] {
        self.block.as_deref().unwrap_or_default()
    }
}

/// A file that an `include` names.
#[derive(Clone, Debug)]
pub struct IncludedFile {
    /// Its path, for messages.
    pub name: String,
    /// Its content, or why it cannot be read.
    pub text: Result<String, String>,
}

/// Returns the files that the parameter of an `include` matches, in order.
pub type IncludeReader<'r> = &'r dyn Fn(&str) -> Vec<IncludedFile>;

/// The directives of a file with all included files.
#[derive(Debug, Default)]
pub(super) struct ParsedFile {
    pub(super) directives: Vec<Directive>,
    /// Includes that were not read, with the reason.
    pub(super) notes: Vec<Remark>,
    pub(super) included: Vec<String>,
}

/// Parses a file and the files that it includes.
///
/// # Errors
/// Returns the first syntax error, or the bound that the files exceed.
pub(super) fn parse(file: &str, text: &str, read: IncludeReader<'_>) -> Result<ParsedFile, ImportError> {
    let mut parser =
        Parser { read, notes: Vec::new(), included: Vec::new(), directive_count: 0, total_size: 0 };
    let directives = parser.parse_file(file, text, 0)?;
    Ok(ParsedFile { directives, notes: parser.notes, included: parser.included })
}

struct Parser<'r> {
    read: IncludeReader<'r>,
    notes: Vec<Remark>,
    included: Vec<String>,
    directive_count: usize,
    total_size: usize,
}

/// The text that is being parsed.
struct NginxText<'t> {
    file: Rc<str>,
    lexer: Lexer<'t>,
    include_depth: usize,
}

impl NginxText<'_> {
    fn error(&self, position: (usize, usize), message: impl Into<String>) -> ImportError {
        ImportError { file: self.file.to_string(), position: Some(position), message: message.into() }
    }

    /// Checks that the text may end here: outside of blocks and behind a directive.
    fn check_end(
        &self,
        opened: Option<(usize, usize)>,
        is_complete: bool,
        begun: (usize, usize),
    ) -> Result<(), ImportError> {
        match (opened, is_complete) {
            (_, false) => Err(self.error(begun, "directive without `;` or `{`")),
            (Some(opened), true) => Err(self.error(opened, "block without a closing `}`")),
            (None, true) => Ok(()),
        }
    }

    fn lex_error(&self, error: &LexError) -> ImportError {
        self.error(error.position, error.message)
    }
}

impl Parser<'_> {
    fn parse_file(&mut self, file: &str, text: &str, depth: usize) -> Result<Vec<Directive>, ImportError> {
        let mut source = NginxText { file: file.into(), lexer: Lexer::new(text), include_depth: depth };
        self.total_size = self.total_size.saturating_add(text.len());
        if self.total_size > MAX_TOTAL_SIZE {
            return Err(source.error((1, 1), format!("configuration above {MAX_TOTAL_SIZE} bytes")));
        }
        self.parse_block(&mut source, None, 0)
    }

    /// Parses directives up to the end of the block that was opened at this position, or of the file.
    fn parse_block(
        &mut self,
        source: &mut NginxText<'_>,
        opened: Option<(usize, usize)>,
        depth: usize,
    ) -> Result<Vec<Directive>, ImportError> {
        let mut directives = Vec::new();
        let mut words: Vec<String> = Vec::new();
        let mut begun = (1, 1);
        loop {
            let token = source.lexer.next_token().map_err(|error| source.lex_error(&error))?;
            let Some(token) = token else {
                source.check_end(opened, words.is_empty(), begun)?;
                return Ok(directives);
            };
            match token.kind {
                TokenKind::Word(word) => {
                    if words.is_empty() {
                        begun = token.position;
                    }
                    words.push(word);
                }
                TokenKind::CloseBrace if words.is_empty() && opened.is_some() => return Ok(directives),
                TokenKind::CloseBrace => return Err(source.error(token.position, "unexpected `}`")),
                TokenKind::Semicolon | TokenKind::OpenBrace if words.is_empty() => {
                    return Err(source.error(token.position, "expected a directive"));
                }
                TokenKind::Semicolon => {
                    let directive = self.new_directive(source, &mut words, begun)?;
                    self.add(source, directive, &mut directives)?;
                }
                TokenKind::OpenBrace => {
                    let mut directive = self.new_directive(source, &mut words, begun)?;
                    directive.block = Some(self.parse_body(source, &directive, token.position, depth)?);
                    directives.push(directive);
                }
            }
        }
    }

    fn new_directive(
        &mut self,
        source: &NginxText<'_>,
        words: &mut Vec<String>,
        position: (usize, usize),
    ) -> Result<Directive, ImportError> {
        self.directive_count = self.directive_count.saturating_add(1);
        if self.directive_count > MAX_DIRECTIVES {
            return Err(source.error(position, format!("more than {MAX_DIRECTIVES} directives")));
        }
        let mut words = std::mem::take(words).into_iter();
        let place = Place { file: source.file.clone(), line: position.0, column: position.1 };
        let name = words.next().unwrap_or_default();
        Ok(Directive { name, arguments: words.collect(), block: None, place })
    }

    fn parse_body(
        &mut self,
        source: &mut NginxText<'_>,
        directive: &Directive,
        opened: (usize, usize),
        depth: usize,
    ) -> Result<Vec<Directive>, ImportError> {
        // The blocks of these directives are Lua or JavaScript.
        if directive.name.ends_with("_lua_block") {
            source.lexer.skip_foreign_block(opened).map_err(|error| source.lex_error(&error))?;
            return Ok(Vec::new());
        }
        if depth >= MAX_DEPTH {
            return Err(source.error(opened, format!("blocks nested deeper than {MAX_DEPTH}")));
        }
        self.parse_block(source, Some(opened), depth + 1)
    }

    /// Adds a directive, or the directives of the files that it includes.
    fn add(
        &mut self,
        source: &NginxText<'_>,
        directive: Directive,
        directives: &mut Vec<Directive>,
    ) -> Result<(), ImportError> {
        if directive.name != "include" || directive.arguments.len() != 1 {
            directives.push(directive);
            return Ok(());
        }
        if source.include_depth >= MAX_INCLUDE_DEPTH {
            let message = format!("files included deeper than {MAX_INCLUDE_DEPTH}");
            return Err(source.error((directive.place.line, 1), message));
        }
        let pattern = directive.argument(0);
        let files = (self.read)(pattern);
        if files.is_empty() {
            let text = format!("{}: `include {pattern}` matches no file", directive.place);
            self.notes.push(Remark::new(Effect::Looser, text));
        }
        for included in files {
            match included.text {
                Ok(text) => {
                    self.included.push(included.name.clone());
                    directives.extend(self.parse_file(&included.name, &text, source.include_depth + 1)?);
                }
                Err(reason) => {
                    let text = format!("{}: `{}` not included: {reason}", directive.place, included.name);
                    self.notes.push(Remark::new(Effect::Looser, text));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn included(name: &str) -> Vec<IncludedFile> {
        let text = match name {
            "b.conf" => Ok("inner 2;\nouter { }\n".to_owned()),
            "loop.conf" => Ok("include loop.conf;".to_owned()),
            _ => Err("no such file".to_owned()),
        };
        vec![IncludedFile { name: name.to_owned(), text }]
    }

    fn parsed(text: &str) -> Result<ParsedFile, String> {
        parse("a.conf", text, &included).map_err(|error| error.to_string())
    }

    #[test]
    fn nginx_directives_have_arguments_blocks_and_lines() {
        let file = parsed("a 1 'two 3';\nb { c;\n d x { } }").unwrap();
        let [a, b] = file.directives.as_slice() else { panic!("{file:?}") };
        assert_eq!((a.name.as_str(), a.argument(1), a.argument(9)), ("a", "two 3", ""));
        assert_eq!(b.children()[1].place.to_string(), "a.conf:3");
        assert!(a.block.is_none() && b.children()[1].children().is_empty());
    }

    #[test]
    fn nginx_includes_are_parsed_in_place() {
        let file = parsed("a;\ninclude b.conf;\ninclude none.conf;\nz;").unwrap();
        let names: Vec<_> = file.directives.iter().map(|one| format!("{} {}", one.name, one.place)).collect();
        assert_eq!(names, ["a a.conf:1", "inner b.conf:1", "outer b.conf:2", "z a.conf:4"]);
        assert_eq!(file.notes[0].text, "a.conf:3: `none.conf` not included: no such file");
    }

    #[test]
    fn nginx_lua_blocks_are_skipped() {
        // A brace in a string of Lua ends the block early.
        assert!(parsed("content_by_lua_block { a = \"}\" } b;").is_err());
        let file = parsed("content_by_lua_block { local t = { a = 1 } } a;").unwrap();
        assert_eq!(file.directives.len(), 2);
    }

    #[test]
    fn invalid_nginx_files_are_reported_with_line_and_column() {
        for (text, expected) in [
            ("a b", "a.conf:1:1: directive without `;` or `{`"),
            ("a;\nb {", "a.conf:2:3: block without a closing `}`"),
            ("}", "a.conf:1:1: unexpected `}`"),
            ("a {\n b }", "a.conf:2:4: unexpected `}`"),
            (";", "a.conf:1:1: expected a directive"),
            ("a 'b", "a.conf:1:3: quote without an end"),
            ("include loop.conf;", "loop.conf:1:1: files included deeper than 16"),
        ] {
            assert_eq!(parsed(text).unwrap_err(), expected, "{text}");
        }
        let deep = "a { ".repeat(40) + &"}".repeat(40);
        assert_eq!(parsed(&deep).unwrap_err(), "a.conf:1:131: blocks nested deeper than 32");
    }
}
