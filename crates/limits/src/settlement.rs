//! Settlement: charges that depend on how a request ends.
//!
//! A [`Settlement`] accompanies a request with open reservations. Every end of a request leads here: the header section
//! of a response, a local reply in its place, and the end of the exchange (the last byte, a disconnected client, an
//! aborted body, or a panic). Requests whose rules determine the cost on arrival have no settlement.

mod response_fields;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

pub use self::response_fields::FieldsRead;
use super::AppliedLimits;
use super::rule_recorder::StatedCostMetrics;
use weir_limiter::Limiter;
use weir_limiter::adaptive::limits::{AdaptiveLimits, SlotIndex, UpstreamSignal};
use weir_limiter::decision::Enforcement;
use weir_limiter::reservation::{ChargeTiming, Reservation, RoomForecast, SettledCounter};
use weir_limiter::timestamp::Timestamp;
use weir_policy::engine::Policy;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::cost::{CostModel, FinalCharge, RequestEnd};
use weir_policy::rules::grpc::{CallStatus, GrpcStatus};
use weir_policy::rules::rule::{Action, Throttle};
use weir_policy::rules::selection::SelectedCheck;

/// The open reservations of one request.
#[derive(Debug)]
pub struct Settlement {
    policy: Arc<Policy>,
    open: SmallVec<[OpenReservation; 2]>,
    /// Permits, held until the end of the exchange.
    permits: SmallVec<[HeldPermit; 1]>,
    /// Whether the outcome is known; only the sizes of the bodies may be missing.
    ended: bool,
}

/// When the limits on the bytes of a tunnel have room for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelRoom {
    /// Now.
    Available,
    /// After this time.
    After(Duration),
    /// Later than a rule delays anything.
    TooLate,
}

/// A permit of a concurrency limit.
#[derive(Debug)]
struct HeldPermit {
    reservation: Reservation,
    /// State of the limit, if it is adaptive.
    adaptive: Option<(Arc<AdaptiveLimits>, SlotIndex)>,
}

#[derive(Debug)]
struct OpenReservation {
    rule: RuleIndex,
    /// Units of the limit per unit of the cost.
    unit_cost: NonZeroU32,
    /// Index among the checks of the request.
    position: usize,
    reservation: Reservation,
    /// Units reserved on arrival.
    reserved: u32,
    /// Whether they are a guess.
    is_guess: bool,
    /// Whether nothing is charged, and so no bytes either.
    free: bool,
    /// Maximum time for which the rule delays the bytes of a tunnel; `None` if it does not.
    max_tunnel_delay: Option<Duration>,
    /// The charge unless the awaited gRPC status decides otherwise.
    awaited: Option<FinalCharge>,
    /// Whether fields of the response's body state the charge, and have yet to arrive.
    awaits_fields: bool,
    /// Counts what they state.
    stated_costs: Option<Arc<StatedCostMetrics>>,
}

impl Settlement {
    /// Returns what to settle for a request that `limits` admitted; `None` if there is nothing.
    pub(super) fn new(limits: &AppliedLimits, policy: &Arc<Policy>) -> Option<Box<Self>> {
        // Most requests have nothing to settle; this avoids an allocation for them.
        if limits.reservations().next().is_none() && limits.permits().next().is_none() {
            return None;
        }
        let open: SmallVec<[OpenReservation; 2]> = limits
            .reservations()
            .map(|(position, selected, reservation)| OpenReservation {
                rule: selected.rule,
                unit_cost: selected.unit_cost,
                position,
                reservation: match cost_model_of(policy, selected.rule) {
                    Some(tariff) => reservation.with_debt_limit(tariff.debt_limit()),
                    None => reservation,
                },
                reserved: reserved_units(selected),
                is_guess: selected.is_guess,
                free: false,
                max_tunnel_delay: max_tunnel_delay(policy, selected),
                awaited: None,
                awaits_fields: false,
                stated_costs: None,
            })
            .collect();
        let permits = limits
            .permits()
            .map(|(selected, reservation)| HeldPermit::new(selected, reservation, policy))
            .collect();
        Some(Box::new(Self { policy: Arc::clone(policy), open, permits, ended: false }))
    }

    /// Settles by the outcome of the request. Only the sizes of its bodies and the awaited status of a gRPC `call` may
    /// be missing. Calls `record` with each settled check.
    pub fn settle(
        &mut self,
        request_end: &RequestEnd<'_>,
        call: CallStatus,
        limiter: &Limiter,
        now: Timestamp,
        mut record: impl FnMut(usize, SettledCounter),
    ) {
        self.ended = true;
        if matches!(request_end, RequestEnd::Rejected) {
            // A rejected request is not in flight.
            self.release_permits(limiter);
        }
        for open in &mut self.open {
            let Some(tariff) = cost_model_of(&self.policy, open.rule) else { continue };
            let due = tariff.final_charge(request_end, call, open.is_guess);
            open.awaits_fields = matches!(request_end, RequestEnd::Responded { .. })
                && due != FinalCharge::Nothing
                && tariff.response_fields().is_some();
            if open.awaits_fields {
                continue;
            }
            if call == CallStatus::Awaited && tariff.reads_calls() && due != FinalCharge::Nothing {
                open.awaited = Some(due);
                if tariff.counts_calls() {
                    // Reserved until the call has ended.
                    continue;
                }
            }
            if let Some(settled) = open.settle(due, limiter, now) {
                record(open.position, settled);
            }
        }
    }

    /// Records what the end of the request has shown about the upstream, if a limit adapts to it. `signal` is called only
    /// then.
    pub fn record_signal(&self, signal: impl FnOnce() -> Option<UpstreamSignal>) {
        let mut adaptive = self.permits.iter().filter_map(|permit| permit.adaptive.as_ref()).peekable();
        if adaptive.peek().is_none() {
            return;
        }
        let Some(signal) = signal() else { return };
        adaptive.for_each(|(limits, slot)| limits.record(*slot, signal));
    }

    fn release_permits(&mut self, limiter: &Limiter) {
        for permit in self.permits.drain(..) {
            limiter.release_permit(&permit.reservation);
            if let Some((limits, slot)) = permit.adaptive {
                limits.release(slot);
            }
        }
    }

    /// Settles by the gRPC status of the awaited call; `None` if none was seen.
    pub fn settle_call(&mut self, status: Option<GrpcStatus>, limiter: &Limiter, now: Timestamp) {
        for open in &mut self.open {
            let Some(awaited) = open.awaited.take() else { continue };
            let Some(tariff) = cost_model_of(&self.policy, open.rule) else { continue };
            let due = match status {
                Some(_) => tariff.final_charge_by_call(status, awaited),
                // A client that disconnects early must not have an advantage.
                None => awaited,
            };
            if tariff.counts_calls() || due == FinalCharge::Nothing {
                let _ = open.settle(due, limiter, now);
            }
        }
    }

    /// Returns the units that the request is charged by `rule`, unless they were known on arrival.
    pub fn charged(&self, rule: RuleIndex) -> Option<u32> {
        let open = self.open.iter().find(|open| open.rule == rule)?;
        Some(open.reservation.units() / open.unit_cost)
    }

    /// Returns whether the response states the cost of the request.
    pub fn awaits_stated_cost(&self) -> bool {
        let states = |open: &OpenReservation| {
            cost_model_of(&self.policy, open.rule).is_some_and(CostModel::is_stated_by_response)
        };
        !self.ended && self.open.iter().any(states)
    }

    /// Returns whether the status of a gRPC call is awaited.
    pub fn awaits_call(&self) -> bool {
        self.open.iter().any(|open| open.awaited.is_some())
    }

    /// Settles at the end of the exchange, after which nothing can change. `received` and `sent` are the body bytes.
    /// `was_sent`: the upstream has the request.
    pub fn finish(&mut self, received: u64, sent: u64, was_sent: bool, limiter: &Limiter, now: Timestamp) {
        if !self.ended {
            // There was no response. A client that disconnects early must not have an advantage.
            let end = if was_sent { RequestEnd::Unanswered } else { RequestEnd::Abandoned };
            self.settle(&end, CallStatus::None, limiter, now, |_, _| {});
        }
        self.settle_call(None, limiter, now);
        debug_assert!(!self.awaits_fields(), "settled with the response");
        self.charge_bytes(received, sent, limiter, now, |_, _| {});
        self.release_permits(limiter);
    }

    /// Charges for `received` and `sent` bytes so far, minus what has been charged already.
    pub fn charge_bytes(
        &mut self,
        received: u64,
        sent: u64,
        limiter: &Limiter,
        now: Timestamp,
        mut record: impl FnMut(usize, SettledCounter),
    ) {
        for open in self.open.iter_mut().filter(|open| !open.free) {
            let tariff = cost_model_of(&self.policy, open.rule);
            // What is still reserved is charged when the call has ended.
            let tariff = tariff.filter(|tariff| open.awaited.is_none() || !tariff.counts_calls());
            let by_bytes = tariff.and_then(|tariff| tariff.units_for_bytes(received, sent));
            let due = by_bytes.map(|units| units.saturating_mul(open.unit_cost.get()));
            let due = due.filter(|due| *due > open.reservation.units());
            let settled = due.and_then(|due| limiter.settle(&mut open.reservation, due, now));
            if let Some(settled) = settled {
                record(open.position, settled);
            }
        }
    }
}

impl Settlement {
    /// Whether a limit on bytes may slow the tunnel of this request.
    pub fn slows_tunnel(&self) -> bool {
        self.open.iter().any(|open| open.max_tunnel_delay.is_some())
    }

    /// Returns when the limits on bytes have room for more. Tunnels with the same key stop together and each exceeds the
    /// limit when it continues, so that the debt they leave does not count as too late.
    pub fn tunnel_room(&self, limiter: &Limiter, now: Timestamp) -> TunnelRoom {
        let mut room = TunnelRoom::Available;
        for open in self.open.iter().filter(|open| !open.free) {
            let Some(max) = open.max_tunnel_delay else { continue };
            let RoomForecast { wait, max_debt_wait } = limiter.room_forecast(&open.reservation, now);
            if wait > max.max(max_debt_wait) {
                return TunnelRoom::TooLate;
            }
            if !wait.is_zero() {
                room = TunnelRoom::After(match room {
                    TunnelRoom::After(other) => other.max(wait),
                    TunnelRoom::Available | TunnelRoom::TooLate => wait,
                });
            }
        }
        room
    }
}

impl HeldPermit {
    /// Creates the permit of a request that is admitted now.
    fn new(selected: &SelectedCheck, reservation: Reservation, policy: &Policy) -> Self {
        let adaptive = policy.rules.adaptive_limits(selected.rule);
        let adaptive = adaptive.map(|(limits, _)| (Arc::clone(limits), limits.admit(selected.check.key)));
        Self { reservation, adaptive }
    }
}

impl OpenReservation {
    fn settle(&mut self, due: FinalCharge, limiter: &Limiter, now: Timestamp) -> Option<SettledCounter> {
        self.charge(self.units_due(due), limiter, now)
    }

    /// Returns the units of the limit that are due.
    fn units_due(&self, due: FinalCharge) -> u32 {
        match due {
            FinalCharge::Nothing => 0,
            // A response that is replaced by a local reply is settled twice, and the first settlement may have been
            // free.
            FinalCharge::AsReserved => self.reservation.units().max(self.reserved),
            FinalCharge::Units(units) => units.saturating_mul(self.unit_cost.get()),
        }
    }

    fn charge(&mut self, units: u32, limiter: &Limiter, now: Timestamp) -> Option<SettledCounter> {
        self.free = units == 0;
        limiter.settle(&mut self.reservation, units, now)
    }
}

/// Returns the units that are due for what was reserved. What a small burst cannot hold is due with the response, unless
/// it was charged on arrival.
fn reserved_units(selected: &SelectedCheck) -> u32 {
    match selected.check.charge_timing {
        ChargeTiming::OnResponse => selected.check.cost.saturating_add(selected.surcharge),
        ChargeTiming::OnArrival | ChargeTiming::WhileInFlight => selected.check.cost,
    }
}

/// Returns the maximum time for which the rule of a check delays the bytes of a tunnel: that of a request that waits. `None`
/// if it has no cost by bytes, or does not delay.
fn max_tunnel_delay(policy: &Policy, selected: &SelectedCheck) -> Option<Duration> {
    let Action::Limit(limiting) = &policy.rules.get(selected.rule)?.action else { return None };
    limiting.cost_model.units_for_bytes(0, 0)?;
    match limiting.throttle {
        _ if selected.check.enforcement != Enforcement::Enforced => None,
        Throttle::Delay(delay) => Some(delay.max_delay()),
        Throttle::Wait => limiting.wait.as_ref().map(|wait| wait.max),
        Throttle::Hard | Throttle::Shadow | Throttle::Soft { .. } | Throttle::Elastic(_) => None,
    }
}

fn cost_model_of(policy: &Policy, rule: RuleIndex) -> Option<&CostModel> {
    match &policy.rules.get(rule)?.action {
        Action::Limit(limiting) => Some(&limiting.cost_model),
        Action::Allow | Action::Deny => None,
    }
}
