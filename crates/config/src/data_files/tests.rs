use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

use super::networks::NETWORKS;
use super::*;
use crate::diagnostic::Diagnostics;
use crate::positions::{Positions, SourceTexts};
use weir_policy::identify::cidr::Ranges;

static PARSE_COUNT: AtomicUsize = AtomicUsize::new(0);

const COUNTED_KIND: DataFileKind<Vec<u8>> = DataFileKind {
    name: "counted",
    max_size: 16,
    parse: |content| {
        PARSE_COUNT.fetch_add(1, Ordering::Relaxed);
        if content == b"bad" { Err(vec![DataFileError::for_file("bad")]) } else { Ok(content) }
    },
};

/// A directory for data files of a configuration that does not exist itself.
struct DataFileFixture {
    directory: TempDir,
    files: DataFiles,
}

impl DataFileFixture {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), files: DataFiles::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }

    /// Loads these files as a configuration would; returns the values or the problems.
    fn load<T: Any + Send + Sync>(
        &mut self,
        names: &[&str],
        kind: &DataFileKind<T>,
    ) -> Result<Vec<Arc<T>>, Vec<String>> {
        let file = self.path("weir.yaml");
        let texts = SourceTexts::single(&file, Positions::default());
        let report = Diagnostics::new(&texts);
        self.files.start_compilation(&file);
        let loaded = names.iter().filter_map(|name| report.section("list").load(&mut self.files, name, kind));
        let loaded = loaded.collect();
        self.files.finish_compilation();
        let base = format!("{}/", self.directory.path().display());
        let problems = report.into_errors();
        if problems.is_empty() {
            return Ok(loaded);
        }
        Err(problems.iter().map(|problem| problem.to_string().replace(&base, "")).collect())
    }

    fn networks(&mut self, names: &[&str]) -> Result<Vec<Arc<Ranges>>, Vec<String>> {
        self.load(names, &NETWORKS)
    }
}

#[test]
fn unreadable_data_file_is_reported_where_it_is_named() {
    let mut fixture = DataFileFixture::new();
    fs::create_dir(fixture.path("directory")).unwrap();
    std::os::unix::fs::symlink("gone", fixture.path("link")).unwrap();
    std::os::unix::net::UnixListener::bind(fixture.path("socket")).unwrap();
    fixture.write("large", [b'x'; 17]);
    for (name, message) in [
        ("none", "no such file, got \"none\""),
        ("directory", "a directory, expected a file, got \"directory\""),
        ("link", "broken symbolic link, got \"link\""),
        ("socket", "not a regular file, got \"socket\""),
        ("", "empty, expected a file name"),
    ] {
        assert_eq!(fixture.networks(&[name]).unwrap_err(), [format!("weir.yaml:1:1: list: {message}")]);
    }
    let messages = fixture.load(&["large"], &COUNTED_KIND).unwrap_err();
    assert_eq!(messages, ["weir.yaml:1:1: list: larger than 0 MiB, got \"large\""]);
}

#[test]
fn named_pipe_is_rejected_without_blocking() {
    let mut fixture = DataFileFixture::new();
    let made = std::process::Command::new("mkfifo").arg(fixture.path("pipe")).status().unwrap();
    assert!(made.success());
    let messages = fixture.networks(&["pipe"]).unwrap_err();
    assert_eq!(messages, ["weir.yaml:1:1: list: not a regular file, got \"pipe\""]);
    assert!(
        fixture.files.current_hashes().is_empty()
            || fixture.files.current_hashes()[&fixture.path("pipe")].is_err()
    );
}

#[test]
fn data_file_error_has_position_in_that_file() {
    let mut fixture = DataFileFixture::new();
    fixture.write("list.txt", "10.0.0.0/8\n\n 10.0.0.1/8\n");
    assert_eq!(
        fixture.networks(&["list.txt", "list.txt"]).unwrap_err(),
        ["list.txt:3:2: host bits must be zero, got \"10.0.0.1/8\" (did you mean `10.0.0.0/8`?)"]
    );
}

#[test]
fn unchanged_data_file_is_not_parsed_again() {
    let mut fixture = DataFileFixture::new();
    fixture.write("a", "same");
    fixture.write("b", "bad");
    let before = PARSE_COUNT.load(Ordering::Relaxed);
    let first = fixture.load(&["a"], &COUNTED_KIND).unwrap();
    for _ in 0..3 {
        let again = fixture.load(&["a"], &COUNTED_KIND).unwrap();
        assert!(Arc::ptr_eq(&first[0], &again[0]));
    }
    // Rewritten with the same content.
    fixture.write("a", "same");
    assert!(Arc::ptr_eq(&first[0], &fixture.load(&["a", "a"], &COUNTED_KIND).unwrap()[1]));
    for _ in 0..3 {
        assert_eq!(fixture.load(&["b"], &COUNTED_KIND).unwrap_err(), ["weir.yaml:1:1: list: bad, got \"b\""]);
    }
    assert_eq!(PARSE_COUNT.load(Ordering::Relaxed), before + 2);
    fixture.write("b", "good");
    assert_eq!(*fixture.load(&["b"], &COUNTED_KIND).unwrap()[0], b"good");
}

#[test]
fn data_file_change_is_detected_despite_equal_size_and_mtime() {
    let mut fixture = DataFileFixture::new();
    fixture.write("list", "10.0.0.0/8");
    let time = fs::metadata(fixture.path("list")).unwrap().modified().unwrap();
    fixture.networks(&["list"]).unwrap();
    let hashes = fixture.files.recorded_hashes();
    assert_eq!(fixture.files.current_hashes(), hashes);
    assert_eq!(fixture.files.current_hashes(), hashes);
    fixture.write("list", "11.0.0.0/8");
    fs::File::options().write(true).open(fixture.path("list")).unwrap().set_modified(time).unwrap();
    assert_ne!(fixture.files.current_hashes(), hashes);
    // `current_hashes` does not change the recorded hashes.
    assert_eq!(fixture.files.recorded_hashes(), hashes);
    let list = fixture.networks(&["list"]).unwrap();
    assert!(list[0].contains("11.0.0.1".parse().unwrap()));
    assert_eq!(fixture.files.current_hashes(), fixture.files.recorded_hashes());
}

#[test]
fn created_removed_and_unused_data_files_are_detected() {
    let mut fixture = DataFileFixture::new();
    fixture.networks(&["late"]).unwrap_err();
    let missing = fixture.files.recorded_hashes();
    assert_eq!(fixture.files.current_hashes(), missing);
    fixture.write("late", "10.0.0.0/8");
    assert_ne!(fixture.files.current_hashes(), missing);
    fixture.networks(&["late"]).unwrap();
    let there = fixture.files.recorded_hashes();
    fs::remove_file(fixture.path("late")).unwrap();
    assert_ne!(fixture.files.current_hashes(), there);
    fixture.networks(&[]).unwrap();
    assert!(fixture.files.current_hashes().is_empty() && fixture.files.recorded_hashes().is_empty());
}
