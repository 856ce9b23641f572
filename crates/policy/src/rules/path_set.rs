//! Set of path patterns, which finds whether any of thousands matches a path.

use std::collections::{BTreeSet, HashMap, HashSet};

use regex::Regex;

use super::pattern::{PathKind, PathPattern, Segment};

/// Characters of a regex that are not literal.
const META: &[char] = &['\\', '.', '+', '*', '?', '(', ')', '|', '[', ']', '{', '}', '^', '$'];

/// Set of path patterns.
#[derive(Debug, Default)]
pub struct PathSet<'p> {
    exact: HashSet<&'p str>,
    /// Each ends in `/`.
    prefixes: HashSet<&'p str>,
    templates: SegmentTree<'p>,
    regexes: PrefixedRegexes<'p>,
}

/// Templates by their segments.
#[derive(Debug, Default)]
struct SegmentTree<'p> {
    literals: HashMap<&'p str, Self>,
    any: Option<Box<Self>>,
    /// Whether a template ends here, and whether an open one does.
    ends: bool,
    ends_open: bool,
}

/// Regexes by the text with which every path that they match begins.
#[derive(Debug, Default)]
struct PrefixedRegexes<'p> {
    by_prefix: HashMap<&'p str, Vec<&'p Regex>>,
    prefix_lengths: BTreeSet<usize>,
}

impl<'p> Extend<&'p PathPattern> for PathSet<'p> {
    fn extend<I: IntoIterator<Item = &'p PathPattern>>(&mut self, patterns: I) {
        for pattern in patterns {
            match pattern.kind() {
                PathKind::Exact(path) => _ = self.exact.insert(path),
                PathKind::Prefix(prefix) => _ = self.prefixes.insert(prefix),
                PathKind::Template { segments, open } => self.templates.insert(segments, *open),
                PathKind::Regex(regex) => self.regexes.insert(regex),
            }
        }
    }
}

impl<'p> FromIterator<&'p PathPattern> for PathSet<'p> {
    fn from_iter<I: IntoIterator<Item = &'p PathPattern>>(patterns: I) -> Self {
        let mut set = Self::default();
        set.extend(patterns);
        set
    }
}

impl PathSet<'_> {
    /// Whether any of the patterns matches a normalised path.
    pub fn matches(&self, path: &str) -> bool {
        self.exact.contains(path)
            || path.match_indices('/').any(|(slash, _)| self.prefixes.contains(&path[..=slash]))
            || path.strip_prefix('/').is_some_and(|rest| self.templates.matches(Some(rest)))
            || self.regexes.matches(path)
    }
}

impl<'p> PrefixedRegexes<'p> {
    fn insert(&mut self, regex: &'p Regex) {
        let prefix = literal_prefix(regex.as_str());
        self.by_prefix.entry(prefix).or_default().push(regex);
        self.prefix_lengths.insert(prefix.len());
    }

    fn matches(&self, path: &str) -> bool {
        let prefixes = self.prefix_lengths.iter().filter_map(|length| path.get(..*length));
        prefixes.filter_map(|prefix| self.by_prefix.get(prefix)).flatten().any(|regex| regex.is_match(path))
    }
}

impl<'p> SegmentTree<'p> {
    fn insert(&mut self, segments: &'p [Segment], open: bool) {
        match segments.split_first() {
            None if open => self.ends_open = true,
            None => self.ends = true,
            Some((Segment::Literal(literal), rest)) => {
                self.literals.entry(literal).or_default().insert(rest, open);
            }
            Some((Segment::Any, rest)) => self.any.get_or_insert_default().insert(rest, open),
        }
    }

    /// Whether a template matches the rest of a path, which is `None` after its last segment.
    fn matches(&self, rest: Option<&str>) -> bool {
        let Some(rest) = rest else { return self.ends };
        let (segment, rest) = match rest.split_once('/') {
            Some((segment, rest)) => (segment, Some(rest)),
            None => (rest, None),
        };
        self.ends_open
            || self.literals.get(segment).is_some_and(|tree| tree.matches(rest))
            || !segment.is_empty() && self.any.as_ref().is_some_and(|tree| tree.matches(rest))
    }
}

/// Returns the text that every match of an anchored regex begins with, as far as it is obvious.
fn literal_prefix(regex: &str) -> &str {
    let Some(anchored) = regex.strip_prefix('^').filter(|regex| !regex.contains('|')) else { return "" };
    let literal = &anchored[..anchored.find(META).unwrap_or(anchored.len())];
    // The last character may be optional.
    literal.char_indices().next_back().map_or("", |(last, _)| &literal[..last])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATTERNS: [&str; 16] = [
        "/a",
        "/a/",
        "/a/b",
        "/a/*",
        "/*",
        "/a/b/*",
        "/{x}",
        "/{x}/",
        "/a/{x}",
        "/{x}/b",
        "/{x}/{y}/",
        "/a/{x}/*",
        "~^/a/b?$",
        "~b/",
        "~^/a|^/b",
        "~^/aé*/b",
    ];

    proptest! {
        #[test]
        fn set_matches_what_one_of_its_patterns_matches(
            chosen in prop::collection::vec(prop::sample::select(&PATTERNS[..]), 0..5),
            path in "/([abé]{0,2}/){0,3}[ab]{0,2}",
        ) {
            let patterns: Vec<_> = chosen.iter().map(|text| PathPattern::parse(text).unwrap()).collect();
            let set: PathSet<'_> = patterns.iter().collect();
            let expected = patterns.iter().any(|pattern| pattern.matches(&path));
            prop_assert_eq!(set.matches(&path), expected, "{:?} {}", chosen, path);
        }
    }

    #[test]
    fn literal_prefix_is_part_of_every_match() {
        for (regex, prefix) in [
            ("^/a/b$", "/a/"),
            ("^/ab?", "/a"),
            ("/a", ""),
            ("^/a|/b", ""),
            ("^(?i)/a", ""),
            ("^", ""),
            ("^/é*", "/"),
        ] {
            assert_eq!(literal_prefix(regex), prefix, "{regex}");
        }
    }
}
