//! `weir check`: validates files, standard input and the configurations inside Kubernetes manifests.

use std::path::Path;

use super::data_files::DataFiles;
use super::diagnostic::Diagnostic;
use super::manifest::{self, EmbeddedConfig};
use super::source_texts::RestOfConfig;
use super::{Config, describe_changes, from_text_with_files, source};

/// Name that stands for standard input.
const STANDARD_INPUT: &str = "-";

/// A configuration, or what is wrong with it.
pub type LoadResult = Result<Config, Vec<Diagnostic>>;

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
    /// Problems, notes or changes, one per line.
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
    for result in files.iter().flat_map(|file| load_all(file.as_ref())) {
        match (result, &running) {
            (Err(problems), _) => report.add(lines_of(&problems), CheckStatus::Invalid),
            (Ok(config), Some(running)) => {
                let changes = describe_changes(running, &config);
                let is_same = changes.is_empty();
                let lines = if is_same { vec!["nothing changes".to_owned()] } else { changes };
                report.add(lines, CheckStatus::Valid);
            }
            (Ok(config), None) if config.notices.is_empty() => {}
            (Ok(config), None) => report.add(lines_of(&config.notices), CheckStatus::HasNotes),
        }
    }
    report
}

fn lines_of(diagnostics: &[Diagnostic]) -> Vec<String> {
    diagnostics.iter().map(ToString::to_string).collect()
}

/// Loads the only configuration in a file.
fn load_single(file: &Path) -> LoadResult {
    let mut all = load_all(file);
    match (all.pop(), all.is_empty()) {
        (Some(only), true) => only,
        _ => {
            let fault = Diagnostic::for_file(file, "more than one configuration in this Kubernetes manifest");
            let hint = Some(format!("select one with `{}#KEY`", file.display()));
            Err(vec![Diagnostic { hint, ..fault }])
        }
    }
}

/// Loads every configuration that a file contains: the file itself, or those in the ConfigMaps of a Kubernetes
/// manifest. `-` is standard input, and `FILE#KEY` selects one key of a manifest.
pub fn load_all(file: &Path) -> Vec<LoadResult> {
    let (file, key) = split_key(file);
    let text = match read(file) {
        Ok(text) => text,
        Err(problem) => return vec![Err(vec![problem])],
    };
    load_text(&text, file, key)
}

/// Loads every configuration in `text`, the content of `file`.
pub(crate) fn load_text(text: &str, file: &Path, key: Option<&str>) -> Vec<LoadResult> {
    match manifest::find_configs(text, file, key) {
        Ok(Some(embedded)) => embedded.iter().map(|config| load_embedded(config, file)).collect(),
        Ok(None) => vec![super::from_text(text, file, &source::environment_variable)],
        Err(problem) => vec![Err(vec![problem])],
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

fn load_embedded(embedded: &EmbeddedConfig, file: &Path) -> LoadResult {
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
        Ok(config) => Ok(Config { notices: relocate(config.notices.clone()), ..config }),
        Err(problems) => Err(relocate(problems)),
    }
}
