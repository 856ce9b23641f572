//! Reading of data files: complete, of bounded size, and only from regular files, which do not block.

use std::fs::{self, File, Metadata};
use std::hash::Hasher as _;
use std::io::{self, Read};
use std::path::Path;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

use crate::config::source::unreadable;

/// Number of bytes read and hashed at a time.
const CHUNK: usize = 64 << 10;

/// Reads the file at `path`, which must be a regular file of at most `largest` bytes.
pub(super) fn read(path: &Path, largest: u64) -> Result<Vec<u8>, String> {
    let (file, metadata) = open(path, largest)?;
    let mut content = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or_default());
    // One byte above the maximum shows that the file is too large.
    file.take(largest.saturating_add(1))
        .read_to_end(&mut content)
        .map_err(|error| unreadable(path, &error))?;
    if u64::try_from(content.len()).unwrap_or(u64::MAX) > largest {
        return Err(too_large(largest));
    }
    Ok(content)
}

/// Returns the hash of what [`read`] would return, without storing it.
pub(super) fn hash_of(path: &Path, largest: u64) -> Result<u128, String> {
    let (file, _) = open(path, largest)?;
    let mut file = file.take(largest.saturating_add(1));
    let mut hasher = SipHasher13::new();
    let mut chunk = vec![0; CHUNK];
    let mut length = 0_u64;
    loop {
        let read = match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(unreadable(path, &error)),
        };
        hasher.write(&chunk[..read]);
        length = length.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
    }
    if length > largest {
        return Err(too_large(largest));
    }
    Ok(hasher.finish128().as_u128())
}

/// Returns the hash of a content, for comparison. Unkeyed, because clients do not choose the content.
pub(in crate::config) fn hash(content: &[u8]) -> u128 {
    let mut hasher = SipHasher13::new();
    hasher.write(content);
    hasher.finish128().as_u128()
}

/// Opens a regular file. Checks its type first, because opening a pipe would block until there is a writer.
fn open(path: &Path, largest: u64) -> Result<(File, Metadata), String> {
    let metadata = fs::metadata(path).map_err(|error| unreadable(path, &error))?;
    if metadata.is_dir() {
        return Err("a directory, expected a file".to_owned());
    }
    if !metadata.is_file() {
        return Err("not a regular file".to_owned());
    }
    if metadata.len() > largest {
        return Err(too_large(largest));
    }
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    Ok((file, metadata))
}

fn too_large(largest: u64) -> String {
    format!("larger than {} MiB", largest >> 20)
}
