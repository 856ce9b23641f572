//! All that a request needs of one configuration generation, immutable.

use crate::identify;
use crate::response::refusal::Refusal;
use crate::response::{self};
use crate::rules::routes::Routes;
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
    /// What each rule answers when it refuses, beside the rules.
    pub refusals: Box<[Refusal]>,
    /// Which upstream takes which requests.
    pub routes: Routes,
    /// What `deny` answers.
    pub denied: Refusal,
    /// What clients are told about limits.
    pub response: response::Settings,
}

impl Policy {
    /// What the rule at `index` answers when it refuses.
    pub fn refusal(&self, index: RuleIndex) -> Option<&Refusal> {
        self.refusals.get(index.0)
    }
}
