//! A rule as compiled: whom it is for, and what it does to them.

use super::key::KeyTemplate;
use super::matcher::{Matcher, Route};
use crate::identify::Attributes;
use crate::limiter::decision::Enforcement;
use crate::limiter::elastic::Prices;
use crate::limiter::quota::Quota;

/// One rule of the configuration.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Unique; also the identity of its counters across reloads.
    pub name: Box<str>,
    /// All of it must hold.
    pub matcher: Matcher,
    /// Where all of this holds too, the rule does not apply.
    pub except: Option<Matcher>,
    /// What it does.
    pub action: Action,
}

/// What a rule does to the requests it applies to.
#[derive(Clone, Debug)]
pub enum Action {
    /// Exempts from every other rule.
    Allow,
    /// Refuses with 403.
    Deny,
    /// Counts, and refuses what is over.
    Limit(Limiting),
}

/// A limiting rule's particulars.
#[derive(Clone, Debug)]
pub struct Limiting {
    /// What is counted apart.
    pub key: KeyTemplate,
    /// What to do where a part of the key is absent.
    pub on_missing: OnMissing,
    /// All of them must have room.
    pub limits: Box<[RuleLimit]>,
    /// Units each request costs.
    pub cost: u32,
    /// Whether it refuses or only looks on.
    pub enforcement: Enforcement,
}

/// One of a rule's limits.
#[derive(Clone, Debug)]
pub struct RuleLimit {
    /// What it allows.
    pub quota: Quota,
    /// What a request costs of it, if that varies: an elastic limit.
    pub prices: Option<Prices>,
}

/// What to do with a request that lacks a part of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMissing {
    /// The rule does not apply.
    #[default]
    Skip,
    /// All such requests share one counter.
    Shared,
    /// Refuse with 403.
    Deny,
}

impl Rule {
    /// The route by which the rule applies to a request; `None` if it does not.
    pub fn applies_to<'a>(&'a self, request: &Attributes<'_>) -> Option<Route<'a>> {
        let route = self.matcher.matches(request)?;
        let excepted = self.except.as_ref().is_some_and(|except| except.matches(request).is_some());
        (!excepted).then_some(route)
    }

    /// Its limits; none unless it limits.
    pub fn limits(&self) -> &[RuleLimit] {
        match &self.action {
            Action::Limit(limiting) => &limiting.limits,
            Action::Allow | Action::Deny => &[],
        }
    }

    /// Whether any of its limits is elastic.
    pub fn is_elastic(&self) -> bool {
        self.limits().iter().any(|limit| limit.prices.is_some())
    }
}
