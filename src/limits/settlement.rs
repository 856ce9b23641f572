//! What a request is charged once it is known how it ended.
//!
//! A [`Settlement`] travels with a request that has something to settle, and every way a request can end comes by
//! here: the head of a response, a failure in its place, and the end of both, which is the last byte, a client that
//! left, a body that broke off, or a panic. Nothing exists for requests whose rules know their price on arrival.

use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Limits;
use crate::engine::Policy;
use crate::limiter::Limiter;
use crate::limiter::reservation::{Reservation, Settled};
use crate::limiter::timestamp::Timestamp;
use crate::rules::RuleIndex;
use crate::rules::grpc::{CallStatus, GrpcStatus};
use crate::rules::rule::Action;
use crate::rules::tariff::{Due, Ending, Tariff};

/// The open reservations of one request.
#[derive(Debug)]
pub struct Settlement {
    policy: Arc<Policy>,
    open: SmallVec<[Open; 2]>,
    /// Held to the end.
    permits: SmallVec<[Reservation; 1]>,
    /// How the request ended is known; only the octets of its bodies are not.
    ended: bool,
}

/// One reservation.
#[derive(Debug)]
struct Open {
    rule: RuleIndex,
    /// Units of the limit in each unit of the cost.
    price: NonZeroU32,
    /// Among the checks of the request.
    position: usize,
    reservation: Reservation,
    /// Units reserved on arrival.
    reserved: u32,
    /// Nothing is charged, so octets are not either.
    free: bool,
    /// What is charged unless the status of the call, which is awaited, says otherwise.
    awaited: Option<Due>,
}

impl Settlement {
    /// What the request that `limits` let pass has to settle; `None` if nothing.
    pub(super) fn new(limits: &Limits, policy: &Arc<Policy>) -> Option<Box<Self>> {
        // Most requests have nothing to settle, which is to be seen before there is a place for it.
        if limits.reservations().next().is_none() && limits.permits().next().is_none() {
            return None;
        }
        let open: SmallVec<[Open; 2]> = limits
            .reservations()
            .map(|(position, selected, reservation)| Open {
                rule: selected.rule,
                price: selected.price,
                position,
                reservation: match tariff_of(policy, selected.rule) {
                    Some(tariff) => reservation.owing(tariff.debt()),
                    None => reservation,
                },
                reserved: reservation.units(),
                free: false,
                awaited: None,
            })
            .collect();
        let permits: SmallVec<[Reservation; 1]> = limits.permits().collect();
        Some(Box::new(Self { policy: Arc::clone(policy), open, permits, ended: false }))
    }

    /// The end of the request is known, its bodies' octets and what is awaited of a gRPC `call` apart; tells `note` what
    /// became of which check.
    pub fn settle(
        &mut self,
        ending: &Ending<'_>,
        call: CallStatus,
        limiter: &Limiter,
        now: Timestamp,
        mut note: impl FnMut(usize, Settled),
    ) {
        self.ended = true;
        if matches!(ending, Ending::Refused) {
            // It is not served.
            self.permits.drain(..).for_each(|permit| limiter.release(&permit));
        }
        for open in &mut self.open {
            let Some(tariff) = tariff_of(&self.policy, open.rule) else { continue };
            let due = tariff.due(ending, call);
            if call == CallStatus::Awaited && tariff.reads_calls() && due != Due::Nothing {
                open.awaited = Some(due);
                if tariff.counts_calls() {
                    // Held until the call has ended.
                    continue;
                }
            }
            if let Some(settled) = open.settle(due, limiter, now) {
                note(open.position, settled);
            }
        }
    }

    /// The call that was awaited has ended with this status, or without any that we could see.
    pub fn settle_call(&mut self, status: Option<GrpcStatus>, limiter: &Limiter, now: Timestamp) {
        for open in &mut self.open {
            let Some(awaited) = open.awaited.take() else { continue };
            let Some(tariff) = tariff_of(&self.policy, open.rule) else { continue };
            let due = match status {
                Some(_) => tariff.due_by_call(status, awaited),
                // A client that leaves early is not better off than one that waits.
                None => awaited,
            };
            if tariff.counts_calls() || due == Due::Nothing {
                let _ = open.settle(due, limiter, now);
            }
        }
    }

    /// Whether a call is awaited.
    pub fn awaits_call(&self) -> bool {
        self.open.iter().any(|open| open.awaited.is_some())
    }

    /// The exchange is over: so many octets were received and sent, and nothing more can become known.
    pub fn end(&mut self, received: u64, sent: u64, limiter: &Limiter, now: Timestamp) {
        if !self.ended {
            // There was no answer; who leaves early is not better off than who waits.
            self.settle(&Ending::Abandoned, CallStatus::None, limiter, now, |_, _| {});
        }
        self.settle_call(None, limiter, now);
        self.octets(received, sent, limiter, now, |_, _| {});
        self.permits.drain(..).for_each(|permit| limiter.release(&permit));
    }

    /// At least so many octets have been received and sent; what they cost beyond what is charged already is
    /// charged.
    pub fn octets(
        &mut self,
        received: u64,
        sent: u64,
        limiter: &Limiter,
        now: Timestamp,
        mut note: impl FnMut(usize, Settled),
    ) {
        for open in self.open.iter_mut().filter(|open| !open.free) {
            let tariff = tariff_of(&self.policy, open.rule);
            // What is still held is charged when the call has ended.
            let tariff = tariff.filter(|tariff| open.awaited.is_none() || !tariff.counts_calls());
            let by_octets = tariff.and_then(|tariff| tariff.by_octets(received, sent));
            let due = by_octets.map(|units| units.saturating_mul(open.price.get()));
            let due = due.filter(|due| *due > open.reservation.units());
            let settled = due.and_then(|due| limiter.settle(&mut open.reservation, due, now));
            if let Some(settled) = settled {
                note(open.position, settled);
            }
        }
    }
}

impl Open {
    /// Charges `due`.
    fn settle(&mut self, due: Due, limiter: &Limiter, now: Timestamp) -> Option<Settled> {
        let units = match due {
            Due::Nothing => 0,
            // A response that is replaced by a local reply is settled twice, and may have been free at first.
            Due::AsReserved => self.reservation.units().max(self.reserved),
            Due::Units(units) => units.saturating_mul(self.price.get()),
        };
        self.free = units == 0;
        limiter.settle(&mut self.reservation, units, now)
    }
}

fn tariff_of(policy: &Policy, rule: RuleIndex) -> Option<&Tariff> {
    match &policy.rules.get(rule)?.action {
        Action::Limit(limiting) => Some(&limiting.tariff),
        Action::Allow | Action::Deny => None,
    }
}
