//! Containment of single patterns: paths, hosts and values.

use crate::rules::pattern::{HeaderPattern, HostPattern, PathKind, PathPattern, Segment};

impl PathPattern {
    /// Whether every path that this pattern matches is matched by `wider`.
    pub fn is_within(&self, wider: &Self) -> bool {
        match (self.kind(), wider.kind()) {
            (PathKind::Exact(path), _) => wider.matches(path),
            (PathKind::Prefix(narrow), PathKind::Prefix(wide)) => narrow.starts_with(&**wide),
            (PathKind::Prefix(prefix), PathKind::Template { segments, open: true }) => {
                let given: Vec<&str> = complete_segments(prefix).collect();
                segments.len() <= given.len()
                    && segments.iter().zip(given).all(|(wide, given)| wide.includes_text(given))
            }
            (PathKind::Template { segments, open }, PathKind::Prefix(prefix)) => {
                let required: Vec<&str> = complete_segments(prefix).collect();
                // The prefix ends with a slash, so the path continues after its last complete segment.
                let continues = segments.len() > required.len() || *open && segments.len() == required.len();
                continues
                    && segments.iter().zip(required).all(|(given, required)| given.is_literally(required))
            }
            (
                PathKind::Template { segments, open },
                PathKind::Template { segments: wide, open: is_wide_open },
            ) => {
                let fits = match (open, is_wide_open) {
                    (false, false) => segments.len() == wide.len(),
                    (true, true) => segments.len() >= wide.len(),
                    (false, true) => segments.len() > wide.len(),
                    (true, false) => false,
                };
                fits && wide.iter().zip(segments).all(|(wide, given)| wide.includes(given))
            }
            (PathKind::Regex(one), PathKind::Regex(other)) => one.as_str() == other.as_str(),
            (PathKind::Prefix(_) | PathKind::Template { .. } | PathKind::Regex(_), _) => false,
        }
    }

    /// Returns the segment that every matching path begins with, if there is only one.
    pub fn first_segment(&self) -> Option<&str> {
        match self.kind() {
            PathKind::Exact(path) => path.split('/').nth(1),
            PathKind::Prefix(prefix) => complete_segments(prefix).next(),
            PathKind::Template { segments, .. } => match segments.first()? {
                Segment::Literal(literal) => Some(literal),
                Segment::Any => None,
            },
            PathKind::Regex(_) => None,
        }
    }

    /// Whether no path matches both patterns.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        match (self.kind(), other.kind()) {
            (PathKind::Exact(path), _) => !other.matches(path),
            (_, PathKind::Exact(path)) => !self.matches(path),
            (PathKind::Prefix(one), PathKind::Prefix(two)) => {
                !one.starts_with(&**two) && !two.starts_with(&**one)
            }
            (PathKind::Prefix(_) | PathKind::Template { .. } | PathKind::Regex(_), _) => false,
        }
    }
}

/// Returns the segments of a prefix, which begins and ends with a slash.
fn complete_segments(prefix: &str) -> impl Iterator<Item = &str> {
    prefix.trim_start_matches('/').split_terminator('/')
}

impl Segment {
    /// Whether every value of `narrower` is a value of this segment.
    fn includes(&self, narrower: &Self) -> bool {
        match (self, narrower) {
            (Self::Any, Self::Any) => true,
            (_, Self::Literal(literal)) => self.includes_text(literal),
            (Self::Literal(_), Self::Any) => false,
        }
    }

    fn includes_text(&self, text: &str) -> bool {
        match self {
            Self::Any => !text.is_empty(),
            Self::Literal(literal) => **literal == *text,
        }
    }

    fn is_literally(&self, text: &str) -> bool {
        matches!(self, Self::Literal(literal) if **literal == *text)
    }
}

impl HostPattern {
    /// Whether every host that this pattern matches is matched by `wider`.
    pub fn is_within(&self, wider: &Self) -> bool {
        match (self, wider) {
            (Self::Exact(host), _) => wider.matches(host),
            (Self::Suffix(narrow), Self::Suffix(wide)) => narrow.ends_with(&**wide),
            (Self::Regex(one), Self::Regex(other)) => one.as_str() == other.as_str(),
            (Self::Suffix(_) | Self::Regex(_), _) => false,
        }
    }
}

impl HeaderPattern {
    /// Whether every attribute that this pattern matches is matched by `wider`.
    pub fn is_within(&self, wider: &Self) -> bool {
        match (self, wider) {
            (Self::Absent, Self::Absent) => true,
            (Self::Absent, _) | (_, Self::Absent) => false,
            (_, Self::Present) => true,
            (Self::Exact(value), _) => wider.matches_any(std::iter::once(value.as_bytes())),
            (Self::Regex(one), Self::Regex(other)) => one.as_str() == other.as_str(),
            (Self::Number(one), Self::Number(other)) => one == other,
            (Self::Present | Self::Regex(_) | Self::Number(_) | Self::InList(_), _) => false,
        }
    }
}
