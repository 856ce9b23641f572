//! Mistakes of people who know another program: each gets a problem or a note with a useful hint at its place.
//!
//! `tests/config/strangers/PROGRAM.txt` has the cases of one program: a title after `### `, the configuration, `---`, and
//! the output of `weir check`. A configuration without `listeners` begins with a listener and an upstream.
//! `WEIR_BLESS=1` rewrites the outputs; review the difference before committing it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use weir_config::{Diagnostic, from_text};

use super::lines;

const PREAMBLE: &str = "listeners: 127.0.0.1:8080\nupstream: 127.0.0.1:3000\n";
const TITLE: &str = "### ";
const END: &str = "---\n";

struct Case {
    title: String,
    text: String,
    expected: String,
}

fn files() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config/strangers");
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn cases(file: &Path) -> Vec<Case> {
    let text = fs::read_to_string(file).unwrap();
    let cases = text.split(TITLE).skip(1).map(|case| {
        let (title, rest) = case.split_once('\n').unwrap();
        let (text, expected) = rest.split_once(END).unwrap();
        Case { title: title.to_owned(), text: text.to_owned(), expected: expected.trim_end().to_owned() }
    });
    cases.collect()
}

fn check(case: &Case) -> Vec<Diagnostic> {
    let preamble =
        if case.text.contains("listeners: ") || case.text.contains("bind: ") { "" } else { PREAMBLE };
    let text = format!("{preamble}{}", case.text);
    match from_text(&text, Path::new("weir.yaml"), &|_| None) {
        Ok(config) => config.notices,
        Err(problems) => problems,
    }
}

#[test]
fn every_mistake_has_a_hint() {
    let (mut count, mut different) = (0, String::new());
    for file in files() {
        let mut written = String::new();
        for case in cases(&file) {
            count += 1;
            let found = check(&case);
            let said = lines(&found);
            assert!(found.iter().any(|one| one.hint.is_some()), "{}: {}: {said}", file.display(), case.title);
            write!(written, "{TITLE}{}\n{}{END}{said}\n", case.title, case.text).unwrap();
            if said.trim_end() != case.expected {
                write!(different, "{}: {}:\n{said}", file.display(), case.title).unwrap();
            }
        }
        if std::env::var_os("WEIR_BLESS").is_some() {
            fs::write(&file, written).unwrap();
        }
    }
    assert!(count >= 200, "{count}");
    assert!(
        different.is_empty() || std::env::var_os("WEIR_BLESS").is_some(),
        "unexpected output:\n{different}"
    );
}

#[test]
fn problems_are_at_the_mistake() {
    for case in files().iter().flat_map(|file| cases(file)) {
        for problem in check(&case) {
            assert!(problem.line > 0 && problem.column > 0, "{}: {problem}", case.title);
        }
    }
}
