//! Accounts for every value of a YAML input: an importer marks what it has used, and the rest becomes remarks.
//!
//! An importer marks a value when the value has become a part of the output, says of a [`Message`] which fields it may
//! have, and gives a reason for a value that rules cannot express. [`Ledger::remarks`] then walks the whole input. A
//! value with no mark is reported with its path and position, so a field that no code knows is never dropped silently.

use std::cell::RefCell;
use std::collections::HashMap;

use super::remark::{Effect, Remark, brief, checksum, nearest};
use super::tree::{camel_case, entries, is_named, scalar_text};
use weir_yaml::{Node, NodeValue};

/// Maximum number of remarks for one input.
const MAX_REMARKS: usize = 2000;

/// A kind of map with known fields.
#[derive(Debug)]
pub(super) struct Message {
    /// Its name, for messages.
    pub(super) name: &'static str,
    /// Fields that the importer reads.
    pub(super) read: &'static [&'static str],
    /// Fields that have no equivalent, with the effect and the reason.
    pub(super) lost: &'static [(&'static str, Effect, &'static str)],
    /// Fields that do not concern limits.
    pub(super) other: &'static [&'static str],
}

impl Message {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.read
            .iter()
            .copied()
            .chain(self.lost.iter().map(|(name, ..)| *name))
            .chain(self.other.iter().copied())
    }
}

#[derive(Clone, Debug)]
enum Mark {
    /// Expressed by the output.
    Used,
    /// A map with known fields.
    Message(&'static Message),
    /// Not expressed, with everything below it.
    Lost(Remark),
    /// Not expressed, with everything below it, which is reported without its values.
    Hidden(Remark),
}

/// The marks of the values of an input.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// By the address of a node, which does not move while the input is being imported.
    marks: RefCell<HashMap<usize, Mark>>,
}

impl Ledger {
    fn set(&self, node: &Node, mark: Mark) {
        self.marks.borrow_mut().insert(std::ptr::from_ref(node).addr(), mark);
    }

    fn mark(&self, node: &Node) -> Option<Mark> {
        self.marks.borrow().get(&std::ptr::from_ref(node).addr()).cloned()
    }

    /// Marks a value with everything below it as expressed by the output.
    pub(super) fn use_all(&self, node: &Node) {
        self.set(node, Mark::Used);
        match &node.value {
            NodeValue::Scalar(_) => {}
            NodeValue::List(items) => items.iter().for_each(|item| self.use_all(item)),
            NodeValue::Map(map) => map.entries().iter().for_each(|(_, value)| self.use_all(value)),
            NodeValue::Tagged(tagged) => self.use_all(&tagged.1),
        }
    }

    /// Says which fields a map may have.
    pub(super) fn message(&self, node: &Node, message: &'static Message) {
        self.set(node, Mark::Message(message));
    }

    /// Gives the reason why a value is not expressed.
    pub(super) fn lose(&self, node: &Node, effect: Effect, reason: impl Into<String>) {
        self.set(node, Mark::Lost(Remark::new(effect, reason)));
    }

    /// Says what a value is that does not concern limits. Its values may be secrets and are not reported.
    pub(super) fn skip(&self, node: &Node, what: impl Into<String>) {
        self.hide(node, Effect::None, what);
    }

    /// Gives the reason why a value is not expressed that may be a secret and is not reported.
    pub(super) fn hide(&self, node: &Node, effect: Effect, reason: impl Into<String>) {
        self.set(node, Mark::Hidden(Remark::new(effect, reason)));
    }

    /// Returns a remark for each value without a mark, for each that was given a reason, and for each of `defaults`, which
    /// are values of fields that change nothing.
    pub(super) fn remarks(&self, file: &str, documents: &[Node], defaults: &[(&str, &str)]) -> Vec<Remark> {
        let mut walk = Walk { ledger: self, file, defaults, remarks: Vec::new() };
        for (index, document) in documents.iter().enumerate() {
            let path = if documents.len() > 1 { format!("document {}", index + 1) } else { String::new() };
            walk.visit(document, &path, None);
        }
        let count = walk.remarks.len();
        let mut remarks = walk.remarks;
        if count > MAX_REMARKS {
            let rest: String = remarks.drain(MAX_REMARKS..).map(|remark| remark.text).collect();
            let text = format!(
                "{} more values are not imported (checksum {})",
                count - MAX_REMARKS,
                checksum(&rest)
            );
            remarks.push(Remark::new(Effect::Differs, text));
        }
        remarks
    }

    /// Whether this value, or one below it, has a mark.
    fn is_touched(&self, node: &Node) -> bool {
        self.mark(node).is_some()
            || match &node.value {
                NodeValue::Scalar(_) => false,
                NodeValue::List(items) => items.iter().any(|item| self.is_touched(item)),
                NodeValue::Map(map) => map.entries().iter().any(|(_, value)| self.is_touched(value)),
                NodeValue::Tagged(tagged) => self.is_touched(&tagged.1),
            }
    }
}

struct Walk<'l> {
    ledger: &'l Ledger,
    file: &'l str,
    defaults: &'l [(&'l str, &'l str)],
    remarks: Vec<Remark>,
}

impl Walk<'_> {
    /// Visits a value; `unused` is what to say if it has no mark.
    fn visit(&mut self, node: &Node, path: &str, unused: Option<Unused>) {
        match self.ledger.mark(node) {
            Some(Mark::Lost(remark)) => return self.report(node, path, remark.effect, &remark.text, true),
            Some(Mark::Hidden(remark)) => return self.report(node, path, remark.effect, &remark.text, false),
            Some(Mark::Message(message)) => {
                for (key, value) in entries(node) {
                    let name = scalar_text(key).unwrap_or("?");
                    self.visit(value, &join(path, name), Some(reason_of(message, name)));
                }
                return;
            }
            Some(Mark::Used) if is_leaf(node) => return self.report_default(node, path),
            Some(Mark::Used) => {}
            None if !self.ledger.is_touched(node) => {
                let Unused { remark, shows_value } = unused.unwrap_or_else(Unused::other);
                return self.report(node, path, remark.effect, &remark.text, shows_value);
            }
            None => {}
        }
        match &node.value {
            NodeValue::Scalar(_) => {}
            NodeValue::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.visit(item, &format!("{path}[{index}]"), unused.clone());
                }
            }
            NodeValue::Map(map) => {
                for (key, value) in map.entries() {
                    let name = scalar_text(key).unwrap_or("?");
                    self.visit(value, &join(path, name), None);
                }
            }
            NodeValue::Tagged(tagged) => self.visit(&tagged.1, path, unused),
        }
    }

    fn report_default(&mut self, node: &Node, path: &str) {
        let Some(text) = scalar_text(node) else { return };
        let name = path.rsplit('.').next().unwrap_or_default();
        let is_default = |(known, value): &(&str, &str)| is_named(name, known) && *value == text;
        let is_true_by_default =
            self.defaults.iter().any(|(known, value)| is_named(name, known) && *value == "true");
        if (text == "false" && !is_true_by_default) || self.defaults.iter().any(is_default) {
            self.report(node, path, Effect::None, "the default", true);
        }
    }

    fn report(&mut self, node: &Node, path: &str, effect: Effect, reason: &str, shows_value: bool) {
        let place = format!("{}:{}:{}", self.file, node.position.line, node.position.column);
        let path = if path.is_empty() { "the document" } else { path };
        let value = if shows_value { brief(&flow_text(node)) } else { summary(node) };
        self.remarks.push(Remark::new(effect, format!("{place}: {path}: {reason}: {value}")));
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// What to say of a value that was not used.
#[derive(Clone, Debug)]
struct Unused {
    remark: Remark,
    shows_value: bool,
}

impl Unused {
    fn new(effect: Effect, reason: impl Into<String>) -> Self {
        Self { remark: Remark::new(effect, reason), shows_value: true }
    }

    /// A value that does not concern limits, and may be a secret.
    fn other() -> Self {
        Self { shows_value: false, ..Self::new(Effect::None, "not part of a limit") }
    }
}

/// Returns what to say of a field that was not used.
fn reason_of(message: &Message, name: &str) -> Unused {
    if let Some((_, effect, reason)) = message.lost.iter().find(|(known, ..)| is_named(name, known)) {
        return Unused::new(*effect, *reason);
    }
    if message.other.iter().any(|known| is_named(name, known)) {
        return Unused::other();
    }
    if message.read.iter().any(|known| is_named(name, known)) {
        return Unused::new(Effect::None, "not used here");
    }
    let names: Vec<String> = message.names().flat_map(|name| [name.to_owned(), camel_case(name)]).collect();
    let hint =
        nearest(name, names.iter().map(String::as_str)).map(|near| format!(", did you mean `{near}`?"));
    Unused::new(Effect::Differs, format!("unknown field of {}{}", message.name, hint.unwrap_or_default()))
}

fn is_leaf(node: &Node) -> bool {
    match &node.value {
        NodeValue::Scalar(_) => true,
        NodeValue::List(items) => items.is_empty(),
        NodeValue::Map(map) => map.entries().is_empty(),
        NodeValue::Tagged(_) => false,
    }
}

/// Returns the number of leaves and a checksum, without the values.
fn summary(node: &Node) -> String {
    let count = count_leaves(node);
    let noun = if count == 1 { "value" } else { "values" };
    format!("{count} {noun}, checksum {}", checksum(&flow_text(node)))
}

fn count_leaves(node: &Node) -> usize {
    match &node.value {
        NodeValue::List(items) if !items.is_empty() => items.iter().map(count_leaves).sum(),
        NodeValue::Map(map) if !map.entries().is_empty() => {
            map.entries().iter().map(|(_, value)| count_leaves(value)).sum()
        }
        NodeValue::Tagged(tagged) => count_leaves(&tagged.1),
        NodeValue::Scalar(_) | NodeValue::List(_) | NodeValue::Map(_) => 1,
    }
}

/// Returns a value on one line, as it is written.
pub(super) fn flow_text(node: &Node) -> String {
    match &node.value {
        NodeValue::Scalar(scalar) => scalar.text.to_string(),
        NodeValue::List(items) => {
            format!("[{}]", items.iter().map(flow_text).collect::<Vec<_>>().join(", "))
        }
        NodeValue::Map(map) => {
            let entry = |(key, value): &(Node, Node)| format!("{}: {}", flow_text(key), flow_text(value));
            format!("{{{}}}", map.entries().iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        NodeValue::Tagged(tagged) => format!("!{} {}", tagged.0, flow_text(&tagged.1)),
    }
}
