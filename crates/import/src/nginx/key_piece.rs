//! Pieces of a key: variables, and the text between them.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyPiece {
    Literal(String),
    Variable(String),
}

/// Splits a key into its variables, `$name` or `${name}`, and the text between them.
pub(super) fn split_variables(text: &str) -> Vec<KeyPiece> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        if at > 0 {
            pieces.push(KeyPiece::Literal(rest[..at].to_owned()));
        }
        rest = &rest[at + 1..];
        let braced = rest.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let (name, behind) = braced
            .unwrap_or_else(|| rest.split_at(rest.find(|letter| !is_name(letter)).unwrap_or(rest.len())));
        pieces.push(KeyPiece::Variable(name.to_owned()));
        rest = behind;
    }
    if !rest.is_empty() {
        pieces.push(KeyPiece::Literal(rest.to_owned()));
    }
    pieces
}
