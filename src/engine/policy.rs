//! All that a request needs of one configuration generation, immutable.

use http::HeaderName;

use crate::identify;
use crate::limiter::Meter;
use crate::response;
use crate::response::refusal::Refusal;
use crate::rules::attribute::Attribute;
use crate::rules::routes::Routes;
use crate::rules::rule::Rule;
use crate::rules::{RuleIndex, RuleSet};

/// One generation: a request takes it at its start and sees nothing of a reload that happens meanwhile.
#[derive(Debug)]
pub struct Policy {
    /// Counts up by one per applied configuration, from 1.
    pub generation: u64,
    /// Whom to believe about the client's address.
    pub identify: identify::Settings,
    /// The rules.
    pub rules: RuleSet,
    /// What each rule answers when it rejects, beside the rules.
    pub rejections: Box<[Refusal]>,
    /// Which upstream takes which requests.
    pub routes: Routes,
    /// What `deny` answers.
    pub denied: Refusal,
    /// What clients are told about limits.
    pub response: response::Settings,
}

impl Policy {
    /// What the rule at `index` answers when it rejects.
    pub fn rejection(&self, index: RuleIndex) -> Option<&Refusal> {
        self.rejections.get(index.0)
    }

    /// The limits that decide.
    pub fn meters(&self) -> impl Iterator<Item = Meter> + '_ {
        (0..self.rules.rules().len()).flat_map(|index| self.rules.meters(RuleIndex(index)))
    }

    /// The headers by which clients are told apart, each once.
    pub fn telling_headers(&self) -> Box<[HeaderName]> {
        let header = |attribute: &Attribute| attribute.source().header().cloned();
        let parts = self.rules.rules().iter().flat_map(Rule::identifying);
        let token = self.identify.jwt.iter().filter_map(|verifier| verifier.header().cloned());
        let mut names: Vec<_> = parts.filter_map(header).chain(token).collect();
        names.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
        names.dedup();
        names.into()
    }
}
