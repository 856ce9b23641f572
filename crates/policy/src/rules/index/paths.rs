//! Index of rules by path. Exact paths are in a hash map, prefixes and templates in a trie of segments, regexes in a
//! set.
//!
//! The search follows all matching branches of the trie at once, segment by segment: both a literal and a `{hole}` may
//! match a segment. It visits every node at most once and stops at the depth of the deepest pattern. So the worst case
//! for any path is one visit of every template in the file.

use foldhash::HashMap;
use smallvec::{SmallVec, smallvec};

use super::leaf::Leaf;
use super::regexes::Regexes;
use super::{Candidates, RuleId};
use crate::identify::Attributes;
use crate::rules::matcher::Matcher;
use crate::rules::pattern::{PathKind, PathPattern, Segment};
use crate::rules::rule::Rule;

/// The rules of one host, or of any host.
#[derive(Debug, Default)]
pub(super) struct Paths {
    /// Rules without a path condition.
    any: Leaf,
    exact: HashMap<Box<str>, Leaf>,
    /// Nodes of the trie. The first is the root; empty if there is no trie.
    nodes: Vec<TrieNode>,
    regexes: Regexes<Leaf>,
    max_exact_length: usize,
    max_segment_length: usize,
}

/// A node of the trie, reached by a sequence of segments.
#[derive(Debug, Default)]
struct TrieNode {
    literals: HashMap<Box<str>, NodeId>,
    hole: Option<NodeId>,
    /// Rules for paths that end here.
    here: Leaf,
    /// Rules for paths that continue below.
    below: Leaf,
}

type NodeId = u32;

const ROOT: NodeId = 0;

impl Paths {
    /// Adds a rule. [`Self::seal`] must be called after the last one.
    pub(super) fn insert(&mut self, id: RuleId, matcher: &Matcher) {
        if matcher.paths.is_empty() {
            self.any.insert(id);
        }
        for path in &matcher.paths {
            self.leaf_of(path).insert(id);
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
        if path.len() <= self.max_exact_length
            && let Some(leaf) = self.exact.get(path)
        {
            leaf.find(request, found);
        }
        if !self.nodes.is_empty() {
            self.walk(path, |leaf| leaf.find(request, found));
        }
        if !self.regexes.is_empty() {
            self.regexes.each_match(path, |leaf| leaf.find(request, found));
        }
    }

    fn leaf_of(&mut self, path: &PathPattern) -> &mut Leaf {
        match path.kind() {
            PathKind::Exact(exact) => {
                self.max_exact_length = self.max_exact_length.max(exact.len());
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
            self.nodes.push(TrieNode::default());
        }
        ROOT
    }

    fn literal(&mut self, from: NodeId, segment: &str) -> NodeId {
        if let Some(known) = self.nodes[from as usize].literals.get(segment) {
            return *known;
        }
        self.max_segment_length = self.max_segment_length.max(segment.len());
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
        self.nodes.push(TrieNode::default());
        // A configuration file of a few megabytes cannot contain 2^32 segments.
        NodeId::try_from(self.nodes.len() - 1).unwrap_or(NodeId::MAX)
    }

    /// Calls `act` for every leaf that the segments of `path` lead to. There must be a trie.
    fn walk(&self, path: &str, mut act: impl FnMut(&Leaf)) {
        let mut reached: SmallVec<[NodeId; 8]> = smallvec![ROOT];
        let mut next: SmallVec<[NodeId; 8]> = SmallVec::new();
        for segment in path.split('/').skip(1) {
            for node in reached.drain(..).map(|id| &self.nodes[id as usize]) {
                act(&node.below);
                if segment.len() <= self.max_segment_length && !node.literals.is_empty() {
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
