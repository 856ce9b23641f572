//! Words, semicolons and braces of nginx's configuration syntax, with their lines.
//!
//! The rules are those of `ngx_conf_file.c`: a quote has a meaning only at the start of a word, a backslash
//! keeps the next character in the word, and the brace of `${name}` does not open a block.

use std::iter::Peekable;
use std::str::Chars;

/// A token and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    /// Line and column, from 1.
    pub(super) position: (usize, usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// A word without its quotes and escapes.
    Word(String),
    Semicolon,
    OpenBrace,
    CloseBrace,
}

/// What cannot be split into tokens, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LexError {
    pub(super) position: (usize, usize),
    pub(super) message: &'static str,
}

/// Splits a text into tokens.
#[derive(Clone, Debug)]
pub(super) struct Lexer<'t> {
    letters: Peekable<Chars<'t>>,
    position: (usize, usize),
}

impl<'t> Lexer<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Self { letters: text.chars().peekable(), position: (1, 1) }
    }

    /// Returns the next token, or `None` at the end of the text.
    ///
    /// # Errors
    /// [`LexError`] for a quote that is not closed, and for a word directly behind a closing quote.
    pub(super) fn next_token(&mut self) -> Result<Option<Token>, LexError> {
        self.skip_blanks();
        let position = self.position;
        let Some(&first) = self.letters.peek() else { return Ok(None) };
        let kind = match first {
            ';' => self.single(TokenKind::Semicolon),
            '{' => self.single(TokenKind::OpenBrace),
            '}' => self.single(TokenKind::CloseBrace),
            '"' | '\'' => TokenKind::Word(self.quoted(first, position)?),
            _ => TokenKind::Word(self.plain()),
        };
        Ok(Some(Token { kind, position }))
    }

    /// Skips the body of a block in another language, whose opening brace was the last token.
    ///
    /// # Errors
    /// [`LexError`] if the text ends before the block does.
    pub(super) fn skip_foreign_block(&mut self, opened: (usize, usize)) -> Result<(), LexError> {
        let mut depth = 1_usize;
        while let Some(letter) = self.advance() {
            match letter {
                '{' => depth = depth.saturating_add(1),
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Ok(());
            }
        }
        Err(LexError { position: opened, message: "block without a closing `}`" })
    }

    fn advance(&mut self) -> Option<char> {
        let letter = self.letters.next()?;
        self.position = match letter {
            '\n' => (self.position.0.saturating_add(1), 1),
            _ => (self.position.0, self.position.1.saturating_add(1)),
        };
        Some(letter)
    }

    fn single(&mut self, kind: TokenKind) -> TokenKind {
        self.advance();
        kind
    }

    /// Skips white space and comments.
    fn skip_blanks(&mut self) {
        while let Some(&letter) = self.letters.peek() {
            if letter == '#' {
                while self.letters.peek().is_some_and(|letter| *letter != '\n') {
                    self.advance();
                }
            } else if is_space(letter) {
                self.advance();
            } else {
                return;
            }
        }
    }

    fn quoted(&mut self, quote: char, position: (usize, usize)) -> Result<String, LexError> {
        self.advance();
        let mut word = String::new();
        loop {
            match self.advance() {
                None => return Err(LexError { position, message: "quote without an end" }),
                Some('\\') => self.push_escaped(&mut word),
                Some(letter) if letter == quote => break,
                Some(letter) => word.push(letter),
            }
        }
        match self.letters.peek() {
            Some(next) if !is_space(*next) && !matches!(next, ';' | '{' | ')') => Err(LexError {
                position: self.position,
                message: "expected a space, `;` or `{` after a quote",
            }),
            _ => Ok(word),
        }
    }

    fn plain(&mut self) -> String {
        let mut word = String::new();
        let mut is_after_dollar = false;
        while let Some(&letter) = self.letters.peek() {
            if is_space(letter) || letter == ';' || (letter == '{' && !is_after_dollar) {
                break;
            }
            self.advance();
            is_after_dollar = letter == '$';
            match letter {
                '\\' => self.push_escaped(&mut word),
                letter => word.push(letter),
            }
        }
        word
    }

    /// Adds what a backslash and the next character mean.
    fn push_escaped(&mut self, word: &mut String) {
        match self.advance() {
            Some(letter @ ('"' | '\'' | '\\')) => word.push(letter),
            Some('t') => word.push('\t'),
            Some('r') => word.push('\r'),
            Some('n') => word.push('\n'),
            Some(letter) => word.extend(['\\', letter]),
            None => word.push('\\'),
        }
    }
}

fn is_space(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '\r' | '\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Result<Vec<String>, LexError> {
        let mut lexer = Lexer::new(text);
        let mut found = Vec::new();
        while let Some(token) = lexer.next_token()? {
            found.push(match token.kind {
                TokenKind::Word(word) => word,
                TokenKind::Semicolon => ";".to_owned(),
                TokenKind::OpenBrace => "{".to_owned(),
                TokenKind::CloseBrace => "}".to_owned(),
            });
        }
        Ok(found)
    }

    #[test]
    fn nginx_words_end_at_spaces_semicolons_and_braces() {
        assert_eq!(words("a b;c{d}").unwrap(), ["a", "b", ";", "c", "{", "d}"]);
        assert_eq!(words("a{b;}").unwrap(), ["a", "{", "b", ";", "}"]);
        assert_eq!(words("k ${a}b$c;").unwrap(), ["k", "${a}b$c", ";"]);
        assert_eq!(words("a#b # c\n#d\ne").unwrap(), ["a#b", "e"]);
    }

    #[test]
    fn nginx_quotes_and_escapes_are_resolved() {
        assert_eq!(words(r#"a "b \"c\" {;}" 'd "e' "";"#).unwrap(), ["a", "b \"c\" {;}", "d \"e", "", ";"]);
        assert_eq!(words(r"~ \.php$ \; a\\b \t").unwrap(), ["~", r"\.php$", r"\;", r"a\b", "\t"]);
        assert_eq!(words(r#"a"b"#).unwrap(), [r#"a"b"#]);
        assert_eq!(words("a\\").unwrap(), ["a\\"]);
    }

    #[test]
    fn nginx_syntax_errors_have_positions() {
        let error = |text| words(text).unwrap_err();
        assert_eq!(error("a\n  'b").position, (2, 3));
        assert_eq!(error("'a'b").position, (1, 4));
    }
}
