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
    /// The same, with the value of an option.
    FilesWith(&'static ImportOption, fn(&[ImportSource], &str) -> Result<Imported, Vec<ImportError>>),
}

/// An option of a format, with a value.
#[derive(Debug)]
pub struct ImportOption {
    /// Its name on the command line, without dashes.
    pub name: &'static str,
    /// The name of its value, for the help.
    pub value_name: &'static str,
    /// What it means, for the help.
    pub help: &'static str,
    /// The value if it is not given.
    pub default: &'static str,
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
    /// The option of the format, if it has one.
    pub const fn option(&self) -> Option<&'static ImportOption> {
        match self.convert {
            Conversion::FilesWith(option, _) => Some(option),
            Conversion::OneFile(_) | Conversion::Files(_) => None,
        }
    }

    /// Converts files to rules; `value` is that of the format's option, or `None` for its default.
    ///
    /// # Errors
    /// Returns the problems of the files.
    pub fn import(
        &self,
        sources: &[ImportSource],
        value: Option<&str>,
    ) -> Result<Imported, Vec<ImportError>> {
        match (self.convert, sources) {
            (Conversion::Files(convert), sources) => convert(sources),
            (Conversion::FilesWith(option, convert), sources) => {
                convert(sources, value.unwrap_or(option.default))
            }
            (Conversion::OneFile(convert), [source]) => convert(source),
            (Conversion::OneFile(_), sources) => Err(vec![ImportError {
                file: self.name.to_owned(),
                position: None,
                message: format!("expected one file, got {}", sources.len()),
            }]),
        }
    }
}
