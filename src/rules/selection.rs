//! What the rules say about one request.

use std::num::NonZeroU32;

use smallvec::SmallVec;

use super::RuleIndex;
use super::remote_limit::RemoteQuery;
use crate::identify::lookup::Ambiguity;
use crate::limiter::Check;

/// What a check is for, among the checks of its rule. Limits by their position in the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Refuses those whose ban runs.
    Ban,
    /// Counts what is under way.
    Permit,
    /// This limit, as written.
    Limit(u16),
    /// This limit with its soft margin.
    Margin(u16),
    /// This limit as written, which marks what is over.
    Mark(u16),
}

impl Part {
    /// The position of the limit that this check reports to clients: where there is a margin, the limit as written.
    pub const fn reported_limit(self) -> Option<usize> {
        match self {
            Self::Limit(limit) | Self::Mark(limit) => Some(limit as usize),
            Self::Ban | Self::Permit | Self::Margin(_) => None,
        }
    }
}

/// One limit the request must pass, and whose it is.
#[derive(Clone, Copy, Debug)]
pub struct Selected {
    /// The rule.
    pub rule: RuleIndex,
    /// What of the rule it is.
    pub part: Part,
    /// Units of the limit in each unit of the request's cost: 1 unless the limit is elastic. What is settled
    /// later is settled at this price.
    pub price: NonZeroU32,
    /// What to ask the limiter; its cost is in units of the limit.
    pub check: Check,
    /// Whether the end of the request can change what it is charged.
    pub settles: bool,
}

impl Selected {
    /// A check whose cost nothing changes.
    pub(super) const fn unpriced(rule: RuleIndex, part: Part, check: Check) -> Self {
        Self { rule, part, price: NonZeroU32::MIN, check, settles: false }
    }
}

/// Why a rule refuses a request without asking limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The rule denies, or a key is missing that must not be.
    Forbidden,
    /// The rule cannot tell whether it is for the request, or under which key to count it.
    Ambiguous(Ambiguity),
}

/// What the rules want beside checks of limits that are counted here; almost always nothing. In file order.
#[derive(Clone, Debug, Default)]
pub struct SideEffects {
    /// Rules that would have rejected a request before any limit, and are in shadow mode.
    pub shadow_rules: Vec<RuleIndex>,
    /// What other services are to be asked.
    pub queries: Vec<RemoteQuery>,
}

/// The outcome of matching.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "almost every outcome is the large one, and it needs no memory"
)]
pub enum Selection {
    /// An `allow` rule matched: neither `deny` nor limits apply.
    Exempt(RuleIndex),
    /// This rule refuses it whatever limits say.
    Denied(RuleIndex, Denial),
    /// These limits apply, in file order; may be none.
    Limited(SmallVec<[Selected; 2]>, SideEffects),
}
