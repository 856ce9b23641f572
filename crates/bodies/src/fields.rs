//! Sets of fields, and the values that a body has for them.

use smallvec::SmallVec;

use crate::path::{Path, Step};

/// Position of a field in its [`FieldSet`].
pub type FieldIndex = usize;

/// Fields to be read from a JSON document, as a tree of the keys and indices of their paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldSet {
    nodes: Vec<Node>,
    len: usize,
}

/// A position of a document on the path of a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    /// The field that is here.
    pub(crate) field: Option<FieldIndex>,
    children: Vec<(Step, NodeIndex)>,
    /// Whether a child is reached by a key.
    pub(crate) has_keys: bool,
    /// Whether a child is reached by an index.
    pub(crate) has_indices: bool,
}

pub(crate) type NodeIndex = usize;

/// The position of a whole document.
pub(crate) const ROOT: NodeIndex = 0;

/// How a key relates to those of an object on the path of a field.
pub(crate) enum KeyMatch {
    /// It leads to no field.
    None,
    /// It is this child of the node.
    Child(usize, NodeIndex),
    /// It differs from a child's key in case only. Some decoders accept it in place of that key (Go's `encoding/json`).
    Similar,
}

/// A scalar value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub kind: Kind,
    /// The text of a string without escapes; a number in one canonical spelling; `true` or `false`.
    pub text: Box<str>,
}

/// The type of a scalar value. `null` is as good as absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    String,
    Number,
    Bool,
}

/// Values of a document, by the index of their field.
pub type Record = Box<[Option<Value>]>;

/// Records of a body: one, or one per element of a batch.
pub type Records = SmallVec<[Record; 1]>;

impl FieldSet {
    /// Returns a set of these fields. The index of a field is its position among `paths`; equal paths are one field, with the lowest one.
    pub fn new<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let mut set = Self { nodes: vec![Node::default()], len: 0 };
        for path in paths {
            let mut node = ROOT;
            for step in path.steps() {
                node = set.child(node, step);
            }
            set.nodes[node].field.get_or_insert(set.len);
            set.len += 1;
        }
        set
    }

    /// Returns the number of fields.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no fields.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a record without values.
    pub(crate) fn empty_record(&self) -> Record {
        vec![None; self.len].into()
    }

    pub(crate) fn node(&self, node: NodeIndex) -> &Node {
        &self.nodes[node]
    }

    fn child(&mut self, parent: NodeIndex, step: &Step) -> NodeIndex {
        let children = &self.nodes[parent].children;
        if let Some((_, child)) = children.iter().find(|(known, _)| known == step) {
            return *child;
        }
        let child = self.nodes.len();
        self.nodes.push(Node::default());
        let parent = &mut self.nodes[parent];
        parent.children.push((step.clone(), child));
        match step {
            Step::Key(_) => parent.has_keys = true,
            Step::Index(_) => parent.has_indices = true,
        }
        child
    }
}

impl Node {
    pub(crate) fn by_key(&self, key: &str) -> KeyMatch {
        let keys = || {
            let numbered = self.children.iter().enumerate();
            numbered.filter_map(|(position, (step, child))| match step {
                Step::Key(name) => Some((position, &**name, *child)),
                Step::Index(_) => None,
            })
        };
        if let Some((position, _, child)) = keys().find(|(_, name, _)| *name == key) {
            return KeyMatch::Child(position, child);
        }
        if keys().any(|(_, name, _)| folded(name).eq(folded(key))) {
            KeyMatch::Similar
        } else {
            KeyMatch::None
        }
    }

    pub(crate) fn by_index(&self, index: u32) -> Option<NodeIndex> {
        self.children.iter().find(|(step, _)| *step == Step::Index(index)).map(|(_, child)| *child)
    }

    /// Returns the length in bytes of the longest key that [`Self::by_key`] has to see whole. Folding shortens a letter by up to two bytes;
    /// one byte more tells a longer key from an empty one.
    pub(crate) fn max_key_len(&self) -> usize {
        let length = |step: &Step| if let Step::Key(key) = step { key.len() } else { 0 };
        1 + 3 * self.children.iter().map(|(step, _)| length(step)).max().unwrap_or(0)
    }
}

/// Returns the letters of a key without their case, as decoders compare them that ignore it. They fold two letters outside ASCII to ASCII:
/// the Kelvin sign and the long s.
fn folded(key: &str) -> impl Iterator<Item = char> {
    key.chars().flat_map(|letter| match letter {
        '\u{212a}' => 'k'.to_lowercase(),
        '\u{17f}' => 's'.to_lowercase(),
        other => other.to_lowercase(),
    })
}
