//! What the system tells of a file without its being read.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// What tells a file from another one, and from itself after a change, without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    /// Also moves where somebody sets the time of modification back.
    changed: (i64, i64),
}

impl Stamp {
    /// The stamp of what is at `path`, behind links; `None` if nothing can be said of it.
    pub fn of(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().as_ref().map(Self::from)
    }

    /// Whether this is the same file, though perhaps with another content; not one that was put in its place.
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
