//! What an import format needs beside its conversion: a name on the command line, and its help.

use std::path::PathBuf;

use super::{ImportError, Imported};

/// A format that can be imported.
#[derive(Debug)]
pub struct Importer {
    /// Name on the command line.
    pub name: &'static str,
    /// What is imported, for the help.
    pub about: &'static str,
    /// Which files are expected, for the help.
    pub files: &'static str,
    /// Command lines, and what they do.
    pub examples: &'static [(&'static str, &'static str)],
    /// Converts files to rules.
    pub convert: Conversion,
}

/// How the files of a format are converted.
#[derive(Clone, Copy, Debug)]
pub enum Conversion {
    /// There is one file.
    OneFile(fn(&ImportSource) -> Result<Imported, Vec<ImportError>>),
    /// There are one or more files, which belong together.
    Files(fn(&[ImportSource]) -> Result<Imported, Vec<ImportError>>),
}

/// A file to import.
#[derive(Clone, Debug)]
pub struct ImportSource {
    /// Where it is.
    pub path: PathBuf,
    /// Its path in messages.
    pub name: String,
    /// Its content.
    pub text: String,
}

impl Importer {
    /// Converts files to rules.
    ///
    /// # Errors
    /// Returns the problems of the files.
    pub fn import(&self, sources: &[ImportSource]) -> Result<Imported, Vec<ImportError>> {
        match (self.convert, sources) {
            (Conversion::Files(convert), sources) => convert(sources),
            (Conversion::OneFile(convert), [source]) => convert(source),
            (Conversion::OneFile(_), sources) => Err(vec![ImportError {
                file: self.name.to_owned(),
                position: None,
                message: format!("expected one file, got {}", sources.len()),
            }]),
        }
    }
}
