//! What the rules say about one request.

use std::num::NonZeroU32;

use smallvec::SmallVec;

use super::RuleIndex;
use crate::limiter::Check;

/// One limit the request must pass, and whose it is.
#[derive(Clone, Copy, Debug)]
pub struct Selected {
    /// The rule.
    pub rule: RuleIndex,
    /// Which of the rule's limits.
    pub limit: usize,
    /// Units of the limit in each unit of the request's cost: 1 unless the limit is elastic. What is settled
    /// later is settled at this price.
    pub price: NonZeroU32,
    /// What to ask the limiter; its cost is in units of the limit.
    pub check: Check,
    /// Whether the end of the request can change what it is charged.
    pub settles: bool,
}

/// The outcome of matching.
#[derive(Clone, Debug)]
pub enum Selection {
    /// An `allow` rule matched: neither `deny` nor limits apply.
    Exempt(RuleIndex),
    /// A `deny` rule matched, or a key is missing that must not be.
    Denied(RuleIndex),
    /// These limits apply, in file order; may be none.
    Limited(SmallVec<[Selected; 2]>),
}
