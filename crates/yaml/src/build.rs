//! Builds the tree from parser events.

use std::collections::HashMap;
use std::rc::Rc;

use super::events::{self, Event, Events, ScalarStyle};
use super::{
    Dialect, Map, Node, NodeValue, PathSegment, Position, Scalar, ScalarKind, YamlError, YamlErrorKind, merge,
};

/// A node, with its number of values and depth for limiting aliases.
#[derive(Clone, Debug)]
struct SizedNode {
    node: Node,
    value_count: usize,
    depth: usize,
}

/// A map or a list that is still open.
#[derive(Debug)]
struct OpenCollection {
    /// 0 if there is no anchor.
    anchor: usize,
    tag: Option<String>,
    position: Position,
    value_count: usize,
    depth: usize,
    content: CollectionContent,
}

#[derive(Debug)]
enum CollectionContent {
    List(Vec<Node>),
    Map(Map, Option<Node>),
}

#[derive(Debug)]
struct TreeBuilder {
    dialect: Dialect,
    open: Vec<OpenCollection>,
    anchored: HashMap<usize, SizedNode>,
    value_count: usize,
    document_count: usize,
    root: Option<Node>,
    /// The documents before the current one; `None` if only one is allowed.
    earlier_documents: Option<Vec<Node>>,
    /// Errors that do not prevent reading the rest.
    errors: Vec<YamlError>,
}

/// Why reading ends.
enum ParseEnd {
    /// The document is complete.
    Complete,
    Error(YamlError),
}

pub(super) fn parse(text: &str, dialect: Dialect) -> Result<Option<Node>, Vec<YamlError>> {
    build(text, dialect, None).map(|builder| builder.root)
}

pub(super) fn parse_stream(text: &str, dialect: Dialect) -> Result<Vec<Node>, Vec<YamlError>> {
    let builder = build(text, dialect, Some(Vec::new()))?;
    Ok(builder.earlier_documents.into_iter().flatten().chain(builder.root).collect())
}

fn build(
    text: &str,
    dialect: Dialect,
    earlier_documents: Option<Vec<Node>>,
) -> Result<TreeBuilder, Vec<YamlError>> {
    let mut builder = TreeBuilder {
        dialect,
        open: Vec::new(),
        anchored: HashMap::new(),
        value_count: 0,
        document_count: 0,
        root: None,
        earlier_documents,
        errors: Vec::new(),
    };
    for next in Events::new(text) {
        match next.map_err(ParseEnd::Error).and_then(|(event, at)| builder.handle_event(event, at)) {
            Ok(()) => {}
            Err(ParseEnd::Complete) => break,
            // A syntax error is less useful than the errors found before it.
            Err(ParseEnd::Error(YamlError { kind: YamlErrorKind::Syntax(_), .. }))
                if !builder.errors.is_empty() =>
            {
                break;
            }
            Err(ParseEnd::Error(YamlError { kind: YamlErrorKind::TooDeep(_), position: at, .. })) => {
                builder.errors.push(builder.too_deep_error(at));
                break;
            }
            Err(ParseEnd::Error(error)) => {
                builder.errors.push(error);
                break;
            }
        }
    }
    if builder.errors.is_empty() { Ok(builder) } else { Err(builder.errors) }
}

impl TreeBuilder {
    fn handle_event(&mut self, event: Event<'_>, at: Position) -> Result<(), ParseEnd> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let tag = tag.as_deref().map(events::tag_name);
                self.add_scalar(&text, style, tag.as_deref(), anchor, at)
            }
            Event::Alias(_) | Event::MappingStart(..) | Event::SequenceStart(..)
                if self.is_key_expected() && self.dialect == Dialect::Core =>
            {
                Err(self.end_with_error(at, YamlErrorKind::NonTextKey))
            }
            Event::Alias(anchor) => {
                let Some(SizedNode { node, value_count: values, depth }) =
                    self.anchored.get(&anchor).cloned()
                else {
                    return Err(self.end_with_error(
                        at,
                        YamlErrorKind::Syntax("an alias refers to a value that contains it".to_owned()),
                    ));
                };
                let node = Node { position: at, is_alias: true, ..node };
                self.add_node(SizedNode { node, value_count: values, depth }, 0)
            }
            Event::MappingStart(_, anchor, tag) => {
                let tag = tag.as_deref().map(events::tag_name);
                self.open_collection(anchor, tag, at, CollectionContent::Map(Map::default(), None))
            }
            Event::SequenceStart(_, anchor, tag) => {
                let tag = tag.as_deref().map(events::tag_name);
                self.open_collection(anchor, tag, at, CollectionContent::List(Vec::new()))
            }
            Event::MappingEnd | Event::SequenceEnd => self.close_collection(),
            Event::DocumentStart(..) => {
                self.document_count += 1;
                if let Some(earlier) = &mut self.earlier_documents {
                    earlier.extend(self.root.take());
                    return Ok(());
                }
                if self.document_count > 1 {
                    Err(self.end_with_error(at, YamlErrorKind::MultipleDocuments))
                } else {
                    Ok(())
                }
            }
            Event::DocumentEnd if self.dialect == Dialect::Go && self.earlier_documents.is_none() => {
                Err(ParseEnd::Complete)
            }
            Event::StreamEnd => {
                // An empty document has its position at the end of the text.
                if let Some(Node { position: missing, value: NodeValue::Scalar(scalar), .. }) = &mut self.root
                    && scalar.text.is_empty()
                    && scalar.kind == ScalarKind::Null
                {
                    *missing = at;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn is_key_expected(&self) -> bool {
        matches!(self.open.last(), Some(OpenCollection { content: CollectionContent::Map(_, None), .. }))
    }

    fn add_scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&str>,
        anchor: usize,
        at: Position,
    ) -> Result<(), ParseEnd> {
        let is_key = self.is_key_expected();
        // The parser reports a missing value only at the start of the next token.
        let is_missing = !is_key && text.is_empty() && style == ScalarStyle::Plain;
        let at = if is_missing { self.enclosing_position().unwrap_or(at) } else { at };
        let scalar = Scalar::parse(text, style, tag, self.dialect);
        let scalar = scalar.map_err(|problem| self.end_with_error(at, problem))?;
        let value = self.wrap_in_tag(NodeValue::Scalar(scalar), tag, at);
        let node = Node { position: at, is_alias: false, value };
        self.add_node(SizedNode { node, value_count: 1, depth: 0 }, anchor)
    }

    /// Returns the position of the key whose value is about to start, or of the enclosing list.
    fn enclosing_position(&self) -> Option<Position> {
        let open = self.open.last()?;
        match &open.content {
            CollectionContent::Map(_, key) => key.as_ref().map(|key| key.position),
            CollectionContent::List(_) => Some(open.position),
        }
    }

    fn open_collection(
        &mut self,
        anchor: usize,
        tag: Option<String>,
        at: Position,
        content: CollectionContent,
    ) -> Result<(), ParseEnd> {
        if self.open.len() == self.dialect.max_depth() {
            return Err(ParseEnd::Error(self.too_deep_error(at)));
        }
        self.open.push(OpenCollection { anchor, tag, position: at, value_count: 1, depth: 1, content });
        Ok(())
    }

    fn close_collection(&mut self) -> Result<(), ParseEnd> {
        let Some(OpenCollection { anchor, tag, position: at, value_count: values, depth, content }) =
            self.open.pop()
        else {
            return Ok(());
        };
        let value = match content {
            CollectionContent::List(items) => NodeValue::List(items.into()),
            CollectionContent::Map(map, _) if self.dialect == Dialect::Go => {
                let map =
                    merge::expand_merge_keys(map).map_err(|problem| self.end_with_error(at, problem))?;
                NodeValue::Map(Rc::new(map))
            }
            CollectionContent::Map(map, _) => NodeValue::Map(Rc::new(map)),
        };
        let value = self.wrap_in_tag(value, tag.as_deref(), at);
        // The values inside have already been counted one by one.
        self.value_count = self.value_count.saturating_sub(values - 1);
        self.add_node(
            SizedNode { node: Node { position: at, is_alias: false, value }, value_count: values, depth },
            anchor,
        )
    }

    /// Wraps a value in its tag, unless the tag is one of YAML's own.
    fn wrap_in_tag(&self, value: NodeValue, tag: Option<&str>, at: Position) -> NodeValue {
        let own = tag.and_then(|tag| tag.strip_prefix('!'));
        match own.filter(|_| self.dialect == Dialect::Core) {
            Some(name) => {
                let name = if name.is_empty() { "!" } else { name };
                NodeValue::Tagged(Rc::new((name.into(), Node { position: at, is_alias: false, value })))
            }
            None => value,
        }
    }

    fn add_node(&mut self, sized: SizedNode, anchor: usize) -> Result<(), ParseEnd> {
        self.value_count = self.value_count.saturating_add(sized.value_count);
        if self.value_count > self.dialect.max_values() {
            let problem = YamlErrorKind::TooManyValues;
            return Err(ParseEnd::Error(YamlError {
                position: Position::START,
                path: Vec::new(),
                kind: problem,
            }));
        }
        if self.open.len() + sized.depth > self.dialect.max_depth() {
            return Err(ParseEnd::Error(self.too_deep_error(sized.node.position)));
        }
        if anchor > 0 {
            self.anchored.insert(anchor, sized.clone());
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(sized.node);
            return Ok(());
        };
        open.value_count = open.value_count.saturating_add(sized.value_count);
        open.depth = open.depth.max(sized.depth + 1);
        match &mut open.content {
            CollectionContent::List(items) => items.push(sized.node),
            CollectionContent::Map(map, key) => match key.take() {
                Some(key) => map.push(key, sized.node),
                None => {
                    *key = Some(sized.node);
                    self.record_duplicate_key();
                }
            },
        }
        Ok(())
    }

    /// Reports the key just read if the map has it already.
    fn record_duplicate_key(&mut self) {
        if self.dialect == Dialect::Go {
            return;
        }
        let Some(OpenCollection { content: CollectionContent::Map(map, Some(key)), .. }) = self.open.last()
        else {
            return;
        };
        let Some(text) = key.scalar_text() else { return };
        if let Some((first, _)) = map.get_key_value(text) {
            let problem =
                YamlErrorKind::DuplicateKey { key: Rc::clone(text), first_line: first.position.line };
            let error = YamlError { position: key.position, path: self.current_path(), kind: problem };
            self.errors.push(error);
        }
    }

    fn too_deep_error(&self, at: Position) -> YamlError {
        YamlError { position: at, path: Vec::new(), kind: YamlErrorKind::TooDeep(self.dialect.max_depth()) }
    }

    fn end_with_error(&self, at: Position, problem: YamlErrorKind) -> ParseEnd {
        let path = if matches!(problem, YamlErrorKind::Syntax(_)) { Vec::new() } else { self.current_path() };
        ParseEnd::Error(YamlError { position: at, path, kind: problem })
    }

    /// Returns the path of the value that is being read.
    fn current_path(&self) -> Vec<PathSegment> {
        let step = |open: &OpenCollection| match &open.content {
            CollectionContent::List(items) => Some(PathSegment::Item(items.len())),
            CollectionContent::Map(_, key) => {
                key.as_ref().and_then(Node::scalar_text).map(|key| PathSegment::Key(Rc::clone(key)))
            }
        };
        self.open.iter().filter_map(step).collect()
    }
}
