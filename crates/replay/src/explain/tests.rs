use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use weir_config as config;
use weir_limiter::LimiterSettings;
use weir_limiter::decision::Decision;
use weir_limiter::leases::{PartsByGroup, StorePart};
use weir_limiter::quota::{BoostFactor, QuotaChange};
use weir_policy::engine::overrides::{OverrideAction, OverrideTarget};
use weir_policy::engine::{Engine, PolicySpec};
use weir_policy::rules::RuleIndex;
use weir_policy::rules::selection::Selection;
use weir_policy::throttle::{self, ThrottleAction};

const START: Timestamp = Timestamp::from_secs(1_795_248_000);

fn spec(rules: &str) -> PolicySpec {
    let text = format!(
        "listeners: 127.0.0.1:0\nupstream: echo\nstore: {{ redis: redis://h }}\nclient_ip: {{ trusted_proxies: 10.0.0.0/8 }}\nrules:\n{rules}"
    );
    config::from_text(&text, Path::new("weir.yaml"), &|_| None).unwrap().policy
}

struct Fixture {
    engine: Engine<Arc<Policy>>,
    limiter: Arc<Limiter>,
    parts: PartsByGroup,
}

impl Fixture {
    fn new(rules: &str) -> Self {
        let limiter = Arc::new(Limiter::new(LimiterSettings { max_keys: 1000, secret: [1, 2] }));
        let engine = Engine::start(&spec(rules), &limiter, &[], START, Ok::<_, Infallible>).unwrap();
        Self { engine, limiter, parts: PartsByGroup::default() }
    }

    fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.engine.current().load())
    }

    fn explain(&self, request: &RequestDescription, now: Timestamp) -> Explanation {
        self.with_context(now, |context| explain(request, context))
    }

    fn with_context<T>(&self, now: Timestamp, then: impl FnOnce(&ExplainContext<'_>) -> T) -> T {
        let policy = self.policy();
        then(&ExplainContext {
            policy: &policy,
            limiter: &self.limiter,
            overrides: self.engine.overrides(),
            headroom: Headroom::NONE,
            store: StoreState::Unreachable,
            parts: &self.parts,
            now,
            wall_clock: now,
        })
    }

    fn predict(&self, request: &RequestDescription, now: Timestamp) -> PredictedAction {
        let RequestDescription { method, uri, headers, peer, .. } = request;
        self.with_context(now, |context| {
            let settings = &context.policy.identify;
            let attributes = identify(method, uri, headers, *peer, settings, now).unwrap();
            predict(&attributes, &BodyFields::absent(), None, context).action
        })
    }

    /// Decides and charges a request as the proxy does.
    fn send(&self, request: &RequestDescription, now: Timestamp) -> PredictedAction {
        let policy = self.policy();
        let RequestDescription { method, uri, headers, peer, .. } = request;
        let attributes = identify(method, uri, headers, *peer, &policy.identify, now).unwrap();
        let (selected, decision) = match policy.rules.select(&attributes, Headroom::NONE) {
            Selection::Exempt(rule) => return PredictedAction::Exempt(rule),
            Selection::Denied(rule, denial) => return PredictedAction::Denied(rule, denial),
            Selection::Limited(selected, _) => {
                let checks: Vec<_> = selected.iter().map(|selected| selected.check).collect();
                let decision: Decision = self.limiter.check(&checks, now);
                (selected, decision)
            }
        };
        match throttle::resolve(&decision) {
            ThrottleAction::Forward => PredictedAction::Forward(None),
            ThrottleAction::Delay(delay) => PredictedAction::Forward(Some(delay)),
            ThrottleAction::Reject { position, retry_after } => {
                PredictedAction::Reject(selected[position].rule, retry_after)
            }
        }
    }

    /// Returns everything that the limiter has counted.
    fn saved(&self, now: Timestamp) -> (Vec<u8>, usize) {
        let mut bytes = Vec::new();
        let write = |_, part: &[u8]| {
            bytes.extend_from_slice(part);
            Ok::<_, Infallible>(())
        };
        self.limiter.save(now, write).unwrap();
        (bytes, self.limiter.live_keys())
    }
}

fn request(parameters: &[(&str, &str)]) -> RequestDescription {
    RequestDescription::from_pairs(parameters.iter().copied()).unwrap()
}

#[test]
fn explanation_names_the_rule_the_key_and_the_counter() {
    let fixture = Fixture::new(
        "  - { name: admin, action: deny, match: { path: '/admin/*' } }
  - { name: per-ip, key: client_ip, limit: 2/h }
  - { name: posts, match: { method: POST }, key: client_ip, limit: 1/h }\n",
    );
    let get = request(&[("client_ip", "192.0.2.7"), ("path", "/x"), ("host", "a.example")]);
    let first = fixture.explain(&get, START);
    assert_eq!((first.outcome.as_str(), first.rule, first.status), ("allowed", None, None));
    let names: Vec<_> = first.rules.iter().filter(|rule| rule.applies).map(|rule| &*rule.name).collect();
    assert_eq!(names, ["per-ip"]);
    let per_ip = &first.rules[1];
    assert_eq!(per_ip.key.as_ref().unwrap().text, "client_ip=192.0.2.7");
    let limit = &per_ip.limits[0];
    assert_eq!((limit.used, limit.remaining, limit.limit.as_deref()), (Some(0), Some(2), Some("2/h")));
    assert_eq!(first.rules[0].mismatch.as_ref().unwrap().field, "path");
    assert_eq!(first.rules[2].mismatch.as_ref().unwrap().actual.as_deref(), Some("GET"));
    fixture.send(&get, START);
    fixture.send(&get, START);
    let third = fixture.explain(&get, START);
    assert_eq!((third.outcome.as_str(), third.rule.as_deref()), ("limited", Some("per-ip")));
    assert_eq!((third.status, third.retry_after_seconds), (Some(429), Some(1800.0)));
    let line = |name: &str| third.headers.iter().find(|line| line.name == name).map(|line| &*line.value);
    assert_eq!(line("retry-after"), Some("1800"));
    assert_eq!(line("x-ratelimit-remaining"), Some("0"));
    let denied = fixture.explain(&request(&[("path", "/admin/x")]), START);
    assert_eq!((denied.outcome.as_str(), denied.status), ("denied", Some(403)));
    assert_eq!(denied.rules[1].note.as_deref(), Some("not evaluated: another rule decides first"));
}

#[test]
fn explanation_identifies_the_client_as_the_proxy_does() {
    let fixture = Fixture::new("  - { name: per-ip, key: client_ip, limit: 2/h }\n");
    let forwarded = [("client_ip", "10.1.2.3"), ("header.x-forwarded-for", "203.0.113.9")];
    let explained = fixture.explain(&request(&forwarded), START);
    let client = explained.request.unwrap();
    assert_eq!((client.client_ip.as_deref(), client.peer.as_str()), (Some("203.0.113.9"), "10.1.2.3"));
    assert!(client.peer_is_trusted);
    let untrusted = [("client_ip", "192.0.2.1"), ("header.x-forwarded-for", "203.0.113.9")];
    let explained = fixture.explain(&request(&untrusted), START);
    assert_eq!(explained.request.unwrap().client_ip.as_deref(), Some("192.0.2.1"));
    let malformed = fixture.explain(&request(&[("path", "/%00")]), START);
    assert_eq!((malformed.outcome.as_str(), malformed.status), ("malformed", Some(400)));
}

#[test]
fn explanation_shows_overrides_and_their_end() {
    let fixture = Fixture::new("  - { name: per-ip, key: client_ip, limit: 2/h }\n");
    let (policy, get) = (fixture.policy(), request(&[("client_ip", "192.0.2.7")]));
    let key = policy.rules.parse_key(RuleIndex(0), "client_ip=192.0.2.7", 64).unwrap().unwrap().hash;
    let target = OverrideTarget { rule: RuleIndex(0), key, key_parts: None };
    let until = START.saturating_add(Duration::from_secs(60));
    let factor = BoostFactor::from_hundredths(300).unwrap();
    for action in [OverrideAction::Boost(QuotaChange::Factor(factor)), OverrideAction::Ban] {
        fixture.engine.overrides().set(&policy, &fixture.limiter, &target, action, until, START).unwrap();
    }
    let explained = fixture.explain(&get, START);
    assert_eq!((explained.outcome.as_str(), explained.retry_after_seconds), ("banned", Some(60.0)));
    let rule = &explained.rules[0];
    assert_eq!(rule.limits[0].limit.as_deref(), Some("6/h"));
    assert_eq!(rule.limits[0].banned_until.as_deref(), Some(&*weir_telemetry::rfc3339(until)));
    let actions: Vec<_> = rule.overrides.iter().map(|one| (&*one.action, one.change.as_deref())).collect();
    assert_eq!(actions, [("boost", Some("factor 3")), ("ban", None)]);
    let later = fixture.explain(&get, until);
    assert_eq!((later.outcome.as_str(), later.rules[0].overrides.len()), ("allowed", 0));
    assert!(render(&explained).contains("override: boost, factor 3, until"));
}

#[test]
fn text_shows_the_outcome_first_and_no_control_characters() {
    let fixture = Fixture::new(
        "  - { name: health, action: allow, match: { path: /healthz } }
  - { name: key, key: { header: x-key }, limit: 10/min, burst: 20 }\n",
    );
    let mut keyed = request(&[("path", "/a?q=1"), ("host", "api.example.com")]);
    keyed.headers.append("x-key", http::HeaderValue::from_bytes(b"a\tb").unwrap());
    let text = render(&fixture.explain(&keyed, START));
    assert!(text.starts_with("ALLOWED: forwarded\n"), "{text}");
    for expected in [
        "request: GET /a?q=1, host api.example.com\n",
        "client:  127.0.0.1\n",
        "rules that match: 1\n  key (limit): allowed\n",
        "    limit 10/min burst 20 (gcra): used 0, remaining 20\n",
        "  health: path does not match /healthz (is /a)\n",
    ] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    assert!(text.chars().all(|char| char == '\n' || !char.is_control()), "{text:?}");
}

/// Rules of every kind. Each test takes some of them.
const RULES: [&str; 12] = [
    "{ name: health, action: allow, match: { path: /a, header: { x-k: '1' } } }",
    "{ name: blocked, action: deny, match: { client_ip: 192.0.2.3/32, method: POST } }",
    "{ name: per-ip, key: client_ip, limit: 3/s, burst: 5 }",
    "{ name: window, key: [client_ip, path], limit: 4/min, algorithm: fixed_window }",
    "{ name: log, key: { header: x-k }, limit: 3/min, algorithm: sliding_log, on_missing: shared }",
    "{ name: required, match: { path: /b }, key: { header: x-k }, limit: 9/min, on_missing: deny }",
    "{ name: shadow, key: client_ip, limit: 1/s, throttle: shadow }",
    "{ name: soft, key: client_ip, limit: 4/min, throttle: soft 50% }",
    "{ name: delay, key: client_ip, limit: 2/s, burst: 1, throttle: delay 900ms }",
    "{ name: ban, match: { method: POST }, key: client_ip, limit: 2/s, on_limit: { ban: 5s } }",
    "{ name: charge, key: path, limit: 5/s, on_denied: charge, algorithm: token_bucket }",
    "{ name: slots, key: client_ip, in_flight: 6, except: { path: /b } }",
];

proptest! {
    #[test]
    fn prediction_is_the_decision_that_follows_and_changes_no_counter(
        chosen in prop::collection::vec(any::<bool>(), RULES.len()),
        sent in prop::collection::vec((1_u8..4, 0_usize..3, any::<bool>(), 0_usize..3, 0_u64..900), 1..60),
        boost in any::<bool>(),
    ) {
        let rules = RULES.iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(rule, _)| format!("  - {rule}\n"));
        let rules: String = rules.collect();
        prop_assume!(!rules.is_empty());
        let fixture = Fixture::new(&rules);
        let policy = fixture.policy();
        if let Some(rule) = policy.rules.position("per-ip").filter(|_| boost) {
            let key = policy.rules.parse_key(rule, "client_ip=192.0.2.1", 64).unwrap().unwrap().hash;
            let target = OverrideTarget { rule, key, key_parts: None };
            let change = QuotaChange::Factor(BoostFactor::from_hundredths(250).unwrap());
            let (action, until) = (OverrideAction::Boost(change), START.saturating_add(Duration::from_secs(9)));
            fixture.engine.overrides().set(&policy, &fixture.limiter, &target, action, until, START).unwrap();
        }
        let mut now = START;
        for (host, path, is_post, key, millis) in sent {
            now = now.saturating_add(Duration::from_millis(millis));
            let ip = format!("192.0.2.{host}");
            let mut parameters = vec![
                ("client_ip", ip.as_str()),
                ("path", ["/a", "/b", "/c"][path]),
                ("method", if is_post { "POST" } else { "GET" }),
            ];
            parameters.extend(["1", "2"].get(key).map(|value| ("header.x-k", *value)));
            let request = request(&parameters);
            // Ends overrides whose time is over, which any access does.
            let before = (fixture.saved(now), fixture.saved(now)).1;
            let predicted = fixture.predict(&request, now);
            let explained = fixture.explain(&request, now);
            prop_assert_eq!(&fixture.saved(now), &before);
            prop_assert_eq!(explained.rules.len(), policy.rules.rules().len());
            let sent = fixture.send(&request, now);
            prop_assert_eq!(&predicted, &sent, "{:?}", request);
            let is_rejected = matches!(sent, PredictedAction::Reject(..));
            prop_assert_eq!(explained.retry_after_seconds.is_some(), is_rejected);
        }
    }
}

#[test]
fn without_the_store_a_part_decides_if_there_is_one() {
    let rule = "  - { name: a, limit: 100/s, scope: { shared: lease, on_store_loss: strict_split } }\n";
    let mut fixture = Fixture::new(rule);
    let request = RequestDescription::default();
    let second = Duration::from_secs(1);
    assert_eq!(fixture.predict(&request, START), PredictedAction::Reject(RuleIndex(0), second));
    let (until, max_settle_time) = (START.saturating_add(60 * second), 60 * second);
    let part = StorePart { fraction: 0.5, from: START, until, max_settle_time };
    fixture.parts = PartsByGroup(vec![Some(part)]);
    assert_eq!(
        fixture.predict(&request, START.saturating_add(second)),
        PredictedAction::Forward(None),
        "a second after its start"
    );
}
