//! Rules that defer requests.

use std::num::NonZeroU64;
use std::time::Duration;

use http::StatusCode;

use super::*;
use crate::rules::deferral::{Deferral, DeferredRequest};
use crate::rules::planned_checks::RequiredLimits;
use crate::rules::rule::LimitSource;
use crate::rules::shared_limit::{Fairness, Mode, OnStoreLoss, SharedLimit};

/// Returns a rule for `path` that defers requests and has 5 units per hour.
fn deferring(name: &str, path: &str, key: &[Attribute], on_missing: OnMissing) -> Rule {
    let Action::Limit(mut action) = limiting(key, on_missing, &[5]) else { panic!() };
    action.deferral = Some(Box::new(Deferral {
        status: StatusCode::ACCEPTED,
        attempts: NonZeroU32::MIN,
        first_backoff: Duration::ZERO,
        max_backoff: Duration::ZERO,
        max_age: Duration::MAX,
        max_body: 1,
        max_stored: NonZeroU64::MIN,
    }));
    rule(name, &[path], Action::Limit(action))
}

/// Calls `then` with the attributes of a request from 192.0.2.1.
fn with_request<T>(uri: &str, then: impl FnOnce(&Attributes<'_>) -> T) -> T {
    let (uri, headers): (Uri, _) = (uri.parse().unwrap(), HeaderMap::new());
    let (peer, settings) = ([192, 0, 2, 1].into(), IdentifySettings::default());
    then(&identify(&Method::POST, &uri, &headers, peer, &settings, START).unwrap())
}

fn deferred(bound: &BoundRules, uri: &str) -> Option<DeferredRequest> {
    with_request(uri, |request| bound.rules.deferral(request).unwrap())
}

/// Returns the limits of a stored request that is sent from another address, long after.
fn checks_when_sent(bound: &BoundRules, deferred: &DeferredRequest) -> Vec<SelectedCheck> {
    with_request("/elsewhere", |request| {
        match bound.rules.select_deferred(deferred, request, Headroom::NONE) {
            Selection::Limited(selected, _) => selected.to_vec(),
            other @ (Selection::Exempt(_) | Selection::Denied(..)) => panic!("{other:?}"),
        }
    })
}

#[test]
fn first_deferring_rule_stores_a_request_and_only_its_limits_apply_when_it_is_sent() {
    let bound = bound(vec![
        limit("callers", &[], &[Attribute::ClientIp], &[5]),
        deferring("hooks", "/hooks/*", &[], OnMissing::Skip),
        deferring("all", "/*", &[], OnMissing::Skip),
    ]);
    assert_eq!(names(&bound, "/hooks/a"), [("callers", 0)]);
    let stored = deferred(&bound, "/hooks/a").unwrap();
    assert_eq!(stored.rule, RuleIndex(1));
    let checks = checks_when_sent(&bound, &stored);
    assert_eq!(checks.iter().map(|selected| selected.rule).collect::<Vec<_>>(), [RuleIndex(1)]);
}

#[test]
fn stored_request_is_counted_under_the_key_that_it_arrived_with() {
    for key in [vec![Attribute::ClientIp], vec![Attribute::ClientIp, Attribute::Path], vec![Attribute::Path]]
    {
        let bound = bound(vec![
            deferring("hooks", "/hooks/*", &key, OnMissing::Skip),
            limit("at-once", &["/hooks/*"], &key, &[5]),
        ]);
        let stored = deferred(&bound, "/hooks/a").unwrap();
        let [at_once] = bound.limit_checks("/hooks/a")[..] else { panic!() };
        assert_eq!(checks_when_sent(&bound, &stored)[0].check.key, at_once.check.key, "{key:?}");
    }
}

#[test]
fn request_without_the_key_is_treated_as_on_missing_says() {
    let key = [Attribute::Header(API_KEY)];
    let outcome = |on_missing| {
        let bound = bound(vec![deferring("hooks", "/hooks/*", &key, on_missing)]);
        with_request("/hooks/a", |request| bound.rules.deferral(request))
    };
    assert_eq!(outcome(OnMissing::Skip), Ok(None));
    assert_eq!(outcome(OnMissing::Shared).unwrap().unwrap().rule, RuleIndex(0));
    assert_eq!(outcome(OnMissing::Deny).unwrap_err().denial, Denial::Forbidden);
}

#[test]
fn grants_for_stored_calls_may_take_as_long_as_the_calls_wait() {
    let shared = |wait| {
        let (fairness, on_store_loss) = (Fairness::default(), OnStoreLoss::default());
        SharedLimit { mode: Mode::Lease, wait, on_store_loss, fairness, priority: 1, instances: None }
    };
    let max_waits = |mut rules: Vec<Rule>, wait| {
        for rule in &mut rules {
            let Action::Limit(action) = &mut rule.action else { panic!() };
            action.source = LimitSource::Shared(shared(wait));
            action.counter = Some("calls".into());
        }
        let limits = RequiredLimits::from_rules(&rules, &InstanceCounts::single());
        limits.specs().iter().filter_map(|spec| spec.lease_policy).map(|it| it.max_wait).collect::<Vec<_>>()
    };
    let plain = || limit("calls", &["/now"], &[], &[5]);
    let stored = || deferring("stored", "/*", &[], OnMissing::Skip);
    let second = Duration::from_secs(1);
    assert_eq!(max_waits(vec![plain()], None), [None]);
    assert_eq!(max_waits(vec![stored()], None), [Some(second)]);
    assert_eq!(max_waits(vec![stored()], Some(second / 10)), [Some(second / 10)]);
    assert_eq!(max_waits(vec![plain(), stored()], None), [Some(second)], "one counter");
}
