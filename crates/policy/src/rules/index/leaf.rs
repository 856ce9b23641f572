//! Rules with the same host and path, indexed by header, descriptor entry or method if there are many.

use foldhash::HashMap;
use http::{HeaderName, Method};

use super::{Candidates, RuleId};
use crate::identify::Attributes;
use crate::rules::matcher::Matcher;
use crate::rules::pattern::HeaderPattern;
use crate::rules::rule::Rule;

/// Maximum number of rules that are not indexed further: verifying so few is cheaper.
const MAX_UNSORTED_RULES: usize = 4;

/// Maximum number of rules that are added one by one.
const MAX_PUSHED: usize = 4;

/// Rules of one host and path.
#[derive(Debug, Default)]
pub(super) struct Leaf {
    /// Rules that are not indexed any further.
    rules: Vec<RuleId>,
    facets: Option<Box<Facets>>,
}

/// Each rule is filed under one header, one descriptor key, or its methods.
#[derive(Debug, Default)]
struct Facets {
    headers: HashMap<HeaderName, Values>,
    entries: HashMap<Box<str>, Values>,
    methods: HashMap<Method, Vec<RuleId>>,
}

#[derive(Debug, Default)]
struct Values {
    exact: HashMap<Box<[u8]>, Vec<RuleId>>,
    /// Rules that match several or all values of the header, if it is present.
    present: Vec<RuleId>,
    max_length: usize,
}

impl Leaf {
    pub(super) fn insert(&mut self, id: RuleId) {
        self.rules.push(id);
    }

    /// Indexes the rules if there are many; called once, after all were added.
    pub(super) fn seal(&mut self, rules: &[Rule]) {
        if self.rules.len() > MAX_UNSORTED_RULES {
            let mut facets = Facets::default();
            self.rules.retain(|id| !facets.insert(*id, &rules[*id as usize].matcher));
            self.facets = Some(Box::new(facets));
        }
        self.rules.shrink_to_fit();
    }

    pub(super) fn find(&self, request: &Attributes<'_>, found: &mut Candidates) {
        match self.rules.len() {
            // Copying a slice costs more for so few.
            0..=MAX_PUSHED => self.rules.iter().for_each(|id| found.push(*id)),
            _ => found.extend_from_slice(&self.rules),
        }
        if let Some(facets) = &self.facets {
            facets.find(request, found);
        }
    }
}

impl Facets {
    /// Indexes the rule; returns `false` if it has no header, descriptor key or method to index it by.
    fn insert(&mut self, id: RuleId, matcher: &Matcher) -> bool {
        let conditions = matcher.conditions.iter().map(|test| (test.attribute.source(), &*test.patterns));
        let headers = conditions.clone().filter_map(|(source, any)| Some((source.header()?, any)));
        if let Some((name, patterns)) = most_selective(headers) {
            self.headers.entry(name.clone()).or_default().insert(id, patterns);
            return true;
        }
        let some = conditions.filter_map(|(source, any)| Some((source.descriptor()?, any)));
        let all = matcher.entries.iter().flatten().map(|(key, any)| (&**key, &**any));
        if let Some((key, patterns)) = most_selective(some.chain(all)) {
            self.entries.entry(key.into()).or_default().insert(id, patterns);
            return true;
        }
        for method in &matcher.methods {
            self.methods.entry(method.clone()).or_default().push(id);
        }
        !matcher.methods.is_empty()
    }

    fn find(&self, request: &Attributes<'_>, found: &mut Candidates) {
        if !self.methods.is_empty()
            && let Some(rules) = request.method.and_then(|method| self.methods.get(method))
        {
            found.extend_from_slice(rules);
        }
        // Iterates over the smaller set: the header names of the rules, or those of the request.
        if self.headers.len() <= request.headers.keys_len() {
            for (name, values) in &self.headers {
                values.find(values_of(request, name), found);
            }
        } else {
            for name in request.headers.keys() {
                if let Some(values) = self.headers.get(name) {
                    values.find(values_of(request, name), found);
                }
            }
        }
        for (key, value) in request.descriptor.map_or(&[][..], |said| said.0) {
            if let Some(values) = self.entries.get(*key) {
                values.find(std::iter::once(value.as_bytes()), found);
            }
        }
    }
}

fn values_of<'r>(request: &'r Attributes<'_>, name: &HeaderName) -> impl Iterator<Item = &'r [u8]> {
    request.headers.get_all(name).iter().map(http::HeaderValue::as_bytes)
}

/// Selects the condition to index a rule by: one with exact values, or else any that requires a value.
fn most_selective<'m, N>(
    named: impl Iterator<Item = (N, &'m [HeaderPattern])> + Clone,
) -> Option<(N, &'m [HeaderPattern])> {
    let mut named = named.filter(|(_, patterns)| !patterns.iter().any(holds_without));
    let is_exact = |pattern: &HeaderPattern| matches!(pattern, HeaderPattern::Exact(_));
    named.clone().find(|(_, patterns)| patterns.iter().all(is_exact)).or_else(|| named.next())
}

/// Whether the pattern matches a request that lacks the attribute.
const fn holds_without(pattern: &HeaderPattern) -> bool {
    matches!(pattern, HeaderPattern::Absent)
}

impl Values {
    fn insert(&mut self, id: RuleId, patterns: &[HeaderPattern]) {
        if patterns.iter().any(|pattern| !matches!(pattern, HeaderPattern::Exact(_))) {
            self.present.push(id);
            return;
        }
        for pattern in patterns {
            if let HeaderPattern::Exact(value) = pattern {
                self.max_length = self.max_length.max(value.len());
                self.exact.entry(value.as_bytes().into()).or_default().push(id);
            }
        }
    }

    fn find<'v>(&self, values: impl Iterator<Item = &'v [u8]>, found: &mut Candidates) {
        let mut values = values.peekable();
        if values.peek().is_some() {
            found.extend_from_slice(&self.present);
        }
        for value in values.filter(|value| value.len() <= self.max_length) {
            if let Some(rules) = self.exact.get(value) {
                found.extend_from_slice(rules);
            }
        }
    }
}
