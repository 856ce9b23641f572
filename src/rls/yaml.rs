//! YAML as the reference's parser (Go's yaml.v2) reads it: the first document of a text as a tree in which
//! scalars keep their text.
//!
//! Built from events without recursion. Depth and number of values are bounded, also where aliases multiply
//! them, so that whoever walks the tree may recurse.

mod scalar;

use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Marker, Parser, Tag};

pub(crate) use self::scalar::{Kind, Scalar};

/// Maps and lists within each other.
const DEEPEST: usize = 128;
/// Values in a document, aliases written out: more than a hundred thousand descriptors.
const MOST_VALUES: usize = 2 << 20;

/// Keys of a map up to which each is compared with all: faster than to hash them.
const SMALL: usize = 16;

/// A value and where it is.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Counted from 1, as the column is.
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    /// Each key once: of several the last.
    Map(Vec<(Node, Node)>),
}

/// Why a text cannot be read, as the reference's parser puts it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("yaml: line {line}: {problem}")]
pub(crate) struct Error {
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) problem: String,
}

/// A node with what it costs to repeat it.
#[derive(Clone, Debug)]
struct Weighed {
    node: Node,
    values: usize,
    depth: usize,
}

/// A map or a list that is still open.
#[derive(Debug)]
struct Open {
    anchor: usize,
    at: (usize, usize),
    values: usize,
    depth: usize,
    content: Content,
}

#[derive(Debug)]
enum Content {
    List(Vec<Node>),
    Map { entries: Vec<(Node, Node)>, key: Option<Node> },
}

#[derive(Debug, Default)]
struct Builder {
    open: Vec<Open>,
    anchored: HashMap<usize, Weighed>,
    values: usize,
    root: Option<Node>,
}

/// The first document of `text`; `None` where there is none.
///
/// # Errors
/// What is wrong and where, as the reference's parser puts it.
pub(crate) fn parse(text: &str) -> Result<Option<Node>, Error> {
    let mut builder = Builder::default();
    let mut parser = Parser::new_from_str(text);
    while let Some(next) = parser.next_event() {
        let (event, span) = next.map_err(|error| {
            let (line, column) = place(error.marker());
            Error { line, column, problem: error.info().to_owned() }
        })?;
        if matches!(event, Event::DocumentEnd) {
            break;
        }
        let at = place(&span.start);
        let (line, column) = at;
        builder.step(event, at).map_err(|problem| Error { line, column, problem })?;
    }
    Ok(builder.root)
}

/// Line and column, both from 1.
fn place(marker: &Marker) -> (usize, usize) {
    (marker.line().max(1), marker.col() + 1)
}

impl Builder {
    fn step(&mut self, event: Event<'_>, at: (usize, usize)) -> Result<(), String> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let tag = tag.as_deref().map(tag_name);
                let value = Value::Scalar(Scalar::read(&text, style, tag));
                self.finished(Weighed { node: node(at, value), values: 1, depth: 0 }, anchor)
            }
            Event::Alias(anchor) => match self.anchored.get(&anchor).cloned() {
                Some(weighed) => self.finished(weighed, 0),
                None => Err("anchor value contains itself".to_owned()),
            },
            Event::MappingStart(anchor, _) => {
                self.enter(anchor, at, Content::Map { entries: Vec::new(), key: None })
            }
            Event::SequenceStart(anchor, _) => self.enter(anchor, at, Content::List(Vec::new())),
            Event::MappingEnd | Event::SequenceEnd => self.leave(),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    fn enter(&mut self, anchor: usize, at: (usize, usize), content: Content) -> Result<(), String> {
        self.open.push(Open { anchor, at, values: 1, depth: 1, content });
        if self.open.len() > DEEPEST { Err(too_deep()) } else { Ok(()) }
    }

    fn leave(&mut self) -> Result<(), String> {
        let Some(Open { anchor, at, values, depth, content }) = self.open.pop() else { return Ok(()) };
        let value = match content {
            Content::List(items) => Value::List(items),
            Content::Map { entries, .. } => Value::Map(last_of_each(merged(entries)?)),
        };
        // Its values have been counted one by one.
        self.values = self.values.saturating_sub(values - 1);
        self.finished(Weighed { node: node(at, value), values, depth }, anchor)
    }

    fn finished(&mut self, weighed: Weighed, anchor: usize) -> Result<(), String> {
        self.values = self.values.saturating_add(weighed.values);
        if self.values > MOST_VALUES {
            return Err("document contains excessive aliasing".to_owned());
        }
        if self.open.len() + weighed.depth > DEEPEST {
            return Err(too_deep());
        }
        if anchor > 0 {
            self.anchored.insert(anchor, weighed.clone());
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(weighed.node);
            return Ok(());
        };
        open.values = open.values.saturating_add(weighed.values);
        open.depth = open.depth.max(weighed.depth + 1);
        match &mut open.content {
            Content::List(items) => items.push(weighed.node),
            Content::Map { entries, key } => match key.take() {
                Some(key) => entries.push((key, weighed.node)),
                None => *key = Some(weighed.node),
            },
        }
        Ok(())
    }
}

impl Node {
    /// Its tag, for messages.
    pub(crate) fn tag(&self) -> &'static str {
        match &self.value {
            Value::Scalar(scalar) => scalar.tag(),
            Value::List(_) => "!!seq",
            Value::Map(_) => "!!map",
        }
    }

    /// The text of a key that is text.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(Scalar { text, kind: Kind::Text }) => Some(text),
            _ => None,
        }
    }

    /// The way Go prints it.
    pub(crate) fn printed(&self) -> String {
        match &self.value {
            Value::Scalar(scalar) => scalar.printed(),
            Value::List(items) => {
                let items: Vec<String> = items.iter().map(Self::printed).collect();
                format!("[{}]", items.join(" "))
            }
            Value::Map(entries) => {
                let entries: Vec<String> = entries
                    .iter()
                    .map(|(key, value)| format!("{}:{}", key.printed(), value.printed()))
                    .collect();
                format!("map[{}]", entries.join(" "))
            }
        }
    }
}

const fn node((line, column): (usize, usize), value: Value) -> Node {
    Node { line, column, value }
}

fn tag_name(tag: &Tag) -> &str {
    if tag.is_yaml_core_schema() { &tag.suffix } else { "" }
}

fn too_deep() -> String {
    format!("exceeded max depth of {DEEPEST}")
}

/// With what `<<` stands for written out in its place.
fn merged(entries: Vec<(Node, Node)>) -> Result<Vec<(Node, Node)>, String> {
    let is_merge = |key: &Node| matches!(&key.value, Value::Scalar(scalar) if scalar.kind == Kind::Merge);
    if !entries.iter().any(|(key, _)| is_merge(key)) {
        return Ok(entries);
    }
    let problem = || "map merge requires map or sequence of maps as the value".to_owned();
    let mut all = Vec::new();
    for (key, value) in entries {
        match value.value {
            _ if !is_merge(&key) => all.push((key, value)),
            Value::Map(entries) => all.extend(entries),
            // The first of several wins, that is, comes last.
            Value::List(maps) => {
                for map in maps.into_iter().rev() {
                    let Value::Map(entries) = map.value else { return Err(problem()) };
                    all.extend(entries);
                }
            }
            Value::Scalar(_) => return Err(problem()),
        }
    }
    Ok(all)
}

/// Each key once: of several the last.
fn last_of_each(entries: Vec<(Node, Node)>) -> Vec<(Node, Node)> {
    if !repeats(&entries) {
        return entries;
    }
    let mut seen = HashSet::new();
    let mut kept: Vec<(Node, Node)> = entries
        .into_iter()
        .rev()
        .filter(|(key, _)| key.as_text().is_none_or(|text| seen.insert(text.to_owned())))
        .collect();
    kept.reverse();
    kept
}

/// Whether a key is there more than once; hardly ever.
fn repeats(entries: &[(Node, Node)]) -> bool {
    if entries.len() > SMALL {
        let mut seen = HashSet::new();
        return !entries.iter().filter_map(|(key, _)| key.as_text()).all(|key| seen.insert(key));
    }
    entries.iter().enumerate().any(|(index, (key, _))| {
        key.as_text()
            .is_some_and(|key| entries[..index].iter().any(|(other, _)| other.as_text() == Some(key)))
    })
}
