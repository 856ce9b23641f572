use std::convert::Infallible;
use std::sync::Arc;

use http::{HeaderMap, Method, Uri};
use weir_limiter::elastic::Headroom;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{LimitSpec, Limiter};
use weir_policy::engine::{CarryOver, Engine, Policy, PolicySpec};
use weir_policy::identify::identify;
use weir_policy::rules::limit_specs;
use weir_policy::rules::selection::Selection;
use weir_policy::throttle::{self, ThrottleAction};

use super::spec;

const START: Timestamp = Timestamp::from_secs(1_000_000);

/// An engine whose snapshot is the policy alone.
struct PolicyEngine {
    engine: Engine<Arc<Policy>>,
    limiter: Arc<Limiter>,
}

fn start(spec: &PolicySpec, permanent: &[LimitSpec]) -> PolicyEngine {
    let limiter = Arc::new(Limiter::new(weir_limiter::LimiterSettings { max_keys: 100, secret: [1, 2] }));
    let engine = Engine::start(spec, &limiter, permanent, START, Ok::<_, Infallible>).unwrap();
    PolicyEngine { engine, limiter }
}

impl PolicyEngine {
    fn replace(&self, spec: &PolicySpec) -> u64 {
        self.engine.apply(spec, || START, |policy, _| policy)
    }

    fn current_policy(&self) -> Arc<Policy> {
        Arc::clone(&self.engine.current().load())
    }

    /// Returns whether `policy` admits a request from 192.0.2.`host` to `path` at `now`.
    fn admits(&self, policy: &Policy, host: u8, path: &str, now: Timestamp) -> bool {
        let (uri, headers) = (path.parse::<Uri>().unwrap(), HeaderMap::new());
        let peer = [192, 0, 2, host].into();
        let request = identify(&Method::GET, &uri, &headers, peer, &policy.identify, now).unwrap();
        match policy.rules.select(&request, Headroom::NONE) {
            Selection::Exempt(_) => true,
            Selection::Denied(..) => false,
            Selection::Limited(selected, _) => {
                let checks: Vec<_> = selected.iter().map(|selected| selected.check).collect();
                matches!(throttle::resolve(&self.limiter.check(&checks, now)), ThrottleAction::Forward)
            }
        }
    }
}

#[test]
fn snapshot_is_dropped_by_the_thread_that_asks_once_it_is_not_in_use() {
    let rules = |limit: &str| spec(&format!("  - {{ name: a, limit: {limit} }}"));
    let limiter = Arc::new(Limiter::new(weir_limiter::LimiterSettings { max_keys: 100, secret: [1, 2] }));
    let engine: Engine<Arc<()>> =
        Engine::start(&rules("1/d"), &limiter, &[], START, |_| Ok::<_, Infallible>(Arc::default())).unwrap();
    // As a worker does.
    let in_use = engine.current().load_full();
    let content = Arc::downgrade(&in_use);
    engine.apply(&rules("2/d"), || START, |_, _| Arc::default());
    engine.drop_unused();
    assert!(content.upgrade().is_some());
    drop(in_use);
    assert!(content.upgrade().is_some(), "dropped by the worker");
    engine.drop_unused();
    assert!(content.upgrade().is_none());
}

#[test]
fn request_that_began_before_a_reload_uses_the_limits_it_began_with() {
    let engine = start(&spec("  - { name: a, key: [], limit: 1/d }"), &[]);
    let admits = |policy: &Policy| engine.admits(policy, 1, "/", START);
    let before = engine.current_policy();
    assert!(admits(&before));
    assert_eq!(engine.replace(&spec("  - { name: a, key: path, limit: 1/d }")), 2);
    assert!(!admits(&before), "the old limit is still in force and used up");
    assert!(admits(&engine.current_policy()) && !admits(&engine.current_policy()));
    assert_eq!(engine.replace(&spec("  - { name: a, key: path, limit: 2/d }")), 3);
    assert!(admits(&before), "two generations later the old limit is removed");
    assert!(admits(&engine.current_policy()) && !admits(&engine.current_policy()));
}

#[test]
fn limits_of_both_snapshots_are_installed_while_one_replaces_the_other() {
    let rule = |key: &str| spec(&format!("  - {{ name: a, key: {key}, limit: 1/d }}"));
    let engine = start(&rule("[]"), &[]);
    let are_installed =
        |policy: &Policy| policy.limit_handles().all(|limit| engine.limiter.queues().is_installed(limit));
    let old = engine.current_policy();
    engine.engine.apply(
        &rule("path"),
        || START,
        |new, _| {
            // A request that waits for a limit that is not installed is decided again by the snapshot in force.
            assert!(are_installed(&new) && are_installed(&old));
            new
        },
    );
    assert!(are_installed(&engine.current_policy()) && !are_installed(&old));
}

#[test]
fn rebinding_keeps_the_generation_and_the_counters() {
    let engine = start(&spec("  - { name: a, key: [], limit: 1/d }"), &[]);
    assert!(engine.admits(&engine.current_policy(), 1, "/", START));
    assert_eq!(engine.engine.rebind(|| START, |policy, _| policy), 1);
    assert!(!engine.admits(&engine.current_policy(), 1, "/", START));
    assert_eq!(engine.replace(&spec("  - { name: a, key: [], limit: 2/d }")), 2);
}

#[test]
fn permanent_limits_survive_reloads_and_do_not_continue_limits_of_rules() {
    let hourly = spec("  - { name: a, key: [], limit: 1/h }");
    let permanent = limit_specs(&spec("  - { name: permanent, key: [], limit: 1/h }").rules);
    let engine = start(&hourly, &permanent);
    assert!(engine.admits(&engine.current_policy(), 1, "/", START));
    engine.replace(&spec("  - { name: a, key: [], limit: 1/d }"));
    assert!(
        !engine.admits(&engine.current_policy(), 1, "/", START),
        "the counter of the other period is continued"
    );
    let none = PolicySpec::default();
    assert_eq!([(); 3].map(|()| engine.replace(&none)), [3, 4, 5]);
    let key = engine.limiter.hasher().hash(b"any");
    assert!(engine.limiter.usage(engine.engine.permanent()[0], key, START).is_some());
}

#[test]
fn recorded_requests_can_be_replayed_with_their_own_time() {
    let engine = start(
        &spec(
            "  - { name: health, action: allow, match: { path: /health } }
  - { name: internal, action: deny, match: { path: /internal } }
  - { name: per-ip, key: client_ip, limit: 2/min, algorithm: fixed_window }",
        ),
        &[],
    );
    let policy = engine.current_policy();
    let log = [
        (0, 1, "/", true),
        (1, 1, "/", true),
        (2, 1, "/", false),
        (2, 2, "/", true),
        (3, 1, "/health", true),
        (3, 2, "/internal", false),
        (61, 1, "/", true),
    ];
    for (second, host, path, is_admitted) in log {
        let now = Timestamp::from_secs(1_000_020 + second);
        assert_eq!(engine.admits(&policy, host, path, now), is_admitted, "{host} at {second}: {path}");
    }
}

#[test]
fn counters_survive_reload_with_the_same_counter_name_and_key() {
    let old = spec(
        "  - { name: a, key: client_ip, limit: 1/h }
  - { name: b, key: client_ip, limit: 1/h, on_limit: { ban: 1h } }
  - { name: c, key: client_ip, in_flight: 3 }
  - { name: d, key: client_ip, limit: 1/h }",
    );
    let new = spec(
        "  - { name: a, key: path, limit: 1/h }
  - { name: b, key: client_ip, limit: 1/h, counter: e, on_limit: { ban: 1h } }
  - { name: f, key: client_ip, in_flight: 4, counter: c }
  - { name: d, key: client_ip, limit: 9/d }",
    );
    let carry_over = CarryOver::between(&old, &new);
    let surviving = |spec: &PolicySpec| -> Vec<String> {
        let rules = spec.rules.iter().filter(|rule| carry_over.keeps_counters_of(rule));
        rules.map(|rule| rule.name.to_string()).collect()
    };
    assert_eq!(surviving(&old), ["c", "d"], "a ban without a limit has no counter");
    assert_eq!(surviving(&new), ["f", "d"]);
}
