//! Paths into the configuration, e.g. `rules[1].limit`: built on the stack during traversal, and formatted
//! only when there is something to report.

use std::fmt;

/// A position in the configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct At<'a> {
    parent: Option<&'a Self>,
    step: Step<'a>,
}

/// One step of a path.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step<'a> {
    Root,
    Key(&'a str),
    Item(usize),
    /// A single value in place of a list; adds nothing to the path.
    Same,
}

impl<'a> At<'a> {
    /// The whole file.
    pub(super) const ROOT: Self = Self { parent: None, step: Step::Root };

    /// Returns the position of the value of `key` in this map.
    pub(super) const fn key(&'a self, key: &'a str) -> Self {
        Self { parent: Some(self), step: Step::Key(key) }
    }

    /// Returns the position of the item at `index` of this list.
    pub(super) const fn item(&'a self, index: usize) -> Self {
        Self { parent: Some(self), step: Step::Item(index) }
    }

    /// Returns the position of a single value that stands for a list.
    pub(super) const fn same(&'a self) -> Self {
        Self { parent: Some(self), step: Step::Same }
    }

    /// Returns the enclosing position.
    pub(super) fn parent(&self) -> Option<Self> {
        self.parent.copied()
    }

    /// Returns the top-level key that contains this position; `None` for the whole configuration.
    pub(super) fn top(&self) -> Option<&'a str> {
        let above = self.parent.and_then(Self::top);
        above.or(match self.step {
            Step::Key(key) => Some(key),
            Step::Root | Step::Item(_) | Step::Same => None,
        })
    }

    /// Returns the last step of the path.
    pub(super) const fn step(&self) -> Step<'a> {
        self.step
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Root | Step::Same => Ok(()),
            Step::Item(index) => write!(f, "[{index}]"),
            Step::Key(key) if !is_plain(key) => write!(f, "[{}]", super::problem::quoted(key)),
            Step::Key(key) if self.is_top() => f.write_str(key),
            Step::Key(key) => write!(f, ".{key}"),
        }
    }
}

impl At<'_> {
    /// Whether no other key or item precedes this step.
    fn is_top(&self) -> bool {
        let mut above = self.parent;
        while let Some(at) = above {
            if matches!(at.step, Step::Key(_) | Step::Item(_)) {
                return false;
            }
            above = at.parent;
        }
        true
    }
}

fn is_plain(key: &str) -> bool {
    !key.is_empty()
        && key.len() <= 60
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reads_as_people_write_it() {
        let root = At::ROOT;
        let (rules, other) = (root.key("rules"), root.key("a b"));
        let item = rules.item(1);
        let same = item.same();
        assert_eq!(root.to_string(), "");
        assert_eq!(item.to_string(), "rules[1]");
        assert_eq!(same.key("limit").to_string(), "rules[1].limit");
        assert_eq!((root.top(), same.key("limit").top()), (None, Some("rules")));
        assert_eq!(other.key("x-y").to_string(), "[\"a b\"].x-y");
    }
}
