//! The patterns of `location`, and which of them applies to a path.
//!
//! An exact path applies first, then the longest prefix if it has `^~`, then the first regex in file order, then
//! the longest prefix.

use regex::Regex;

use super::super::pattern::{is_literal_path, parse_regex};
use super::precedence::Competing;

#[derive(Clone, Debug)]
pub(super) enum LocationPattern {
    /// `location = /path`
    Exact(String),
    /// `location /path` and `location ^~ /path`
    Prefix {
        path: String,
        /// Whether it has `^~`, which skips regexes.
        is_final: bool,
    },
    /// `location ~ regex` and `location ~* regex`
    Regex {
        regex: Regex,
        /// Its index among the locations of the server.
        order: usize,
    },
}

/// Why a location has no pattern here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LocationError {
    /// A named location (`@name`), which requests reach only from another one.
    Named,
    /// The regex has a syntax that rules do not know, such as a look-ahead.
    Regex,
    /// It has no pattern.
    Missing,
}

impl LocationPattern {
    /// The pattern of requests that no location of the server matches.
    pub(super) fn root() -> Self {
        Self::Prefix { path: "/".to_owned(), is_final: false }
    }

    /// Reads the parameters of `location`; `order` is its index in the server.
    pub(super) fn parse(arguments: &[String], order: usize) -> Result<Self, LocationError> {
        let (modifier, text) = match arguments {
            [modifier, text] => (modifier.as_str(), text.as_str()),
            // The modifier may be a part of the word.
            [word] => {
                let modifiers = ["=", "^~", "~*", "~"];
                let found = modifiers.into_iter().find_map(|one| Some((one, word.strip_prefix(one)?)));
                found.unwrap_or(("", word))
            }
            _ => return Err(LocationError::Missing),
        };
        match modifier {
            "=" => Ok(Self::Exact(text.to_owned())),
            "~" | "~*" => {
                let regex = parse_regex(text, modifier == "~*").ok_or(LocationError::Regex)?;
                Ok(Self::Regex { regex, order })
            }
            _ if text.starts_with('@') => Err(LocationError::Named),
            _ => Ok(Self::Prefix { path: text.to_owned(), is_final: modifier == "^~" }),
        }
    }

    /// Whether it is the prefix of all paths.
    pub(super) fn is_root(&self) -> bool {
        matches!(self, Self::Prefix { path, .. } if path == "/")
    }

    /// Returns the pattern of a rule's `match.path`; `None` for all paths.
    pub(super) fn to_rule_pattern(&self) -> Option<String> {
        match self {
            Self::Exact(path) if is_literal_path(path) => Some(path.clone()),
            Self::Exact(path) => Some(format!("~^{}$", regex::escape(path))),
            Self::Prefix { path, .. } if path == "/" => None,
            Self::Prefix { path, .. } if path.ends_with('/') && is_literal_path(path) => {
                Some(format!("{path}*"))
            }
            Self::Prefix { path, .. } => Some(format!("~^{}", regex::escape(path))),
            Self::Regex { regex, .. } => Some(format!("~{}", regex.as_str())),
        }
    }

    /// Whether it matches a path by itself, and how it ranks among those that do: the least one applies.
    pub(super) fn rank_for(&self, path: &str) -> Option<(u8, usize)> {
        match self {
            Self::Exact(exact) => (exact == path).then_some((0, 0)),
            Self::Prefix { path: prefix, is_final } => {
                let rank = if *is_final { 1 } else { 3 };
                path.starts_with(prefix.as_str()).then(|| (rank, usize::MAX - prefix.len()))
            }
            Self::Regex { regex, order } => regex.is_match(path).then_some((2, *order)),
        }
    }

    /// Whether `deeper` is a prefix without `^~` below this one with it: a regex then applies below `deeper`,
    /// which the exception of this pattern hides.
    pub(super) fn hides_regexes_from(&self, deeper: &Self) -> bool {
        match (self, deeper) {
            (Self::Prefix { path, is_final: true }, Self::Prefix { path: other, is_final: false }) => {
                other.len() > path.len() && other.starts_with(path)
            }
            _ => false,
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(one), Self::Exact(other)) => one == other,
            (Self::Exact(path), Self::Prefix { path: prefix, .. })
            | (Self::Prefix { path: prefix, .. }, Self::Exact(path)) => path.starts_with(prefix),
            (Self::Exact(path), Self::Regex { regex, .. })
            | (Self::Regex { regex, .. }, Self::Exact(path)) => regex.is_match(path),
            (Self::Prefix { path: one, .. }, Self::Prefix { path: other, .. }) => {
                one.starts_with(other.as_str()) || other.starts_with(one.as_str())
            }
            (Self::Prefix { path, .. }, Self::Regex { regex, .. })
            | (Self::Regex { regex, .. }, Self::Prefix { path, .. }) => {
                let begin = literal_begin(regex.as_str());
                begin.starts_with(path.as_str()) || path.starts_with(begin)
            }
            (Self::Regex { .. }, Self::Regex { .. }) => true,
        }
    }
}

impl Competing for LocationPattern {
    fn precedes(&self, other: &Self) -> bool {
        let precedes = match (self, other) {
            (Self::Exact(_), Self::Exact(_)) => false,
            (Self::Exact(_), _) => true,
            (_, Self::Exact(_)) => false,
            (Self::Prefix { path: one, .. }, Self::Prefix { path: other, .. }) => one.len() > other.len(),
            (Self::Prefix { is_final, .. }, Self::Regex { .. }) => *is_final,
            (Self::Regex { .. }, Self::Prefix { is_final, .. }) => !is_final,
            (Self::Regex { order: one, .. }, Self::Regex { order: other, .. }) => one < other,
        };
        precedes && self.overlaps(other)
    }
}

/// Returns the text with which all matches of a regex begin, as far as it is easy to see.
fn literal_begin(regex: &str) -> &str {
    let Some(rest) = regex.strip_prefix('^') else { return "" };
    // With an alternative, a match may begin in another way.
    if rest.contains('|') {
        return "";
    }
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '/' | '-' | '_');
    let end = rest.find(|letter| !is_plain(letter)).unwrap_or(rest.len());
    // The last letter may be optional or repeated.
    let end = if rest[end..].starts_with(['?', '*', '{']) { end.saturating_sub(1) } else { end };
    &rest[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(text: &str, order: usize) -> LocationPattern {
        let words: Vec<String> = text.split(' ').map(ToOwned::to_owned).collect();
        LocationPattern::parse(&words, order).unwrap()
    }

    fn rule_pattern(text: &str) -> Option<String> {
        location(text, 0).to_rule_pattern()
    }

    #[test]
    fn nginx_locations_become_path_patterns() {
        for (text, expected) in [
            ("= /login", "/login"),
            ("=/", "/"),
            ("/api/", "/api/*"),
            ("/api", "~^/api"),
            ("^~ /api", "~^/api"),
            ("/a//b/", "~^/a//b/"),
            ("= /a{1}", "~^/a\\{1\\}$"),
            ("~ \\.php$", "~\\.php$"),
            ("~*\\.(gif|png)$", "~(?i)\\.(gif|png)$"),
        ] {
            assert_eq!(rule_pattern(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(rule_pattern("/"), None);
    }

    #[test]
    fn nginx_locations_that_rules_cannot_express_are_rejected() {
        let error = |text: &str| LocationPattern::parse(&[text.to_owned()], 0).unwrap_err();
        assert_eq!((error("@named"), error("~(?!a)")), (LocationError::Named, LocationError::Regex));
        assert_eq!(LocationPattern::parse(&[], 0).unwrap_err(), LocationError::Missing);
    }

    #[test]
    fn nginx_location_precedence_is_exact_final_prefix_regex_prefix() {
        let all = ["= /a/b.php", "^~ /a/", "~ \\.php$", "~ ^/a/.*$", "/a/"];
        let all: Vec<_> = all.iter().enumerate().map(|(order, text)| location(text, order)).collect();
        for (index, one) in all.iter().enumerate() {
            for (other_index, other) in all.iter().enumerate() {
                // Two prefixes of one length do not exist in one server.
                if !matches!((index, other_index), (1, 4) | (4, 1)) {
                    assert_eq!(one.precedes(other), index < other_index, "{one:?} {other:?}");
                }
            }
        }
        assert!(location("/a/b", 0).precedes(&location("/a", 1)));
        assert!(!location("/b", 0).precedes(&location("/a", 1)), "they have no path in common");
    }

    #[test]
    fn anchored_regexes_overlap_only_with_prefixes_on_their_path() {
        let [regex, api, other, below] =
            ["~ ^/api/v[0-9]", "/api/", "/other/", "/api/v1/x"].map(|text| location(text, 0));
        assert!(regex.overlaps(&api) && regex.overlaps(&below) && !regex.overlaps(&other));
        assert_eq!(["^/ab?", "^/a|b", "/a", "^/a(b)?"].map(literal_begin), ["/a", "", "", "/a"]);
    }
}
