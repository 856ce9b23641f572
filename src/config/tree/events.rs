//! One pass over the events of a YAML text: places, duplicate keys, depth, size, number of documents.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span};

use super::positions::{Position, Positions, Spot};
use super::{DEEPEST, MOST_VALUES, TOO_DEEP};
use crate::config::at::{write_item, write_key};
use crate::config::problem::{named, shown};

/// What the pass found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) positions: Positions,
    pub(super) faults: Vec<ScanFault>,
    /// Where and why the events end early: the text is not YAML, or this parser does not know it.
    pub(super) failed: Option<(Position, String)>,
}

/// What is wrong before any value is looked at.
#[derive(Debug)]
pub(super) struct ScanFault {
    pub(super) at: Position,
    pub(super) path: String,
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

/// A map or a list that is still open.
#[derive(Debug)]
struct Open {
    anchor: usize,
    at: Position,
    /// Length of the path of the container itself.
    path_length: usize,
    /// Values in it so far, aliases written out.
    values: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    List { next: usize },
    Map { keys: HashMap<String, usize>, pending: Option<Position> },
}

#[derive(Debug, Default)]
struct Walk {
    scan: Scan,
    open: Vec<Open>,
    path: String,
    /// Values behind each anchor.
    anchored: HashMap<usize, u64>,
    documents: usize,
    /// Values in the largest container.
    values: u64,
    /// Reading on would cost much or say nothing true.
    stop: bool,
}

/// Reads all events of `text`, or as many as can be read.
pub(super) fn scan(text: &str) -> Scan {
    let mut walk = Walk::default();
    let mut parser = Parser::new_from_str(text);
    while let Some(next) = parser.next_event() {
        match next {
            Ok((event, span)) => walk.step(&event, span),
            Err(error) => {
                walk.scan.failed = Some((position(error.marker()), error.info().to_owned()));
            }
        }
        if walk.scan.failed.is_some() || walk.stop {
            return walk.scan;
        }
    }
    if walk.documents == 0 {
        let message = if text.trim().is_empty() { "the file is empty" } else { "the file has only comments" };
        walk.fault(Position::START, message.to_owned(), None);
    }
    walk.scan
}

/// Markers count lines from 1 and columns from 0.
fn position(marker: &Marker) -> Position {
    Position { line: marker.line().max(1), column: marker.col() + 1 }
}

impl Walk {
    fn step(&mut self, event: &Event<'_>, span: Span) {
        let at = position(&span.start);
        match event {
            Event::DocumentStart(_) => self.document(at),
            Event::Scalar(text, style, anchor, _) => self.scalar((text, *style), *anchor, at),
            _ if self.wants_key() && !matches!(event, Event::MappingEnd) => {
                self.fatal(at, "a key must be text");
            }
            Event::Alias(anchor) => {
                let values = self.anchored.get(anchor).copied().unwrap_or(1);
                self.leaf(at, values);
            }
            Event::MappingStart(anchor, _) => {
                self.enter(*anchor, Kind::Map { keys: HashMap::new(), pending: None }, at);
            }
            Event::SequenceStart(anchor, _) => self.enter(*anchor, Kind::List { next: 0 }, at),
            Event::MappingEnd | Event::SequenceEnd => self.leave(),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
    }

    fn document(&mut self, at: Position) {
        self.documents += 1;
        if self.documents > 1 {
            self.fatal(at, "a second YAML document, expected one: remove the `---` between them");
        }
    }

    fn wants_key(&self) -> bool {
        matches!(self.open.last(), Some(Open { kind: Kind::Map { pending: None, .. }, .. }))
    }

    fn scalar(&mut self, (text, style): (&str, ScalarStyle), anchor: usize, at: Position) {
        if self.wants_key() {
            return self.key(text, at);
        }
        // The parser notices that a value is missing only where the next thing starts.
        let is_missing = text.is_empty() && style == ScalarStyle::Plain;
        let at = if is_missing { self.around().unwrap_or(at) } else { at };
        self.leaf(at, 1);
        if anchor > 0 {
            self.anchored.insert(anchor, 1);
        }
    }

    fn key(&mut self, text: &str, at: Position) {
        let Some(Open { path_length, kind: Kind::Map { keys, pending }, .. }) = self.open.last_mut() else {
            return;
        };
        *pending = Some(at);
        let first = keys.insert(text.to_owned(), at.line);
        // Writing to a string cannot fail.
        let _ = write_key(&mut self.path, text, *path_length == 0);
        if let Some(first) = first {
            let is_secret = shown(&self.path) != self.path;
            let name = if is_secret { String::new() } else { format!(" {}", named(text)) };
            self.fault(at, format!("duplicate key{name}"), Some(format!("first in line {first}")));
        }
    }

    /// The key of the value that is about to start, or the list it is in.
    fn around(&self) -> Option<Position> {
        let open = self.open.last()?;
        match &open.kind {
            Kind::Map { pending, .. } => *pending,
            Kind::List { .. } => Some(open.at),
        }
    }

    /// A value that opens nothing.
    fn leaf(&mut self, at: Position, values: u64) {
        self.begin(at);
        self.count(values);
        self.end_value();
    }

    fn enter(&mut self, anchor: usize, kind: Kind, at: Position) {
        self.begin(at);
        self.open.push(Open { anchor, at, path_length: self.path.len(), values: 1, kind });
        if self.open.len() > DEEPEST {
            self.path.clear();
            self.fatal(at, TOO_DEEP);
        }
    }

    fn leave(&mut self) {
        let Some(closed) = self.open.pop() else { return };
        if closed.anchor > 0 {
            self.anchored.insert(closed.anchor, closed.values);
        }
        self.path.truncate(closed.path_length);
        self.count(closed.values);
        self.end_value();
    }

    /// A value starts: its path is complete now.
    fn begin(&mut self, at: Position) {
        let mut key = None;
        match self.open.last_mut().map(|open| &mut open.kind) {
            // Writing to a string cannot fail.
            Some(Kind::List { next }) => drop(write_item(&mut self.path, *next)),
            Some(Kind::Map { pending, .. }) => key = *pending,
            None => {}
        }
        self.scan.positions.insert(&self.path, Spot { key, value: at });
    }

    /// A value has ended: what comes next is another key or item.
    fn end_value(&mut self) {
        let Some(open) = self.open.last_mut() else { return };
        match &mut open.kind {
            Kind::List { next } => *next += 1,
            Kind::Map { pending, .. } => *pending = None,
        }
        self.path.truncate(open.path_length);
    }

    fn count(&mut self, values: u64) {
        let Some(open) = self.open.last_mut() else { return };
        open.values = open.values.saturating_add(values);
        self.values = self.values.max(open.values);
        if self.values > MOST_VALUES {
            self.path.clear();
            self.fatal(Position::START, "aliases multiply to more than a million values");
        }
    }

    fn fault(&mut self, at: Position, message: String, hint: Option<String>) {
        self.scan.faults.push(ScanFault { at, path: self.path.clone(), message, hint });
    }

    fn fatal(&mut self, at: Position, message: &str) {
        self.fault(at, message.to_owned(), None);
        self.stop = true;
    }
}
