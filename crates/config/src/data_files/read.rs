//! Reading of data files: complete, of bounded size, and only from regular files, which do not block.

use std::fs::{self, File, Metadata};
use std::hash::Hasher as _;
use std::io::{self, Read};
use std::path::Path;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

use crate::source::describe_read_error;

/// Number of bytes read and hashed at a time.
const CHUNK_SIZE: usize = 64 << 10;

/// Reads the file at `path`, which must be a regular file of at most `max_size` bytes.
pub(super) fn read_file(path: &Path, max_size: u64) -> Result<Vec<u8>, String> {
    let (file, metadata) = open_file(path, max_size)?;
    let mut content = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or_default());
    // One byte above the maximum shows that the file is too large.
    file.take(max_size.saturating_add(1))
        .read_to_end(&mut content)
        .map_err(|error| describe_read_error(path, &error))?;
    if u64::try_from(content.len()).unwrap_or(u64::MAX) > max_size {
        return Err(too_large_message(max_size));
    }
    Ok(content)
}

/// Returns the hash of what [`read_file`] would return, without storing it.
pub(super) fn hash_file(path: &Path, max_size: u64) -> Result<u128, String> {
    let (file, _) = open_file(path, max_size)?;
    let mut file = file.take(max_size.saturating_add(1));
    let mut hasher = SipHasher13::new();
    let mut chunk = vec![0; CHUNK_SIZE];
    let mut length = 0_u64;
    loop {
        let read = match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(describe_read_error(path, &error)),
        };
        hasher.write(&chunk[..read]);
        length = length.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
    }
    if length > max_size {
        return Err(too_large_message(max_size));
    }
    Ok(hasher.finish128().as_u128())
}

/// Returns the hash of a content, for comparison. Unkeyed, because clients do not choose the content.
pub(crate) fn hash_bytes(content: &[u8]) -> u128 {
    let mut hasher = SipHasher13::new();
    hasher.write(content);
    hasher.finish128().as_u128()
}

/// Opens a regular file. Checks its type first, because opening a pipe would block until there is a writer.
fn open_file(path: &Path, max_size: u64) -> Result<(File, Metadata), String> {
    let metadata = fs::metadata(path).map_err(|error| describe_read_error(path, &error))?;
    if metadata.is_dir() {
        return Err("a directory, expected a file".to_owned());
    }
    if !metadata.is_file() {
        return Err("not a regular file".to_owned());
    }
    if metadata.len() > max_size {
        return Err(too_large_message(max_size));
    }
    let file = File::open(path).map_err(|error| describe_read_error(path, &error))?;
    Ok((file, metadata))
}

fn too_large_message(max_size: u64) -> String {
    format!("larger than {} MiB", max_size >> 20)
}
