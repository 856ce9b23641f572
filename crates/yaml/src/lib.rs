//! YAML as a tree in which every node has its line and column.
//!
//! The tree is built in one pass over the events of a parser, without recursion. Its depth and its number of
//! values are bounded, including those that aliases multiply, so that code that reads it may recurse. The
//! meaning of plain scalars depends on the [`Dialect`].
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod build;
mod core_schema;
mod events;
mod go_schema;
mod merge;
mod scalar;

use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

pub use self::events::{Event, Events, ScalarStyle, SpannedEvent, StructureStyle};
pub use self::scalar::{Scalar, ScalarKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl Position {
    pub const START: Self = Self { line: 1, column: 1 };
}

/// A variant of YAML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// YAML 1.2 with its core schema, as `serde_yaml` reads it. A text contains one document, and the keys of
    /// a map are unique.
    Core,
    /// YAML 1.1 as Go's yaml.v2 reads it: `yes` is true and `010` is eight. Merge keys are applied, the last
    /// of several equal keys counts, and [`parse`] reads only the first document.
    Go,
}

impl Dialect {
    /// Maximum nesting of maps and lists.
    pub const fn max_depth(self) -> usize {
        match self {
            Self::Core => 64,
            Self::Go => 128,
        }
    }

    /// Maximum number of values, with aliases expanded.
    pub const fn max_values(self) -> usize {
        match self {
            Self::Core => 1_000_000,
            Self::Go => 2_000_000,
        }
    }
}

/// A value with its position. Cheap to clone, because the content is shared.
#[derive(Clone, Debug)]
pub struct Node {
    /// Position of the value; for an aliased value, the position of the alias.
    pub position: Position,
    /// Whether the value comes from an alias. Values inside it have no position under this node.
    pub is_alias: bool,
    pub value: NodeValue,
}

/// The content of a node.
#[derive(Clone, Debug)]
pub enum NodeValue {
    Scalar(Scalar),
    List(Rc<[Node]>),
    Map(Rc<Map>),
    /// A value with a tag such as `!tag`; only in [`Dialect::Core`].
    Tagged(Rc<(Box<str>, Node)>),
}

/// Keys and values, in the order of the text.
#[derive(Debug, Default)]
pub struct Map {
    entries: Vec<(Node, Node)>,
    /// Positions of keys among the entries, for large maps.
    index: HashMap<Rc<str>, usize>,
}

/// Maximum number of keys that are searched linearly, which is faster than hashing.
const MAX_UNINDEXED_ENTRIES: usize = 16;

impl Map {
    pub fn entries(&self) -> &[(Node, Node)] {
        &self.entries
    }

    /// Returns the entry with this key, compared as written.
    pub fn get_key_value(&self, key: &str) -> Option<&(Node, Node)> {
        if self.entries.len() <= MAX_UNINDEXED_ENTRIES {
            return self
                .entries
                .iter()
                .find(|(given, _)| given.scalar_text().is_some_and(|given| &**given == key));
        }
        self.entries.get(*self.index.get(key)?)
    }

    fn push(&mut self, key: Node, value: Node) {
        self.entries.push((key, value));
        let unindexed = match self.entries.len() {
            0..=MAX_UNINDEXED_ENTRIES => return,
            length if length == MAX_UNINDEXED_ENTRIES + 1 => 0,
            length => length - 1,
        };
        for index in unindexed..self.entries.len() {
            if let Some(text) = self.entries[index].0.scalar_text() {
                self.index.entry(Rc::clone(text)).or_insert(index);
            }
        }
    }
}

impl Node {
    /// Returns the text of a scalar as written.
    pub fn scalar_text(&self) -> Option<&Rc<str>> {
        match &self.value {
            NodeValue::Scalar(scalar) => Some(&scalar.text),
            NodeValue::List(_) | NodeValue::Map(_) | NodeValue::Tagged(_) => None,
        }
    }

    /// Returns the text of a scalar that means text.
    pub fn as_text(&self) -> Option<&str> {
        match &self.value {
            NodeValue::Scalar(Scalar { text, kind: ScalarKind::Text }) => Some(text),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub struct YamlError {
    pub position: Position,
    /// The keys and indices of the path to the error; empty if it does not help.
    pub path: Vec<PathSegment>,
    pub kind: YamlErrorKind,
}

/// A step of a path into a document.
#[derive(Debug)]
pub enum PathSegment {
    Key(Rc<str>),
    Item(usize),
}

/// What is wrong with a text.
#[derive(Debug)]
pub enum YamlErrorKind {
    /// Invalid YAML.
    Syntax(String),
    DuplicateKey {
        key: Rc<str>,
        first_line: usize,
    },
    NonTextKey,
    MultipleDocuments,
    TooDeep(usize),
    TooManyValues,
    /// An integer beyond the supported types, in decimal digits.
    IntegerOutOfRange(String),
}

impl fmt::Display for YamlErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(text) => f.write_str(text),
            Self::DuplicateKey { key, .. } => write!(f, "duplicate key `{key}`"),
            Self::NonTextKey => f.write_str("a key must be text"),
            Self::MultipleDocuments => {
                f.write_str("a second YAML document, expected one: remove the `---` between them")
            }
            Self::TooDeep(max) => write!(f, "nested more than {max} levels deep"),
            Self::TooManyValues => f.write_str("aliases expand to more than a million values"),
            Self::IntegerOutOfRange(number) => write!(f, "integer does not fit into 64 bits, got {number}"),
        }
    }
}

/// Parses the document in `text`; `None` if there is none.
///
/// # Errors
/// Returns all duplicate keys, or the one error that prevents reading.
pub fn parse(text: &str, dialect: Dialect) -> Result<Option<Node>, Vec<YamlError>> {
    build::parse(text, dialect)
}

/// Parses all documents in `text`, such as the manifests of a release.
///
/// # Errors
/// Returns all duplicate keys, or the one error that prevents reading.
pub fn parse_stream(text: &str, dialect: Dialect) -> Result<Vec<Node>, Vec<YamlError>> {
    build::parse_stream(text, dialect)
}
