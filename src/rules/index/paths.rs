//! Rules by path: exact ones in a hash map, prefixes and templates in a trie of segments, regexes in a set.
//!
//! The walk down the trie goes segment by segment with all nodes that are still possible, of which a literal
//! and a `{hole}` may each lead on. It sees every node at most once and ends with the deepest pattern, so the
//! worst a client can do with a path is to have every template of the file looked at.

use foldhash::HashMap;
use smallvec::{SmallVec, smallvec};

use super::leaf::Leaf;
use super::regexes::Regexes;
use super::{Candidates, Id};
use crate::identify::Attributes;
use crate::rules::matcher::Matcher;
use crate::rules::pattern::{PathKind, PathPattern, Segment};
use crate::rules::rule::Rule;

/// The rules of one host, or of any.
#[derive(Debug, Default)]
pub(super) struct Paths {
    /// Rules that look at no path.
    any: Leaf,
    exact: HashMap<Box<str>, Leaf>,
    /// The first is the root, if there is any.
    nodes: Vec<Node>,
    regexes: Regexes<Leaf>,
    longest_exact: usize,
    longest_segment: usize,
}

/// A place in the trie: what the segments so far lead to.
#[derive(Debug, Default)]
struct Node {
    literals: HashMap<Box<str>, NodeId>,
    hole: Option<NodeId>,
    /// Rules for paths that end here.
    here: Leaf,
    /// Rules for paths that go on.
    below: Leaf,
}

type NodeId = u32;

const ROOT: NodeId = 0;

impl Paths {
    /// Adds a rule; to be followed by [`Self::seal`] when all are there.
    pub(super) fn file(&mut self, id: Id, matcher: &Matcher) {
        if matcher.paths.is_empty() {
            self.any.file(id);
        }
        for path in &matcher.paths {
            self.leaf_of(path).file(id);
        }
    }

    pub(super) fn seal(&mut self, rules: &[Rule]) {
        self.regexes.seal();
        let nodes = self.nodes.iter_mut().flat_map(|node| [&mut node.here, &mut node.below]);
        let leaves = nodes.chain(self.exact.values_mut()).chain(self.regexes.values_mut());
        leaves.chain([&mut self.any]).for_each(|leaf| leaf.seal(rules));
    }

    pub(super) fn find(&self, request: &Attributes<'_>, found: &mut Candidates) {
        self.any.find(request, found);
        let path = &*request.path;
        if path.len() <= self.longest_exact
            && let Some(leaf) = self.exact.get(path)
        {
            leaf.find(request, found);
        }
        self.walk(path, |leaf| leaf.find(request, found));
        self.regexes.each_match(path, |leaf| leaf.find(request, found));
    }

    fn leaf_of(&mut self, path: &PathPattern) -> &mut Leaf {
        match path.kind() {
            PathKind::Exact(exact) => {
                self.longest_exact = self.longest_exact.max(exact.len());
                self.exact.entry(exact.clone()).or_default()
            }
            PathKind::Prefix(prefix) => {
                let body = prefix.strip_suffix('/').unwrap_or(prefix);
                let node =
                    body.split('/').skip(1).fold(self.root(), |node, segment| self.literal(node, segment));
                &mut self.nodes[node as usize].below
            }
            PathKind::Template { segments, open } => {
                let node = segments.iter().fold(self.root(), |node, segment| match segment {
                    Segment::Literal(literal) => self.literal(node, literal),
                    Segment::Any => self.hole(node),
                });
                let node = &mut self.nodes[node as usize];
                if *open { &mut node.below } else { &mut node.here }
            }
            PathKind::Regex(regex) => self.regexes.entry(regex),
        }
    }

    fn root(&mut self) -> NodeId {
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        ROOT
    }

    fn literal(&mut self, from: NodeId, segment: &str) -> NodeId {
        if let Some(known) = self.nodes[from as usize].literals.get(segment) {
            return *known;
        }
        self.longest_segment = self.longest_segment.max(segment.len());
        let new = self.add_node();
        self.nodes[from as usize].literals.insert(segment.into(), new);
        new
    }

    fn hole(&mut self, from: NodeId) -> NodeId {
        if let Some(known) = self.nodes[from as usize].hole {
            return known;
        }
        let new = self.add_node();
        self.nodes[from as usize].hole = Some(new);
        new
    }

    fn add_node(&mut self) -> NodeId {
        self.nodes.push(Node::default());
        // A file is a few megabytes at most: it cannot name four thousand million segments.
        NodeId::try_from(self.nodes.len() - 1).unwrap_or(NodeId::MAX)
    }

    /// Calls `act` for every leaf that the segments of `path` lead to.
    fn walk(&self, path: &str, mut act: impl FnMut(&Leaf)) {
        if self.nodes.is_empty() {
            return;
        }
        let mut reached: SmallVec<[NodeId; 8]> = smallvec![ROOT];
        let mut next: SmallVec<[NodeId; 8]> = SmallVec::new();
        for segment in path.split('/').skip(1) {
            for node in reached.drain(..).map(|id| &self.nodes[id as usize]) {
                act(&node.below);
                if segment.len() <= self.longest_segment && !node.literals.is_empty() {
                    next.extend(node.literals.get(segment).copied());
                }
                next.extend(node.hole.filter(|_| !segment.is_empty()));
            }
            std::mem::swap(&mut reached, &mut next);
            if reached.is_empty() {
                return;
            }
        }
        reached.iter().for_each(|id| act(&self.nodes[*id as usize].here));
    }
}

#[cfg(test)]
impl Paths {
    /// Whether the regexes are tried as a set.
    pub(super) fn is_one_set(&self) -> bool {
        self.regexes.is_one_set()
    }
}
