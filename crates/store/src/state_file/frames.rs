//! Format of the state file: a signature and a version, followed by one frame for each part of a saved limiter.
//!
//! A frame is a length, a checksum, and the part, preceded by a byte with its type. The checksum also covers the
//! frame's number, so a missing, repeated or moved frame is detected. Content is parsed only after its checksum has
//! been verified. Reading needs memory for one frame.

use std::hash::Hasher as _;
use std::io::{self, Read, Write};
use std::sync::mpsc::Sender;

use siphasher::sip::SipHasher13;

use weir_limiter::Limiter;
use weir_limiter::saved::{RestoreError, Restored, Restorer, SaveError, SavedPart};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::transfer::{LateChargeMessage, TransferredHold};

/// First bytes of a state file. The line ending reveals files that were converted as text.
const SIGNATURE: &[u8; 12] = b"weir state\r\n";

/// Version of the format.
const VERSION: u32 = 3;

/// Maximum length of a frame in bytes. 256 limits with names and keys, or 4096 counters, fit.
const MAX_FRAME_SIZE: u32 = 1 << 24;

/// Checksum key. The checksum detects accidental damage only: processes that may write the file are trusted.
const CHECKSUM_KEY: u64 = 0x7765_6972_2d73_7461;

/// Why a file cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// Not a state file.
    #[error("not a state file")]
    Foreign,
    /// The format version of another release.
    #[error("unsupported format version, expected {VERSION}, got {0}")]
    Version(u32),
    /// The file is incomplete.
    #[error("truncated in the middle of a part")]
    Truncated,
    /// A checksum or a length is wrong.
    #[error("part {0} is damaged")]
    Damaged(u64),
    /// There is data after the last frame.
    #[error("unexpected data after the last part")]
    Trailing,
    /// The frames are intact, but their content is invalid.
    #[error("{0}")]
    Content(#[from] RestoreError),
    /// An I/O error.
    #[error("not readable: {0}")]
    System(#[from] io::Error),
}

/// Writes the state of `limiter` and returns the number of counters.
///
/// # Errors
/// As [`Limiter::save`].
pub fn write(out: &mut impl Write, limiter: &Limiter, now: Timestamp) -> Result<u64, SaveError<io::Error>> {
    write_frames(out, |part| limiter.save(now, part))
}

/// Transfers the counters of `limiter` in the same format, and returns the reservations.
///
/// # Errors
/// As [`Limiter::transfer`].
pub fn transfer(
    out: &mut impl Write,
    limiter: &Limiter,
    late: Sender<LateChargeMessage>,
    now: Timestamp,
) -> Result<Vec<TransferredHold>, SaveError<io::Error>> {
    write_frames(out, |part| limiter.transfer(now, late, part))
}

fn write_frames<T>(
    out: &mut impl Write,
    save: impl FnOnce(&mut dyn FnMut(SavedPart, &[u8]) -> io::Result<()>) -> Result<T, SaveError<io::Error>>,
) -> Result<T, SaveError<io::Error>> {
    let begin = out.write_all(SIGNATURE).and_then(|()| out.write_all(&VERSION.to_le_bytes()));
    begin.map_err(SaveError::Write)?;
    let mut number = 0;
    save(&mut |part, bytes| {
        let length = u32::try_from(bytes.len() + 1).ok().filter(|length| *length <= MAX_FRAME_SIZE);
        let length = length.ok_or_else(|| io::Error::other("a part is too long"))?;
        out.write_all(&length.to_le_bytes())?;
        out.write_all(&checksum(number, &[&[part.tag()], bytes]).to_le_bytes())?;
        out.write_all(&[part.tag()])?;
        number += 1;
        out.write_all(bytes)
    })
}

/// Reads what [`write`](fn@write) wrote.
///
/// # Errors
/// What is wrong with the input.
pub fn read(mut input: impl Read, max_keys: usize, now: Timestamp) -> Result<Restored, StateFileError> {
    let mut signature = [0; SIGNATURE.len()];
    let is_ours = read_exact_or_end(&mut input, &mut signature)? && &signature == SIGNATURE;
    let mut version = [0; 4];
    match is_ours && read_exact_or_end(&mut input, &mut version)? {
        true if u32::from_le_bytes(version) == VERSION => {}
        true => return Err(StateFileError::Version(u32::from_le_bytes(version))),
        false => return Err(StateFileError::Foreign),
    }
    let mut restorer = Restorer::new(max_keys, now);
    let mut frame = Vec::new();
    for number in 0.. {
        let part = read_frame(&mut input, number, &mut frame)?;
        restorer.read_part(part, &frame[1..])?;
        if part == SavedPart::End {
            break;
        }
    }
    if read_exact_or_end(&mut input, &mut [0])? {
        return Err(StateFileError::Trailing);
    }
    Ok(restorer.finish()?)
}

/// Reads the frame with this number into `frame` and returns its type.
fn read_frame(input: &mut impl Read, number: u64, frame: &mut Vec<u8>) -> Result<SavedPart, StateFileError> {
    let (mut length, mut sum) = ([0; 4], [0; 8]);
    if !read_exact_or_end(input, &mut length)? || !read_exact_or_end(input, &mut sum)? {
        return Err(StateFileError::Truncated);
    }
    let length = u32::from_le_bytes(length);
    if length == 0 || length > MAX_FRAME_SIZE {
        return Err(StateFileError::Damaged(number));
    }
    frame.clear();
    // Allocates for the bytes that are there, not for the length that the header claims.
    input.take(length.into()).read_to_end(frame)?;
    if frame.len() < length as usize {
        return Err(StateFileError::Truncated);
    }
    if checksum(number, &[frame]).to_le_bytes() != sum {
        return Err(StateFileError::Damaged(number));
    }
    SavedPart::from_tag(frame[0]).ok_or(StateFileError::Damaged(number))
}

/// Fills `bytes`; returns false if the input ended before.
fn read_exact_or_end(input: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match input.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn checksum(number: u64, bytes: &[&[u8]]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(CHECKSUM_KEY, number);
    bytes.iter().for_each(|bytes| hasher.write(bytes));
    hasher.finish()
}
