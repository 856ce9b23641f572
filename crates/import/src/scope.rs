//! The requests that a rule applies to, as its `match` and `except`.

use std::collections::HashSet;

use super::rule_text::{RuleText, map, one_or_list, scalar};

/// An attribute that `match` compares.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MatchField {
    Host,
    Path,
    Method,
    ClientIp,
    Header(String),
}

/// A condition: the attribute matches one of the patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScopeCondition {
    pub(super) field: MatchField,
    /// As the value is, without quotes.
    pub(super) patterns: Vec<String>,
}

impl ScopeCondition {
    pub(super) fn new(field: MatchField, patterns: Vec<String>) -> Self {
        Self { field, patterns }
    }

    /// Whether both are names of hosts and have none in common.
    fn has_other_hosts(&self, other: &Self) -> bool {
        let is_name = |pattern: &String| !pattern.starts_with(['*', '~']);
        let has_names = |one: &Self| one.field == MatchField::Host && one.patterns.iter().all(is_name);
        has_names(self)
            && has_names(other)
            && !self.patterns.iter().any(|pattern| other.patterns.contains(pattern))
    }
}

/// A set of requests: those that meet all conditions, except those that meet one of the exceptions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Scope {
    /// At most one for each attribute.
    pub(super) conditions: Vec<ScopeCondition>,
    pub(super) exceptions: Vec<Vec<ScopeCondition>>,
}

impl Scope {
    /// Adds a condition if it has patterns.
    pub(super) fn require(&mut self, field: MatchField, mut patterns: Vec<String>) {
        remove_duplicates(&mut patterns);
        if !patterns.is_empty() {
            self.conditions.push(ScopeCondition::new(field, patterns));
        }
    }

    /// Adds an exception with one condition if it has patterns.
    pub(super) fn except(&mut self, field: MatchField, mut patterns: Vec<String>) {
        remove_duplicates(&mut patterns);
        if !patterns.is_empty() {
            self.exceptions.push(vec![ScopeCondition::new(field, patterns)]);
        }
    }

    /// Returns the requests in both; `None` if both have conditions on the same attribute.
    pub(super) fn intersection(&self, other: &Self) -> Option<Self> {
        let has = |field: &MatchField| self.conditions.iter().any(|condition| condition.field == *field);
        if other.conditions.iter().any(|condition| has(&condition.field)) {
            return None;
        }
        let mut both = self.clone();
        both.conditions.extend(other.conditions.iter().cloned());
        both.exceptions.extend(other.exceptions.iter().cloned());
        Some(both)
    }

    /// Whether all requests of `other` are certainly in this scope.
    pub(super) fn includes(&self, other: &Self) -> bool {
        let meets = |condition: &ScopeCondition| {
            let mut theirs = other.conditions.iter().filter(|one| one.field == condition.field);
            theirs.any(|one| one.patterns.iter().all(|pattern| condition.patterns.contains(pattern)))
        };
        let theirs = other.joined_exceptions();
        let is_outside = |exception: &Vec<ScopeCondition>| {
            let [only] = exception.as_slice() else { return theirs.contains(exception) };
            let excludes = |one: &Vec<ScopeCondition>| {
                matches!(one.as_slice(), [one] if one.field == only.field
                    && only.patterns.iter().all(|pattern| one.patterns.contains(pattern)))
            };
            theirs.iter().any(excludes) || other.conditions.iter().any(|one| one.has_other_hosts(only))
        };
        self.conditions.iter().all(meets) && self.joined_exceptions().iter().all(is_outside)
    }

    /// Sets `match` and `except` of a rule.
    pub(super) fn write(&self, rule: &mut RuleText) {
        if let Some(conditions) = format_conditions(&self.conditions) {
            rule.set("match", conditions);
        }
        let exceptions: Vec<String> =
            self.joined_exceptions().iter().filter_map(|one| format_conditions(one)).collect();
        if !exceptions.is_empty() {
            rule.set("except", one_or_list(&exceptions));
        }
    }

    /// Returns the exceptions, with those that have one condition on the same attribute as one.
    fn joined_exceptions(&self) -> Vec<Vec<ScopeCondition>> {
        let mut joined: Vec<Vec<ScopeCondition>> = Vec::new();
        for exception in &self.exceptions {
            let same =
                joined.iter_mut().find_map(|other| match (other.as_mut_slice(), exception.as_slice()) {
                    ([other], [one]) if other.field == one.field => Some((other, one)),
                    _ => None,
                });
            match same {
                Some((other, one)) => {
                    let new = one.patterns.iter().filter(|pattern| !other.patterns.contains(pattern));
                    let new: Vec<String> = new.cloned().collect();
                    other.patterns.extend(new);
                }
                None => joined.push(exception.clone()),
            }
        }
        joined
    }
}

fn remove_duplicates(patterns: &mut Vec<String>) {
    let mut seen = HashSet::new();
    patterns.retain(|pattern| seen.insert(pattern.clone()));
}

fn format_conditions(conditions: &[ScopeCondition]) -> Option<String> {
    let mut sorted: Vec<&ScopeCondition> = conditions.iter().collect();
    sorted.sort_by(|one, other| one.field.cmp(&other.field));
    let patterns = |condition: &ScopeCondition| {
        one_or_list(&condition.patterns.iter().map(|pattern| scalar(pattern)).collect::<Vec<_>>())
    };
    let mut fields: Vec<(&str, String)> = Vec::new();
    let mut headers: Vec<(&str, String)> = Vec::new();
    for condition in sorted {
        let value = patterns(condition);
        match &condition.field {
            MatchField::Host => fields.push(("host", value)),
            MatchField::Path => {
                fields.push(("path", value));
                if condition.patterns.iter().any(|pattern| is_exact_path(pattern)) {
                    // nginx distinguishes them, too.
                    fields.push(("trailing_slash", "exact".to_owned()));
                }
            }
            MatchField::Method => fields.push(("method", value)),
            MatchField::ClientIp => fields.push(("client_ip", value)),
            MatchField::Header(name) => headers.push((name, value)),
        }
    }
    if !headers.is_empty() {
        fields.push(("header", map(headers)));
    }
    (!fields.is_empty()).then(|| map(fields))
}

fn is_exact_path(pattern: &str) -> bool {
    pattern != "/" && pattern.starts_with('/') && !pattern.ends_with("/*")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_written_as_match_and_except() {
        let mut scope = Scope::default();
        scope.require(MatchField::Path, vec!["/login".to_owned()]);
        scope.require(MatchField::Header("x-a".to_owned()), vec!["~^b".to_owned()]);
        scope.require(MatchField::Host, vec!["a.com".to_owned(), "b.com".to_owned()]);
        scope.except(MatchField::Path, vec!["/a/*".to_owned()]);
        scope.except(MatchField::Path, vec!["/b/*".to_owned(), "/a/*".to_owned()]);
        scope.except(MatchField::Method, Vec::new());
        let mut rule = RuleText::default();
        scope.write(&mut rule);
        let expected = [
            (
                "match",
                r#"{ host: [a.com, b.com], path: "/login", trailing_slash: exact, header: { x-a: "~^b" } }"#,
            ),
            ("except", r#"{ path: ["/a/*", "/b/*"] }"#),
        ];
        assert_eq!(rule.fields, expected.map(|(key, value)| (key, value.to_owned())));
    }

    #[test]
    fn scopes_with_the_same_attribute_have_no_intersection() {
        let mut paths = Scope::default();
        paths.require(MatchField::Path, vec!["/a".to_owned()]);
        let mut hosts = Scope::default();
        hosts.require(MatchField::Host, vec!["a.com".to_owned()]);
        assert_eq!(paths.intersection(&paths), None);
        assert_eq!(paths.intersection(&hosts).map(|both| both.conditions.len()), Some(2));
    }
}
