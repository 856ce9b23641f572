//! Entry points to the parsers of data files, for fuzzing.

use super::keys::{JWKS, PUBLIC_KEY, SECRET};
use super::members::MEMBERS;
use super::networks::NETWORKS;
use super::values::VALUES;
use super::{Flaw, Kind, MOST_FLAWS};

/// Parses `content` as a file of the kind with this number.
pub(crate) fn data_file(kind: u8, content: &[u8]) {
    match kind {
        3 => read(&NETWORKS, content),
        4 => read(&VALUES, content),
        5 => read(&MEMBERS, content),
        6 => read(&JWKS, content),
        _ => {
            read(&PUBLIC_KEY, content);
            read(&SECRET, content);
        }
    }
}

fn read<T>(kind: &Kind<T>, content: &[u8]) {
    let Err(flaws) = (kind.parse)(content.to_vec()) else { return };
    assert!(!flaws.is_empty() && flaws.len() <= MOST_FLAWS, "{} flaws of a {}", flaws.len(), kind.name);
    // YAML also treats a carriage return as a line break.
    let lines = content.split(|byte| matches!(byte, b'\n' | b'\r')).count() + 1;
    for Flaw { place, fault } in flaws {
        assert!(!fault.message.is_empty());
        assert!(place.is_none_or(|(line, column)| (1..=lines).contains(&line) && column >= 1), "{place:?}");
    }
}
