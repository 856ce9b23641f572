//! A file that is there whole or not at all, for its owner alone.
//!
//! What is new is written beside the old one, brought to the disk, and renamed over it: whoever reads sees one or
//! the other, and so does whoever comes back after a crash. A lock beside it tells processes apart.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// For the owner alone: the secret of the keys is in it.
const MODE: u32 = 0o600;

/// Read and written at once.
const BUFFER: usize = 256 * 1024;

/// Whether a file is this process's to write.
pub(crate) enum Claim {
    /// For as long as the lock is open.
    Ours(File),
    /// Another process has it.
    Taken,
}

/// Claims `path` for this process.
pub(crate) fn claim(path: &Path) -> io::Result<Claim> {
    let lock = beside(path, ".lock")?;
    // Stays behind: to remove it would take it from under a process that has just opened it.
    let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(MODE).open(lock)?;
    match lock.try_lock() {
        Ok(()) => Ok(Claim::Ours(lock)),
        Err(TryLockError::WouldBlock) => Ok(Claim::Taken),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Opens `path` for reading; `None` if there is nothing of that name.
pub(crate) fn open(path: &Path) -> io::Result<Option<BufReader<File>>> {
    match fs::metadata(path) {
        // A pipe would be waited for.
        Ok(metadata) if !metadata.is_file() => Err(io::Error::other("not a regular file")),
        Ok(_) => Ok(Some(BufReader::with_capacity(BUFFER, File::open(path)?))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Puts what `write` writes in the place of `path`, if it answers something; with the number of bytes.
pub(crate) fn replace<T>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<Option<T>>,
) -> io::Result<(Option<T>, u64)> {
    let next = beside(path, ".next")?;
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // New: whoever has put something else there in the meantime is not written to.
    let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&next)?;
    let written = write_and_rename(file, &next, path, write);
    if !matches!(written, Ok((Some(_), _))) {
        // It is of no use; should it stay, the next one removes it.
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
    let Some(answer) = write(&mut out)? else { return Ok((None, 0)) };
    out.flush()?;
    let file = out.get_ref();
    file.sync_all()?;
    let bytes = file.metadata()?.len();
    fs::rename(next, path)?;
    // Only then is the new name on the disk, too.
    File::open(directory(path))?.sync_all()?;
    Ok((Some(answer), bytes))
}

/// Moves `path` out of the way, over what was set aside before; to where.
pub(crate) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let to = beside(path, ".damaged")?;
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    fs::rename(path, &to)?;
    Ok(to)
}

/// What would keep `path` from being written, as far as one can see without writing.
pub(crate) fn obstacle(path: &Path) -> Option<io::Error> {
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

fn beside(path: &Path, suffix: &str) -> io::Result<PathBuf> {
    let mut name = path.file_name().ok_or_else(|| io::Error::other("no name of a file"))?.to_owned();
    name.push(suffix);
    Ok(path.with_file_name(name))
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}
