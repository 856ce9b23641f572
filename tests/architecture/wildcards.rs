//! Enums whose every value must be considered: no `match` over one of them has a wildcard arm. So a new value is a
//! compiler error in each of these places.

use super::source::{Source, Token, line_of};

const EXHAUSTIVE_ENUMS: [&str; 7] =
    ["Action", "Algorithm", "Attribute", "AttributeSource", "Counts", "Params", "Refill"];

/// Returns every wildcard arm in a `match` over one of the [`EXHAUSTIVE_ENUMS`].
pub(super) fn wildcard_arms(source: &Source) -> Vec<String> {
    let tokens = source.tokens();
    let is_declared =
        |name: &&str| source.has_tokens(&["enum", name]) || source.has_tokens(&["enum", name, "<"]);
    let has_own = EXHAUSTIVE_ENUMS.iter().any(is_declared);
    let is_considered = |name: &str| EXHAUSTIVE_ENUMS.contains(&name) || (has_own && name == "Self");
    let mut found = Vec::new();
    for start in (0..tokens.len()).filter(|index| tokens[*index].text == "match") {
        let patterns = patterns(&tokens, start);
        let names = |pattern: &&[Token<'_>]| {
            pattern.windows(2).any(|pair| is_considered(pair[0].text) && pair[1].text == "::")
        };
        if patterns.iter().any(names) {
            let wild = patterns.iter().filter(|pattern| is_wildcard(pattern));
            found.extend(wild.map(|pattern| line_of(&source.code, pattern[0].at)));
        }
    }
    found.into_iter().map(|line| format!("{}:{line}", source.path)).collect()
}

/// Returns the patterns of the `match` at `start`, with their guards.
fn patterns<'t>(tokens: &'t [Token<'t>], start: usize) -> Vec<&'t [Token<'t>]> {
    let Some(open) = find(tokens, start + 1, |at| tokens[at].text == "{") else { return Vec::new() };
    let mut patterns = Vec::new();
    let mut at = open + 1;
    while let Some(arrow) = find(tokens, at, |at| is_arrow(tokens, at)) {
        patterns.push(&tokens[at..arrow]);
        let body = arrow + 2;
        let end = if tokens.get(body).is_some_and(|token| token.text == "{") {
            let close = closing(tokens, body);
            close + usize::from(tokens.get(close).is_some_and(|token| token.text == ","))
        } else {
            find(tokens, body, |at| tokens[at].text == ",").map_or(tokens.len(), |comma| comma + 1)
        };
        at = end;
    }
    patterns
}

/// Returns the first index from `at` on for which `is_match` holds, on the same bracket level.
fn find(tokens: &[Token<'_>], mut at: usize, is_match: impl Fn(usize) -> bool) -> Option<usize> {
    while at < tokens.len() {
        if is_match(at) {
            return Some(at);
        }
        match tokens[at].text {
            "(" | "[" | "{" => at = closing(tokens, at),
            ")" | "]" | "}" => return None,
            _ => at += 1,
        }
    }
    None
}

/// Returns the index after the bracket that closes the one at `open`.
fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

fn is_arrow(tokens: &[Token<'_>], at: usize) -> bool {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    text(at) == "=" && text(at + 1) == ">"
}

/// Whether the pattern is `_` or a binding that matches any value, with or without a guard.
fn is_wildcard(pattern: &[Token<'_>]) -> bool {
    let is_name = |text: &str| text.starts_with(|first: char| first == '_' || first.is_lowercase());
    match pattern {
        [only] => is_name(only.text),
        [first, guard, ..] => is_name(first.text) && guard.text == "if",
        [] => false,
    }
}

#[test]
fn wildcard_arms_are_found() {
    let text = "
        fn f(a: Algorithm, x: Other) {
            match a { Algorithm::Gcra => { 1 } Algorithm::Ban => (2, 3), _ => 4 };
            match (a, 1) { (Algorithm::Gcra, _) => match x { _ => 1 }, (other, _) => 2 };
            match x { Other::One => Algorithm::Gcra, _ => Algorithm::Ban };
            match a {
                Algorithm::Gcra | Algorithm::Ban => S { a },
                other if other.has_burst() => 5,
            }
        }";
    assert_eq!(wildcard_arms(&Source::new("src/x.rs", text)), ["src/x.rs:3", "src/x.rs:8"]);
    let own = "enum Action { A } impl Action { fn f(self) { match self { Self::A => 1, _ => 2 } } }";
    assert_eq!(wildcard_arms(&Source::new("src/y.rs", own)), ["src/y.rs:1"]);
}
