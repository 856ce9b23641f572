//! A manifest as a tree in which every value knows its bytes, for edits that leave all other bytes as they are.
//!
//! `weir_yaml::parse` gives values without the places of brackets and ends, which edits need. This tree is built from the same
//! events, so both read the same language. Aliases are kept as references: what several places share cannot be edited in one.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use weir_yaml::{Event, Events, Position, SpannedEvent, StructureStyle, YamlError, YamlErrorKind};

/// Index of a node in its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TreeNodeId(usize);

#[derive(Debug)]
pub(crate) struct ManifestNode {
    /// Bytes of a scalar as written, or of a flow collection with its brackets. A block collection has only its start.
    pub(crate) bytes: Range<usize>,
    pub(crate) position: Position,
    pub(crate) parent: Option<TreeNodeId>,
    /// Where the node is in its parent.
    pub(crate) place: NodePlace,
    /// 0 if there is no anchor.
    anchor: usize,
    pub(crate) content: Content,
}

/// NodePlace of a value in its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodePlace {
    /// The value of a document, or a key.
    Root,
    Key(String),
    Item(usize),
}

#[derive(Debug)]
pub(crate) enum Content {
    Scalar(String),
    List(Vec<TreeNodeId>, StructureStyle),
    Map(Vec<(TreeNodeId, TreeNodeId)>, StructureStyle),
    Alias(TreeNodeId),
}

/// One document.
#[derive(Debug)]
pub(crate) struct ManifestTree {
    nodes: Vec<ManifestNode>,
    /// Anchors to which an alias refers.
    aliased: HashSet<usize>,
}

/// A collection that is still open.
#[derive(Debug)]
struct OpenNode {
    id: TreeNodeId,
    /// Key of a map whose value comes next.
    key: Option<TreeNodeId>,
}

impl ManifestTree {
    /// Parses one document; `None` if the text contains no value.
    pub(crate) fn parse(text: &str) -> Result<Option<Self>, YamlError> {
        let mut builder = TreeAssembly::default();
        let mut events = Events::new(text);
        while let Some(next) = events.next_spanned() {
            builder.handle(next?)?;
        }
        let tree = Self { nodes: builder.nodes, aliased: builder.aliased };
        Ok((!tree.nodes.is_empty()).then_some(tree))
    }

    pub(crate) fn root(&self) -> TreeNodeId {
        TreeNodeId(0)
    }

    pub(crate) fn node(&self, id: TreeNodeId) -> &ManifestNode {
        &self.nodes[id.0]
    }

    /// Follows an alias to its value.
    pub(crate) fn resolve(&self, id: TreeNodeId) -> TreeNodeId {
        match self.node(id).content {
            Content::Alias(target) => target,
            Content::Scalar(_) | Content::List(..) | Content::Map(..) => id,
        }
    }

    pub(crate) fn entries(&self, id: TreeNodeId) -> &[(TreeNodeId, TreeNodeId)] {
        match &self.node(self.resolve(id)).content {
            Content::Map(entries, _) => entries,
            Content::Scalar(_) | Content::List(..) | Content::Alias(_) => &[],
        }
    }

    pub(crate) fn items(&self, id: TreeNodeId) -> &[TreeNodeId] {
        match &self.node(self.resolve(id)).content {
            Content::List(items, _) => items,
            Content::Scalar(_) | Content::Map(..) | Content::Alias(_) => &[],
        }
    }

    /// Returns the text of a scalar.
    pub(crate) fn text(&self, id: TreeNodeId) -> Option<&str> {
        match &self.node(self.resolve(id)).content {
            Content::Scalar(text) => Some(text),
            Content::List(..) | Content::Map(..) | Content::Alias(_) => None,
        }
    }

    /// Returns the key and the value of an entry that is written in the map itself.
    pub(crate) fn entry(&self, map: TreeNodeId, key: &str) -> Option<(TreeNodeId, TreeNodeId)> {
        self.entries(map).iter().copied().find(|(given, _)| self.text(*given) == Some(key))
    }

    /// Returns a value of a map, also of one that is merged into it by `<<`.
    pub(crate) fn get(&self, map: TreeNodeId, key: &str) -> Option<TreeNodeId> {
        self.get_below(map, key, 0)
    }

    /// Returns a value as [`Self::get`] does, but an alias where one is written: an edit of it changes no other place.
    pub(crate) fn written(&self, map: TreeNodeId, key: &str) -> Option<TreeNodeId> {
        self.entry(map, key).map(|(_, value)| value).or_else(|| self.get(map, key))
    }

    fn get_below(&self, map: TreeNodeId, key: &str, depth: usize) -> Option<TreeNodeId> {
        const MAX_MERGE_DEPTH: usize = 16;
        if depth > MAX_MERGE_DEPTH {
            return None;
        }
        if let Some((_, value)) = self.entry(map, key) {
            return Some(self.resolve(value));
        }
        let (_, merged) = self.entry(map, "<<")?;
        match self.items(merged) {
            [] => self.get_below(merged, key, depth + 1),
            maps => maps.iter().find_map(|map| self.get_below(*map, key, depth + 1)),
        }
    }

    /// Returns the value at a path of keys.
    pub(crate) fn at(&self, from: TreeNodeId, keys: &[&str]) -> Option<TreeNodeId> {
        keys.iter().try_fold(from, |map, key| self.get(map, key))
    }

    /// Returns the text of the scalar at a path of keys.
    pub(crate) fn text_at(&self, from: TreeNodeId, keys: &[&str]) -> Option<&str> {
        self.text(self.at(from, keys)?)
    }

    /// Whether a value is missing, null, or an empty collection.
    pub(crate) fn is_empty(&self, id: TreeNodeId) -> bool {
        match &self.node(id).content {
            Content::Scalar(text) => {
                matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
            }
            Content::List(items, _) => items.is_empty(),
            Content::Map(entries, _) => entries.is_empty(),
            Content::Alias(_) => false,
        }
    }

    /// Whether a change of the node would change other places of the document, too.
    pub(crate) fn is_shared(&self, id: TreeNodeId) -> bool {
        let mut next = Some(id);
        while let Some(id) = next {
            let node = self.node(id);
            if matches!(node.content, Content::Alias(_))
                || node.anchor != 0 && self.aliased.contains(&node.anchor)
            {
                return true;
            }
            next = node.parent;
        }
        false
    }

    /// Returns in how many places of the document a value is, by itself and by aliases.
    pub(crate) fn uses(&self, id: TreeNodeId) -> usize {
        if self.aliased.is_empty() { 1 } else { self.uses_of(id, &mut HashMap::new()) }
    }

    /// `known` keeps this linear: aliases of aliases would else be counted as often as they are used.
    fn uses_of(&self, id: TreeNodeId, known: &mut HashMap<TreeNodeId, usize>) -> usize {
        if let Some(count) = known.get(&id) {
            return *count;
        }
        let mut count = self.node(id).parent.map_or(1, |parent| self.uses_of(parent, known));
        let is_alias = |node: &&ManifestNode| matches!(node.content, Content::Alias(target) if target == id);
        if self.node(id).anchor != 0 {
            for parent in self.nodes.iter().filter(is_alias).filter_map(|alias| alias.parent) {
                count = count.saturating_add(self.uses_of(parent, known));
            }
        }
        known.insert(id, count);
        count
    }

    /// Returns the places from `from`, which contains `id`, to `id`.
    pub(crate) fn places(&self, from: TreeNodeId, id: TreeNodeId) -> Vec<&NodePlace> {
        let mut places = Vec::new();
        let mut next = id;
        while next != from {
            let node = self.node(next);
            places.push(&node.place);
            let Some(parent) = node.parent else { break };
            next = parent;
        }
        places.reverse();
        places
    }

    /// Returns the path of a node for messages: `spec.ports[0].targetPort`.
    pub(crate) fn path(&self, id: TreeNodeId) -> String {
        let mut path = String::new();
        for place in self.places(self.root(), id) {
            match place {
                NodePlace::Root => {}
                NodePlace::Key(key) if path.is_empty() => path.push_str(key),
                NodePlace::Key(key) => path.extend([".", key]),
                NodePlace::Item(index) => path.push_str(&format!("[{index}]")),
            }
        }
        path
    }
}

#[derive(Debug, Default)]
struct TreeAssembly {
    nodes: Vec<ManifestNode>,
    aliased: HashSet<usize>,
    anchored: HashMap<usize, TreeNodeId>,
    open: Vec<OpenNode>,
}

impl TreeAssembly {
    fn handle(&mut self, spanned: SpannedEvent<'_>) -> Result<(), YamlError> {
        let SpannedEvent { event, position, bytes } = spanned;
        match event {
            Event::Scalar(text, _, anchor, _) => {
                self.add(Content::Scalar(text.into_owned()), anchor, position, bytes);
            }
            Event::Alias(anchor) => {
                let problem = "an alias refers to a value that contains it".to_owned();
                let is_open = |id: &TreeNodeId| self.open.iter().any(|open| open.id == *id);
                let Some(target) = self.anchored.get(&anchor).copied().filter(|id| !is_open(id)) else {
                    return Err(YamlError {
                        position,
                        path: Vec::new(),
                        kind: YamlErrorKind::Syntax(problem),
                    });
                };
                self.aliased.insert(anchor);
                self.add(Content::Alias(target), 0, position, bytes);
            }
            Event::MappingStart(style, anchor, _) => {
                let id = self.add(Content::Map(Vec::new(), style), anchor, position, bytes);
                self.open.push(OpenNode { id, key: None });
            }
            Event::SequenceStart(style, anchor, _) => {
                let id = self.add(Content::List(Vec::new(), style), anchor, position, bytes);
                self.open.push(OpenNode { id, key: None });
            }
            Event::MappingEnd | Event::SequenceEnd => {
                if let Some(open) = self.open.pop() {
                    let node = &mut self.nodes[open.id.0];
                    if is_flow(&node.content) {
                        node.bytes.end = bytes.end;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn add(
        &mut self,
        content: Content,
        anchor: usize,
        position: Position,
        bytes: Range<usize>,
    ) -> TreeNodeId {
        let id = TreeNodeId(self.nodes.len());
        let mut place = NodePlace::Root;
        let parent = self.open.last().map(|open| open.id);
        if let Some(open) = self.open.last_mut() {
            let key_text = open.key.map(|key| match &self.nodes[key.0].content {
                Content::Scalar(text) => text.clone(),
                Content::List(..) | Content::Map(..) | Content::Alias(_) => String::new(),
            });
            match (&mut self.nodes[open.id.0].content, open.key.take()) {
                (Content::List(items, _), _) => {
                    place = NodePlace::Item(items.len());
                    items.push(id);
                }
                (Content::Map(entries, _), Some(key)) => {
                    place = NodePlace::Key(key_text.unwrap_or_default());
                    entries.push((key, id));
                }
                (Content::Map(..), None) => open.key = Some(id),
                (Content::Scalar(_) | Content::Alias(_), _) => {}
            }
        }
        if anchor != 0 {
            self.anchored.insert(anchor, id);
        }
        self.nodes.push(ManifestNode { bytes, position, parent, place, anchor, content });
        id
    }
}

/// Whether a collection is written with brackets.
pub(crate) fn is_flow(content: &Content) -> bool {
    match content {
        Content::List(_, style) | Content::Map(_, style) => matches!(style, StructureStyle::Flow),
        Content::Scalar(_) | Content::Alias(_) => false,
    }
}
