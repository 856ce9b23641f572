//! File metadata that reveals changes without reading the file.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Identity and version of a file, from its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    /// Also changes if the modification time is set back.
    changed: (i64, i64),
}

impl Stamp {
    /// Returns the stamp of the file at `path`, following links; `None` if its metadata cannot be read.
    pub fn from_path(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().as_ref().map(Self::from)
    }

    /// Returns whether the file has no content.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns whether both stamps are of the same file, perhaps with different content. A file put in its place
    /// differs.
    pub fn is_same_file_as(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

impl From<&Metadata> for Stamp {
    fn from(file: &Metadata) -> Self {
        Self {
            device: file.dev(),
            inode: file.ino(),
            length: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}
