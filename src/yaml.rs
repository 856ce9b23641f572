//! YAML as a tree in which every node has its line and column.
//!
//! One pass over the events of a parser. The tree is built without recursion; its depth and the number of its values are bounded, also where
//! aliases multiply them, so that its readers may recurse. What a plain scalar says depends on the [`Dialect`].

mod build;
mod core;
mod events;
mod go;
mod merge;
mod scalar;

use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

pub(crate) use self::events::{Event, Events, ScalarStyle};
pub(crate) use self::scalar::{Kind, Scalar};

/// A position in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    /// From 1.
    pub(crate) line: usize,
    /// In characters, from 1.
    pub(crate) column: usize,
}

impl Position {
    /// Where a text starts.
    pub(crate) const START: Self = Self { line: 1, column: 1 };
}

/// Whose YAML a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// YAML 1.2 with its core schema, as `serde_yaml` reads it. A text is one document, and a map has each key once.
    Core,
    /// YAML 1.1 as Go's yaml.v2 reads it: `yes` is true and `010` is eight. Merge keys are applied, of several equal keys
    /// the last counts, and nothing after the first document is read.
    Go,
}

impl Dialect {
    /// The greatest number of maps and lists within each other.
    pub(crate) const fn max_depth(self) -> usize {
        match self {
            Self::Core => 64,
            Self::Go => 128,
        }
    }

    /// The greatest number of values, aliases written out.
    pub(crate) const fn max_values(self) -> usize {
        match self {
            Self::Core => 1_000_000,
            Self::Go => 2_000_000,
        }
    }
}

/// A value with its position. Cheap to clone: what it holds is shared.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Where it stands; what an alias stands for has the position of the alias.
    pub(crate) at: Position,
    /// Whether it stands elsewhere in the text, so that what is in it has no position under this node.
    pub(crate) is_alias: bool,
    pub(crate) value: Value,
}

/// What a node holds.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Scalar(Scalar),
    List(Rc<[Node]>),
    Map(Rc<Map>),
    /// A value with a tag of its own, `!tag`; only in [`Dialect::Core`].
    Tagged(Rc<(Box<str>, Node)>),
}

/// Keys and values, in the order of the text.
#[derive(Debug, Default)]
pub(crate) struct Map {
    entries: Vec<(Node, Node)>,
    /// Where the keys of a large map are among its entries.
    index: HashMap<Rc<str>, usize>,
}

/// Keys of a map up to which each is compared with all: faster than to hash them.
const MAX_UNINDEXED: usize = 16;

impl Map {
    pub(crate) fn entries(&self) -> &[(Node, Node)] {
        &self.entries
    }

    /// The entry whose key is written like this.
    pub(crate) fn entry(&self, key: &str) -> Option<&(Node, Node)> {
        if self.entries.len() <= MAX_UNINDEXED {
            return self
                .entries
                .iter()
                .find(|(given, _)| given.written().is_some_and(|given| &**given == key));
        }
        self.entries.get(*self.index.get(key)?)
    }

    fn push(&mut self, key: Node, value: Node) {
        self.entries.push((key, value));
        let unindexed = match self.entries.len() {
            0..=MAX_UNINDEXED => return,
            length if length == MAX_UNINDEXED + 1 => 0,
            length => length - 1,
        };
        for index in unindexed..self.entries.len() {
            if let Some(text) = self.entries[index].0.written() {
                self.index.entry(Rc::clone(text)).or_insert(index);
            }
        }
    }
}

impl Node {
    /// The text of a scalar as it is written, whatever it means.
    pub(crate) fn written(&self) -> Option<&Rc<str>> {
        match &self.value {
            Value::Scalar(scalar) => Some(&scalar.text),
            Value::List(_) | Value::Map(_) | Value::Tagged(_) => None,
        }
    }

    /// The text of a scalar that is text.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(Scalar { text, kind: Kind::Text }) => Some(text),
            _ => None,
        }
    }
}

/// Why a text is not read.
#[derive(Debug)]
pub(crate) struct Error {
    pub(crate) at: Position,
    /// The keys and indices that lead there, where that says something.
    pub(crate) path: Vec<Step>,
    pub(crate) problem: Problem,
}

/// A step of a path into a document.
#[derive(Debug)]
pub(crate) enum Step {
    Key(Rc<str>),
    Item(usize),
}

/// What is wrong with a text.
#[derive(Debug)]
pub(crate) enum Problem {
    /// It is not YAML.
    Syntax(String),
    DuplicateKey {
        key: Rc<str>,
        first_line: usize,
    },
    KeyIsNoText,
    SecondDocument,
    TooDeep(usize),
    TooManyValues,
    /// An integer that fits no type, in decimal digits.
    HugeNumber(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(text) => f.write_str(text),
            Self::DuplicateKey { key, .. } => write!(f, "duplicate key `{key}`"),
            Self::KeyIsNoText => f.write_str("a key must be text"),
            Self::SecondDocument => {
                f.write_str("a second YAML document, expected one: remove the `---` between them")
            }
            Self::TooDeep(max) => write!(f, "nested more than {max} levels deep"),
            Self::TooManyValues => f.write_str("aliases multiply to more than a million values"),
            Self::HugeNumber(number) => write!(f, "a number above {}, got {number}", u64::MAX),
        }
    }
}

/// The document in `text`; `None` where there is none.
///
/// # Errors
/// All duplicate keys, or the one thing that keeps the text from being read.
pub(crate) fn parse(text: &str, dialect: Dialect) -> Result<Option<Node>, Vec<Error>> {
    build::parse(text, dialect)
}
