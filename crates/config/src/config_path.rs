//! Paths into the configuration, e.g. `rules[1].limit`: built on the stack during traversal, and formatted
//! only when there is something to report.

use std::fmt;

/// A position in the configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConfigPath<'a> {
    parent: Option<&'a Self>,
    segment: ConfigPathSegment<'a>,
}

/// One step of a path.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConfigPathSegment<'a> {
    Root,
    Key(&'a str),
    Item(usize),
    /// A single value in place of a list; adds nothing to the path.
    SingleItem,
}

impl<'a> ConfigPath<'a> {
    /// The whole file.
    pub(super) const ROOT: Self = Self { parent: None, segment: ConfigPathSegment::Root };

    /// Returns the position of the value of `key` in this map.
    pub(super) const fn key(&'a self, key: &'a str) -> Self {
        Self { parent: Some(self), segment: ConfigPathSegment::Key(key) }
    }

    /// Returns the position of the item at `index` of this list.
    pub(super) const fn item(&'a self, index: usize) -> Self {
        Self { parent: Some(self), segment: ConfigPathSegment::Item(index) }
    }

    /// Returns the position of a single value that stands for a list.
    pub(super) const fn single_item(&'a self) -> Self {
        Self { parent: Some(self), segment: ConfigPathSegment::SingleItem }
    }

    /// Returns the enclosing position.
    pub(super) fn parent(&self) -> Option<Self> {
        self.parent.copied()
    }

    /// Returns the top-level key that contains this position; `None` for the whole configuration.
    pub(super) fn top_level_key(&self) -> Option<&'a str> {
        let above = self.parent.and_then(Self::top_level_key);
        above.or(match self.segment {
            ConfigPathSegment::Key(key) => Some(key),
            ConfigPathSegment::Root | ConfigPathSegment::Item(_) | ConfigPathSegment::SingleItem => None,
        })
    }

    /// Returns the index of the item of a top-level list that contains this position.
    pub(super) fn top_level_item(&self) -> Option<usize> {
        let above = self.parent?;
        above.top_level_item().or_else(|| match self.segment {
            ConfigPathSegment::Item(index) if above.top_level_key().is_some() && above.is_top_level() => {
                Some(index)
            }
            _ => None,
        })
    }

    /// Whether a step of the path is this key.
    pub(super) fn contains_key(&self, key: &str) -> bool {
        matches!(self.segment, ConfigPathSegment::Key(own) if own == key)
            || self.parent.is_some_and(|parent| parent.contains_key(key))
    }

    /// Returns the last step of the path.
    pub(super) const fn last_segment(&self) -> ConfigPathSegment<'a> {
        self.segment
    }
}

impl fmt::Display for ConfigPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.segment {
            ConfigPathSegment::Root | ConfigPathSegment::SingleItem => Ok(()),
            ConfigPathSegment::Item(index) => write!(f, "[{index}]"),
            ConfigPathSegment::Key(key) if !is_plain_key(key) => {
                write!(f, "[{}]", super::quoting::quoted(key))
            }
            ConfigPathSegment::Key(key) if self.is_top_level() => f.write_str(key),
            ConfigPathSegment::Key(key) => write!(f, ".{key}"),
        }
    }
}

impl ConfigPath<'_> {
    /// Whether no other key or item precedes this step.
    fn is_top_level(&self) -> bool {
        let mut above = self.parent;
        while let Some(at) = above {
            if matches!(at.segment, ConfigPathSegment::Key(_) | ConfigPathSegment::Item(_)) {
                return false;
            }
            above = at.parent;
        }
        true
    }
}

fn is_plain_key(key: &str) -> bool {
    !key.is_empty()
        && key.len() <= 60
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_path_display_uses_dots_and_brackets() {
        let root = ConfigPath::ROOT;
        let (rules, other) = (root.key("rules"), root.key("a b"));
        let item = rules.item(1);
        let same = item.single_item();
        assert_eq!(root.to_string(), "");
        assert_eq!(item.to_string(), "rules[1]");
        assert_eq!(same.key("limit").to_string(), "rules[1].limit");
        assert_eq!((root.top_level_key(), same.key("limit").top_level_key()), (None, Some("rules")));
        assert_eq!(other.key("x-y").to_string(), "[\"a b\"].x-y");
    }
}
