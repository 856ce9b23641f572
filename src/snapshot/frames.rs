//! How the parts of a saved limiter lie in a file: a signature, then one frame per part.
//!
//! A frame is a length, a checksum, and the part behind a byte that says which it is. The checksum covers the
//! frame's number too, so that no frame can be missing, doubled or in another's place; nothing is looked at before
//! its checksum is right. Reading needs memory for one frame.

use std::hash::Hasher as _;
use std::io::{self, Read, Write};

use siphasher::sip::SipHasher13;

use crate::limiter::Limiter;
use crate::limiter::saved::{Damage, Part, Restored, Restorer, SaveError};
use crate::limiter::timestamp::Timestamp;

/// What a state file begins with. The line ends betray whoever has treated it as text.
const SIGNATURE: &[u8; 12] = b"weir state\r\n";

/// The version of the format.
const VERSION: u32 = 2;

/// Nothing that is written needs more: 256 limits with names and keys, or 4096 counters.
const LONGEST_FRAME: u32 = 1 << 24;

/// Keys of the checksum, which is against accidents; who may write the file is believed.
const CHECKSUM_KEY: u64 = 0x7765_6972_2d73_7461;

/// Why a file is no state that we could go on from.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    /// Somebody else's.
    #[error("it is no state file")]
    Foreign,
    /// Another release's.
    #[error("it has format version {0}, and this release reads version {VERSION} alone")]
    Version(u32),
    /// Incomplete.
    #[error("it ends in the middle of a part")]
    Truncated,
    /// A checksum is wrong, or a length cannot be.
    #[error("part {0} of it is damaged")]
    Damaged(u64),
    /// More behind the end.
    #[error("it goes on behind its end")]
    Trailing,
    /// Whole, but not what anybody writes.
    #[error("{0}")]
    Content(#[from] Damage),
    /// The system's.
    #[error("cannot read it: {0}")]
    System(#[from] io::Error),
}

/// Writes what `limiter` saves and answers the number of counters.
pub(super) fn write(
    out: &mut impl Write,
    limiter: &Limiter,
    now: Timestamp,
) -> Result<u64, SaveError<io::Error>> {
    let begin = out.write_all(SIGNATURE).and_then(|()| out.write_all(&VERSION.to_le_bytes()));
    begin.map_err(SaveError::Write)?;
    let mut number = 0;
    limiter.save(now, |part, bytes| {
        let length = u32::try_from(bytes.len() + 1).ok().filter(|length| *length <= LONGEST_FRAME);
        let length = length.ok_or_else(|| io::Error::other("a part is too long"))?;
        out.write_all(&length.to_le_bytes())?;
        out.write_all(&checksum(number, &[&[part.tag()], bytes]).to_le_bytes())?;
        out.write_all(&[part.tag()])?;
        number += 1;
        out.write_all(bytes)
    })
}

/// Reads what [`write`] wrote.
pub(super) fn read(mut input: impl Read, max_keys: usize, now: Timestamp) -> Result<Restored, Unreadable> {
    let mut signature = [0; SIGNATURE.len()];
    let is_ours = whole(&mut input, &mut signature)? && &signature == SIGNATURE;
    let mut version = [0; 4];
    match is_ours && whole(&mut input, &mut version)? {
        true if u32::from_le_bytes(version) == VERSION => {}
        true => return Err(Unreadable::Version(u32::from_le_bytes(version))),
        false => return Err(Unreadable::Foreign),
    }
    let mut restorer = Restorer::new(max_keys, now);
    let mut frame = Vec::new();
    for number in 0.. {
        let part = next(&mut input, number, &mut frame)?;
        restorer.take(part, &frame[1..])?;
        if part == Part::End {
            break;
        }
    }
    if whole(&mut input, &mut [0])? {
        return Err(Unreadable::Trailing);
    }
    Ok(restorer.finish()?)
}

/// Reads the frame of this number whole; which part it is.
fn next(input: &mut impl Read, number: u64, frame: &mut Vec<u8>) -> Result<Part, Unreadable> {
    let (mut length, mut sum) = ([0; 4], [0; 8]);
    if !whole(input, &mut length)? || !whole(input, &mut sum)? {
        return Err(Unreadable::Truncated);
    }
    let length = u32::from_le_bytes(length);
    if length == 0 || length > LONGEST_FRAME {
        return Err(Unreadable::Damaged(number));
    }
    frame.clear();
    // Grows with what comes and not by what the length promises.
    input.take(length.into()).read_to_end(frame)?;
    if frame.len() < length as usize {
        return Err(Unreadable::Truncated);
    }
    if checksum(number, &[frame]).to_le_bytes() != sum {
        return Err(Unreadable::Damaged(number));
    }
    Part::from_tag(frame[0]).ok_or(Unreadable::Damaged(number))
}

/// Fills `bytes`; whether there were enough.
fn whole(input: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
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
