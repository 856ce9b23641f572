//! The rules that one host and path lead to, told apart by headers and methods where they are many.

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

/// Each rule is under one header, or under its methods.
#[derive(Debug, Default)]
struct Facets {
    headers: HashMap<HeaderName, Values>,
    methods: HashMap<Method, Vec<Id>>,
}

#[derive(Debug, Default)]
struct Values {
    exact: HashMap<Box<[u8]>, Vec<Id>>,
    /// Whatever the header says, as long as it is there.
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
        // Of several headers one that must have certain values says most.
        let headers = || matcher.headers.iter().filter(|(_, patterns)| !patterns.iter().any(holds_without));
        let is_exact = |pattern: &HeaderPattern| matches!(pattern, HeaderPattern::Exact(_));
        let best = headers().find(|(_, patterns)| patterns.iter().all(is_exact)).or_else(|| headers().next());
        if let Some((name, patterns)) = best {
            self.headers.entry(name.clone()).or_default().file(id, patterns);
            return true;
        }
        for method in &matcher.methods {
            self.methods.entry(method.clone()).or_default().push(id);
        }
        !matcher.methods.is_empty()
    }

    fn find(&self, request: &Attributes<'_>, found: &mut Candidates) {
        if !self.methods.is_empty()
            && let Some(rules) = self.methods.get(request.method)
        {
            found.extend_from_slice(rules);
        }
        // Whichever are fewer: those that rules name or those that the request has.
        if self.headers.len() <= request.headers.keys_len() {
            for (name, values) in &self.headers {
                values.find(request, name, found);
            }
        } else {
            for name in request.headers.keys() {
                if let Some(values) = self.headers.get(name) {
                    values.find(request, name, found);
                }
            }
        }
    }
}

/// Whether the pattern matches a request without the header.
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

    fn find(&self, request: &Attributes<'_>, name: &HeaderName, found: &mut Candidates) {
        let mut values = request.headers.get_all(name).iter().peekable();
        if values.peek().is_some() {
            found.extend_from_slice(&self.present);
        }
        for value in values.map(http::HeaderValue::as_bytes).filter(|value| value.len() <= self.longest) {
            if let Some(rules) = self.exact.get(value) {
                found.extend_from_slice(rules);
            }
        }
    }
}
