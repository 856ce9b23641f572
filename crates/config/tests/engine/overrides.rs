use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, Uri};
use weir_config as config;
use weir_limiter::elastic::Headroom;
use weir_limiter::quota::{BoostFactor, QuotaChange};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Limiter, LimiterSettings};
use weir_policy::engine::overrides::{OverrideAction, OverrideError, OverrideKind, OverrideTarget, reset};
use weir_policy::engine::{Engine, Policy};
use weir_policy::identify::identify;
use weir_policy::rules::outcome::DecisionOutcome;
use weir_policy::rules::selection::Selection;

use super::spec;

const NOW: Timestamp = Timestamp::from_secs(1_000_000);
const HOUR: Duration = Duration::from_secs(3600);

struct Fixture {
    engine: Engine<Arc<Policy>>,
    limiter: Arc<Limiter>,
}

impl Fixture {
    fn new(rules: &str) -> Self {
        let limiter = Arc::new(Limiter::new(LimiterSettings { max_keys: 1000, secret: [1, 2] }));
        let engine = Engine::start(&spec(rules), &limiter, &[], NOW, Ok::<_, Infallible>).unwrap();
        Self { engine, limiter }
    }

    fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.engine.current().load())
    }

    fn reload(&self, rules: &str) {
        self.engine.apply(&spec(rules), || NOW, |policy, _| policy);
    }

    fn target(&self, rule: &str, key: &str) -> OverrideTarget {
        let policy = self.policy();
        let index = policy.rules.position(rule).unwrap();
        let key = policy.rules.parse_key(index, key, 64).map_or_else(
            // A rule without limits has no key.
            || self.limiter.hasher().hash(b""),
            |key| key.unwrap().hash,
        );
        OverrideTarget { rule: index, key, key_parts: None }
    }

    fn set(&self, rule: &str, key: &str, action: OverrideAction) -> Result<(), OverrideError> {
        let until = NOW.saturating_add(HOUR);
        let (policy, target) = (self.policy(), self.target(rule, key));
        self.engine.overrides().set(&policy, &self.limiter, &target, action, until, NOW).map(drop)
    }

    fn clear(&self, rule: &str, key: &str, kind: OverrideKind) -> bool {
        let (policy, target) = (self.policy(), self.target(rule, key));
        self.engine.overrides().clear(&policy, &self.limiter, &target, kind, NOW)
    }

    /// Sends a request from 192.0.2.`host`; returns the outcomes of the rules.
    fn send(&self, host: u8, now: Timestamp) -> Vec<DecisionOutcome> {
        let (uri, headers, policy) = (Uri::from_static("/"), HeaderMap::new(), self.policy());
        let peer = [192, 0, 2, host].into();
        let request = identify(&Method::GET, &uri, &headers, peer, &policy.identify, now).unwrap();
        let Selection::Limited(selected, _) = policy.rules.select(&request, Headroom::NONE) else {
            return Vec::new();
        };
        let checks: Vec<_> = selected.iter().map(|selected| selected.check).collect();
        let decision = self.limiter.check(&checks, now);
        let outcome = DecisionOutcome::from_verdicts(&selected, decision.verdicts(), decision.is_rejected());
        outcome.into_iter().collect()
    }

    /// Returns how many of at most 100 requests pass.
    fn admitted(&self, host: u8) -> usize {
        (0..100).filter(|_| self.send(host, NOW) == [DecisionOutcome::Allowed]).count()
    }
}

fn boost(factor: u32) -> OverrideAction {
    OverrideAction::Boost(QuotaChange::Factor(BoostFactor::from_hundredths(100 * factor).unwrap()))
}

const PER_IP: &str = "  - { name: per-ip, key: client_ip, limits: [10/h, 20/d] }\n";

#[test]
fn boost_raises_every_limit_of_the_rule_for_one_key() {
    let fixture = Fixture::new(PER_IP);
    fixture.set("per-ip", "client_ip=192.0.2.1", boost(3)).unwrap();
    assert_eq!((fixture.admitted(1), fixture.admitted(2)), (30, 10));
    assert!(fixture.clear("per-ip", "client_ip=192.0.2.1", OverrideKind::Boost));
    assert!(!fixture.clear("per-ip", "client_ip=192.0.2.1", OverrideKind::Boost));
    assert_eq!(fixture.admitted(1), 0, "units used stay used");
}

#[test]
fn overrides_survive_a_reload_that_keeps_name_and_key() {
    let fixture = Fixture::new(PER_IP);
    fixture.set("per-ip", "client_ip=192.0.2.1", boost(3)).unwrap();
    fixture.set("per-ip", "client_ip=192.0.2.2", OverrideAction::Ban).unwrap();
    // One limit is changed, one is new, and the rule has another place.
    fixture.reload("  - { name: a, key: path, limit: 99/s }\n  - { name: per-ip, key: client_ip, limits: [11/h, 15/w] }\n");
    let book = fixture.engine.overrides();
    assert_eq!(book.active(NOW).len(), 2);
    let rejected = |host| fixture.send(host, NOW);
    assert_eq!(rejected(2), [DecisionOutcome::Banned]);
    assert_eq!((0..100).filter(|_| fixture.send(1, NOW) == [DecisionOutcome::Allowed]).count(), 33);
    fixture.reload("  - { name: per-ip, key: [client_ip, path], limit: 10/h }\n");
    assert!(book.active(NOW).is_empty(), "another key");
}

/// Two rules that share a counter; the first has a ban and permits of its own.
const SHARING: &str =
    "  - { name: ca, key: client_ip, limit: 10/h, counter: budget, in_flight: 5, on_limit: { ban: 1h } }
  - { name: cb, key: client_ip, limit: 10/h, counter: budget }\n";

#[test]
fn rules_that_share_a_counter_share_its_overrides() {
    let key = "client_ip=192.0.2.1";
    for (set_by, cleared_by) in [("ca", "cb"), ("cb", "ca"), ("cb", "cb")] {
        let fixture = Fixture::new(SHARING);
        let book = fixture.engine.overrides();
        for action in [OverrideAction::Ban, boost(3)] {
            fixture.set(set_by, key, action).unwrap();
            assert_eq!(book.active(NOW).len(), 1);
            assert_eq!(book.active(NOW)[0].rules, ["ca", "cb"].map(Box::from));
            fixture.reload(SHARING);
            let is_banned = || fixture.send(1, NOW).contains(&DecisionOutcome::Banned);
            assert_eq!(is_banned(), action == OverrideAction::Ban);
            assert!(fixture.clear(cleared_by, key, action.kind()), "{set_by} {cleared_by}");
            fixture.reload(SHARING);
            assert!(book.active(NOW).is_empty());
            assert!(!is_banned(), "{set_by} {cleared_by}");
        }
        // Both rules charge the counter; the boost is gone, and four of the ten units are used.
        let admitted = (0..20).filter(|_| fixture.send(1, NOW) == [DecisionOutcome::Allowed; 2]).count();
        assert!(admitted <= 4, "{admitted}");
    }
}

#[test]
fn rule_that_leaves_a_counter_leaves_its_overrides() {
    let fixture = Fixture::new(SHARING);
    let own =
        "  - { name: ca, key: client_ip, limit: 10/h, counter: own, in_flight: 5, on_limit: { ban: 1h } }\n";
    fixture.set("ca", "client_ip=192.0.2.1", OverrideAction::Ban).unwrap();
    fixture.reload(own);
    assert!(fixture.engine.overrides().active(NOW).is_empty());
    assert_eq!(fixture.send(1, NOW), [DecisionOutcome::Allowed]);
    let fixture = Fixture::new(SHARING);
    fixture.set("ca", "client_ip=192.0.2.1", OverrideAction::Ban).unwrap();
    fixture.reload("  - { name: cb, key: client_ip, limit: 10/h, counter: budget }\n");
    assert_eq!(&*fixture.engine.overrides().active(NOW)[0].rule, "cb");
    assert_eq!(fixture.send(1, NOW), [DecisionOutcome::Banned]);
}

#[test]
fn ban_rejects_as_banned_until_its_end() {
    let fixture = Fixture::new(PER_IP);
    fixture.set("per-ip", "client_ip=192.0.2.1", OverrideAction::Ban).unwrap();
    assert_eq!(fixture.send(1, NOW), [DecisionOutcome::Banned]);
    assert_eq!(fixture.send(2, NOW), [DecisionOutcome::Allowed]);
    assert!(fixture.clear("per-ip", "client_ip=192.0.2.1", OverrideKind::Ban));
    assert_eq!(fixture.send(1, NOW), [DecisionOutcome::Allowed]);
    fixture.set("per-ip", "client_ip=192.0.2.1", OverrideAction::Ban).unwrap();
    assert_eq!(fixture.send(1, NOW.saturating_add(HOUR)), [DecisionOutcome::Allowed]);
}

#[test]
fn ban_of_a_rule_in_shadow_mode_does_not_reject() {
    let fixture = Fixture::new("  - { name: per-ip, key: client_ip, limit: 10/h, throttle: shadow }\n");
    fixture.set("per-ip", "client_ip=192.0.2.1", OverrideAction::Ban).unwrap();
    assert_eq!(fixture.send(1, NOW), [DecisionOutcome::Shadow]);
}

#[test]
fn operators_ban_is_neither_charged_nor_followed_by_the_rules_own() {
    let rule =
        "  - { name: per-ip, key: client_ip, limit: 10/h, on_denied: charge, on_limit: { ban: 10h } }\n";
    let fixture = Fixture::new(rule);
    fixture.set("per-ip", "client_ip=192.0.2.1", OverrideAction::Ban).unwrap();
    assert!((0..20).all(|_| fixture.send(1, NOW) == [DecisionOutcome::Banned]));
    fixture.clear("per-ip", "client_ip=192.0.2.1", OverrideKind::Ban);
    assert_eq!(fixture.admitted(1), 10);
}

#[test]
fn reset_frees_all_counters_and_a_ban() {
    let fixture =
        Fixture::new("  - { name: per-ip, key: client_ip, limits: [10/h, 20/d], on_limit: { ban: 1h } }\n");
    assert_eq!(fixture.admitted(1), 10);
    let target = fixture.target("per-ip", "client_ip=192.0.2.1");
    assert_eq!(reset(&fixture.policy(), &fixture.limiter, &target), Ok(3));
    assert_eq!(reset(&fixture.policy(), &fixture.limiter, &target), Ok(0));
    assert_eq!(fixture.admitted(1), 10);
}

#[test]
fn overrides_that_make_no_sense_are_errors() {
    let fixture = Fixture::new(
        "  - { name: health, action: allow, match: { path: /health } }
  - { name: two, key: client_ip, limits: [10/h, 20/d] }
  - { name: log, key: client_ip, limit: 9000/h, algorithm: sliding_log }\n",
    );
    let key = "client_ip=192.0.2.1";
    let limit = OverrideAction::Boost(QuotaChange::Limit(config::parse::rate("500/s").unwrap()));
    assert_eq!(fixture.set("health", key, OverrideAction::Ban), Err(OverrideError::NoLimits));
    assert_eq!(fixture.set("two", key, limit), Err(OverrideError::SeveralLimits));
    assert_eq!(fixture.set("log", key, boost(2)), Err(OverrideError::TooLarge));
    let low = OverrideAction::Boost(QuotaChange::Limit(config::parse::rate("100/h").unwrap()));
    let error = fixture.set("log", key, low).unwrap_err().to_string();
    assert!(error.contains("the limit of the rule, which is 9000/h"), "{error}");
    assert!(fixture.engine.overrides().active(NOW).is_empty());
    assert_eq!(fixture.admitted(1), 10);
}

#[test]
fn number_of_overrides_is_bounded() {
    let fixture = Fixture::new(PER_IP);
    let key = |number: usize| format!("client_ip=10.0.{}.{}", number / 256, number % 256);
    for number in 0..weir_policy::engine::overrides::MAX_OVERRIDES {
        fixture.set("per-ip", &key(number), OverrideAction::Ban).unwrap();
    }
    assert_eq!(fixture.set("per-ip", "client_ip=192.0.2.1", boost(2)), Err(OverrideError::Full));
    assert_eq!(fixture.set("per-ip", &key(7), OverrideAction::Ban), Ok(()), "replaces one");
    assert!(fixture.clear("per-ip", &key(7), OverrideKind::Ban));
    assert_eq!(fixture.set("per-ip", "client_ip=192.0.2.1", boost(2)), Ok(()));
    assert_eq!(fixture.engine.overrides().active(NOW.saturating_add(HOUR)).len(), 0);
}
