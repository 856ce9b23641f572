//! What the new process has to know beside the counters.

use serde::{Deserialize, Serialize};

use crate::app::RunningApp;
use weir_config::parse;
use weir_limiter::adaptive::limits::LearnedLimit;
use weir_limiter::feedback::learned::LearnedShare;
use weir_limiter::key::KeyHash;
use weir_limiter::quota::{BoostFactor, QuotaChange};
use weir_limiter::timestamp::Timestamp;
use weir_net::listener::taken_over::SocketDescription;
use weir_policy::engine::overrides::{OverrideAction, OverrideTarget};
use weir_policy::rules::key_text::LabeledKeyPart;

/// The first message of the old process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    /// Of the sockets, in the order in which they follow; before them comes the channel for connections.
    pub(super) sockets: Vec<SocketDescription>,
}

/// The message of the new process that it is prepared.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Prepared {
    /// Names of its listeners.
    pub(super) listeners: Vec<Box<str>>,
    /// What its sockets are bound for.
    pub(super) purposes: Vec<Box<str>>,
}

/// What the old process has been told, or has found out.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Learned {
    overrides: Vec<MovedOverride>,
    /// Limits of rules with `in_flight: auto`, by rule.
    adaptive: Vec<(Box<str>, Vec<LearnedLimit>)>,
    /// What the limits of upstreams have learned, by the name of the upstream.
    #[serde(default)]
    upstreams: Vec<(Box<str>, Vec<LearnedLimit>)>,
    /// Shares of limits that follow a provider, by rule.
    shares: Vec<(Box<str>, Vec<LearnedShare>)>,
}

/// An override that an operator has set.
#[derive(Debug, Serialize, Deserialize)]
struct MovedOverride {
    rule: Box<str>,
    key: [u64; 2],
    key_parts: Option<Vec<(String, Option<String>)>>,
    /// How the limit is raised; `None` for a ban.
    boost: Option<MovedBoost>,
    /// Nanoseconds for which it stays in force.
    remaining: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MovedBoost {
    Hundredths(u32),
    /// As in a configuration.
    Limit(String),
}

impl MovedBoost {
    fn new(change: QuotaChange) -> Self {
        match change {
            QuotaChange::Factor(factor) => Self::Hundredths(factor.hundredths()),
            QuotaChange::Limit(limit) => Self::Limit(limit.to_string()),
        }
    }

    fn change(&self) -> Option<QuotaChange> {
        match self {
            Self::Hundredths(factor) => BoostFactor::from_hundredths(*factor).map(QuotaChange::Factor),
            Self::Limit(limit) => parse::rate(limit).ok().map(QuotaChange::Limit),
        }
    }
}

impl Learned {
    /// Returns what the running process knows.
    pub(super) fn of(running: &RunningApp) -> Self {
        let now = running.shared.clock.now();
        let overrides = running.generations.engine.overrides().active(now).into_iter();
        let overrides = overrides.map(|active| MovedOverride {
            rule: active.rule,
            key: active.key.words(),
            key_parts: active
                .key_parts
                .map(|parts| parts.into_iter().map(|part| (part.label, part.value)).collect()),
            boost: match active.action {
                OverrideAction::Boost(change) => Some(MovedBoost::new(change)),
                OverrideAction::Ban => None,
            },
            remaining: active.until.as_nanos().saturating_sub(now.as_nanos()),
        });
        let generation = running.shared.generation.load();
        let adaptive = generation.policy.rules.adaptive_rules();
        let shares = running.shared.limiter.feedback().all().into_iter();
        Self {
            overrides: overrides.collect(),
            adaptive: adaptive.map(|(rule, limits, _)| (rule.name.clone(), limits.learned())).collect(),
            upstreams: generation
                .upstreams
                .iter()
                .filter_map(|upstream| Some((upstream.settings().name.clone(), upstream.gate()?.learned())))
                .collect(),
            shares: shares.map(|(name, rule)| (name, rule.learned(now))).collect(),
        }
    }

    /// Puts it in force in this process.
    pub(super) fn apply(self, running: &RunningApp) {
        let policy = std::sync::Arc::clone(&running.shared.generation.load().policy);
        let (limiter, now) = (&running.shared.limiter, running.shared.clock.now());
        for (rule, limits, range) in policy.rules.adaptive_rules() {
            let learned = self.adaptive.iter().find(|(name, _)| *name == rule.name);
            learned.iter().for_each(|(_, learned)| limits.restore(learned, range));
        }
        for upstream in &running.shared.generation.load().upstreams {
            let learned = self.upstreams.iter().find(|(name, _)| *name == upstream.settings().name);
            if let (Some((_, learned)), Some(gate)) = (learned, upstream.gate()) {
                gate.restore(learned);
            }
        }
        for (name, rule) in limiter.feedback().all() {
            let learned = self.shares.iter().find(|(learned, _)| *learned == name);
            learned.iter().for_each(|(_, learned)| rule.restore(learned, now, limiter));
        }
        for moved in self.overrides {
            let Some(rule) = policy.rules.position(&moved.rule) else {
                tracing::warn!(rule = %moved.rule, "an override has ended: the configuration no longer has its rule");
                continue;
            };
            let parts = moved.key_parts.map(|parts| {
                parts.into_iter().map(|(label, value)| LabeledKeyPart { label, value }).collect()
            });
            let target = OverrideTarget { rule, key: KeyHash::from_words(moved.key), key_parts: parts };
            let action = match moved.boost.as_ref().map(MovedBoost::change) {
                None => OverrideAction::Ban,
                Some(Some(change)) => OverrideAction::Boost(change),
                Some(None) => continue,
            };
            let until = Timestamp::from_nanos(now.as_nanos().saturating_add(moved.remaining));
            let set =
                running.generations.engine.overrides().set(&policy, limiter, &target, action, until, now);
            if let Err(error) = set {
                tracing::warn!(rule = %moved.rule, %error, "an override has ended with the old process");
            }
        }
    }
}
