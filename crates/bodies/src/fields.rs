//! Sets of fields, and the values that a body has for them.

use std::char::ToLowercase;
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::form::names::FormNames;
use crate::path::{Path, Step};

/// Position of a field in its [`FieldSet`].
pub type FieldIndex = usize;

/// Maximum number of fields of a [`FieldSet`], without those from which it computes others.
pub const MAX_FIELDS: usize = 64;

/// Names of the fields of a GraphQL request.
const GRAPHQL_REQUEST: [&str; 3] = ["query", "operationName", "variables"];

/// A field of bodies of one type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FieldName {
    /// The scalar at this path of a JSON document.
    Json(Arc<Path>),
    /// The value of this name in a form.
    Form(Arc<str>),
    /// The text of the object at this path of a JSON document, or what its string contains.
    JsonObject(Arc<Path>),
    /// The number of texts at this path of a JSON document: 1 for a string, and for an array its elements that are not numbers, or 1 if it
    /// has none. An array of numbers is one text, as the numbers of its tokens.
    JsonCount(Arc<Path>),
    /// The complexity of a GraphQL request, computed from its fields.
    Graphql(Arc<GraphqlComplexity>),
}

/// How the complexity of GraphQL requests is measured.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GraphqlComplexity {
    /// Maximum depth of fields.
    pub max_depth: u32,
    /// Names of arguments that state a number of elements.
    pub lists: Box<[Box<str>]>,
}

/// Fields to be read from bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldSet {
    fields: Box<[FieldName]>,
    /// Tree of the keys and indices of JSON fields, with the whole document first.
    nodes: Vec<PathNode>,
    forms: FormNames,
    /// Positions of the fields of a GraphQL request, if a field is computed from them.
    graphql: Option<[FieldIndex; 3]>,
}

/// Some fields of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FieldMask(u128);

/// A position of a document on the path of a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathNode {
    /// The field that is here.
    pub(crate) field: Option<FieldIndex>,
    /// The field that is the text of the object here.
    pub(crate) object: Option<FieldIndex>,
    /// The field that is the number of texts here.
    pub(crate) count: Option<FieldIndex>,
    children: Vec<(Step, PathNodeIndex)>,
    /// Whether a child is reached by a key.
    pub(crate) has_keys: bool,
    /// Whether a child is reached by an index.
    pub(crate) has_indices: bool,
}

pub(crate) type PathNodeIndex = usize;

/// The position of a whole document.
pub(crate) const ROOT: PathNodeIndex = 0;

/// How a key relates to those of an object on the path of a field.
pub(crate) enum KeyMatch {
    /// It leads to no field.
    None,
    /// It is this child of the node.
    Child(usize, PathNodeIndex),
    /// It differs from a child's key in case only, or in what follows a NUL. Some decoders accept it in place of that key (Go's `encoding/json`).
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
    /// The text of an object, verbatim.
    Object,
}

/// Values of a document, by the index of their field.
pub type Record = Box<[Option<Value>]>;

/// Records of a body: one, or one per element of a batch.
pub type Records = SmallVec<[Record; 1]>;

/// Returns the bytes that records take.
pub fn size_of_records(records: &[Record]) -> usize {
    let values = |record: &Record| record.iter().flatten().map(|value| value.text.len()).sum::<usize>();
    records.iter().map(|record| size_of_val(&**record).saturating_add(values(record))).sum()
}

impl FieldSet {
    /// Returns a set of these fields, which differ from each other and are at most [`MAX_FIELDS`]. Their positions are their indices; fields from
    /// which others are computed follow.
    pub fn new(fields: impl IntoIterator<Item = FieldName>) -> Self {
        let mut fields: Vec<FieldName> = fields.into_iter().take(MAX_FIELDS).collect();
        let has_graphql = fields.iter().any(|field| matches!(field, FieldName::Graphql(_)));
        let graphql = has_graphql.then(|| {
            let path = |key: &str| Arc::new(Path::of(Step::Key(key.into())));
            let [query, operation_name, variables] = GRAPHQL_REQUEST.map(path);
            [FieldName::Json(query), FieldName::Json(operation_name), FieldName::JsonObject(variables)].map(
                |source| {
                    let known = fields.iter().position(|field| *field == source);
                    known.unwrap_or_else(|| {
                        fields.push(source);
                        fields.len() - 1
                    })
                },
            )
        });
        let (nodes, forms) = (vec![PathNode::default()], FormNames::default());
        let mut set = Self { fields: Box::default(), nodes, forms, graphql };
        for (index, field) in fields.iter().enumerate() {
            match field {
                FieldName::Json(path) => set.node_at(path).field = Some(index),
                FieldName::JsonObject(path) => set.node_at(path).object = Some(index),
                FieldName::JsonCount(path) => set.node_at(path).count = Some(index),
                FieldName::Form(name) => set.forms.insert(name, index),
                FieldName::Graphql(_) => {}
            }
        }
        Self { fields: fields.into(), ..set }
    }

    /// Whether there are no fields.
    pub const fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Returns all fields, by their indices.
    pub const fn fields(&self) -> &[FieldName] {
        &self.fields
    }

    /// Whether any field of `mask` is one of JSON documents.
    pub fn has_json(&self, mask: FieldMask) -> bool {
        self.has(mask, |field| !matches!(field, FieldName::Form(_)))
    }

    /// Whether any field of `mask` is computed from a GraphQL request, which may be in the URL.
    pub fn has_graphql(&self, mask: FieldMask) -> bool {
        self.has(mask, |field| matches!(field, FieldName::Graphql(_)))
    }

    /// Returns the fields to be read of JSON documents for those of `mask`.
    pub(crate) fn json_sources(&self, mask: FieldMask) -> FieldMask {
        let of_graphql = self.graphql(mask).into_iter().flatten();
        let is_json = |field: &FieldName| {
            matches!(field, FieldName::Json(_) | FieldName::JsonObject(_) | FieldName::JsonCount(_))
        };
        self.those_of(mask, is_json).chain(of_graphql).collect()
    }

    /// Returns those of the fields of `mask` that forms have.
    pub(crate) fn form_sources(&self, mask: FieldMask) -> FieldMask {
        self.those_of(mask, |field| matches!(field, FieldName::Form(_))).collect()
    }

    /// Returns the positions of the fields of a GraphQL request, if a field of `mask` is computed from them.
    pub(crate) fn graphql(&self, mask: FieldMask) -> Option<[FieldIndex; 3]> {
        self.graphql.filter(|_| self.has_graphql(mask))
    }

    /// Whether any field of `mask` is one of forms.
    pub fn has_forms(&self, mask: FieldMask) -> bool {
        self.has(mask, |field| matches!(field, FieldName::Form(_)))
    }

    fn has(&self, mask: FieldMask, is_meant: impl Fn(&FieldName) -> bool) -> bool {
        self.those_of(mask, is_meant).next().is_some()
    }

    fn those_of(
        &self,
        mask: FieldMask,
        is_meant: impl Fn(&FieldName) -> bool,
    ) -> impl Iterator<Item = FieldIndex> {
        let fields = self.fields.iter().enumerate();
        fields.filter(move |(index, field)| mask.contains(*index) && is_meant(field)).map(|(index, _)| index)
    }

    /// Returns the names of fields in forms.
    pub(crate) const fn forms(&self) -> &FormNames {
        &self.forms
    }

    /// Returns a record without values.
    pub(crate) fn empty_record(&self) -> Record {
        vec![None; self.fields.len()].into()
    }

    pub(crate) fn node(&self, node: PathNodeIndex) -> &PathNode {
        &self.nodes[node]
    }

    fn node_at(&mut self, path: &Path) -> &mut PathNode {
        let node = path.steps().iter().fold(ROOT, |node, step| self.child(node, step));
        &mut self.nodes[node]
    }

    fn child(&mut self, parent: PathNodeIndex, step: &Step) -> PathNodeIndex {
        let children = &self.nodes[parent].children;
        if let Some((_, child)) = children.iter().find(|(known, _)| known == step) {
            return *child;
        }
        let child = self.nodes.len();
        self.nodes.push(PathNode::default());
        let parent = &mut self.nodes[parent];
        parent.children.push((step.clone(), child));
        match step {
            Step::Key(_) => parent.has_keys = true,
            Step::Index(_) => parent.has_indices = true,
        }
        child
    }
}

impl Value {
    /// Returns a number of texts.
    pub(crate) fn count(number: u32) -> Self {
        Self { kind: Kind::Number, text: number.to_string().into() }
    }
}

impl PathNode {
    /// Returns those of the fields `wanted` that have the value of a scalar here.
    pub(crate) fn scalars(&self, wanted: FieldMask) -> impl Iterator<Item = FieldIndex> + use<> {
        [self.field, self.object].into_iter().flatten().filter(move |field| wanted.contains(*field))
    }

    /// Returns the one of the fields `wanted` that is the number of texts here.
    pub(crate) fn counted(&self, wanted: FieldMask) -> Option<FieldIndex> {
        self.count.filter(|field| wanted.contains(*field))
    }

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
        // Strings of C end at a NUL.
        let ended = key.split('\0').next().unwrap_or_default();
        if keys().any(|(_, name, _)| letters(name).eq(letters(ended))) {
            KeyMatch::Similar
        } else {
            KeyMatch::None
        }
    }

    pub(crate) fn by_index(&self, index: u32) -> Option<PathNodeIndex> {
        self.children.iter().find(|(step, _)| *step == Step::Index(index)).map(|(_, child)| *child)
    }

    /// Returns the length in bytes of the longest key that [`Self::by_key`] has to see whole. Folding shortens a letter by up to two bytes;
    /// one byte more tells a longer key from an empty one.
    pub(crate) fn max_key_len(&self) -> usize {
        let length = |step: &Step| if let Step::Key(key) = step { key.len() } else { 0 };
        1 + 3 * self.children.iter().map(|(step, _)| length(step)).max().unwrap_or(0)
    }
}

impl FieldMask {
    /// The mask of all fields.
    pub const ALL: Self = Self(u128::MAX);

    /// Returns the mask of one field.
    pub const fn of(index: FieldIndex) -> Self {
        Self(if index < u128::BITS as usize { 1 << index } else { 0 })
    }

    /// Whether it has no fields.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether it has the field at `index`.
    pub const fn contains(self, index: FieldIndex) -> bool {
        self.0 & Self::of(index).0 != 0
    }
}

impl std::ops::BitOr for FieldMask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl FromIterator<FieldIndex> for FieldMask {
    fn from_iter<I: IntoIterator<Item = FieldIndex>>(indices: I) -> Self {
        indices.into_iter().fold(Self::default(), |mask, index| mask | Self::of(index))
    }
}

impl fmt::Display for FieldName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(path) | Self::JsonObject(path) | Self::JsonCount(path) => path.fmt(f),
            Self::Form(name) => f.write_str(name),
            Self::Graphql(_) => f.write_str("complexity"),
        }
    }
}

fn letters(key: &str) -> impl Iterator<Item = char> {
    key.chars().flat_map(folded)
}

/// Returns a letter without its case, as decoders compare keys that ignore it. They fold two letters outside ASCII to ASCII: the Kelvin sign
/// and the long s.
pub(crate) fn folded(letter: char) -> ToLowercase {
    match letter {
        '\u{212a}' => 'k',
        '\u{17f}' => 's',
        other => other,
    }
    .to_lowercase()
}
