//! Lease account: what a counter has of a shared limit in addition to the units in its slot.

mod covered;
mod demand;
mod permits;
mod review;

use std::time::Duration;

use self::covered::Covered;
use super::lease_request::{LeaseGrant, LeaseRequest, MAX_VALID, ReturnedUnits, StoreCounterKind};
use super::parts::PartBucket;
use super::{AfterGrant, LeasePolicy, SharedCounter};
use crate::algorithm::lease::{LeaseState, MAX_UNITS};
use crate::quota::Quota;
use crate::table::LimitId;
use crate::timestamp::Timestamp;

/// Maximum time for which units are held back: the time of a query, so that the next lease arrives when the current one
/// ends.
const MAX_LEAD: Duration = Duration::from_millis(20);
/// Minimum part of a pause; instances spread their pauses from this part on.
const MIN_PAUSE_FRACTION: f64 = 0.8;
/// Lower bound of the granted part of what was requested, when a pause is computed.
const MIN_PART: f64 = 0.001;
/// Minimum number of units leased ahead of demand. For fewer, requests query the store one by one, because most units
/// would expire unspent.
const MIN_AHEAD: f64 = 6.0;
/// Number of units that should be spent between two looks.
const MIN_SPENT: f64 = 6.0;
/// Units demanded within this many seconds are too few for a query of their own.
const WORTH_A_CALL: f64 = 0.01;
/// Units held here are scarce if they are more than one in this many of those that are left for all instances.
const SCARCE_PART: u64 = 100;
/// Looks per validity of a lease, at which unspent units are found.
const LOOKS: u32 = 8;
/// Maximum delay before a debt is reported to the store. A counter with more demand reports several debts at once.
const MAX_DEBT_DELAY: Duration = Duration::from_millis(100);
/// How long the demand of a counter without requests is remembered.
const MEMORY: Duration = Duration::from_secs(10);
/// Demand above which it is remembered, in units per second.
const WORTH_REMEMBERING: f64 = 100.0;

/// Units granted at one time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lease {
    units: u32,
    /// Deadline for spending them.
    pub(super) until: Timestamp,
    /// Time of the grant by the store's clock, in microseconds.
    pub(super) granted_at: u64,
}

/// What a query to the store depends on besides the lease account.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseTerms {
    /// Quota that the store counts.
    pub(super) quota: Quota,
    /// How it is shared.
    pub(super) policy: LeasePolicy,
    /// Time that the store takes to respond.
    pub(super) latency: Duration,
}

/// The lease account of one counter.
#[derive(Clone, Debug)]
pub(crate) struct LeaseAccount {
    /// Id of the limit.
    pub(super) limit_id: LimitId,
    /// Units of the limit, if its handle does not determine them.
    pub(super) limit: Option<u32>,
    /// Units left for all instances at the last response of the store, in addition to those granted to this one.
    pub(super) remaining: Option<u32>,
    /// The lease in the slot. Its units here are those held back.
    pub(super) current: Lease,
    /// A later lease.
    next: Lease,
    /// Units that have expired and were not given back yet.
    lapsed: Lease,
    /// Units set aside for reservations, whatever becomes of the lease that they are from.
    covered: Covered,
    /// Units present when the demand was last counted, and those granted since.
    accounted: u64,
    /// Units demanded, and since when.
    measured: (u64, Timestamp),
    /// Units present at the last look, and its time.
    looked: (u64, Timestamp),
    /// Requests have stopped. The time until the next one does not count as time without demand.
    is_quiet: bool,
    /// More units are held than will be spent.
    has_too_much: bool,
    /// Whether that was so at the last look.
    seemed_too_much: bool,
    /// Whether unspent units go back with the next query, because this process ends.
    is_given_up: bool,
    /// Units for waiting requests, since the last query.
    pub(super) needed: u32,
    /// Units of the smallest of these requests.
    least: u32,
    /// Units for all requests in the queue of the counter, at the last request that needed units.
    pub(super) queued: u32,
    /// Whether the last grant was for waiting requests alone.
    is_grant_awaited: bool,
    /// Number of the latest such grants that expired before they were spent.
    late_grants: u32,
    /// Units rejected, since the last query.
    rejected: u64,
    /// Units spent beyond the lease.
    owed: u32,
    /// Time of the last query.
    pub(super) requested_at: Timestamp,
    /// Whether a query is pending.
    is_requesting: bool,
    /// The units are permits of requests in flight.
    is_permits: bool,
    /// If the store has granted less than was requested: the granted part, the time of the query, and when
    /// the next share is due at the latest.
    cut: Option<(f64, Timestamp, Timestamp)>,
    /// Time before which the store has no more units.
    pub(super) pauses_until: Timestamp,
    /// Demand in units per second, which rises fast and falls slowly.
    pub(super) demand_rate: f64,
    /// Quota of the last query.
    quota: Option<Quota>,
    /// Time before which no units are given back.
    forfeits_until: Timestamp,
    /// Time before the end of a lease at which the next one is requested.
    lead: Duration,
    /// Interval of the looks at unspent units.
    look: Duration,
    /// What is spent of this instance's part.
    pub(super) part: PartBucket,
}

impl LeaseAccount {
    pub(crate) fn new(limit: LimitId, now: Timestamp) -> Self {
        Self {
            limit_id: limit,
            limit: None,
            remaining: None,
            current: Lease::default(),
            next: Lease::default(),
            lapsed: Lease::default(),
            covered: Covered::default(),
            accounted: 0,
            measured: (0, now),
            looked: (0, now),
            is_quiet: false,
            has_too_much: false,
            seemed_too_much: false,
            is_given_up: false,
            cut: None,
            needed: 0,
            least: 0,
            queued: 0,
            is_grant_awaited: false,
            late_grants: 0,
            rejected: 0,
            owed: 0,
            requested_at: now,
            is_requesting: false,
            is_permits: false,
            pauses_until: Timestamp::EPOCH,
            demand_rate: 0.0,
            quota: None,
            forfeits_until: Timestamp::EPOCH,
            lead: MAX_LEAD,
            look: MAX_LEAD,
            part: PartBucket::default(),
        }
    }

    /// Whether the last query was about another limit.
    pub(super) fn is_for_other_quota(&self, quota: &Quota) -> bool {
        self.quota.is_some_and(|last| last != *quota)
    }

    /// Clears the time before which the store has no more units.
    pub(super) fn unpause(&mut self) {
        (self.pauses_until, self.cut) = (Timestamp::EPOCH, None);
    }

    /// Returns what the slot is to contain: its `left` units and those held back or, if these are fewer than `needed`,
    /// the next lease.
    pub(super) fn replenish(&mut self, left: u32, needed: u64, now: Timestamp) -> LeaseState {
        let left = left.saturating_add(std::mem::take(&mut self.current.units));
        if u64::from(left) >= needed || self.next.units == 0 {
            return LeaseState::Units(left, self.current.until);
        }
        let mut next = std::mem::take(&mut self.next);
        let rest = Lease { units: left, ..self.current };
        if u64::from(next.units) < needed {
            next.add(rest);
        } else {
            // They are given back, because two leases in one slot would both end with the first of them.
            self.lapsed.add(Lease { until: now, ..rest });
        }
        let reserve = self.reserve(next.units, needed);
        self.current = Lease { units: reserve, ..next };
        LeaseState::Units(next.units - reserve, next.until)
    }

    /// Number of units of a lease to hold back, so that the next one is requested in time.
    fn reserve(&self, units: u32, needed: u64) -> u32 {
        if self.cut.is_some() {
            return 0;
        }
        let lead = (self.demand_rate * self.lead.as_secs_f64()) as u32;
        let spare = u64::from(units).saturating_sub(needed);
        lead.min(units / 2).min(u32::try_from(spare).unwrap_or(u32::MAX))
    }

    /// Whether the store has to be queried while units are left; if so, marks the query as pending.
    pub(super) fn start_renewal(&mut self, now: Timestamp) -> bool {
        if self.current.units > 0 || self.next.units > 0 {
            return false;
        }
        self.pause_after_partial_grant(now);
        now >= self.pauses_until && self.start_request(now)
    }

    /// Computes the pause after a share is spent. The next share is due when all that was requested would
    /// have been spent: an instance whose demand has grown spends its share sooner, and queries sooner.
    pub(super) fn pause_after_partial_grant(&mut self, now: Timestamp) {
        if let Some((part, sent, latest)) = self.cut.take() {
            let due = sent.saturating_add(now.since(sent).mul_f64(1.0 / part.clamp(MIN_PART, 1.0)));
            self.pauses_until = self.pauses_until.max(due.min(latest));
        }
    }

    /// Marks a query as pending; returns whether none was.
    pub(super) fn start_request(&mut self, now: Timestamp) -> bool {
        if std::mem::take(&mut self.is_quiet) {
            self.measured = (0, now);
        }
        !std::mem::replace(&mut self.is_requesting, true)
    }

    /// Creates a query; returns it and what the slot is to contain until the response.
    pub(super) fn lease_request(
        &mut self,
        counter: SharedCounter,
        held: LeaseState,
        terms: LeaseTerms,
        in_use: u64,
        now: Timestamp,
    ) -> (LeaseRequest, LeaseState) {
        let LeaseTerms { quota, policy, latency } = terms;
        let mut kind = StoreCounterKind::from_quota(&quota, in_use);
        if self.quota.replace(quota).is_some_and(|before| before != quota) {
            // Units of the previous limit are not worth units of this one.
            self.forfeits_until = now.saturating_add(2 * MAX_VALID);
            self.covered = Covered::default();
        }
        let elapsed = now.since(self.requested_at);
        let max_validity = kind.max_validity(policy.is_exact);
        let period = max_validity * 13 / 16;
        let mut left = self.expire(held, in_use, now);
        if std::mem::take(&mut self.is_grant_awaited) {
            self.late_grants = if self.lapsed.units > 0 { self.late_grants.saturating_add(1) } else { 0 };
        }
        let demanded = self.count_demand(left, now, period);
        let needed = std::mem::take(&mut self.needed).min(kind.capacity());
        let least = std::mem::take(&mut self.least).min(needed);
        let ahead = (self.demand_rate * period.as_secs_f64()).min(kind.max_leasable(max_validity));
        let queued = self.take_queued(&kind, policy, max_validity).saturating_sub(needed);
        let has_too_much = std::mem::take(&mut self.has_too_much) || self.is_quiet || self.is_given_up;
        let may_wait = policy.max_wait.is_none_or(|wait| !wait.is_zero());
        let few = if may_wait { MIN_AHEAD } else { 0.0 };
        let ahead = if ahead < few || has_too_much || policy.is_exact { 0.0 } else { ahead };
        let is_ahead = ahead > 0.0 || kind.is_permits() || !may_wait && !policy.is_exact;
        let arrival = policy.arrival(latency, self.late_grants);
        let at_once = if is_ahead { needed } else { needed.saturating_add(queued) };
        let valid = kind.valid_for(at_once, is_ahead, arrival, policy.is_exact);
        self.lead = if kind.is_permits() { valid / 2 } else { MAX_LEAD.min(valid / 4) };
        self.seemed_too_much = false;
        let (returned, left, requested) = if let StoreCounterKind::Permits { held, .. } = &mut kind {
            let requested = permits::permits_to_request(in_use, needed);
            // Permits beyond this are not used from now on, because the store may grant them to other instances.
            *held = left.min(requested);
            (Lease::default(), *held, requested)
        } else {
            self.cover(in_use, &mut left);
            let (returned, left) = self.units_to_return(left, now);
            let missing = (ahead as u32).max(queued).saturating_sub(self.with_leases(left));
            (returned, left, missing.saturating_add(needed))
        };
        let there = self.with_leases(left);
        self.looked = (there.into(), now);
        self.look = (max_validity / LOOKS)
            .max(MAX_LEAD)
            .max(Duration::from_secs_f64(MIN_SPENT / self.demand_rate.max(1.0)));
        self.requested_at = now;
        self.is_requesting = true;
        self.is_permits = kind.is_permits();
        let request = LeaseRequest {
            counter,
            kind,
            lease_policy: policy,
            valid,
            arrival,
            needed,
            least,
            requested,
            demanded,
            elapsed,
            returned: ReturnedUnits { units: returned.units, granted_at: returned.granted_at },
            owed: std::mem::take(&mut self.owed),
            period,
        };
        (request, self.slot(held, left, now))
    }

    /// Returns the units that the requests in the queue of the counter would spend at once. The store grants a part of
    /// them if it does not have all, so that the queue of one instance takes no more than its share.
    fn take_queued(&mut self, kind: &StoreCounterKind, policy: LeasePolicy, max_validity: Duration) -> u32 {
        let queued = std::mem::take(&mut self.queued);
        // Equal shares are computed for a period, which leases that are not granted ahead do not have.
        let has_share = !policy.is_max_min || !max_validity.is_zero();
        if kind.is_permits() || !has_share {
            return 0;
        }
        queued.min(kind.max_leasable(max_validity) as u32)
    }

    /// Returns what the slot is to contain after a grant.
    pub(super) fn apply_grant(
        &mut self,
        request: &LeaseRequest,
        grant: LeaseGrant,
        held: LeaseState,
        reserved: u64,
        sent: Timestamp,
        now: Timestamp,
    ) -> LeaseState {
        self.is_requesting = false;
        self.remaining = Some(grant.remaining);
        self.is_grant_awaited = grant.granted > 0 && request.requested == request.needed;
        let left = self.expire(held, reserved, now);
        if !grant.covers_waiting(request) {
            let spread = grant.spread.mul_f64(request.spread_fraction());
            self.pauses_until = now.saturating_add(grant.wait).saturating_add(spread);
        } else if !grant.pause.is_zero() && grant.granted < request.requested {
            let paused_part = grant.pause.as_secs_f64() / request.period.as_secs_f64();
            let part = f64::from(grant.granted) / (f64::from(request.requested) * paused_part);
            // Spread, so that instances do not query at the same moment.
            let spread = MIN_PAUSE_FRACTION + (1.0 - MIN_PAUSE_FRACTION) * request.spread_fraction();
            let latest = sent.saturating_add(grant.pause.mul_f64(spread));
            if grant.granted == 0 {
                self.pauses_until = latest;
            } else {
                self.cut = Some((part / spread, sent, latest));
            }
        }
        let lease = Lease {
            units: grant.granted,
            until: sent.saturating_add(grant.spendable(request)),
            granted_at: grant.granted_at,
        };
        if request.kind.is_permits() {
            self.current = Lease { units: 0, ..lease };
            return LeaseState::Units(grant.granted, lease.until);
        }
        self.accounted = self.accounted.saturating_add(lease.units.into());
        self.looked.0 += u64::from(lease.units);
        if lease.units == 0 {
            return self.slot(held, left, now);
        }
        if lease.until <= now {
            self.lapsed.add(lease);
            return self.slot(held, left, now);
        }
        if left > 0 || self.current.units > 0 {
            self.next.add(lease);
            return LeaseState::Units(left, self.current.until);
        }
        let reserve = self.reserve(lease.units, request.needed.into());
        self.current = Lease { units: reserve, ..lease };
        LeaseState::Units(lease.units - reserve, lease.until)
    }

    /// Returns what follows a grant. Starts the next query if requests need units that arrived while this one was in
    /// flight.
    pub(super) fn next_step(
        &mut self,
        request: &LeaseRequest,
        held: LeaseState,
        in_use: u64,
        now: Timestamp,
    ) -> AfterGrant {
        let needed = u64::from(self.needed).saturating_add(request.needed.into()).saturating_add(in_use);
        let there = held.units(now).saturating_add(self.held_back(now));
        if u64::from(there) >= needed || self.pauses_until > now {
            // They are served or rejected when they are decided again.
            self.needed = 0;
        }
        if self.needed > 0 && self.start_request(now) {
            return AfterGrant::Query;
        }
        if self.is_idle(now) {
            return AfterGrant::Done;
        }
        let idle_from = self.pauses_until.max(now.saturating_add(MEMORY));
        AfterGrant::Review(self.review_at(now).unwrap_or(idle_from))
    }

    /// Whether a query is queued or in flight.
    pub(super) const fn is_request_pending(&self) -> bool {
        self.is_requesting
    }

    /// The request is not sent: requests that waited for it are rejected.
    pub(super) fn cancel_request(&mut self) {
        self.is_requesting = false;
        self.rejected += u64::from(std::mem::take(&mut self.needed));
    }

    /// Spends units that are held back; returns how many of `units` they did not cover.
    pub(super) fn spend_held_back(&mut self, units: u32, now: Timestamp) -> u32 {
        let leases = [&mut self.current, &mut self.next].into_iter().filter(|lease| now < lease.until);
        leases.fold(units, |uncovered, lease| {
            let spent = lease.units.min(uncovered);
            lease.units -= spent;
            uncovered - spent
        })
    }

    /// Adds units that the next query charges to the limit of all instances. Returns whether there is a debt and no
    /// query is pending.
    pub(super) fn add_debt(&mut self, units: u32) -> bool {
        self.owed = self.owed.saturating_add(units);
        self.owed > 0 && !self.is_requesting
    }

    /// Adds units for waiting requests, of which the smallest needs `least`.
    pub(super) fn add_needed(&mut self, units: u32, least: u32) {
        self.least = if self.needed == 0 { least } else { self.least.min(least) };
        self.needed = self.needed.saturating_add(units);
    }

    pub(super) fn repeat_request(&mut self, question: &LeaseRequest) {
        self.add_needed(question.needed, question.least);
        self.owed = self.owed.saturating_add(question.owed);
    }

    pub(super) fn abandon_request(&mut self, question: &LeaseRequest) {
        self.cancel_request();
        self.owed = self.owed.saturating_add(question.owed);
    }

    /// Units in the slot and in the leases of this account.
    const fn with_leases(&self, in_slot: u32) -> u32 {
        in_slot.saturating_add(self.current.units).saturating_add(self.next.units)
    }

    /// Units that may be spent in addition to those in the slot.
    pub(super) fn held_back(&self, now: Timestamp) -> u32 {
        let units = |lease: &Lease| if now < lease.until { lease.units } else { 0 };
        units(&self.current).saturating_add(units(&self.next))
    }

    /// Returns the slot with `left` units or, if there are none, the pause.
    fn slot(&self, held: LeaseState, left: u32, now: Timestamp) -> LeaseState {
        match held {
            _ if left > 0 => LeaseState::Units(left, self.current.until),
            LeaseState::Exhausted { until, .. } if until > now => {
                LeaseState::Exhausted { until, rejected: 0 }
            }
            _ if self.current.units == 0 && self.next.units == 0 && self.pauses_until > now => {
                LeaseState::Exhausted { until: self.pauses_until, rejected: 0 }
            }
            _ => LeaseState::Units(0, self.current.until),
        }
    }
}

impl Lease {
    /// Merges two leases: the earlier deadline and the earlier grant apply to both.
    fn add(&mut self, other: Self) {
        if self.units == 0 {
            *self = other;
        } else if other.units > 0 {
            self.units = self.units.saturating_add(other.units).min(MAX_UNITS);
            self.until = self.until.min(other.until);
            self.granted_at = self.granted_at.min(other.granted_at);
        }
    }
}
