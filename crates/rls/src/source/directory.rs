//! Documents in a directory and its subdirectories, as the reference's runtime loader finds them.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use weir_net::watch::stamp::Stamp;

/// Maximum number of files and maximum depth; more suggests that the wrong directory is configured.
const MAX_FILES: usize = 100_000;
const MAX_DEPTH: usize = 16;

/// Maximum total size of the files in bytes; a million descriptors take about 100 MB.
const MAX_BYTES: u64 = 512 * 1024 * 1024;

/// A directory of documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesDirectory {
    pub path: PathBuf,
    /// Only files whose names, with `.` for `/`, start with this prefix are read.
    pub prefix: Box<str>,
    /// Whether to read files and directories whose names start with `.`. Names that start with `..` are never read:
    /// Kubernetes keeps a ConfigMap's versions there.
    pub includes_dotfiles: bool,
    /// Whether a domain may be in several files.
    pub merge_domains: bool,
}

/// The files in a directory, without their content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DirectoryListing {
    files: Vec<ListedFile>,
    directories: HashSet<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ListedFile {
    /// Path below the directory, with `.` for `/`.
    name: String,
    path: PathBuf,
    stamp: Stamp,
}

impl RulesDirectory {
    /// Creates a directory with all files except hidden ones.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), prefix: "".into(), includes_dotfiles: false, merge_domains: false }
    }

    /// Lists the files, sorted by name.
    pub(super) fn list(&self) -> Result<DirectoryListing, String> {
        let mut listing = DirectoryListing { files: Vec::new(), directories: HashSet::new() };
        self.walk(&self.path, "", 1, &mut listing)?;
        listing.files.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(listing)
    }

    /// Returns the directories to watch: the parent, because the directory may be replaced, and the directory with all
    /// subdirectories.
    pub(super) fn paths_to_watch(&self, listing: Option<&DirectoryListing>) -> HashSet<PathBuf> {
        let mut all: HashSet<PathBuf> =
            listing.map_or_else(HashSet::new, |listing| listing.directories.clone());
        all.insert(self.path.clone());
        all.extend(self.path.parent().filter(|parent| *parent != Path::new("")).map(Path::to_owned));
        // Links on the path may be replaced, too: the reference recommends to configure a link `current`.
        all.extend(
            self.path
                .ancestors()
                .filter(|path| path.is_symlink())
                .filter_map(Path::parent)
                .map(Path::to_owned),
        );
        all
    }

    fn walk(
        &self,
        path: &Path,
        parent: &str,
        depth: usize,
        listing: &mut DirectoryListing,
    ) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("{}: directories nested more than {MAX_DEPTH} levels deep", path.display()));
        }
        let entries = fs::read_dir(path).map_err(|error| read_error(path, &error))?;
        listing.directories.insert(path.to_owned());
        for entry in entries {
            let entry = entry.map_err(|error| read_error(path, &error))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("..") || (name.starts_with('.') && !self.includes_dotfiles) {
                continue;
            }
            let path = entry.path();
            // Follows links. Files that were removed meanwhile are ignored.
            let Ok(metadata) = fs::metadata(&path) else { continue };
            let name = if parent.is_empty() { name } else { format!("{parent}.{name}") };
            if metadata.is_dir() {
                self.walk(&path, &name, depth + 1, listing)?;
            } else if metadata.is_file() && name.starts_with(&*self.prefix) {
                listing.files.push(ListedFile { name, path, stamp: Stamp::from(&metadata) });
            }
            if listing.files.len() > MAX_FILES {
                return Err(format!("{}: more than {MAX_FILES} files", self.path.display()));
            }
        }
        Ok(())
    }
}

impl DirectoryListing {
    pub(super) fn has_file(&self, path: &Path) -> bool {
        self.files.iter().any(|file| file.path == path)
    }

    /// Returns whether a `later` listing shows that no file was read during a write: each file is unchanged, or was
    /// replaced by another one.
    pub(super) fn is_consistent_with(&self, later: &Self) -> bool {
        let is_consistent = |(old, new): (&ListedFile, &ListedFile)| {
            old.path == new.path && (old.stamp == new.stamp || !old.stamp.is_same_file_as(&new.stamp))
        };
        self.files.len() == later.files.len() && self.files.iter().zip(&later.files).all(is_consistent)
    }

    /// Reads the files; returns their names and texts.
    pub(super) fn read(&self) -> Result<Vec<(String, String)>, String> {
        let mut left = MAX_BYTES;
        let mut read_one = |file: &ListedFile| {
            let text = read_file(&file.path, left).map_err(|error| read_error(&file.path, &error))?;
            left = left.saturating_sub(text.len() as u64);
            Ok((file.name.clone(), text))
        };
        self.files.iter().map(&mut read_one).collect()
    }
}

fn read_file(path: &Path, max_bytes: u64) -> io::Result<String> {
    let mut text = String::new();
    fs::File::open(path)?.take(max_bytes.saturating_add(1)).read_to_string(&mut text)?;
    if text.len() as u64 > max_bytes {
        return Err(io::Error::other(format!("more than {} MiB in total", MAX_BYTES / 1024 / 1024)));
    }
    Ok(text)
}

fn read_error(path: &Path, error: &io::Error) -> String {
    let reason = match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        io::ErrorKind::PermissionDenied => "not readable: permission denied".to_owned(),
        io::ErrorKind::InvalidData => "not UTF-8 text".to_owned(),
        io::ErrorKind::NotADirectory => "not a directory".to_owned(),
        _ => error.to_string(),
    };
    format!("{}: {reason}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &RulesDirectory) -> Vec<String> {
        directory.list().unwrap().files.into_iter().map(|file| file.name).collect()
    }

    #[test]
    fn rules_files_are_named_by_their_paths_and_a_config_map_is_read_once() {
        let root = tempfile::tempdir().unwrap();
        let past = root.path().join("..2026_11_22");
        fs::create_dir_all(root.path().join("sub")).unwrap();
        fs::create_dir(&past).unwrap();
        fs::write(past.join("a.yaml"), "domain: a").unwrap();
        std::os::unix::fs::symlink("..2026_11_22", root.path().join("..data")).unwrap();
        std::os::unix::fs::symlink("..data/a.yaml", root.path().join("a.yaml")).unwrap();
        fs::write(root.path().join("sub/b"), "domain: b").unwrap();
        fs::write(root.path().join(".hidden"), "x").unwrap();
        let mut directory = RulesDirectory::new(root.path());
        assert_eq!(names(&directory), ["a.yaml", "sub.b"]);
        assert_eq!(directory.list().unwrap().read().unwrap()[0].1, "domain: a");
        directory.includes_dotfiles = true;
        assert_eq!(names(&directory), [".hidden", "a.yaml", "sub.b"]);
        directory.prefix = "sub.".into();
        assert_eq!(names(&directory), ["sub.b"]);
    }

    #[test]
    fn rules_directory_with_a_symlink_loop_is_rejected() {
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(".", root.path().join("again")).unwrap();
        let error = RulesDirectory::new(root.path()).list().unwrap_err();
        assert!(error.contains("levels deep"), "{error}");
    }

    #[test]
    fn unreadable_rules_files_are_named_in_the_error() {
        let root = tempfile::tempdir().unwrap();
        let missing = root.path().join("missing");
        let error = RulesDirectory::new(&missing).list().unwrap_err();
        assert_eq!(error, format!("{}: no such file or directory", missing.display()));
        fs::write(root.path().join("bytes"), [0xff, 0xfe]).unwrap();
        let error = RulesDirectory::new(root.path()).list().unwrap().read().unwrap_err();
        assert!(error.ends_with("bytes: not UTF-8 text"), "{error}");
    }
}
