//! What a rule did to a request, in one word: for whoever counts.

use super::selection::{Part, Selected};
use crate::limiter::decision::{Enforcement, Verdict};

/// What a rule did to a request it applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecisionOutcome {
    /// Within the limit.
    Allowed,
    /// Over the limit, within its soft margin: passed with a mark.
    Soft,
    /// Held back until it conformed, then passed.
    Delayed,
    /// Refused.
    Limited,
    /// Refused because its key is banned.
    Banned,
    /// Refused by `action: deny`, or for want of a key that must be there.
    Denied,
    /// Exempted by `action: allow`.
    Exempt,
    /// Over the limit of a rule that only looks on.
    Shadow,
}

impl DecisionOutcome {
    /// Every outcome, in the order of the documentation.
    pub const ALL: [Self; 8] = [
        Self::Allowed,
        Self::Soft,
        Self::Delayed,
        Self::Limited,
        Self::Banned,
        Self::Denied,
        Self::Exempt,
        Self::Shadow,
    ];

    /// What a rule did by its checks; nothing where another rule refused what this one would have let pass.
    pub fn of(selected: &[Selected], verdicts: &[Verdict], refused: bool) -> Option<Self> {
        // Almost every rule has one check, and almost every check conforms.
        if let [verdict] = verdicts
            && !verdict.exceeds()
            && verdict.delay().is_zero()
        {
            return (!refused).then_some(Self::Allowed);
        }
        let any = |is: fn(&Verdict) -> bool| verdicts.iter().any(is);
        let banned =
            selected.iter().zip(verdicts).any(|(one, verdict)| one.part == Part::Ban && verdict.refuses());
        if banned {
            Some(Self::Banned)
        } else if any(Verdict::refuses) {
            Some(Self::Limited)
        } else if any(|verdict| verdict.exceeds() && verdict.enforcement == Enforcement::Shadow) {
            Some(Self::Shadow)
        } else if refused {
            None
        } else if any(Verdict::marks) {
            Some(Self::Soft)
        } else if any(|verdict| !verdict.delay().is_zero()) {
            Some(Self::Delayed)
        } else {
            Some(Self::Allowed)
        }
    }

    /// The label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Soft => "soft",
            Self::Delayed => "delayed",
            Self::Limited => "limited",
            Self::Banned => "banned",
            Self::Denied => "denied",
            Self::Exempt => "exempt",
            Self::Shadow => "shadow",
        }
    }
}
