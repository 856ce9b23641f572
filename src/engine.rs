//! Decisions as configured, compiled and put in force.
//!
//! A configuration says in a [`PolicySpec`] how requests are decided. An [`Engine`] makes a [`Policy`] of it, whose
//! rules are bound to limits in the limiter, and replaces one by the next. The limiter learns new limits before
//! requests meet them, and limits that are gone are forgotten when the policy after the next is in force: a request
//! is decided by the limits it began with. Pure: the time is an argument, and what else is replaced with a policy is
//! the caller's.

mod carry_over;
mod policy;

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

pub use self::carry_over::CarryOver;
pub use self::policy::Policy;
use crate::identify;
use crate::limiter::timestamp::Timestamp;
use crate::limiter::{Limiter, Meter, MeterSpec};
use crate::response;
use crate::response::refusal::Refusal;
use crate::rules::routes::Routes;
use crate::rules::rule::Rule;
use crate::rules::{RuleSet, meter_specs_among};

/// How requests are decided, as a configuration says it.
#[derive(Clone, Debug, Default)]
pub struct PolicySpec {
    /// Whom to believe about the client's address.
    pub identify: identify::Settings,
    /// The rules, in file order.
    pub rules: Vec<Rule>,
    /// What each rule answers when it rejects, beside `rules`.
    pub rejections: Vec<Refusal>,
    /// Which upstream takes which requests.
    pub routes: Routes,
    /// What clients are told about limits.
    pub response: response::Settings,
}

/// The policy in force, in a snapshot `S` of all that is replaced with it.
#[derive(Debug)]
pub struct Engine<S> {
    current: Arc<ArcSwap<S>>,
    limiter: Arc<Limiter>,
    /// Limits beside those of rules, which every policy keeps.
    permanent: Box<[Meter]>,
    /// The one in `current`. Held while it is replaced.
    policy: Mutex<Arc<Policy>>,
    /// What it was made of.
    spec: Mutex<PolicySpec>,
}

impl PolicySpec {
    /// The policy, whose limits are installed in `limiter`.
    pub fn install(&self, generation: u64, limiter: &Limiter, now: Timestamp) -> Arc<Policy> {
        let specs = meter_specs_among(&self.rules, &limiter.divisors());
        self.bind(generation, &limiter.install(&specs, now), limiter)
    }

    /// The policy, whose limits have been installed as `meters`.
    fn bind(&self, generation: u64, meters: &[Meter], limiter: &Limiter) -> Arc<Policy> {
        let rules = RuleSet::bind(self.rules.clone(), meters, limiter.hasher());
        limiter.share_bans(rules.shared_bans());
        Arc::new(Policy {
            generation,
            identify: self.identify.clone(),
            rules: rules.in_fleet(limiter.fleet().hasher),
            rejections: self.rejections.clone().into(),
            routes: self.routes.clone(),
            denied: Refusal::denied(),
            response: self.response,
        })
    }
}

impl<S> Engine<S> {
    /// Puts the first policy in force, in the snapshot that `first` makes of it. What the limiter knows beside its
    /// limits and the `permanent` ones, it forgets.
    ///
    /// # Errors
    /// That of `first`.
    pub fn start<E>(
        spec: &PolicySpec,
        limiter: &Arc<Limiter>,
        permanent: &[MeterSpec],
        now: Timestamp,
        first: impl FnOnce(Arc<Policy>) -> Result<S, E>,
    ) -> Result<Self, E> {
        let mut specs = meter_specs_among(&spec.rules, &limiter.divisors());
        let of_rules = specs.len();
        specs.extend_from_slice(permanent);
        let meters = limiter.install(&specs, now);
        limiter.retire_others(&meters, now);
        let (meters, permanent) = meters.split_at(of_rules);
        let policy = spec.bind(1, meters, limiter);
        let snapshot = first(Arc::clone(&policy))?;
        Ok(Self {
            current: Arc::new(ArcSwap::from_pointee(snapshot)),
            limiter: Arc::clone(limiter),
            permanent: permanent.into(),
            policy: Mutex::new(policy),
            spec: Mutex::new(spec.clone()),
        })
    }

    /// Puts another policy in force, in the snapshot that `next` makes of it and of the one before; returns its
    /// generation.
    pub fn apply(
        &self,
        spec: &PolicySpec,
        now: impl Fn() -> Timestamp,
        next: impl FnOnce(Arc<Policy>, &S) -> S,
    ) -> u64 {
        let mut policy = self.policy.lock();
        *self.spec.lock() = spec.clone();
        let after = spec.install(policy.generation + 1, &self.limiter, now());
        let snapshot = next(Arc::clone(&after), &self.current.load());
        self.current.store(Arc::new(snapshot));
        let before = std::mem::replace(&mut *policy, after);
        let permanent = self.permanent.iter().copied();
        let kept: Vec<_> = permanent.chain(policy.meters()).chain(before.meters()).collect();
        self.limiter.retire_others(&kept, now());
        policy.generation
    }

    /// Puts the policy in force anew, with what the limiter has learned of its fleet.
    pub fn rebind(&self, now: impl Fn() -> Timestamp, next: impl FnOnce(Arc<Policy>, &S) -> S) -> u64 {
        let spec = self.spec.lock().clone();
        self.apply(&spec, now, next)
    }

    /// The snapshot in force, now and after every [`Self::apply`].
    pub const fn current(&self) -> &Arc<ArcSwap<S>> {
        &self.current
    }

    /// The limits that every policy keeps, in the order of their specs.
    pub fn permanent(&self) -> &[Meter] {
        &self.permanent
    }
}

#[cfg(test)]
mod tests;
