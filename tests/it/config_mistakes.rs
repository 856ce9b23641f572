//! Every mistake in a configuration gets an understandable message with its position.
//!
//! Each `tests/config/NAME.yaml` contains one mistake, and `NAME.txt` the output of `weir check`. `WEIR_BLESS=1`
//! rewrites the texts; review the difference before committing it.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its files has failed")]

mod strangers;

use std::fs;
use std::path::{Path, PathBuf};

use weir_config::{Config, Diagnostic, from_text, load};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config")
}

/// Returns the environment variables that the files may use.
fn environment(name: &str) -> Option<String> {
    match name {
        "WEIR_TEST_BURST" => Some("20".to_owned()),
        "WEIR_TEST_WORD" => Some("many".to_owned()),
        "WEIR_TEST_YAML" => Some("{ limit: 1/s }\nburst: 5".to_owned()),
        _ => None,
    }
}

fn check(path: &Path) -> Result<Config, Vec<Diagnostic>> {
    let text = fs::read_to_string(path).unwrap();
    from_text(&text, Path::new(path.file_name().unwrap()), &environment)
}

fn lines(problems: &[Diagnostic]) -> String {
    problems.iter().map(|problem| format!("{problem}\n")).collect()
}

fn files() -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    files
}

#[test]
fn every_mistake_has_the_expected_message() {
    let bless = std::env::var_os("WEIR_BLESS").is_some();
    let mut different = Vec::new();
    for path in files() {
        let said = match check(&path) {
            Ok(config) => lines(&config.notices),
            Err(problems) => lines(&problems),
        };
        let expected = path.with_extension("txt");
        if bless {
            fs::write(&expected, &said).unwrap();
        } else if fs::read_to_string(&expected).unwrap_or_default() != said {
            different.push(format!("{}:\n{said}", path.display()));
        }
    }
    assert!(different.is_empty(), "unexpected output:\n{}", different.join("\n"));
}

#[test]
fn files_are_rejected_unless_they_only_have_notes() {
    for path in files() {
        let is_note = path.file_name().unwrap().to_string_lossy().starts_with("note_");
        assert_eq!(check(&path).is_ok(), is_note, "{}", path.display());
    }
}

#[test]
fn messages_follow_the_style_rules() {
    for problem in files().iter().filter_map(|path| check(path).err()).flatten() {
        let message = &problem.message;
        assert!(!message.ends_with('.'), "{problem}");
        assert!(!message.starts_with(|first: char| first.is_ascii_uppercase()), "{problem}");
        assert!(!message.contains('\n'), "{problem}");
        assert!(problem.line > 0 && problem.column > 0, "{problem}");
    }
}

#[test]
fn all_errors_are_reported_at_once() {
    let problems = check(&directory().join("all_at_once.yaml")).unwrap_err();
    assert!(problems.len() >= 25, "{}", lines(&problems));
    assert!(problems.is_sorted_by_key(|problem| (problem.line, problem.column)));
}

#[test]
fn file_truncated_before_its_rules_is_rejected() {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("config/quickstart.yaml")).unwrap();
    let rules = text.find("\nrules:").unwrap();
    for (end, _) in text.char_indices().filter(|(end, _)| *end <= rules + "\nrules:".len()) {
        assert!(from_text(&text[..end], Path::new("cut.yaml"), &environment).is_err(), "{end}");
    }
}

#[test]
fn every_shipped_configuration_is_valid() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let mut seen = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let loaded = load(&path);
            assert!(loaded.is_ok(), "{}", lines(&loaded.unwrap_err()));
            seen += 1;
        }
    }
    assert!(seen >= 5);
}

#[test]
fn unreadable_files_report_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let said = |path: &Path| load(path).unwrap_err()[0].message.clone();
    assert_eq!(said(&directory.path().join("none.yaml")), "no such file");
    assert_eq!(said(directory.path()), "no file in the folder has a name that ends in `.yaml`");
    let path = directory.path().join("weir.yaml");
    fs::write(&path, b"rules: [\xff]").unwrap();
    assert_eq!(load(&path).unwrap_err()[0].to_string(), format!("{}:1:9: not UTF-8 text", path.display()));
    fs::write(&path, vec![b'#'; (1 << 20) + 1]).unwrap();
    assert_eq!(said(&path), "larger than 1 MiB");
    std::os::unix::fs::symlink(directory.path().join("gone"), directory.path().join("link.yaml")).unwrap();
    assert_eq!(said(&directory.path().join("link.yaml")), "broken symbolic link");
}
