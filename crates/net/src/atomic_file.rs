//! Files that are replaced atomically and readable only by their owner.
//!
//! New content is written to a file next to the old one, synced to disk, and renamed over it. Readers see
//! either the old or the new content, also after a crash. A lock file keeps several processes apart.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Access for the owner only, because the file may contain the secret that keys are hashed with.
const MODE: u32 = 0o600;

/// Size of the read and write buffers.
const BUFFER: usize = 256 * 1024;

/// Whether this process may write a file.
#[derive(Debug)]
pub enum LockAttempt {
    /// It may, for as long as the lock is open.
    Acquired(File),
    /// Another process holds the lock.
    WouldBlock,
}

/// Locks `path` for this process.
pub fn try_lock(path: &Path) -> io::Result<LockAttempt> {
    let lock = sibling_path(path, ".lock")?;
    // The lock file is never removed, because another process may have just opened it.
    let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(MODE).open(lock)?;
    match lock.try_lock() {
        Ok(()) => Ok(LockAttempt::Acquired(lock)),
        Err(TryLockError::WouldBlock) => Ok(LockAttempt::WouldBlock),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Opens `path` for reading; `None` if it does not exist.
pub fn open(path: &Path) -> io::Result<Option<BufReader<File>>> {
    match fs::metadata(path) {
        // Opening a pipe would block.
        Ok(metadata) if !metadata.is_file() => Err(io::Error::other("not a regular file")),
        Ok(_) => Ok(Some(BufReader::with_capacity(BUFFER, File::open(path)?))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces `path` by what `write` writes, if it returns a value; returns that value and the number of bytes.
pub fn replace<T>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<Option<T>>,
) -> io::Result<(Option<T>, u64)> {
    let next = sibling_path(path, ".next")?;
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // `create_new`, so that a file that another process has put there meanwhile is not written to.
    let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&next)?;
    let written = write_and_rename(file, &next, path, write);
    if !matches!(written, Ok((Some(_), _))) {
        // Removes the incomplete file; if that fails, the next call removes it.
        let _ = fs::remove_file(&next);
    }
    written
}

fn write_and_rename<T>(
    file: File,
    next: &Path,
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<Option<T>>,
) -> io::Result<(Option<T>, u64)> {
    let mut out = BufWriter::with_capacity(BUFFER, file);
    let Some(written) = write(&mut out)? else { return Ok((None, 0)) };
    out.flush()?;
    let file = out.get_ref();
    file.sync_all()?;
    let bytes = file.metadata()?.len();
    fs::rename(next, path)?;
    // The rename is durable only after the directory has been synced.
    File::open(directory(path))?.sync_all()?;
    Ok((Some(written), bytes))
}

/// Moves `path` aside, replacing a file moved earlier; returns the new path.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let to = sibling_path(path, ".damaged")?;
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    fs::rename(path, &to)?;
    Ok(to)
}

/// Returns what would prevent writing `path`, as far as that can be checked without writing.
pub fn obstacle(path: &Path) -> Option<io::Error> {
    let parent = match fs::metadata(directory(path)) {
        Ok(metadata) if metadata.is_dir() => None,
        Ok(_) => Some(io::Error::other("not a directory")),
        Err(error) => Some(error),
    };
    parent.or_else(|| {
        let is_in_the_way = fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
        is_in_the_way.then(|| io::Error::other("not a regular file"))
    })
}

fn sibling_path(path: &Path, suffix: &str) -> io::Result<PathBuf> {
    let mut name = path.file_name().ok_or_else(|| io::Error::other("the path has no file name"))?.to_owned();
    name.push(suffix);
    Ok(path.with_file_name(name))
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}
