//! Final outcome of a request. Each request has exactly one, however many rules apply to it.

use weir_policy::rules::outcome::DecisionOutcome;

/// What became of a request: what the rules decided together, or why they did not decide.
///
/// The response of the upstream has no part in it: a request that was admitted is admitted whatever its status code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalOutcome {
    /// The rules decided. This is the outcome of the rule that mattered most, which the access log names.
    Decided(DecisionOutcome),
    /// It was to be stored and sent later, and was not stored.
    NotStored,
    /// Shed by overload protection.
    Shed,
    /// Malformed, and rejected before any rule was considered.
    Malformed,
    /// Its client left before the rules had decided.
    Abandoned,
}

pub(super) const OUTCOMES: usize = DecisionOutcome::ALL.len() + OTHERS.len();

/// Outcomes without a decision, in the order of their positions.
const OTHERS: [FinalOutcome; 4] =
    [FinalOutcome::NotStored, FinalOutcome::Shed, FinalOutcome::Malformed, FinalOutcome::Abandoned];

impl FinalOutcome {
    /// Returns all outcomes, in the order of their positions.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        DecisionOutcome::ALL.into_iter().map(Self::Decided).chain(OTHERS)
    }

    /// Returns the position among all outcomes.
    pub(super) const fn position(self) -> usize {
        let decisions = DecisionOutcome::ALL.len();
        match self {
            Self::Decided(outcome) => outcome as usize,
            Self::NotStored => decisions,
            Self::Shed => decisions + 1,
            Self::Malformed => decisions + 2,
            Self::Abandoned => decisions + 3,
        }
    }

    /// Returns the label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Decided(outcome) => outcome.as_str(),
            Self::NotStored => "not_stored",
            Self::Shed => "shed",
            Self::Malformed => "malformed",
            Self::Abandoned => "abandoned",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_outcome_has_a_position_and_a_label_of_its_own() {
        let positions: Vec<usize> = FinalOutcome::all().map(FinalOutcome::position).collect();
        assert_eq!(positions, (0..OUTCOMES).collect::<Vec<_>>());
        assert_eq!(FinalOutcome::all().map(FinalOutcome::as_str).collect::<BTreeSet<_>>().len(), OUTCOMES);
    }
}
