//! Files of reports: opened before the replay starts, so that a bad path fails at once, and complete or not changed at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// A file to which a report will be written.
#[derive(Debug)]
pub struct ReportFile {
    file: File,
    /// The temporary file, and the path to which it is renamed; `None` for a pipe or a device, which is written to
    /// directly.
    rename: Option<(PathBuf, PathBuf)>,
}

impl ReportFile {
    /// Opens a temporary file next to `path`, or `path` itself if it is not a regular file.
    ///
    /// # Errors
    /// Why the file cannot be written.
    pub fn create(path: &Path) -> io::Result<Self> {
        // A link stays a link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let present = fs::metadata(&path).ok();
        if present.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if present.as_ref().is_some_and(|present| !present.is_file()) {
            return Ok(Self { file: OpenOptions::new().write(true).open(&path)?, rename: None });
        }
        let name = path.file_name().ok_or_else(|| io::Error::other("the path has no file name"))?;
        let temporary = path.with_file_name(format!(".{}.{}.tmp", name.display(), std::process::id()));
        // From an earlier process with the same number, as in containers.
        let _ = fs::remove_file(&temporary);
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        let report = Self { file, rename: Some((temporary, path)) };
        if let Some(present) = present {
            report.file.set_permissions(present.permissions())?;
        }
        Ok(report)
    }

    /// Writes the report.
    ///
    /// # Errors
    /// Why the file cannot be written. A regular file is not changed then.
    pub fn finish(mut self, text: &str) -> io::Result<()> {
        self.file.write_all(text.as_bytes())?;
        if let Some((temporary, path)) = &self.rename {
            fs::rename(temporary, path)?;
            self.rename = None;
        }
        Ok(())
    }
}

impl Drop for ReportFile {
    /// Removes a temporary file that was not renamed.
    fn drop(&mut self) {
        if let Some((temporary, _)) = &self.rename {
            let _ = fs::remove_file(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn report_replaces_a_file_only_when_it_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("report.json"), directory.path().join("link"));
        fs::write(&path, "old").unwrap();
        drop(ReportFile::create(&path).unwrap());
        assert_eq!(
            (fs::read_to_string(&path).unwrap(), names(directory.path())),
            ("old".into(), vec!["report.json".into()])
        );
        std::os::unix::fs::symlink(&path, &link).unwrap();
        ReportFile::create(&link).unwrap().finish("new").unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap(), names(directory.path()).len()), ("new".into(), 2));
        assert!(fs::symlink_metadata(link).unwrap().is_symlink());
    }

    #[test]
    fn path_that_cannot_be_written_fails_at_once() {
        let directory = tempfile::tempdir().unwrap();
        assert!(ReportFile::create(directory.path()).is_err());
        assert!(ReportFile::create(&directory.path().join("missing/report.json")).is_err());
        ReportFile::create(Path::new("/dev/null")).unwrap().finish("text").unwrap();
    }
}
