//! `weir inject` and `weir uninject`: reads manifests, and joins what comes out to one stream. The changes themselves are in
//! `weir_inject`.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::cli::InjectArgs;
use weir_inject::{ConfigSource, InjectOptions, Injection, ManifestSource};

/// What the command prints.
#[derive(Debug)]
pub struct InjectOutput {
    /// The manifests.
    pub text: String,
    /// Notes for standard error.
    pub notes: Vec<String>,
    /// Names of the files that differ from the input.
    pub changed: Vec<String>,
}

/// Adds the sidecar to the manifests of the arguments.
///
/// # Errors
/// Returns every problem as a line, for example `shop.yaml:12:9: spec.hostNetwork: …`.
pub fn inject(args: &InjectArgs) -> Result<InjectOutput, Vec<String>> {
    let config = match (&args.limit, &args.config, &args.config_map) {
        (Some(limit), _, _) => Some(ConfigSource::Limit(limit.clone())),
        (None, Some(file), _) => {
            let text = read(file).map_err(|problem| vec![problem])?;
            Some(ConfigSource::File { name: file.display().to_string(), text })
        }
        (None, None, Some(name)) => Some(ConfigSource::ConfigMap(name.clone())),
        (None, None, None) => None,
    };
    let options =
        InjectOptions { config, port: args.port, image: args.image.clone(), is_redirect: args.redirect };
    let sources = read_all(&args.files)?;
    let injection = weir_inject::inject(&sources, &options).map_err(|problems| shown(&problems))?;
    output(&sources, injection)
}

/// Removes the sidecar from the manifests in these files.
///
/// # Errors
/// Returns every problem as a line.
pub fn uninject(files: &[PathBuf]) -> Result<InjectOutput, Vec<String>> {
    let sources = read_all(files)?;
    let mut injection = weir_inject::uninject(&sources).map_err(|problems| shown(&problems))?;
    if injection.titles.is_empty() {
        injection.notes.push("no object has a sidecar that inject has added".to_owned());
    }
    output(&sources, injection)
}

fn shown(problems: &[weir_inject::InjectProblem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

fn output(sources: &[ManifestSource], injection: Injection) -> Result<InjectOutput, Vec<String>> {
    let pairs = sources.iter().zip(&injection.files);
    let changed = pairs.filter(|(before, after)| before.text != after.text);
    let changed = changed.map(|(before, _)| before.name.clone()).collect();
    Ok(InjectOutput { text: join(&injection.files)?, notes: injection.notes, changed })
}

/// Joins files to one stream of documents. One file stays as it is.
fn join(files: &[ManifestSource]) -> Result<String, Vec<String>> {
    let is_json = |file: &ManifestSource| file.text.trim_start().starts_with('{');
    let jsons = files.iter().filter(|file| is_json(file)).count();
    if jsons > 0 && jsons < files.len() {
        return Err(vec!["YAML and JSON cannot be one stream, inject their files one by one".to_owned()]);
    }
    let mut joined = String::new();
    for file in files {
        if !joined.is_empty() {
            if !joined.ends_with('\n') {
                joined.push('\n');
            }
            if jsons == 0 && !file.text.starts_with("---") {
                joined.push_str("---\n");
            }
        }
        joined.push_str(&file.text);
    }
    Ok(joined)
}

fn read_all(files: &[PathBuf]) -> Result<Vec<ManifestSource>, Vec<String>> {
    let (mut sources, mut problems) = (Vec::new(), Vec::new());
    for file in files {
        match read(file) {
            Ok(text) => sources.push(ManifestSource { name: file.display().to_string(), text }),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() { Ok(sources) } else { Err(problems) }
}

/// Reads a file; `-` is standard input.
fn read(file: &Path) -> Result<String, String> {
    let text = if file == Path::new("-") {
        let mut text = String::new();
        io::stdin().lock().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(file)
    };
    text.map_err(|error| format!("{}: not readable: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> ManifestSource {
        ManifestSource { name: "a".to_owned(), text: text.to_owned() }
    }

    #[test]
    fn files_are_joined_by_separators() {
        let joined = join(&[file("a: 1"), file("b: 2\n"), file("---\nc: 3\n")]).unwrap();
        assert_eq!(joined, "a: 1\n---\nb: 2\n---\nc: 3\n");
        assert_eq!(join(&[file("{}"), file("{}")]).unwrap(), "{}\n{}");
    }

    #[test]
    fn yaml_and_json_are_not_joined() {
        assert!(join(&[file("a: 1"), file("{}")]).is_err());
    }
}
