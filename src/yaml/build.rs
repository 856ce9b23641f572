//! Builds the tree from parser events.

use std::collections::HashMap;
use std::rc::Rc;

use super::events::{self, Event, Events, ScalarStyle};
use super::{Dialect, Error, Kind, Map, Node, Position, Problem, Scalar, Step, Value, merge};

/// A node, with its number of values and depth for limiting aliases.
#[derive(Clone, Debug)]
struct Weighed {
    node: Node,
    values: usize,
    depth: usize,
}

/// A map or a list that is still open.
#[derive(Debug)]
struct Open {
    /// 0 if there is no anchor.
    anchor: usize,
    tag: Option<String>,
    at: Position,
    values: usize,
    depth: usize,
    content: Content,
}

#[derive(Debug)]
enum Content {
    List(Vec<Node>),
    Map(Map, Option<Node>),
}

#[derive(Debug)]
struct Builder {
    dialect: Dialect,
    open: Vec<Open>,
    anchored: HashMap<usize, Weighed>,
    values: usize,
    documents: usize,
    root: Option<Node>,
    /// Errors that do not prevent reading the rest.
    errors: Vec<Error>,
}

/// Why reading ends.
enum End {
    /// The document is complete.
    Document,
    Error(Error),
}

pub(super) fn parse(text: &str, dialect: Dialect) -> Result<Option<Node>, Vec<Error>> {
    let mut builder = Builder {
        dialect,
        open: Vec::new(),
        anchored: HashMap::new(),
        values: 0,
        documents: 0,
        root: None,
        errors: Vec::new(),
    };
    for next in Events::of(text) {
        match next.map_err(End::Error).and_then(|(event, at)| builder.step(event, at)) {
            Ok(()) => {}
            Err(End::Document) => break,
            // A syntax error is less useful than the errors found before it.
            Err(End::Error(Error { problem: Problem::Syntax(_), .. })) if !builder.errors.is_empty() => break,
            Err(End::Error(Error { problem: Problem::TooDeep(_), at, .. })) => {
                builder.errors.push(builder.too_deep(at));
                break;
            }
            Err(End::Error(error)) => {
                builder.errors.push(error);
                break;
            }
        }
    }
    if builder.errors.is_empty() { Ok(builder.root) } else { Err(builder.errors) }
}

impl Builder {
    fn step(&mut self, event: Event<'_>, at: Position) -> Result<(), End> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let tag = tag.as_deref().map(events::name);
                self.scalar((&text, style), tag.as_deref(), anchor, at)
            }
            Event::Alias(_) | Event::MappingStart(..) | Event::SequenceStart(..)
                if self.wants_key() && self.dialect == Dialect::Core =>
            {
                Err(self.error(at, Problem::KeyIsNoText))
            }
            Event::Alias(anchor) => {
                let Some(Weighed { node, values, depth }) = self.anchored.get(&anchor).cloned() else {
                    return Err(self.error(
                        at,
                        Problem::Syntax("an alias refers to a value that contains it".to_owned()),
                    ));
                };
                let node = Node { at, is_alias: true, ..node };
                self.finished(Weighed { node, values, depth }, 0)
            }
            Event::MappingStart(_, anchor, tag) => {
                let tag = tag.as_deref().map(events::name);
                self.enter(anchor, tag, at, Content::Map(Map::default(), None))
            }
            Event::SequenceStart(_, anchor, tag) => {
                let tag = tag.as_deref().map(events::name);
                self.enter(anchor, tag, at, Content::List(Vec::new()))
            }
            Event::MappingEnd | Event::SequenceEnd => self.leave(),
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 { Err(self.error(at, Problem::SecondDocument)) } else { Ok(()) }
            }
            Event::DocumentEnd if self.dialect == Dialect::Go => Err(End::Document),
            Event::StreamEnd => {
                // An empty document has its position at the end of the text.
                if let Some(Node { at: missing, value: Value::Scalar(scalar), .. }) = &mut self.root
                    && scalar.text.is_empty()
                    && scalar.kind == Kind::Null
                {
                    *missing = at;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn wants_key(&self) -> bool {
        matches!(self.open.last(), Some(Open { content: Content::Map(_, None), .. }))
    }

    fn scalar(
        &mut self,
        (text, style): (&str, ScalarStyle),
        tag: Option<&str>,
        anchor: usize,
        at: Position,
    ) -> Result<(), End> {
        let is_key = self.wants_key();
        // The parser reports a missing value only at the start of the next token.
        let is_missing = !is_key && text.is_empty() && style == ScalarStyle::Plain;
        let at = if is_missing { self.around().unwrap_or(at) } else { at };
        let scalar = Scalar::read(text, style, tag, self.dialect);
        let scalar = scalar.map_err(|problem| self.error(at, problem))?;
        let value = self.tagged(Value::Scalar(scalar), tag, at);
        let node = Node { at, is_alias: false, value };
        self.finished(Weighed { node, values: 1, depth: 0 }, anchor)
    }

    /// Returns the position of the key whose value is about to start, or of the enclosing list.
    fn around(&self) -> Option<Position> {
        let open = self.open.last()?;
        match &open.content {
            Content::Map(_, key) => key.as_ref().map(|key| key.at),
            Content::List(_) => Some(open.at),
        }
    }

    fn enter(
        &mut self,
        anchor: usize,
        tag: Option<String>,
        at: Position,
        content: Content,
    ) -> Result<(), End> {
        if self.open.len() == self.dialect.max_depth() {
            return Err(End::Error(self.too_deep(at)));
        }
        self.open.push(Open { anchor, tag, at, values: 1, depth: 1, content });
        Ok(())
    }

    fn leave(&mut self) -> Result<(), End> {
        let Some(Open { anchor, tag, at, values, depth, content }) = self.open.pop() else { return Ok(()) };
        let value = match content {
            Content::List(items) => Value::List(items.into()),
            Content::Map(map, _) if self.dialect == Dialect::Go => {
                let map = merge::merged(map).map_err(|problem| self.error(at, problem))?;
                Value::Map(Rc::new(map))
            }
            Content::Map(map, _) => Value::Map(Rc::new(map)),
        };
        let value = self.tagged(value, tag.as_deref(), at);
        // The values inside have already been counted one by one.
        self.values = self.values.saturating_sub(values - 1);
        self.finished(Weighed { node: Node { at, is_alias: false, value }, values, depth }, anchor)
    }

    /// Wraps a value in its tag, unless the tag is one of YAML's own.
    fn tagged(&self, value: Value, tag: Option<&str>, at: Position) -> Value {
        let own = tag.and_then(|tag| tag.strip_prefix('!'));
        match own.filter(|_| self.dialect == Dialect::Core) {
            Some(name) => {
                let name = if name.is_empty() { "!" } else { name };
                Value::Tagged(Rc::new((name.into(), Node { at, is_alias: false, value })))
            }
            None => value,
        }
    }

    fn finished(&mut self, weighed: Weighed, anchor: usize) -> Result<(), End> {
        self.values = self.values.saturating_add(weighed.values);
        if self.values > self.dialect.max_values() {
            let problem = Problem::TooManyValues;
            return Err(End::Error(Error { at: Position::START, path: Vec::new(), problem }));
        }
        if self.open.len() + weighed.depth > self.dialect.max_depth() {
            return Err(End::Error(self.too_deep(weighed.node.at)));
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
            Content::Map(map, key) => match key.take() {
                Some(key) => map.push(key, weighed.node),
                None => {
                    *key = Some(weighed.node);
                    self.note_duplicate();
                }
            },
        }
        Ok(())
    }

    /// Reports the key just read if the map has it already.
    fn note_duplicate(&mut self) {
        if self.dialect == Dialect::Go {
            return;
        }
        let Some(Open { content: Content::Map(map, Some(key)), .. }) = self.open.last() else { return };
        let Some(text) = key.written() else { return };
        if let Some((first, _)) = map.entry(text) {
            let problem = Problem::DuplicateKey { key: Rc::clone(text), first_line: first.at.line };
            let error = Error { at: key.at, path: self.path(), problem };
            self.errors.push(error);
        }
    }

    fn too_deep(&self, at: Position) -> Error {
        Error { at, path: Vec::new(), problem: Problem::TooDeep(self.dialect.max_depth()) }
    }

    fn error(&self, at: Position, problem: Problem) -> End {
        let path = if matches!(problem, Problem::Syntax(_)) { Vec::new() } else { self.path() };
        End::Error(Error { at, path, problem })
    }

    /// Returns the path of the value that is being read.
    fn path(&self) -> Vec<Step> {
        let step = |open: &Open| match &open.content {
            Content::List(items) => Some(Step::Item(items.len())),
            Content::Map(_, key) => key.as_ref().and_then(Node::written).map(|key| Step::Key(Rc::clone(key))),
        };
        self.open.iter().filter_map(step).collect()
    }
}
