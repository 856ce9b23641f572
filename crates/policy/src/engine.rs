//! The engine: applies compiled policies to the limiter and replaces one policy by the next.
//!
//! A configuration describes in a [`PolicySpec`] how requests are decided. An [`Engine`] makes a [`Policy`] of it,
//! whose rules are bound to limits in the limiter. New limits are installed before requests use them. Limits that are
//! no longer configured are removed only when the policy after the next is in force. So a request is decided by the
//! limits of the policy with which it began. There is no I/O here: time is an argument, and the caller supplies the
//! rest of the snapshot.

pub mod overrides;

mod carry_over;
mod policy;

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

pub use self::carry_over::CarryOver;
use self::overrides::OverrideBook;
pub use self::policy::Policy;
use crate::identify;
use crate::identify::body::BodySettings;
use crate::response;
use crate::response::rejection::RejectionResponse;
use crate::rules::classes::Classes;
use crate::rules::header_twins::HeaderTwins;
use crate::rules::routes::Routes;
use crate::rules::rule::Rule;
use crate::rules::{RequiredLimits, RuleSet};
use weir_bodies::response::ResponseFields;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{LimitHandle, LimitSpec, Limiter};

/// The part of a configuration that decides requests.
#[derive(Clone, Debug, Default)]
pub struct PolicySpec {
    /// How the client's address and identity are determined.
    pub identify: identify::IdentifySettings,
    /// The rules, in file order.
    pub rules: Arc<[Rule]>,
    /// Assignment of requests to upstreams.
    pub routes: Routes,
    /// Classes of requests, between which the concurrency of upstreams is divided; `None` if it is not.
    pub classes: Option<Arc<Classes>>,
    /// What rules read of bodies; `None` if no rule reads any.
    pub bodies: Option<Arc<BodySettings>>,
    /// Fields that rules read of the bodies of responses; `None` if there are none.
    pub response_fields: Option<Arc<ResponseFields>>,
    /// Rate limit headers of responses.
    pub response: response::LimitHeaderSettings,
}

/// Holder of the policy in force, inside a snapshot `S` of everything that is replaced with it.
#[derive(Debug)]
pub struct Engine<S> {
    current: Arc<ArcSwap<S>>,
    limiter: Arc<Limiter>,
    /// Limits that do not belong to rules and that every policy keeps.
    permanent: Box<[LimitHandle]>,
    /// The policy in `current`. The lock is held during a replacement.
    policy: Mutex<Arc<Policy>>,
    /// The specification of `policy`.
    spec: Mutex<PolicySpec>,
    overrides: Arc<OverrideBook>,
    /// Snapshots before the current one that may still be in use.
    retired: Mutex<Vec<Arc<S>>>,
}

impl PolicySpec {
    /// Installs the limits in `limiter` and returns the policy.
    pub fn install(&self, generation: u64, limiter: &Limiter, now: Timestamp) -> Arc<Policy> {
        let limits = RequiredLimits::from_rules(&self.rules, &limiter.instance_counts());
        let handles = limiter.install(limits.specs(), now);
        self.bind(generation, &limits, &handles, limiter, now)
    }

    /// Returns the policy for `limits` that have been installed as `handles`.
    fn bind(
        &self,
        generation: u64,
        limits: &RequiredLimits,
        handles: &[LimitHandle],
        limiter: &Limiter,
        now: Timestamp,
    ) -> Arc<Policy> {
        let rules = RuleSet::bind(Arc::clone(&self.rules), limits, handles, limiter.hasher())
            .with_adaptive_limits(|handle, has_key| limiter.adaptive_limits(handle, has_key));
        let follows =
            |name: &str| self.rules.iter().any(|rule| rule.feedback().is_some() && rule.counter() == name);
        limiter.feedback().retain(follows);
        limiter.share_bans(rules.shared_bans());
        let token = self.identify.jwt.iter().filter_map(|verifier| verifier.header().cloned());
        let of_clients = self.identify.address_headers.iter().map(|header| header.name().clone());
        let of_rules = self.rules.iter().flat_map(Rule::headers).chain(self.routes.headers());
        let of_classes = self.classes.iter().flat_map(|classes| classes.headers());
        let read_headers = of_rules.chain(token).chain(of_clients).chain(of_classes);
        let header_twins = HeaderTwins::new(read_headers);
        Arc::new(Policy {
            generation,
            identify: self.identify.clone(),
            rules: rules.in_fleet(limiter.fleet().hasher).with_feedback(limiter, now),
            routes: self.routes.clone(),
            classes: self.classes.clone(),
            denied: RejectionResponse::denied(),
            has_dynamic_replies: self.rules.iter().any(|rule| rule.rejection.is_dynamic()),
            header_twins,
            bodies: self.bodies.clone(),
            response_fields: self.response_fields.clone(),
            response: self.response.clone(),
        })
    }
}

impl<S> Engine<S> {
    /// Applies the first policy, in the snapshot that `create_snapshot` makes of it. All other limits of the
    /// limiter, except `permanent`, are removed.
    ///
    /// # Errors
    /// The error of `create_snapshot`.
    pub fn start<E>(
        spec: &PolicySpec,
        limiter: &Arc<Limiter>,
        permanent: &[LimitSpec],
        now: Timestamp,
        create_snapshot: impl FnOnce(Arc<Policy>) -> Result<S, E>,
    ) -> Result<Self, E> {
        let mut limits = RequiredLimits::from_rules(&spec.rules, &limiter.instance_counts());
        let rule_limit_count = limits.specs().len();
        limits.add_permanent(permanent);
        let handles = limiter.install(limits.specs(), now);
        limiter.retire_others(&handles, now);
        let (handles, permanent) = handles.split_at(rule_limit_count);
        let policy = spec.bind(1, &limits, handles, limiter, now);
        let snapshot = create_snapshot(Arc::clone(&policy))?;
        limiter.configuration_changed(policy.limit_handles().chain(permanent.iter().copied()));
        Ok(Self {
            current: Arc::new(ArcSwap::from_pointee(snapshot)),
            limiter: Arc::clone(limiter),
            permanent: permanent.into(),
            policy: Mutex::new(policy),
            spec: Mutex::new(spec.clone()),
            overrides: Arc::default(),
            retired: Mutex::default(),
        })
    }

    /// Replaces the policy, in the snapshot that `create_snapshot` makes of the new policy and the old
    /// snapshot. Returns the new generation.
    pub fn apply(
        &self,
        spec: &PolicySpec,
        now: impl Fn() -> Timestamp,
        create_snapshot: impl FnOnce(Arc<Policy>, &S) -> S,
    ) -> u64 {
        let mut policy = self.policy.lock();
        *self.spec.lock() = spec.clone();
        let generation = policy.generation + 1;
        self.install_spec(&mut policy, generation, now, create_snapshot)
    }

    /// Applies the current specification again, with the limiter's present state of the fleet. The configuration
    /// is the same, and so is its generation, which is returned.
    pub fn rebind(
        &self,
        now: impl Fn() -> Timestamp,
        create_snapshot: impl FnOnce(Arc<Policy>, &S) -> S,
    ) -> u64 {
        let mut policy = self.policy.lock();
        let generation = policy.generation;
        self.install_spec(&mut policy, generation, now, create_snapshot)
    }

    /// Replaces `policy` by one of the current specification. Its lock is held, so that a reload and a rebinding
    /// cannot undo each other.
    fn install_spec(
        &self,
        policy: &mut Arc<Policy>,
        generation: u64,
        now: impl Fn() -> Timestamp,
        create_snapshot: impl FnOnce(Arc<Policy>, &S) -> S,
    ) -> u64 {
        let new_policy = self.spec.lock().install(generation, &self.limiter, now());
        self.overrides.reapply(policy, &new_policy, &self.limiter, now());
        // A request that is decided by either snapshot during the exchange must find its limits.
        let both = policy.limit_handles().chain(new_policy.limit_handles());
        self.limiter.configuration_changed(self.permanent.iter().copied().chain(both));
        let snapshot = create_snapshot(Arc::clone(&new_policy), &self.current.load());
        let before = self.current.swap(Arc::new(snapshot));
        self.retired.lock().push(before);
        let old_policy = std::mem::replace(policy, new_policy);
        let current = || self.permanent.iter().copied().chain(policy.limit_handles());
        // Requests that wait for a removed limit are decided again by the new snapshot, so it must be in force.
        self.limiter.configuration_changed(current());
        let retained: Vec<_> = current().chain(old_policy.limit_handles()).collect();
        self.limiter.retire_others(&retained, now());
        policy.generation
    }

    /// Drops the snapshots that are no longer in use. To drop one takes milliseconds if it has thousands of rules, and
    /// would otherwise happen where its last user is: on the path of a request.
    pub fn drop_unused(&self) {
        let unused: Vec<_> = {
            let mut retired = self.retired.lock();
            retired.extract_if(.., |snapshot| Arc::strong_count(snapshot) == 1).collect()
        };
        drop(unused);
    }

    /// Returns the snapshot in force; [`Self::apply`] replaces its content.
    pub const fn current(&self) -> &Arc<ArcSwap<S>> {
        &self.current
    }

    /// Returns the overrides of single keys, which stay in force when the policy changes.
    pub const fn overrides(&self) -> &Arc<OverrideBook> {
        &self.overrides
    }

    /// Returns the limits that every policy keeps, in the order of their specs.
    pub fn permanent(&self) -> &[LimitHandle] {
        &self.permanent
    }
}
