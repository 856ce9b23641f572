use std::num::NonZeroU32;

use super::*;
use crate::rules::DescriptorRules;
use crate::settings::RlsSettings;
use crate::unit_limits::UnitLimits;
use weir_limiter::algorithm::Algorithm;
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};
use weir_limiter::{Limiter, LimiterSettings};
use weir_policy::engine::{Policy, PolicySpec};
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::key::KeyTemplate;
use weir_policy::rules::rule::{Action, LimitAction};

const NOW: Timestamp = Timestamp::from_secs(600);

/// A service on two workers, as far as it has keys.
struct Service {
    limiter: Limiter,
    top_keys: TopKeys,
    decider: RlsDecider,
    log_keys: Option<LogKeys>,
    sketches: KeySketches,
}

impl Service {
    fn new() -> Self {
        let limiter = Limiter::new(LimiterSettings { max_keys: 1000, secret: [1, 2] });
        let top_keys = TopKeys::default();
        top_keys.add_worker();
        top_keys.add_worker();
        let decider = RlsDecider {
            rules: Some(documents()),
            settings: Arc::new(RlsSettings::default()),
            unit_limits: UnitLimits::install(&limiter, NOW).unwrap(),
            shared_limits: None,
            native_policy: Some(policy(&limiter)),
        };
        let sketches = KeySketches::new(&decider, &top_keys, writer(&limiter, None), None);
        Self { limiter, top_keys, decider, log_keys: None, sketches }
    }

    fn update(&mut self, change: impl FnOnce(&mut Self)) {
        let before = self.decider.clone();
        change(self);
        let writer = writer(&self.limiter, self.log_keys);
        let kept = Some((&before, &self.sketches));
        self.sketches = KeySketches::new(&self.decider, &self.top_keys, writer, kept);
    }

    /// Returns whether `tables` has the tables of the limits, and of the rules, of each worker.
    fn has(&self, tables: &[SketchTable]) -> (bool, bool) {
        let workers = || self.sketches.by_worker.iter().zip(tables);
        assert_eq!(self.sketches.by_worker.len(), tables.len());
        (
            workers().all(|(one, other)| Arc::ptr_eq(&one.limits, &other.limits)),
            workers().all(|(one, other)| Arc::ptr_eq(&one.rules, &other.rules)),
        )
    }
}

fn writer(limiter: &Limiter, visibility: Option<LogKeys>) -> KeyWriter {
    KeyWriter { visibility, ipv6_prefix: 64, hasher: limiter.hasher() }
}

fn documents() -> Arc<DescriptorRules> {
    let text = "domain: d\ndescriptors:\n  - { key: a, rate_limit: { unit: hour, requests_per_unit: 1 } }\n";
    Arc::new(DescriptorRules::from_yaml([("d.yaml", text)], false).unwrap())
}

fn policy(limiter: &Limiter) -> Arc<Policy> {
    let limit = Limit::new(NonZeroU32::new(100).unwrap(), Period::one(TimeUnit::Second));
    let limiting = LimitAction {
        key: KeyTemplate([Attribute::ClientIp].into()),
        limits: [Quota::new(Algorithm::Gcra, limit, None).unwrap().into()].into(),
        ..LimitAction::default()
    };
    let rule = Rule {
        name: "r".into(),
        action: Action::Limit(limiting),
        domain: Some("d".into()),
        ..Rule::default()
    };
    PolicySpec { rules: [rule].into(), ..PolicySpec::default() }.install(1, limiter, NOW)
}

#[test]
fn sketches_are_kept_unless_what_they_count_changes() {
    let mut service = Service::new();
    let first = Arc::clone(&service.sketches.by_worker);
    assert_eq!((first.len(), first[0].limits.len(), first[0].rules.len()), (2, 1, 1));
    service.update(|service| service.decider.settings = Arc::new(RlsSettings::default()));
    assert_eq!(service.has(&first), (true, true));
    service.update(|service| service.decider.rules = Some(documents()));
    assert_eq!(service.has(&first), (false, true));
    let second = Arc::clone(&service.sketches.by_worker);
    service.update(|service| service.decider.native_policy = Some(policy(&service.limiter)));
    assert_eq!(service.has(&second), (true, false));
    let third = Arc::clone(&service.sketches.by_worker);
    service.update(|service| service.log_keys = Some(LogKeys::Value));
    assert_eq!(service.has(&third), (false, false));
}

#[test]
fn new_worker_gets_sketches_and_the_others_keep_theirs() {
    let mut service = Service::new();
    let first = Arc::clone(&service.sketches.by_worker);
    let worker = service.top_keys.add_worker();
    service.update(|_| {});
    let tables = &service.sketches.by_worker;
    assert!(tables.iter().zip(&*first).all(|(one, other)| Arc::ptr_eq(&one.limits, &other.limits)));
    assert_eq!((tables.len(), tables[worker.index()].limits.len()), (3, 1));
    assert!(tables[worker.index()].rules[0].is_some());
}

#[test]
fn reload_of_documents_leaves_the_sketches_of_newer_rules_in_place() {
    let mut service = Service::new();
    let newer = policy(&service.limiter);
    let sketch = |service: &Service| {
        let worker = service.top_keys.workers().next().unwrap();
        service.top_keys.rule_sketch(worker, &newer.rules.rules()[0], Some(LogKeys::Hash)).unwrap()
    };
    // A worker begins with the new policy before the service does.
    let installed = sketch(&service);
    service.update(|service| service.decider.rules = Some(documents()));
    assert!(Arc::ptr_eq(&installed, &sketch(&service)), "the worker counts where readers look");
    service.update(|service| {
        service.decider.native_policy = Some(Arc::clone(&newer));
        service.log_keys = Some(LogKeys::Hash);
    });
    assert!(
        service.sketches.by_worker[0].rules[0].as_ref().is_some_and(|used| Arc::ptr_eq(used, &installed))
    );
}
