//! The requests that two scopes have in common.

use std::net::IpAddr;

use regex::Regex;

use super::network::parse_network;
use super::scope::{MatchField, Scope, ScopeCondition};

/// The requests in both of two scopes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meeting {
    pub(super) scope: Scope,
    /// Attributes of which only one of two conditions is in `scope`, because no pattern expresses both.
    pub(super) inexact: Vec<MatchField>,
}

/// Returns the requests in both scopes; `None` if there are none.
pub(super) fn meet(one: &Scope, other: &Scope) -> Option<Meeting> {
    let mut meeting = Meeting { scope: one.clone(), inexact: Vec::new() };
    for theirs in &other.conditions {
        let ours = meeting.scope.conditions.iter_mut().find(|ours| ours.field == theirs.field);
        match ours {
            None => meeting.scope.conditions.push(theirs.clone()),
            Some(ours) => match patterns_in_both(ours, theirs) {
                InBoth::None => return None,
                InBoth::Patterns(patterns) => ours.patterns = patterns,
                InBoth::Unknown => {
                    meeting.inexact.push(theirs.field.clone());
                    ours.patterns.clone_from(&theirs.patterns);
                }
            },
        }
    }
    for exception in &other.exceptions {
        if !meeting.scope.exceptions.contains(exception) {
            meeting.scope.exceptions.push(exception.clone());
        }
    }
    let requests = Scope { conditions: meeting.scope.conditions.clone(), exceptions: Vec::new() };
    meeting.scope.exceptions = without_required(&meeting.scope);
    if meeting.scope.exceptions.iter().any(|exception| covers(exception, &requests)) {
        return None;
    }
    meeting.scope.exceptions.retain(|exception| {
        let excepted = Scope { conditions: exception.clone(), exceptions: Vec::new() };
        may_meet(&requests, &excepted)
    });
    Some(meeting)
}

/// Whether two scopes may have a request in common.
pub(super) fn may_meet(one: &Scope, other: &Scope) -> bool {
    other.conditions.iter().all(|theirs| {
        let ours = one.conditions.iter().find(|ours| ours.field == theirs.field);
        ours.is_none_or(|ours| !matches!(patterns_in_both(ours, theirs), InBoth::None))
    })
}

/// Returns the exceptions of a scope without what its conditions require anyway, and without duplicates.
fn without_required(scope: &Scope) -> Vec<Vec<ScopeCondition>> {
    let mut short: Vec<Vec<ScopeCondition>> = Vec::new();
    for exception in &scope.exceptions {
        let is_new = |condition: &&ScopeCondition| !scope.conditions.contains(condition);
        let new: Vec<ScopeCondition> = exception.iter().filter(is_new).cloned().collect();
        let new = if new.is_empty() { exception.clone() } else { new };
        if !short.contains(&new) {
            short.push(new);
        }
    }
    short
}

/// Whether every request of `scope` certainly meets these conditions.
pub(super) fn covers(conditions: &[ScopeCondition], scope: &Scope) -> bool {
    conditions.iter().all(|condition| {
        let ours = scope.conditions.iter().find(|ours| ours.field == condition.field);
        ours.is_some_and(|ours| {
            ours.patterns.iter().all(|pattern| {
                let narrowed = |wider: &String| {
                    matches!(both(&condition.field, pattern, wider), Both::One(text) if text == *pattern)
                };
                condition.patterns.iter().any(narrowed)
            })
        })
    })
}

enum InBoth {
    None,
    Patterns(Vec<String>),
    Unknown,
}

fn patterns_in_both(one: &ScopeCondition, other: &ScopeCondition) -> InBoth {
    let mut patterns: Vec<String> = Vec::new();
    for ours in &one.patterns {
        for theirs in &other.patterns {
            match both(&one.field, ours, theirs) {
                Both::None => {}
                Both::One(pattern) if patterns.contains(&pattern) => {}
                Both::One(pattern) => patterns.push(pattern),
                Both::Unknown => return InBoth::Unknown,
            }
        }
    }
    if patterns.is_empty() { InBoth::None } else { InBoth::Patterns(patterns) }
}

enum Both {
    None,
    One(String),
    Unknown,
}

/// What a pattern matches, as far as it is easy to see.
enum Shape<'p> {
    Any,
    Absent,
    Exact(String),
    Prefix(String),
    /// With the dot of `*.example.com`.
    Suffix(&'p str),
    Network(IpAddr, u8),
    Regex(Regex),
    Unknown,
}

fn both(field: &MatchField, one: &str, other: &str) -> Both {
    if one == other {
        return Both::One(one.to_owned());
    }
    match (shape(field, one), shape(field, other)) {
        (Shape::Absent, _) | (_, Shape::Absent) => Both::None,
        (Shape::Any, _) => Both::One(other.to_owned()),
        (_, Shape::Any) => Both::One(one.to_owned()),
        (Shape::Unknown, _) | (_, Shape::Unknown) => Both::Unknown,
        (Shape::Network(ours, length), Shape::Network(theirs, other_length)) => {
            match length >= other_length {
                true => narrower(is_inside(ours, (theirs, other_length)), one),
                false => narrower(is_inside(theirs, (ours, length)), other),
            }
        }
        (Shape::Network(..), _) | (_, Shape::Network(..)) => Both::Unknown,
        (Shape::Exact(ours), Shape::Exact(theirs)) => narrower(ours == theirs, one),
        (Shape::Exact(text), wider) => narrower(matches_text(&wider, &text), one),
        (wider, Shape::Exact(text)) => narrower(matches_text(&wider, &text), other),
        (Shape::Prefix(ours), Shape::Prefix(theirs)) => match ours.starts_with(&theirs) {
            true => Both::One(one.to_owned()),
            false => narrower(theirs.starts_with(&ours), other),
        },
        (Shape::Suffix(ours), Shape::Suffix(theirs)) => match ours.ends_with(theirs) {
            true => Both::One(one.to_owned()),
            false => narrower(theirs.ends_with(ours), other),
        },
        (Shape::Regex(regex), Shape::Prefix(prefix)) | (Shape::Prefix(prefix), Shape::Regex(regex)) => {
            unless_apart(&literal_prefix(regex.as_str()), &prefix)
        }
        (Shape::Regex(ours), Shape::Regex(theirs)) => {
            unless_apart(&literal_prefix(ours.as_str()), &literal_prefix(theirs.as_str()))
        }
        (Shape::Regex(_) | Shape::Prefix(_) | Shape::Suffix(_), _) => Both::Unknown,
    }
}

fn narrower(is_in_both: bool, pattern: &str) -> Both {
    if is_in_both { Both::One(pattern.to_owned()) } else { Both::None }
}

fn is_inside(address: IpAddr, outer: (IpAddr, u8)) -> bool {
    parse_network(&format!("{address}/{}", outer.1)).is_some_and(|network| network == outer)
}

/// Returns what patterns have in common whose matches begin with these texts.
fn unless_apart(one: &str, other: &str) -> Both {
    if one.starts_with(other) || other.starts_with(one) { Both::Unknown } else { Both::None }
}

/// Returns the text with which every match of a regex begins, as far as it is easy to see.
fn literal_prefix(regex: &str) -> String {
    let text = regex.strip_prefix('^').unwrap_or_default();
    let text = text.strip_prefix("(?:").unwrap_or(text);
    if text.contains('|') {
        return String::new();
    }
    let end = text.find(|letter| !matches!(letter, 'a'..='z' | 'A'..='Z' | '0'..='9' | '/' | '-' | '_'));
    let (literal, rest) = text.split_at(end.unwrap_or(text.len()));
    // The last letter may be optional.
    let is_optional = rest.starts_with(['*', '?', '{']);
    let length = literal.len().saturating_sub(usize::from(is_optional));
    literal[..length].to_owned()
}

fn matches_text(shape: &Shape<'_>, text: &str) -> bool {
    match shape {
        Shape::Any => true,
        Shape::Exact(exact) => exact == text,
        Shape::Prefix(prefix) => text.starts_with(prefix),
        Shape::Suffix(suffix) => text.ends_with(suffix),
        Shape::Regex(regex) => regex.is_match(text),
        Shape::Absent | Shape::Network(..) | Shape::Unknown => false,
    }
}

fn shape<'p>(field: &MatchField, pattern: &'p str) -> Shape<'p> {
    if let Some(regex) = pattern.strip_prefix('~') {
        let literal = regex.strip_prefix('^').unwrap_or_default();
        if let Some(text) = literal.strip_suffix('$').and_then(unescaped) {
            return Shape::Exact(text);
        }
        if let Some(text) = unescaped(literal).filter(|text| !text.is_empty()) {
            return Shape::Prefix(text);
        }
        return Regex::new(regex).map_or(Shape::Unknown, Shape::Regex);
    }
    match (field, pattern) {
        (MatchField::Header(_), "*") => Shape::Any,
        (MatchField::Header(_), "!present") => Shape::Absent,
        (MatchField::ClientIp, text) => {
            parse_network(text).map_or(Shape::Unknown, |(address, length)| Shape::Network(address, length))
        }
        (MatchField::Host, text) if text.starts_with("*.") => Shape::Suffix(&text[1..]),
        (MatchField::Path, text) if text.ends_with("/*") => Shape::Prefix(text[..text.len() - 1].to_owned()),
        (MatchField::Path, text) if text.contains('{') => Shape::Unknown,
        (_, text) => Shape::Exact(text.to_owned()),
    }
}

/// Returns the text that a regex without operators matches.
fn unescaped(regex: &str) -> Option<String> {
    let mut text = String::with_capacity(regex.len());
    let mut letters = regex.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => text.push(letters.next().filter(|next| !next.is_ascii_alphanumeric())?),
            '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$' => return None,
            letter => text.push(letter),
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(field: MatchField, patterns: &[&str]) -> Scope {
        let mut scope = Scope::default();
        scope.require(field, patterns.iter().map(|pattern| (*pattern).to_owned()).collect());
        scope
    }

    fn met(field: &MatchField, one: &[&str], other: &[&str]) -> Option<Vec<String>> {
        let meeting = meet(&scope(field.clone(), one), &scope(field.clone(), other))?;
        let patterns = meeting.scope.conditions[0].patterns.clone();
        Some(if meeting.inexact.is_empty() { patterns } else { vec!["inexact".to_owned()] })
    }

    #[test]
    fn scopes_on_one_attribute_meet_in_the_narrower_pattern() {
        let path = MatchField::Path;
        for (field, one, other, expected) in [
            (path.clone(), vec!["/login"], vec!["/static/*"], None),
            (path.clone(), vec!["/api/*"], vec!["~^/api/v1"], Some(vec!["~^/api/v1"])),
            (path.clone(), vec!["/a", "/b"], vec!["/b", "/c"], Some(vec!["/b"])),
            (path.clone(), vec!["~^/a"], vec!["/ab"], Some(vec!["/ab"])),
            (path.clone(), vec!["~^/a"], vec!["/b"], None),
            (path.clone(), vec!["~^/a\\.b$"], vec!["/a.b"], Some(vec!["~^/a\\.b$"])),
            (path.clone(), vec!["~x+"], vec!["~^/b"], Some(vec!["inexact"])),
            (path.clone(), vec!["~^(?:/b[0-9]+)$"], vec!["~^/a"], None),
            (path.clone(), vec!["~^/ab*c"], vec!["~^/ax+"], Some(vec!["inexact"])),
            (path.clone(), vec!["~^(?:/b|/a)$"], vec!["/a/*"], Some(vec!["inexact"])),
            (path, vec!["~^/bx*c"], vec!["~^/a[0-9]"], None),
            (MatchField::Host, vec!["*.a.com"], vec!["x.a.com"], Some(vec!["x.a.com"])),
            (MatchField::Host, vec!["*.a.com"], vec!["*.b.com"], None),
            (MatchField::ClientIp, vec!["10.0.0.0/8"], vec!["10.1.0.0/16"], Some(vec!["10.1.0.0/16"])),
            (MatchField::ClientIp, vec!["10.0.0.0/8"], vec!["11.1.0.1"], None),
            (MatchField::Header("x".to_owned()), vec!["*"], vec!["a"], Some(vec!["a"])),
            (MatchField::Header("x".to_owned()), vec!["!present"], vec!["a"], None),
        ] {
            let expected = expected.map(|all| all.into_iter().map(ToOwned::to_owned).collect::<Vec<_>>());
            assert_eq!(met(&field, &one, &other), expected, "{one:?} {other:?}");
        }
    }

    #[test]
    fn exceptions_outside_of_a_scope_are_left_out() {
        let mut all = Scope::default();
        all.except(MatchField::Path, vec!["/b/*".to_owned()]);
        let within = |path: &str| meet(&all, &scope(MatchField::Path, &[path]));
        assert_eq!(within("/a").map(|meeting| meeting.scope.exceptions.len()), Some(0));
        assert_eq!(within("~^/").map(|meeting| meeting.scope.exceptions.len()), Some(1));
        assert_eq!(within("/b/c"), None, "all of it is excepted");
    }
}
