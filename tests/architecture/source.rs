//! Scans Rust sources for paths, words and functions.
//!
//! This is not a parser, only a lexer for comments, strings and character literals, and a matcher of brackets. It does
//! not see paths that macros assemble; the program has none.

use std::fs;
use std::path::{Path, PathBuf};

/// A source file with comments and literals removed from the code.
#[derive(Debug)]
pub(super) struct Source {
    /// Path relative to the root of the project, separated by `/`.
    pub(super) path: String,
    /// Code with blanks in place of comments and contents of literals. Lengths of lines are those of the file.
    pub(super) code: String,
    /// Offset and content of each string literal, with escapes as written.
    pub(super) strings: Vec<(usize, String)>,
}

/// A word or punctuation character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
}

/// A function, with the number of lines from its `fn` to its closing brace.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) lines: usize,
}

/// Returns the root of the project.
pub(super) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Returns every file below `directory` of the project with this extension, sorted.
pub(super) fn files(directory: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![root().join(directory)];
    while let Some(directory) = pending.pop() {
        let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{directory:?}: {error}"));
        for path in entries.map(|entry| entry.expect("a directory entry").path()) {
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|given| given == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns the path of a file for messages, relative to the root of the project.
pub(super) fn display_path(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).to_string_lossy().replace('\\', "/")
}

pub(super) fn read_text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the paths of the documentation's pages, except for the changelog, which may use any words.
pub(super) fn documents() -> Vec<PathBuf> {
    let mut documents = files("docs", "md");
    documents.extend(files("crates", "md"));
    documents.extend(["README.md", "CONTRIBUTING.md"].map(|name| root().join(name)));
    documents
}

/// Returns every source file below `directory`, including tests.
pub(super) fn all_sources(directory: &str) -> Vec<Source> {
    files(directory, "rs").iter().map(|path| Source::new(&display_path(path), &read_text(path))).collect()
}

/// Returns every source file of the program, without tests and without what only they compile.
pub(super) fn program_sources() -> Vec<Source> {
    const NOT_PROGRAM: [&str; 5] = ["/tests/", "/tests.rs", "/testing.rs", "/fuzzing/", "/fuzzing.rs"];
    let sources = ["src", "crates"].into_iter().flat_map(all_sources);
    sources
        .filter(|source| !NOT_PROGRAM.iter().any(|part| source.path.contains(part)))
        .map(Source::without_tests)
        .collect()
}

impl Source {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let (code, strings) = split_code_and_strings(text);
        Self { path: path.to_owned(), code, strings }
    }

    /// Removes items that are compiled for tests only.
    pub(super) fn without_tests(mut self) -> Self {
        const CFG_TEST: &str = "#[cfg(test)]";
        while let Some(start) = self.code.find(CFG_TEST) {
            let end = item_end(&self.code, start + CFG_TEST.len());
            let blank = blanked(&self.code[start..end]);
            self.code.replace_range(start..end, &blank);
            self.strings.retain(|(at, _)| !(start..end).contains(at));
        }
        self
    }

    /// Returns the module path of this file, e.g. `["weir_limiter", "table"]`; only the crate for its root.
    pub(super) fn modules(&self) -> Vec<String> {
        let (mut modules, below) =
            match self.path.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/")) {
                Some((name, below)) => (vec![format!("weir_{name}")], below),
                None => (vec!["weir".to_owned()], self.path.strip_prefix("src/").unwrap_or(&self.path)),
            };
        match below.strip_suffix(".rs").unwrap_or(below) {
            "lib" | "main" => {}
            path => modules.extend(path.split('/').map(str::to_owned)),
        }
        modules
    }

    pub(super) fn tokens(&self) -> Vec<Token<'_>> {
        tokens(&self.code)
    }

    /// Returns every path to an item of the crate, from its name. Paths may be in `use`, in groups, inside an expression,
    /// or start with `super`.
    pub(super) fn absolute_paths(&self) -> Vec<Vec<String>> {
        let tokens = self.tokens();
        let mut paths = Vec::new();
        for (index, token) in tokens.iter().enumerate() {
            let is_start = index == 0 || tokens[index - 1].text != "::";
            let (before, next) = match token.text {
                "crate" if is_start => (self.modules()[..1].to_vec(), index + 1),
                "super" if is_start => self.resolve_supers(&tokens, index),
                _ => continue,
            };
            if text(&tokens, next) == "::" {
                read_use_tree(&tokens, next + 1, &before, &mut paths);
            }
        }
        paths
    }

    /// Returns every path that starts with the name `first`; each path of a group is separate.
    pub(super) fn paths_from(&self, first: &str) -> Vec<Vec<String>> {
        let tokens = self.tokens();
        let mut paths = Vec::new();
        for (index, token) in tokens.iter().enumerate() {
            if token.text == first && text(&tokens, index + 1) == "::" {
                read_use_tree(&tokens, index, &[], &mut paths);
            }
        }
        paths
    }

    /// Resolves the chain of `super` at `start`. Returns the module and the index after the chain.
    fn resolve_supers(&self, tokens: &[Token<'_>], start: usize) -> (Vec<String>, usize) {
        let mut index = start;
        while text(tokens, index + 1) == "::" && text(tokens, index + 2) == "super" {
            index += 2;
        }
        let modules = self.modules();
        let left = modules.len().saturating_sub((index - start) / 2 + 1).max(1);
        (modules[..left].to_vec(), index + 1)
    }

    /// Whether the code contains this sequence of tokens.
    pub(super) fn has_tokens(&self, words: &[&str]) -> bool {
        self.tokens()
            .windows(words.len())
            .any(|window| window.iter().zip(words).all(|(token, word)| token.text == *word))
    }

    pub(super) fn functions(&self) -> Vec<Function> {
        let tokens = self.tokens();
        let mut functions = Vec::new();
        for (index, pair) in tokens.windows(2).enumerate() {
            if pair[0].text == "fn"
                && is_word(pair[1].text)
                && let Some(end) = body_end(&tokens, index + 2)
            {
                let line = line_of(&self.code, pair[0].at);
                let lines = line_of(&self.code, end) - line + 1;
                functions.push(Function { name: pair[1].text.to_owned(), line, lines });
            }
        }
        functions
    }
}

pub(super) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1
}

fn text<'a>(tokens: &[Token<'a>], index: usize) -> &'a str {
    tokens.get(index).map_or("", |token| token.text)
}

fn is_word(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let at = code.len() - rest.len();
        let length = match first {
            _ if first.is_alphanumeric() || first == '_' => {
                rest.find(|next: char| !(next.is_alphanumeric() || next == '_')).unwrap_or(rest.len())
            }
            ':' if rest.starts_with("::") => 2,
            _ => first.len_utf8(),
        };
        if !first.is_whitespace() {
            tokens.push(Token { text: &rest[..length], at });
        }
        rest = &rest[length..];
    }
    tokens
}

/// Adds a path for each leaf of the path or use tree at `index`. Returns the index after it.
fn read_use_tree(
    tokens: &[Token<'_>],
    index: usize,
    before: &[String],
    paths: &mut Vec<Vec<String>>,
) -> usize {
    let mut path = before.to_vec();
    let mut index = index;
    loop {
        match text(tokens, index) {
            "{" => {
                index += 1;
                while !matches!(text(tokens, index), "}" | "") {
                    index = read_use_tree(tokens, index, &path, paths);
                    // Skips a new name after `as`.
                    while !matches!(text(tokens, index), "," | "}" | "") {
                        index += 1;
                    }
                    index += usize::from(text(tokens, index) == ",");
                }
                return index + 1;
            }
            "self" => index += 1,
            word if is_word(word) || word == "*" => {
                path.push(word.to_owned());
                index += 1;
            }
            _ => break,
        }
        if text(tokens, index) != "::" {
            break;
        }
        index += 1;
    }
    paths.push(path);
    index
}

/// Returns the end of the body of the function whose signature continues at `index`; `None` without a body.
fn body_end(tokens: &[Token<'_>], index: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for token in &tokens[index..] {
        match token.text {
            ";" if depth == 0 => return None,
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 && token.text == "}" {
                    return Some(token.at);
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns the end of the item that starts at `from`: after its block, or after the semicolon if it has no block.
fn item_end(code: &str, from: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b';' if depth == 0 => return at + 1,
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && byte == b'}' {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

fn blanked(text: &str) -> String {
    text.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }).collect()
}

/// Blanks comments and contents of literals, and collects the string literals.
fn split_code_and_strings(text: &str) -> (String, Vec<(usize, String)>) {
    let mut code = String::with_capacity(text.len());
    let mut strings = Vec::new();
    while code.len() < text.len() {
        let at = code.len();
        let rest = &text[at..];
        let plain = rest.find(['/', '"', '\'', 'b', 'c', 'r']).unwrap_or(rest.len());
        if plain > 0 {
            code.push_str(&rest[..plain]);
            continue;
        }
        let in_word = text[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
        if rest.starts_with("//") {
            code.push_str(&blanked(&rest[..rest.find('\n').unwrap_or(rest.len())]));
        } else if rest.starts_with("/*") {
            code.push_str(&blanked(&rest[..comment_end(rest)]));
        } else if let Some((open, inside, close)) = string_at(rest).filter(|_| !in_word) {
            strings.push((at, rest[open..open + inside].to_owned()));
            code.push_str(&blanked(&rest[..open + inside + close]));
        } else if let Some(end) = char_end(rest) {
            code.push_str(&blanked(&rest[..end]));
        } else {
            code.push_str(&rest[..rest.chars().next().map_or(1, char::len_utf8)]);
        }
    }
    (code, strings)
}

/// Returns the length of the block comment at the start of `rest`. Block comments nest.
fn comment_end(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        match &rest.as_bytes()[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// Returns the lengths of the prefix, the content and the suffix of the string literal at the start of `rest`.
fn string_at(rest: &str) -> Option<(usize, usize, usize)> {
    let prefix = rest.find(|letter| !matches!(letter, 'b' | 'c' | 'r')).filter(|length| *length <= 2)?;
    let hashes = rest[prefix..].find(|sign| sign != '#')?;
    if !rest[prefix + hashes..].starts_with('"') {
        return None;
    }
    let open = prefix + hashes + 1;
    let inside = &rest[open..];
    if rest[..prefix].contains('r') {
        let close = format!("\"{}", "#".repeat(hashes));
        return Some((open, inside.find(&close).unwrap_or(inside.len()), close.len()));
    }
    let mut escaped = false;
    let end = inside.find(|letter| {
        let ends = letter == '"' && !escaped;
        escaped = letter == '\\' && !escaped;
        ends
    });
    (hashes == 0).then_some((open, end.unwrap_or(inside.len()), 1))
}

/// Returns the length of the character literal at the start of `rest`; `None` for a lifetime.
fn char_end(rest: &str) -> Option<usize> {
    let inside = rest.strip_prefix('\'')?;
    let mut letters = inside.char_indices();
    let (_, first) = letters.next()?;
    match first {
        '\\' => {
            let skipped = 2.min(inside.len());
            Some(1 + skipped + inside[skipped..].find('\'')? + 1)
        }
        _ => letters.next().filter(|(_, next)| *next == '\'').map(|(at, _)| 1 + at + 1),
    }
}
