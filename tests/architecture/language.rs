//! Language of the documentation and of comments: the field's terms, short sentences, intact tables, and no personified
//! components.

use std::collections::BTreeSet;

use super::assert_none;
use super::source::{Source, all_sources, display_path, documents, files, line_of, read_text, root};

/// Maximum number of words in a sentence.
const MAX_SENTENCE_WORDS: usize = 40;
/// Maximum number of personifying words per thousand words.
const MAX_PERSONS_PER_MILLE: f64 = 1.0;
const PERSON_WORDS: [&str; 6] = ["whoever", "whomever", "nobody", "somebody", "everybody", "anybody"];

/// Names of variables and fields for which the field has other words, with these words.
const OLD_NAMES: [(&str, &str); 16] = [
    ("octets", "bytes, or count"),
    ("heard", "resolved"),
    ("is_nowhere", "has_no_address"),
    ("asking", "exchange"),
    ("answer", "response"),
    ("answered", "result"),
    ("untouched", "is_unread, or unread_body"),
    ("want", "queued"),
    ("done", "completed"),
    ("of_rule", "what it returns"),
    ("of_type", "what it returns"),
    ("of_key", "what it returns"),
    ("of_both", "what it returns"),
    ("meter", "limit, or handle"),
    ("meters", "handles"),
    ("slack", "delay_policy"),
];

/// Terms for which operators search the documentation.
const REQUIRED_TERMS: [&str; 56] = [
    "access log",
    "adaptive",
    "allow list",
    "backpressure",
    "block list",
    "burst",
    "canary",
    "circuit breaker",
    "circuit breaking",
    "concurrency limit",
    "connection pool",
    "downstream",
    "drain",
    "dry run",
    "eviction",
    "exponential backoff",
    "fail closed",
    "fail open",
    "fixed window",
    "GCRA",
    "global rate limit",
    "graceful shutdown",
    "health check",
    "hop-by-hop",
    "hot reload",
    "idle timeout",
    "in flight",
    "jitter",
    "JSON Web Token",
    "keep-alive",
    "leaky bucket",
    "liveness",
    "load balancing",
    "load shedding",
    "local reply",
    "mTLS",
    "outlier detection",
    "overload protection",
    "panic threshold",
    "persistent connection",
    "readiness",
    "request smuggling",
    "request timeout",
    "response header",
    "retry budget",
    "sampling",
    "serve stale",
    "shadow mode",
    "sidecar",
    "sliding window",
    "status code",
    "throughput",
    "TLS origination",
    "TLS termination",
    "token bucket",
    "trusted proxy",
];

/// Returns the numbered lines of a text, without fenced blocks.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut is_code = false;
    let lines = text.lines().enumerate().filter(|(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    lines.map(|(index, line)| (index + 1, line)).collect()
}

/// Returns paragraphs and list items, each with its first line number. Headings and tables are skipped.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let mut paragraphs: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (number, line) in prose(text) {
        let begun = line.trim_start();
        let is_item = begun.starts_with("- ") || begun.starts_with("* ") || is_numbered(begun);
        let is_text = !begun.is_empty() && !begun.starts_with(['|', '#', '<']);
        match paragraphs.last_mut().filter(|_| is_open && is_text && !is_item) {
            Some((_, paragraph)) => *paragraph += &format!(" {begun}"),
            None if is_text => paragraphs.push((number, begun.to_owned())),
            None => {}
        }
        is_open = is_text;
    }
    paragraphs
}

fn is_numbered(line: &str) -> bool {
    line.split_once(". ").is_some_and(|(number, _)| number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Splits a paragraph into sentences. A sentence ends at punctuation that precedes a capital, a digit, code
/// or a bracket.
fn sentences(paragraph: &str) -> Vec<&str> {
    let ends = paragraph.match_indices(['.', '!', '?', ':', ';']).filter_map(|(at, _)| {
        let rest = paragraph[at + 1..].strip_prefix([' ', ')'])?.trim_start();
        let begins = rest.chars().next()?;
        (begins.is_uppercase() || "`[*(".contains(begins) || begins.is_ascii_digit()).then_some(at + 1)
    });
    let mut sentences = Vec::new();
    let mut start = 0;
    for end in ends.chain([paragraph.len()]) {
        sentences.push(paragraph[start..end].trim());
        start = end;
    }
    sentences
}

/// Returns the words of a text, without punctuation.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace()
        .map(|word| word.trim_matches(|letter: char| !letter.is_alphanumeric()))
        .filter(|word| !word.is_empty())
}

/// Returns the numbers of table rows that a blank line has separated from their table.
fn broken_tables(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let is_row = |index: usize| lines.get(index).is_some_and(|line| line.starts_with('|'));
    let is_ruler = |index: usize| {
        lines
            .get(index)
            .is_some_and(|line| line.starts_with("|-") || line.starts_with("| -") || line.starts_with("|:"))
    };
    (1..lines.len())
        .filter(|&index| is_row(index) && !is_row(index - 1) && !is_ruler(index + 1))
        .map(|index| index + 1)
        .collect()
}

#[test]
fn no_sentence_of_the_documentation_is_longer_than_forty_words() {
    let mut long = Vec::new();
    for path in documents() {
        for (line, paragraph) in paragraphs(&read_text(&path)) {
            for sentence in sentences(&paragraph) {
                let count = words(sentence).count();
                if count > MAX_SENTENCE_WORDS {
                    long.push(format!("{}:{line}: {count} words: {sentence}", display_path(&path)));
                }
            }
        }
    }
    assert!(long.is_empty(), "sentences above {MAX_SENTENCE_WORDS} words:\n{}", long.join("\n"));
}

#[test]
fn no_table_of_the_documentation_is_broken() {
    let mut broken = Vec::new();
    for path in documents() {
        broken.extend(
            broken_tables(&read_text(&path))
                .into_iter()
                .map(|line| format!("{}:{line}", display_path(&path))),
        );
    }
    assert!(broken.is_empty(), "broken tables: {broken:?}");
}

/// Fails if the texts contain too many personifying words.
fn assert_few_person_words(texts: impl Iterator<Item = (std::path::PathBuf, Vec<(usize, String)>)>) {
    let (mut persons, mut all) = (Vec::new(), 0);
    for (path, lines) in texts {
        for (line, text) in lines {
            for word in words(&text) {
                all += 1;
                if PERSON_WORDS.contains(&word.to_ascii_lowercase().as_str()) {
                    persons.push(format!("{}:{line}: {word}", display_path(&path)));
                }
            }
        }
    }
    let share = persons.len() as f64 * 1000.0 / f64::from(all);
    assert!(share < MAX_PERSONS_PER_MILLE, "{share:.2} personifying words per thousand: {persons:#?}");
}

#[test]
fn documentation_does_not_personify_components() {
    let lines = |text: &str| prose(text).into_iter().map(|(line, text)| (line, text.to_owned())).collect();
    assert_few_person_words(documents().into_iter().map(|path| (path.clone(), lines(&read_text(&path)))));
}

#[test]
fn comments_do_not_personify_components() {
    let comment = |(index, line): (usize, &str)| {
        let text = line.trim_start().strip_prefix("//")?;
        Some((index + 1, text.trim_start_matches(['/', '!']).to_owned()))
    };
    let comments = |text: &str| text.lines().enumerate().filter_map(comment).collect();
    let sources =
        ["src", "crates", "tests", "benches", "fuzz"].into_iter().flat_map(|folder| files(folder, "rs"));
    // This file contains the words themselves.
    let sources = sources.filter(|path| !path.ends_with("architecture/language.rs"));
    assert_few_person_words(sources.map(|path| (path.clone(), comments(&read_text(&path)))));
}

/// Returns the variables and fields with old names in a file. Functions, methods and paths may be named by others.
fn old_names(source: &Source) -> Vec<String> {
    let tokens = source.tokens();
    let text = |index: usize| tokens.get(index).map_or("", |token| token.text);
    let found = tokens.iter().enumerate().filter_map(|(index, token)| {
        let (old, better) = OLD_NAMES.iter().find(|(old, _)| *old == token.text)?;
        let is_item = index > 0 && [".", "::", "fn", "mod"].contains(&text(index - 1));
        let is_used = ["(", "::", "!"].contains(&text(index + 1));
        let line = line_of(&source.code, token.at);
        (!is_item && !is_used).then(|| format!("{}:{line}: {old}, better {better}", source.path))
    });
    found.collect()
}

#[test]
fn variables_have_the_words_of_the_field() {
    let sources = ["src", "crates"].into_iter().flat_map(all_sources);
    assert_none("old names", &sources.flat_map(|source| old_names(&source)).collect::<Vec<_>>());
}

#[test]
fn documentation_has_the_required_terms() {
    let text: String =
        documents().iter().map(|path| read_text(path).to_lowercase().replace('\n', " ")).collect();
    let missing: Vec<_> = REQUIRED_TERMS.iter().filter(|term| !text.contains(&term.to_lowercase())).collect();
    assert!(missing.is_empty(), "missing terms: {missing:?}");
}

#[test]
fn book_summary_lists_every_page() {
    let summary = read_text(&root().join("docs/SUMMARY.md"));
    let listed: BTreeSet<&str> =
        summary.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    let pages = files("docs", "md").into_iter().map(|path| display_path(&path).replace("docs/", ""));
    let unlisted: Vec<_> = pages
        .filter(|page| !["SUMMARY.md", "configuration.md", "operations.md"].contains(&page.as_str()))
        .filter(|page| !listed.contains(page.as_str()))
        .collect();
    assert!(unlisted.is_empty(), "not in docs/SUMMARY.md: {unlisted:?}");
}

mod parser_tests {
    //! Tests of the readers: every check above must be able to fail.

    use super::*;

    #[test]
    fn paragraphs_are_found_without_code_tables_and_headings() {
        let text = "# A\nOne\ntwo.\n\n- item\n  more\n- other\n\n```sh\nno\n```\n| a |\n|---|\n1. first\n";
        let found = paragraphs(text);
        let expected = [(2, "One two."), (5, "item more"), (7, "other"), (13, "first")];
        let expected = expected.map(|(line, text)| match line {
            5 | 7 => (line, format!("- {text}")),
            13 => (14, format!("1. {text}")),
            _ => (line, text.to_owned()),
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn paragraphs_are_split_into_sentences() {
        assert_eq!(
            sentences("One e.g. two. Three: `four` (five). 6"),
            ["One e.g. two.", "Three:", "`four` (five).", "6"]
        );
    }

    #[test]
    fn old_names_are_found_in_bindings_only() {
        let found = |text: &str| old_names(&Source::new("src/one.rs", text)).len();
        for old in [
            "let octets = 1;",
            "fn f(octets: usize) {}",
            "struct S { octets: usize }",
            "|octets| 1",
            "for octets in x {}",
        ] {
            assert_eq!(found(old), 1, "{old}");
        }
        for fine in [
            "ip.octets()",
            "fn of_rule() {}",
            "map(LineageId::of_rule)",
            "// octets",
            "\"octets\"",
            "octets_read",
        ] {
            assert_eq!(found(fine), 0, "{fine}");
        }
    }

    #[test]
    fn table_broken_by_a_blank_line_is_found() {
        assert_eq!(broken_tables("\n| a |\n|---|\n| b |\n"), [0_usize; 0]);
        assert_eq!(broken_tables("| a |\n|---|\n\n| b |\n| c |\n"), [4]);
    }
}
