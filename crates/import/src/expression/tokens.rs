//! The words of an expression: names, texts in any quotes, numbers and signs.

use std::fmt;
use std::iter::Peekable;
use std::str::Chars;

/// A word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExpressionToken {
    Name(String),
    Text(String),
    Number(String),
    Sign(&'static str),
}

impl fmt::Display for ExpressionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(text) | Self::Number(text) => write!(f, "`{text}`"),
            Self::Text(text) => write!(f, "`\"{text}\"`"),
            Self::Sign(sign) => write!(f, "`{sign}`"),
        }
    }
}

/// Splits an expression into its words.
///
/// # Errors
/// What is not supported, in a few words.
pub(super) fn tokenize(text: &str) -> Result<Vec<ExpressionToken>, String> {
    let mut letters = text.chars().peekable();
    let mut tokens = Vec::new();
    while let Some(letter) = letters.next() {
        let token = match letter {
            letter if letter.is_whitespace() => continue,
            '`' | '"' | '\'' => ExpressionToken::Text(quoted(&mut letters, letter)?),
            letter if letter.is_ascii_digit() => ExpressionToken::Number(word(&mut letters, letter)),
            letter if letter.is_alphabetic() || letter == '_' => {
                ExpressionToken::Name(word(&mut letters, letter))
            }
            letter => ExpressionToken::Sign(sign(&mut letters, letter)?),
        };
        tokens.push(token);
    }
    Ok(tokens)
}

fn word(letters: &mut Peekable<Chars<'_>>, first: char) -> String {
    let mut word = String::from(first);
    while let Some(letter) = letters.next_if(|letter| letter.is_alphanumeric() || *letter == '_') {
        word.push(letter);
    }
    word
}

fn sign(letters: &mut Peekable<Chars<'_>>, first: char) -> Result<&'static str, String> {
    let mut doubled = |second: char, sign: &'static str| letters.next_if_eq(&second).map(|_| sign);
    let found = match first {
        '&' => doubled('&', "&&"),
        '|' => doubled('|', "||"),
        '=' => doubled('=', "=="),
        '!' => doubled('=', "!=").or(Some("!")),
        '(' => Some("("),
        ')' => Some(")"),
        '[' => Some("["),
        ']' => Some("]"),
        ',' => Some(","),
        '.' => Some("."),
        _ => None,
    };
    found.ok_or_else(|| format!("unexpected character `{first}`"))
}

/// Reads a text up to the quote that ends it. Backslashes escape in all but raw texts, which are in backquotes.
fn quoted(letters: &mut Peekable<Chars<'_>>, quote: char) -> Result<String, String> {
    let mut text = String::new();
    while let Some(letter) = letters.next() {
        match letter {
            letter if letter == quote => return Ok(text),
            '\\' if quote != '`' => match letters.next() {
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some(escaped @ ('\\' | '"' | '\'' | '`')) => text.push(escaped),
                Some(other) => return Err(format!("unsupported escape `\\{other}`")),
                None => break,
            },
            letter => text.push(letter),
        }
    }
    Err("a text without its end".to_owned())
}
