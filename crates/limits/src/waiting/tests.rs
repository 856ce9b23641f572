//! Queues of shared limits, with a store that does not respond.

use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;

use http::{HeaderMap, Method, Uri};
use tokio::sync::mpsc;

use super::*;
use crate::{LimitResources, LimitTables, PendingLimits};
use weir_limiter::algorithm::Algorithm;
use weir_limiter::elastic::Headroom;
use weir_limiter::leases::StoreLatency;
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};
use weir_limiter::wait_queue::QueueOrder;
use weir_limiter::{Limiter, LimiterSettings};
use weir_net::clock::Clock;
use weir_policy::engine::PolicySpec;
use weir_policy::identify::{IdentifySettings, identify};
use weir_policy::rules::key::KeyTemplate;
use weir_policy::rules::rule::{Action, LimitAction, LimitSource, Rule, RuleLimit};
use weir_policy::rules::selection::Selection;
use weir_policy::rules::shared_limit::{Fairness, Mode, OnStoreLoss, SharedLimit};
use weir_store::handle::{QueuedCounter, StoreHandle};
use weir_telemetry::metrics::Metrics;
use weir_telemetry::observe::top_keys::TopKeys;

/// A rule with a queue and a shared limit of 100 an hour.
fn queued_rule(wait: Duration) -> Rule {
    let limit = Limit::new(NonZeroU32::new(100).unwrap(), Period::one(TimeUnit::Hour));
    let shared = SharedLimit {
        mode: Mode::Lease,
        wait: Some(wait),
        on_store_loss: OnStoreLoss::default(),
        fairness: Fairness::default(),
        priority: 1,
        instances: None,
    };
    let queue = WaitPolicy {
        max: Duration::from_secs(60),
        max_queued: 100,
        order: QueueOrder::Fifo,
        fair_key: KeyTemplate::default(),
        deadline: None,
        priority: None,
        pace: None,
    };
    let action = LimitAction {
        limits: Box::new([RuleLimit::from(Quota::new(Algorithm::Gcra, limit, None).unwrap())]),
        wait: Some(Box::new(queue)),
        source: LimitSource::Shared(shared),
        ..LimitAction::default()
    };
    Rule { name: "queued".into(), action: Action::Limit(action), ..Rule::default() }
}

/// A view of one rule, and what it asks the store.
struct Worker {
    view: Rc<LimitsView>,
    queue: mpsc::Receiver<QueuedCounter>,
    now: Timestamp,
}

impl Worker {
    fn new(rule: Rule) -> Self {
        let clock = Arc::new(Clock::start());
        let (limiter, now) =
            (Arc::new(Limiter::new(LimiterSettings { max_keys: 100, secret: [7, 11] })), clock.now());
        let spec = PolicySpec { rules: [rule].into(), ..PolicySpec::default() };
        let policy = spec.install(1, &limiter, now);
        let (store, queue) = StoreHandle::new(&limiter);
        store.set_unreachable(false);
        let (metrics, top_keys) = (Metrics::new(&[]), TopKeys::default());
        let resources = LimitResources {
            limiter: &limiter,
            clock: &clock,
            metrics: &metrics,
            store: Some(&store),
            top_keys: &top_keys,
            worker: top_keys.add_worker(),
        };
        let tables = Arc::new(LimitTables::new(&policy, limiter.hasher(), &metrics, &top_keys, None));
        let view = Rc::new(LimitsView::new(&policy, &tables, &[], None, resources));
        Self { view, queue, now }
    }

    fn arrive(&self) -> PendingLimits {
        let (uri, headers, settings) = (Uri::from_static("/"), HeaderMap::new(), IdentifySettings::default());
        let peer = [192, 0, 2, 1].into();
        let request = identify(&Method::GET, &uri, &headers, peer, &settings, self.now).unwrap();
        match &mut self.view.policy.rules.select(&request, Headroom::NONE) {
            Selection::Limited(checks, rest) => {
                PendingLimits::check(&self.view, checks, rest, &request, self.now, None)
            }
            other @ (Selection::Exempt(_) | Selection::Denied(..)) => panic!("{other:?}"),
        }
    }

    /// Holds a request, and returns whether the first thing that it waits for is the store.
    fn waits_for_store(&self, limits: &mut PendingLimits) -> bool {
        match limits.progress(&self.view, None) {
            HeldProgress::Wait(wait) => matches!(wait, Wait::Lease),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn request_that_joins_a_queue_asks_the_store_once_for_its_units() {
    let mut worker = Worker::new(queued_rule(Duration::from_secs(1)));
    let mut limits = worker.arrive();
    assert!(worker.waits_for_store(&mut limits));
    let QueuedCounter { counter, needs_query, waiter } = worker.queue.try_recv().unwrap();
    assert!(needs_query && !waiter.unwrap().sender.is_closed(), "it waits for the first query");
    assert!(worker.queue.try_recv().is_err(), "and for no other");
    let request = worker.view.limiter.lease_request(counter, StoreLatency::default(), worker.now).unwrap();
    assert_eq!(request.needed, 1);
}

#[test]
fn queue_of_a_rule_without_a_wait_does_not_wait_for_the_store() {
    let worker = Worker::new(queued_rule(Duration::ZERO));
    let mut limits = worker.arrive();
    assert!(!worker.waits_for_store(&mut limits));
}

#[test]
fn first_request_leaves_an_offer_while_it_waits_for_room() {
    let mut rule = queued_rule(Duration::ZERO);
    let limit = Limit::new(NonZeroU32::MIN, Period::one(TimeUnit::Minute));
    if let Action::Limit(action) = &mut rule.action {
        let quota = Quota::new(Algorithm::SlidingLog, limit, None).unwrap();
        (action.limits, action.source) = (Box::new([RuleLimit::from(quota)]), LimitSource::Local);
    }
    let worker = Worker::new(rule);
    let [admitted, mut first] = [(); 2].map(|()| worker.arrive());
    assert!(!admitted.is_held() && first.waits());
    match first.progress(&worker.view, None) {
        HeldProgress::Wait(Wait::Turn(turn)) => {
            assert_eq!(turn.event, TurnEvent::Notified);
            assert!(turn.offer.is_some(), "others may decide it before its timer fires");
        }
        other => panic!("{other:?}"),
    }
}
