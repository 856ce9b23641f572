//! Entry points to the parsers of data files, for fuzzing.

use super::header_values::VALUES;
use super::jwt_keys::{JWKS, PUBLIC_KEY, SECRET};
use super::members::MEMBERS;
use super::networks::NETWORKS;
use super::{DataFileError, DataFileKind, MAX_REPORTED_ERRORS};

pub fn parse_data_file(kind: u8, content: &[u8]) {
    match kind {
        3 => parse_and_check_errors(&NETWORKS, content),
        4 => parse_and_check_errors(&VALUES, content),
        5 => parse_and_check_errors(&MEMBERS, content),
        6 => parse_and_check_errors(&JWKS, content),
        _ => {
            parse_and_check_errors(&PUBLIC_KEY, content);
            parse_and_check_errors(&SECRET, content);
        }
    }
}

fn parse_and_check_errors<T>(kind: &DataFileKind<T>, content: &[u8]) {
    let Err(flaws) = (kind.parse)(content.to_vec()) else { return };
    assert!(
        !flaws.is_empty() && flaws.len() <= MAX_REPORTED_ERRORS,
        "{} flaws of a {}",
        flaws.len(),
        kind.name
    );
    // YAML also treats a carriage return as a line break.
    let lines = content.split(|byte| matches!(byte, b'\n' | b'\r')).count() + 1;
    for DataFileError { position: place, error } in flaws {
        assert!(!error.message.is_empty());
        assert!(place.is_none_or(|(line, column)| (1..=lines).contains(&line) && column >= 1), "{place:?}");
    }
}
