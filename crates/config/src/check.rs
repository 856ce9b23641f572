//! `weir check`: validates files, standard input and the configurations inside Kubernetes manifests.

use std::collections::HashSet;
use std::path::Path;

use super::data_files::DataFiles;
use super::diagnostic::Diagnostic;
use super::manifest::{self, EmbeddedConfig, ManifestValues};
use super::source_texts::RestOfConfig;
use super::{Config, describe_changes, from_text_with_files, source};

/// Name that stands for standard input.
const STANDARD_INPUT: &str = "-";

/// A configuration, or what is wrong with it.
pub type LoadResult = Result<Config, Vec<Diagnostic>>;

/// The configurations that a file contains.
#[derive(Debug, Default)]
pub struct FileContent {
    /// The configurations in it.
    pub configs: Vec<LoadResult>,
    /// Notes on the parts of a manifest that are not checked.
    pub notes: Vec<Diagnostic>,
}

/// The worst that a check has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckStatus {
    /// All configurations are valid, without notes.
    #[default]
    Valid,
    /// All configurations are valid, and some have notes.
    HasNotes,
    /// A configuration is invalid.
    Invalid,
}

/// Lines to print, and the result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Problems, notes, changes, or what a valid configuration contains, one per line.
    pub lines: Vec<String>,
    /// The result.
    pub status: CheckStatus,
}

impl CheckReport {
    fn add(&mut self, lines: Vec<String>, status: CheckStatus) {
        self.lines.extend(lines);
        self.status = self.status.max(status);
    }
}

/// Checks `files`. With `running`, reports what each would change in an instance that runs that configuration, in
/// place of notes.
pub fn check_files<P: AsRef<Path>>(files: &[P], running: Option<&Path>) -> CheckReport {
    let mut report = CheckReport::default();
    let running = match running.map(load_single).transpose() {
        Ok(running) => running,
        Err(problems) => {
            report.add(lines_of(&problems), CheckStatus::Invalid);
            return report;
        }
    };
    for file in files {
        let FileContent { configs, notes } = load_all(file.as_ref());
        // What is said of a valid configuration would hide what is wrong beside it.
        let is_all_valid = notes.is_empty() && configs.iter().all(Result::is_ok);
        let file = Some(file.as_ref()).filter(|_| is_all_valid);
        add_results(configs, file, running.as_ref(), &mut report);
        if !notes.is_empty() {
            report.add(lines_of(&notes), CheckStatus::HasNotes);
        }
    }
    report
}

/// Adds what the configurations of a file are. `file`: its path, if nothing in it has a problem or a note.
fn add_results(
    results: Vec<LoadResult>,
    file: Option<&Path>,
    running: Option<&Config>,
    report: &mut CheckReport,
) {
    for result in results {
        match (result, running) {
            (Err(problems), _) => report.add(lines_of(&problems), CheckStatus::Invalid),
            (Ok(config), Some(running)) => {
                let changes = describe_changes(running, &config);
                let is_same = changes.is_empty();
                let lines = if is_same { vec!["nothing changes".to_owned()] } else { changes };
                report.add(lines, CheckStatus::Valid);
            }
            (Ok(config), None) if config.notices.is_empty() => {
                let line = |file: &Path| format!("{}: valid: {}", file.display(), config.summary());
                report.add(file.map(line).into_iter().collect(), CheckStatus::Valid);
            }
            (Ok(config), None) => report.add(lines_of(&config.notices), CheckStatus::HasNotes),
        }
    }
}

fn lines_of(diagnostics: &[Diagnostic]) -> Vec<String> {
    diagnostics.iter().map(ToString::to_string).collect()
}

/// Loads the only configuration in a file.
fn load_single(file: &Path) -> LoadResult {
    let mut all = load_all(file).configs;
    match (all.pop(), all.is_empty()) {
        (Some(only), true) => only,
        _ => {
            let error = Diagnostic::for_file(file, "more than one configuration in this Kubernetes manifest");
            let hint = Some(format!("select one with `{}#KEY`", file.display()));
            Err(vec![Diagnostic { hint, ..error }])
        }
    }
}

/// Loads every configuration that a file contains: the file itself, or those in the ConfigMaps of a Kubernetes
/// manifest. `-` is standard input, and `FILE#KEY` selects one key of a manifest.
fn load_all(file: &Path) -> FileContent {
    let (file, key) = split_key(file);
    match read(file) {
        Ok(text) => load_text(&text, file, key),
        Err(problem) => FileContent { configs: vec![Err(vec![problem])], notes: Vec::new() },
    }
}

/// Loads every configuration in `text`, the content of `file`.
pub fn load_text(text: &str, file: &Path, key: Option<&str>) -> FileContent {
    let mut content = FileContent::default();
    match manifest::find_configs(text, file, key) {
        Ok(Some(found)) => {
            found.iter().for_each(|values| load_values(values, file, key.is_some(), &mut content));
        }
        Ok(None) => content.configs.push(super::from_text(text, file, &source::environment_variable)),
        Err(problem) => content.configs.push(Err(vec![problem])),
    }
    content
}

/// Loads the configurations of a ConfigMap or a Secret. With `is_selected`, the other keys need no note.
fn load_values(values: &ManifestValues, manifest: &Path, is_selected: bool, content: &mut FileContent) {
    let mut checked: HashSet<String> = HashSet::new();
    for config in values.configs.iter().chain(&values.candidates) {
        // A file of a configuration may look like one: its keys are those of clients.
        if checked.contains(config.key()) {
            continue;
        }
        let (result, files) = load_embedded(config, manifest);
        checked.insert(config.key().to_owned());
        checked.extend(files);
        content.configs.push(result);
    }
    if !is_selected {
        content.notes.extend(values.unchecked_notes(|key| checked.contains(key), manifest));
    }
}

/// Splits `FILE#KEY`, unless there is a file of that name.
fn split_key(given: &Path) -> (&Path, Option<&str>) {
    match given.to_str().and_then(|text| text.rsplit_once('#')) {
        Some((file, key)) if !key.is_empty() && !given.exists() => (Path::new(file), Some(key)),
        _ => (given, None),
    }
}

fn read(file: &Path) -> Result<String, Diagnostic> {
    if file == Path::new(STANDARD_INPUT) {
        source::read_standard_input(file)
    } else {
        source::read_text(file)
    }
}

/// Loads a configuration, and returns the keys of the values beside it that it names as files.
fn load_embedded(embedded: &EmbeddedConfig, file: &Path) -> (LoadResult, Vec<String>) {
    let mut files = DataFiles::with_inline(embedded.data_files());
    let environment = &source::environment_variable;
    let loaded = from_text_with_files(
        &embedded.text,
        &embedded.file,
        RestOfConfig::Unavailable,
        environment,
        &mut files,
    );
    let relocate = |found: Vec<Diagnostic>| -> Vec<Diagnostic> {
        found.into_iter().map(|diagnostic| embedded.relocate(diagnostic, file)).collect()
    };
    match loaded {
        Ok(config) => {
            let named = embedded.keys_of(files.paths());
            (Ok(Config { notices: relocate(config.notices.clone()), ..config }), named)
        }
        Err(problems) => (Err(relocate(problems)), embedded.keys_in_text()),
    }
}
