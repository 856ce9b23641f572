//! Result of matching the rules against one request.

use std::num::NonZeroU32;

use smallvec::SmallVec;

use super::RuleIndex;
use super::remote_limit::RemoteQuery;
use crate::identify::lookup::Ambiguity;
use weir_limiter::Check;

/// Purpose of a check within its rule. Numbers are positions of limits in the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckRole {
    /// Rejects requests while a ban runs.
    Ban,
    /// Limits the number of requests in flight.
    Permit,
    /// A limit as configured.
    Limit(u16),
    /// A soft limit, raised by its margin.
    Margin(u16),
    /// A soft limit as configured, which marks requests that exceed it.
    Mark(u16),
    /// Whether the request's value is new, of a rule that counts different values.
    Seen,
    /// A limit inside streams, which no request is checked against.
    Stream(u16),
}

impl CheckRole {
    /// Returns the position of the limit that this check reports to clients. For a soft limit that is the limit as
    /// configured, not the raised one.
    pub const fn reported_limit(self) -> Option<usize> {
        match self {
            Self::Limit(limit) | Self::Mark(limit) => Some(limit as usize),
            Self::Ban | Self::Permit | Self::Margin(_) | Self::Seen | Self::Stream(_) => None,
        }
    }
}

/// A check that the request must pass, and its rule.
#[derive(Clone, Copy, Debug)]
pub struct SelectedCheck {
    pub rule: RuleIndex,
    /// Purpose of the check within the rule.
    pub role: CheckRole,
    /// Units of the limit per unit of the request's cost: 1 unless the limit is elastic or follows a provider. Later corrections of the cost
    /// use the same factor.
    pub unit_cost: NonZeroU32,
    /// The check for the limiter; its cost is in units of the limit.
    pub check: Check,
    /// Units that the request owes in addition once it is admitted: its cost beyond what the limit can ever admit at
    /// once. 0 unless the limit follows a provider.
    pub surcharge: u32,
    /// Whether the end of the request can change what it is charged.
    pub needs_settlement: bool,
    /// Whether its cost is a guess, because the request does not say what it costs at most.
    pub is_guess: bool,
    /// Whether the request states a limit that cannot be read, so that the configured one applies.
    pub states_unreadable_limit: bool,
}

impl SelectedCheck {
    /// Whether it may have something to settle at the end of an admitted request.
    pub fn may_be_settled(&self) -> bool {
        self.needs_settlement || self.role == CheckRole::Permit
    }

    /// Whether both are the same check of the same rule, with the same key and the same alternatives.
    fn has_counter_of(&self, other: &Self) -> bool {
        let without_room = |check: &Check| check.options.map(|options| options.without_room);
        (self.rule, self.role) == (other.rule, other.role)
            && without_room(&self.check) == without_room(&other.check)
            && (self.check.handle.id, self.check.key) == (other.check.handle.id, other.check.key)
    }

    /// Adds the cost of another element of the same request. A request is in flight once.
    fn add(&mut self, other: &Self) {
        // The same value in another element is no other one.
        if self.check.is_distinct() {
            return;
        }
        if !matches!(self.role, CheckRole::Permit | CheckRole::Ban) {
            self.check.cost = self.check.cost.saturating_add(other.check.cost);
            self.surcharge = self.surcharge.saturating_add(other.surcharge);
            self.is_guess |= other.is_guess;
        }
    }

    pub(super) const fn with_fixed_cost(rule: RuleIndex, part: CheckRole, check: Check) -> Self {
        Self {
            rule,
            role: part,
            unit_cost: NonZeroU32::MIN,
            check,
            surcharge: 0,
            needs_settlement: false,
            is_guess: false,
            states_unreadable_limit: false,
        }
    }
}

/// Body of the response to a request that cannot be deferred.
pub const NOT_DEFERRABLE: &str = "gRPC calls, upgrades and tunnels cannot be deferred\n";

/// Why a rule rejects a request before evaluating limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The rule is a `deny` rule, or a required part of the key is missing.
    Forbidden,
    /// The request is ambiguous, so it is unclear whether the rule applies or which key counts.
    Ambiguous(Ambiguity),
    /// The rule would defer the request, which is a gRPC call or an upgrade: its caller waits for more than a status code.
    NotDeferrable,
}

/// Results other than local checks, in file order; usually empty.
#[derive(Clone, Debug, Default)]
pub struct SideEffects {
    /// Rules in shadow mode that would have rejected the request before any limit.
    pub shadow_rules: Vec<RuleIndex>,
    /// Queries to other rate limit services.
    pub queries: Vec<RemoteQuery>,
}

/// The outcome of matching.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "almost every outcome is the large one, and it needs no memory"
)]
pub enum Selection {
    /// An `allow` rule matched: neither `deny` rules nor limits apply.
    Exempt(RuleIndex),
    /// This rule rejects the request regardless of limits.
    Denied(RuleIndex, Denial),
    /// These limits apply, in file order; there may be none.
    Limited(SmallVec<[SelectedCheck; 2]>, SideEffects),
}

impl Default for Selection {
    /// No limits.
    fn default() -> Self {
        Self::Limited(SmallVec::new(), SideEffects::default())
    }
}

impl Selection {
    /// Returns what applies to a request of which one element has this selection and another has `other`: it is rejected if one of them
    /// is, and charged for both.
    #[must_use]
    pub fn joined(self, other: Self) -> Self {
        let (mut checks, mut beside, others, beside_other) = match (self, other) {
            (denied @ Self::Denied(..), _) | (Self::Exempt(_), denied) => return denied,
            (limited, Self::Exempt(_)) => return limited,
            (_, denied @ Self::Denied(..)) => return denied,
            (Self::Limited(checks, beside), Self::Limited(others, beside_other)) => {
                (checks, beside, others, beside_other)
            }
        };
        for other in others {
            match checks.iter_mut().find(|known| known.has_counter_of(&other)) {
                Some(known) => known.add(&other),
                None => checks.push(other),
            }
        }
        beside.shadow_rules.extend(beside_other.shadow_rules);
        beside.queries.extend(beside_other.queries);
        Self::Limited(checks, beside)
    }

    /// Makes it one of no limits, and returns its lists. Their memory is kept.
    #[inline]
    pub(super) fn clear(&mut self) -> (&mut SmallVec<[SelectedCheck; 2]>, &mut SideEffects) {
        match self {
            Self::Limited(selected, beside) => {
                selected.clear();
                beside.shadow_rules.clear();
                beside.queries.clear();
                (selected, beside)
            }
            other => {
                *other = Self::default();
                other.clear()
            }
        }
    }
}
