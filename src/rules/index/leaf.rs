//! The rules that one host and path lead to, told apart by headers, descriptors and methods where they are many.

use foldhash::HashMap;
use http::{HeaderName, Method};

use super::{Candidates, Id};
use crate::identify::Attributes;
use crate::rules::matcher::Matcher;
use crate::rules::pattern::HeaderPattern;
use crate::rules::rule::Rule;

/// So many rules are verified sooner than they are told apart.
const FEW: usize = 4;

/// Rules in one place.
#[derive(Debug, Default)]
pub(super) struct Leaf {
    /// Those that are not told apart any further.
    rules: Vec<Id>,
    facets: Option<Box<Facets>>,
}

/// Each rule is under one header, under one key of a descriptor, or under its methods.
#[derive(Debug, Default)]
struct Facets {
    headers: HashMap<HeaderName, Values>,
    entries: HashMap<Box<str>, Values>,
    methods: HashMap<Method, Vec<Id>>,
}

#[derive(Debug, Default)]
struct Values {
    exact: HashMap<Box<[u8]>, Vec<Id>>,
    /// Whatever is said, as long as it is there.
    present: Vec<Id>,
    longest: usize,
}

impl Leaf {
    pub(super) fn file(&mut self, id: Id) {
        self.rules.push(id);
    }

    /// Tells many rules apart, once all of them are there.
    pub(super) fn seal(&mut self, rules: &[Rule]) {
        if self.rules.len() > FEW {
            let mut facets = Facets::default();
            self.rules.retain(|id| !facets.file(*id, &rules[*id as usize].matcher));
            self.facets = Some(Box::new(facets));
        }
        self.rules.shrink_to_fit();
    }

    pub(super) fn find(&self, request: &Attributes<'_>, found: &mut Candidates) {
        found.extend_from_slice(&self.rules);
        if let Some(facets) = &self.facets {
            facets.find(request, found);
        }
    }
}

impl Facets {
    /// Whether there is anything to file the rule under.
    fn file(&mut self, id: Id, matcher: &Matcher) -> bool {
        let conditions = matcher.conditions.iter().map(|test| (test.attribute.source(), &*test.any));
        let headers = conditions.clone().filter_map(|(source, any)| Some((source.header()?, any)));
        if let Some((name, patterns)) = telling(headers) {
            self.headers.entry(name.clone()).or_default().file(id, patterns);
            return true;
        }
        let some = conditions.filter_map(|(source, any)| Some((source.descriptor()?, any)));
        let all = matcher.entries.iter().flatten().map(|(key, any)| (&**key, &**any));
        if let Some((key, patterns)) = telling(some.chain(all)) {
            self.entries.entry(key.into()).or_default().file(id, patterns);
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
        // Whichever are fewer: those that rules name or those that the request has.
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

/// Of several names that must be there, one that must have certain values: that says most.
fn telling<'m, N>(
    named: impl Iterator<Item = (N, &'m [HeaderPattern])> + Clone,
) -> Option<(N, &'m [HeaderPattern])> {
    let mut named = named.filter(|(_, patterns)| !patterns.iter().any(holds_without));
    let is_exact = |pattern: &HeaderPattern| matches!(pattern, HeaderPattern::Exact(_));
    named.clone().find(|(_, patterns)| patterns.iter().all(is_exact)).or_else(|| named.next())
}

/// Whether the pattern matches a request without what it is for.
const fn holds_without(pattern: &HeaderPattern) -> bool {
    matches!(pattern, HeaderPattern::Absent)
}

impl Values {
    fn file(&mut self, id: Id, patterns: &[HeaderPattern]) {
        if patterns.iter().any(|pattern| !matches!(pattern, HeaderPattern::Exact(_))) {
            self.present.push(id);
            return;
        }
        for pattern in patterns {
            if let HeaderPattern::Exact(value) = pattern {
                self.longest = self.longest.max(value.len());
                self.exact.entry(value.as_bytes().into()).or_default().push(id);
            }
        }
    }

    fn find<'v>(&self, values: impl Iterator<Item = &'v [u8]>, found: &mut Candidates) {
        let mut values = values.peekable();
        if values.peek().is_some() {
            found.extend_from_slice(&self.present);
        }
        for value in values.filter(|value| value.len() <= self.longest) {
            if let Some(rules) = self.exact.get(value) {
                found.extend_from_slice(rules);
            }
        }
    }
}
