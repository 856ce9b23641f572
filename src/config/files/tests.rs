use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

use super::networks::NETWORKS;
use super::*;
use crate::config::tree::{Positions, Texts};
use crate::identify::cidr::Ranges;

static PARSED: AtomicUsize = AtomicUsize::new(0);

const COUNTED: Kind<Vec<u8>> = Kind {
    name: "counted",
    largest: 16,
    parse: |content| {
        PARSED.fetch_add(1, Ordering::Relaxed);
        if content == b"bad" { Err(vec![Flaw::whole("bad")]) } else { Ok(content) }
    },
};

/// A directory for data files of a configuration that does not exist itself.
struct Place {
    directory: TempDir,
    files: Files,
}

impl Place {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), files: Files::default() }
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
        kind: &Kind<T>,
    ) -> Result<Vec<Arc<T>>, Vec<String>> {
        let file = self.path("weir.yaml");
        let texts = Texts::one(&file, Positions::default());
        let mut report = Report::new(&texts);
        self.files.begin(&file);
        let loaded =
            names.iter().filter_map(|name| self.files.load(name, kind, At::ROOT.key("list"), &mut report));
        let loaded = loaded.collect();
        self.files.finish();
        let base = format!("{}/", self.directory.path().display());
        let problems = report.problems();
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
fn a_file_that_cannot_be_read_is_a_problem_of_who_names_it() {
    let mut place = Place::new();
    fs::create_dir(place.path("directory")).unwrap();
    std::os::unix::fs::symlink("gone", place.path("link")).unwrap();
    std::os::unix::net::UnixListener::bind(place.path("socket")).unwrap();
    place.write("large", [b'x'; 17]);
    for (name, said) in [
        ("none", "no such file, got \"none\""),
        ("directory", "a directory, expected a file, got \"directory\""),
        ("link", "broken symbolic link, got \"link\""),
        ("socket", "not a regular file, got \"socket\""),
        ("", "empty, expected a file name"),
    ] {
        assert_eq!(place.networks(&[name]).unwrap_err(), [format!("weir.yaml:1:1: list: {said}")]);
    }
    let said = place.load(&["large"], &COUNTED).unwrap_err();
    assert_eq!(said, ["weir.yaml:1:1: list: larger than 0 MiB, got \"large\""]);
}

#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let mut place = Place::new();
    let made = std::process::Command::new("mkfifo").arg(place.path("pipe")).status().unwrap();
    assert!(made.success());
    let said = place.networks(&["pipe"]).unwrap_err();
    assert_eq!(said, ["weir.yaml:1:1: list: not a regular file, got \"pipe\""]);
    assert!(place.files.look().is_empty() || place.files.look()[&place.path("pipe")].is_err());
}

#[test]
fn a_bad_line_has_its_place_in_its_own_file() {
    let mut place = Place::new();
    place.write("list.txt", "10.0.0.0/8\n\n 10.0.0.1/8\n");
    assert_eq!(
        place.networks(&["list.txt", "list.txt"]).unwrap_err(),
        ["list.txt:3:2: host bits must be zero, got \"10.0.0.1/8\" (did you mean `10.0.0.0/8`?)"]
    );
}

#[test]
fn what_has_not_changed_is_not_parsed_again() {
    let mut place = Place::new();
    place.write("a", "same");
    place.write("b", "bad");
    let before = PARSED.load(Ordering::Relaxed);
    let first = place.load(&["a"], &COUNTED).unwrap();
    for _ in 0..3 {
        let again = place.load(&["a"], &COUNTED).unwrap();
        assert!(Arc::ptr_eq(&first[0], &again[0]));
    }
    // Rewritten with the same content.
    place.write("a", "same");
    assert!(Arc::ptr_eq(&first[0], &place.load(&["a", "a"], &COUNTED).unwrap()[1]));
    for _ in 0..3 {
        assert_eq!(place.load(&["b"], &COUNTED).unwrap_err(), ["weir.yaml:1:1: list: bad, got \"b\""]);
    }
    assert_eq!(PARSED.load(Ordering::Relaxed), before + 2);
    place.write("b", "good");
    assert_eq!(*place.load(&["b"], &COUNTED).unwrap()[0], b"good");
}

#[test]
fn a_change_shows_even_where_length_and_time_stay() {
    let mut place = Place::new();
    place.write("list", "10.0.0.0/8");
    let time = fs::metadata(place.path("list")).unwrap().modified().unwrap();
    place.networks(&["list"]).unwrap();
    let marks = place.files.marks();
    assert_eq!(place.files.look(), marks);
    assert_eq!(place.files.look(), marks);
    place.write("list", "11.0.0.0/8");
    fs::File::options().write(true).open(place.path("list")).unwrap().set_modified(time).unwrap();
    assert_ne!(place.files.look(), marks);
    // `look` does not change the recorded marks.
    assert_eq!(place.files.marks(), marks);
    let list = place.networks(&["list"]).unwrap();
    assert!(list[0].contains("11.0.0.1".parse().unwrap()));
    assert_eq!(place.files.look(), place.files.marks());
}

#[test]
fn a_file_that_comes_goes_or_is_not_named_any_more_is_noticed() {
    let mut place = Place::new();
    place.networks(&["late"]).unwrap_err();
    let missing = place.files.marks();
    assert_eq!(place.files.look(), missing);
    place.write("late", "10.0.0.0/8");
    assert_ne!(place.files.look(), missing);
    place.networks(&["late"]).unwrap();
    let there = place.files.marks();
    fs::remove_file(place.path("late")).unwrap();
    assert_ne!(place.files.look(), there);
    place.networks(&[]).unwrap();
    assert!(place.files.look().is_empty() && place.files.marks().is_empty());
}
