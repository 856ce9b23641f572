//! Containment of conditions: whether every request that one matcher holds for is one that another holds for.
//!
//! It is proven from the patterns alone, without requests. `true` is certain; `false` means "not proven", for example
//! for two different regexes. Notes on configurations rely on it.

mod patterns;

use super::attribute::Attribute;
use super::matcher::{Condition, Matcher};
use super::pattern::HeaderPattern;
use super::rule::Rule;

/// Maximum number of pairs of patterns that are compared for one condition. Longer lists are not compared.
const MAX_COMPARED_PAIRS: usize = 1_000_000;

impl Matcher {
    /// Whether this matcher holds only for requests that `wider` holds for.
    pub fn is_within(&self, wider: &Self) -> bool {
        // Destructured, so that a new field does not compile until it is compared.
        let Self { paths, methods, hosts, client_ip, schedule, conditions, entries } = wider;
        let is_comparable = self.paths.len().saturating_mul(paths.len()) <= MAX_COMPARED_PAIRS;
        let is_path_within = || self.paths.iter().all(|path| paths.iter().any(|other| path.is_within(other)));
        let is_host_within = || self.hosts.iter().all(|host| hosts.iter().any(|other| host.is_within(other)));
        (paths.is_empty() || is_comparable && !self.paths.is_empty() && is_path_within())
            && (methods.is_empty()
                || !self.methods.is_empty() && self.methods.iter().all(|method| methods.contains(method)))
            && (hosts.is_empty() || !self.hosts.is_empty() && is_host_within())
            && client_ip
                .as_ref()
                .is_none_or(|wider| self.client_ip.as_ref().is_some_and(|set| set.is_within(wider)))
            && (schedule.is_none() || *schedule == self.schedule)
            && (entries.is_none() || *entries == self.entries)
            && conditions.iter().all(|condition| self.implies(condition))
    }

    /// Whether no request satisfies both matchers.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        let have_no_path = !self.paths.is_empty()
            && !other.paths.is_empty()
            && self.paths.iter().all(|one| other.paths.iter().all(|two| one.is_disjoint(two)));
        let have_no_method = !self.methods.is_empty()
            && !other.methods.is_empty()
            && self.methods.iter().all(|method| !other.methods.contains(method));
        let have_no_client = self
            .client_ip
            .as_ref()
            .zip(other.client_ip.as_ref())
            .is_some_and(|(one, two)| one.is_disjoint(two));
        let contradict =
            |condition: &Condition| other.conditions.iter().any(|opposite| condition.is_opposite(opposite));
        have_no_path || have_no_method || have_no_client || self.conditions.iter().any(contradict)
    }

    /// Whether every request that it holds for has this attribute.
    pub fn requires(&self, attribute: &Attribute) -> bool {
        self.conditions.iter().any(|condition| condition.requires(attribute))
    }

    /// Whether it holds for exactly the requests that lack this attribute.
    pub fn is_absence_of(&self, attribute: &Attribute) -> bool {
        let without_conditions = Self { conditions: Box::default(), ..self.clone() };
        let [Condition { attribute: given, patterns }] = &*self.conditions else { return false };
        given == attribute
            && matches!(**patterns, [HeaderPattern::Absent])
            && without_conditions.holds_for_all()
    }

    /// Returns the matcher with the additional condition that requests lack this attribute.
    #[must_use]
    pub fn without(&self, attribute: &Attribute) -> Self {
        let absent = Condition { attribute: attribute.clone(), patterns: [HeaderPattern::Absent].into() };
        let conditions = self.conditions.iter().cloned().chain([absent]).collect();
        Self { conditions, ..self.clone() }
    }

    fn implies(&self, condition: &Condition) -> bool {
        self.conditions.iter().any(|given| {
            given.attribute == condition.attribute
                && given.patterns.len().saturating_mul(condition.patterns.len()) <= MAX_COMPARED_PAIRS
                && given
                    .patterns
                    .iter()
                    .all(|pattern| condition.patterns.iter().any(|wider| pattern.is_within(wider)))
        })
    }
}

impl Condition {
    fn requires(&self, attribute: &Attribute) -> bool {
        let is_positive = |pattern: &HeaderPattern| !matches!(pattern, HeaderPattern::Absent);
        if self.attribute == *attribute {
            return self.patterns.iter().all(is_positive);
        }
        // A client is on a plan other than the default one only as a member, which the attribute identifies.
        let Some(plans) = self.attribute.source().plans().filter(|plans| plans.attribute == *attribute)
        else {
            return false;
        };
        let default = plans.default.as_deref();
        self.patterns.iter().all(|pattern| pattern.exact().is_some_and(|plan| Some(plan) != default))
    }

    /// Whether one condition requires the attribute, and the other that it is absent.
    fn is_opposite(&self, other: &Self) -> bool {
        let is_absent = |condition: &Self| {
            condition.patterns.iter().all(|pattern| matches!(pattern, HeaderPattern::Absent))
        };
        self.attribute == other.attribute
            && (is_absent(self) && other.requires(&self.attribute)
                || is_absent(other) && self.requires(&self.attribute))
    }
}

impl Rule {
    /// Whether `wider` applies to every request that `matcher`, in place of this rule's own, and no exception of this
    /// rule hold for; by its conditions, whatever its key is.
    pub fn is_within(&self, matcher: &Matcher, wider: &Self) -> bool {
        let serves_calls = match (&self.domain, &wider.domain) {
            (Some(own), Some(other)) => own == other,
            (Some(_), None) => false,
            (None, _) => true,
        };
        // A rule that reads descriptors does not apply to proxied requests.
        let serves_requests = !wider.reads_descriptors() || self.reads_descriptors();
        let is_excluded_here = |exception: &Matcher| {
            matcher.is_disjoint(exception) || self.except.iter().any(|own| exception.is_within(own))
        };
        serves_calls
            && serves_requests
            && matcher.is_within(&wider.matcher)
            && wider.except.iter().all(is_excluded_here)
    }

    /// Whether the requests that the rule applies to surely have this attribute.
    pub fn requires(&self, attribute: &Attribute) -> bool {
        self.matcher.requires(attribute) || self.except.iter().any(|except| except.is_absence_of(attribute))
    }
}

#[cfg(test)]
mod tests;
