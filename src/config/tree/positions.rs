//! Where the value and the key of each path stand.

use std::collections::HashMap;

use crate::config::at::At;

/// A place in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::config) struct Position {
    /// From 1.
    pub(in crate::config) line: usize,
    /// In characters, from 1.
    pub(in crate::config) column: usize,
}

impl Position {
    /// Where a file starts.
    pub(in crate::config) const START: Self = Self { line: 1, column: 1 };
}

/// Paths take no more than this: what stands behind them in a monstrous file has the place of something around it.
const MOST_BYTES: usize = 32 << 20;

/// The places of one path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) key: Option<Position>,
    pub(super) value: Position,
}

/// The places of all paths of a file.
#[derive(Debug, Default)]
pub(in crate::config) struct Positions {
    spots: HashMap<String, Spot>,
    bytes: usize,
}

impl Positions {
    pub(super) fn insert(&mut self, path: &str, spot: Spot) {
        self.bytes = self.bytes.saturating_add(path.len() + size_of::<(String, Spot)>());
        if self.bytes <= MOST_BYTES {
            self.spots.entry(path.to_owned()).or_insert(spot);
        }
    }

    /// Where the value at `at` stands, or else the nearest thing around it.
    pub(in crate::config) fn value(&self, at: At<'_>) -> Position {
        self.nearest(&at.to_string()).map_or(Position::START, |spot| spot.value)
    }

    /// Where the key at `at` stands, or else the nearest thing around it.
    pub(in crate::config) fn key(&self, at: At<'_>) -> Position {
        self.nearest(&at.to_string()).map_or(Position::START, |spot| spot.key.unwrap_or(spot.value))
    }

    /// The spot of the longest known beginning of `path`: what comes through an alias has no place of its own.
    fn nearest(&self, path: &str) -> Option<&Spot> {
        let mut known = path;
        loop {
            if let Some(spot) = self.spots.get(known) {
                return Some(spot);
            }
            if known.is_empty() {
                return None;
            }
            known = &known[..known.rfind(['.', '[']).unwrap_or(0)];
        }
    }
}
