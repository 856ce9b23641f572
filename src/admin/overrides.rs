//! `POST /limits/reset`, `boost`, `ban` and `unban`, and the list of overrides in force.
//!
//! Each command changes one key of one rule and writes one line to the log, with the target `weir::audit`. Keys are
//! written as `log_keys` permits, to the log, to responses and to the list.

mod parameters;

use serde_json::{Value, json};

use self::parameters::{check_parameters, parse_boost, parse_duration};
use super::command_error::CommandError;
use super::query::Query;
use super::response::{self, FullResponse};
use super::{AdminState, document_limits};
use weir_limiter::timestamp::Timestamp;
use weir_policy::engine::Policy;
use weir_policy::engine::overrides::{
    self, ActiveOverride, MAX_OVERRIDES, OverrideAction, OverrideError, OverrideKind, OverrideTarget,
};
use weir_policy::rules::RuleIndex;
use weir_policy::rules::key_text::ParsedKey;
use weir_policy::rules::rule::{Action, LimitAction, LimitSource, Rule, Throttle};
use weir_policy::rules::selection::CheckRole;
use weir_replay::explain::{OverrideReport, override_report};
use weir_telemetry::logging::AUDIT_TARGET;
use weir_telemetry::rfc3339;

/// Path of the command after which a ban is expected.
const BAN_PATH: &str = "/limits/ban";

/// A command with its rule and key.
struct KeyCommand<'a> {
    state: &'a AdminState,
    policy: &'a Policy,
    rule: &'a Rule,
    limiting: &'a LimitAction,
    target: OverrideTarget,
    peer: String,
    now: Timestamp,
}

/// `GET /limits/overrides`
pub(super) fn list(state: &AdminState, _: &Query<'_>) -> FullResponse {
    let (now, policy) = (state.process.now(), state.process.policy());
    let all: Vec<Value> =
        state.overrides.active(now).iter().map(|entry| shown(state, &policy, entry, now)).collect();
    response::json(&json!({ "max": MAX_OVERRIDES, "overrides": all }))
}

/// `POST /limits/reset?rule=R&key=K`, or with a domain and a descriptor of the documents
pub(super) fn reset(state: &AdminState, query: &Query<'_>) -> FullResponse {
    if query.get("domain").is_some() {
        return command_response(document_limits::reset(state, query));
    }
    run(state, query, &[], |command| {
        let freed = overrides::reset(command.policy, &state.limiter, &command.target)?;
        command.audit("reset", "", None);
        Ok(json!({ "counters_freed": freed }))
    })
}

/// `POST /limits/boost?rule=R&key=K&factor=3&for=1h`, or with `limit=500/s`; `factor=1` ends it.
pub(super) fn boost(state: &AdminState, query: &Query<'_>) -> FullResponse {
    run(state, query, &["factor", "limit", "for"], |command| match parse_boost(query)? {
        Some(action) => command.set(query, action),
        None => Ok(command.clear(OverrideKind::Boost, "end boost")),
    })
}

/// `POST /limits/ban?rule=R&key=K&for=10m`
pub(super) fn ban(state: &AdminState, query: &Query<'_>) -> FullResponse {
    run(state, query, &["for"], |command| command.set(query, OverrideAction::Ban))
}

/// `POST /limits/unban?rule=R&key=K`
pub(super) fn unban(state: &AdminState, query: &Query<'_>) -> FullResponse {
    run(state, query, &[], |command| Ok(command.unban()))
}

/// Runs a command that has these parameters besides the rule and the key; returns its response.
fn run(
    state: &AdminState,
    query: &Query<'_>,
    parameters: &[&str],
    act: impl FnOnce(&KeyCommand<'_>) -> Result<Value, CommandError>,
) -> FullResponse {
    let policy = state.process.policy();
    let result = KeyCommand::parse(state, &policy, query, parameters).and_then(|command| {
        let mut result = act(&command)?;
        for (name, value) in command.description(query, &result) {
            result[name] = value;
        }
        Ok(result)
    });
    command_response(result)
}

fn command_response(result: Result<Value, CommandError>) -> FullResponse {
    match result {
        Ok(result) => response::json(&result),
        Err(CommandError { status, problem }) => response::text(status, format!("{problem}\n")),
    }
}

impl<'a> KeyCommand<'a> {
    /// Reads the rule and the key, and checks that no parameter is unknown or repeated.
    fn parse(
        state: &'a AdminState,
        policy: &'a Policy,
        query: &Query<'_>,
        parameters: &[&str],
    ) -> Result<Self, CommandError> {
        if state.replacement.is_frozen() {
            // The new process would not learn of it.
            return Err(CommandError::unavailable("another process takes over: try again"));
        }
        check_parameters(query, parameters)?;
        let (index, rule, limiting) = rule_of(policy, query)?;
        if limiting.streams.as_ref().is_some_and(|streams| streams.is_per_stream) {
            return Err(CommandError::bad_request(
                "the key of this rule is `stream`: each stream has a counter of its own",
            ));
        }
        let target = parse_target(state, policy, query, index)?;
        let peer = query.peer_text();
        Ok(Self { state, policy, rule, limiting, target, peer, now: state.process.now() })
    }

    fn set(&self, query: &Query<'_>, action: OverrideAction) -> Result<Value, CommandError> {
        let until = self.now.saturating_add(parse_duration(query)?);
        let Self { state, policy, target, now, .. } = self;
        let entry = state.overrides.set(policy, &state.limiter, target, action, until, *now)?;
        let OverrideReport { change, until, .. } = report(state, policy, &entry, *now);
        self.audit(action.kind().as_str(), change.as_deref().unwrap_or_default(), Some(&until));
        Ok(json!({ "until": until, "change": change }))
    }

    fn clear(&self, kind: OverrideKind, action: &str) -> Value {
        let Self { state, policy, target, now, .. } = self;
        let was_in_force = state.overrides.clear(policy, &state.limiter, target, kind, *now);
        self.audit(action, "", None);
        json!({ "was_in_force": was_in_force })
    }

    /// Ends an operator's ban, and one that a rejection has started.
    fn unban(&self) -> Value {
        let mut result = self.clear(OverrideKind::Ban, "unban");
        let limits = self.policy.rules.limits_by_key(self.target.rule).into_iter();
        let bans = limits.filter(|(role, _)| *role == CheckRole::Ban);
        let ended =
            bans.filter(|(_, limit)| self.state.limiter.reset_counter(*limit, self.target.key)).count();
        if ended > 0 {
            result["was_in_force"] = true.into();
        }
        result
    }

    /// Writes the audit line.
    fn audit(&self, action: &str, change: &str, until: Option<&str>) {
        tracing::info!(
            target: AUDIT_TARGET,
            peer = %self.peer,
            action,
            rule = %self.rule.name,
            key = self.key_text().as_deref().unwrap_or("-"),
            fingerprint = %self.fingerprint(),
            change,
            until = until.unwrap_or("-"),
            "limit of a key changed"
        );
    }

    /// Returns the key as `log_keys` permits; `None` if the command names its fingerprint.
    fn key_text(&self) -> Option<String> {
        let parts = self.target.key_parts.as_deref()?;
        Some(self.state.key_writer(self.policy).write_parts(&self.limiting.key, parts.to_vec()))
    }

    fn fingerprint(&self) -> String {
        self.state.limiter.hasher().fingerprint(self.target.key)
    }

    /// Returns the fields that every response has besides those in `result`.
    fn description(&self, query: &Query<'_>, result: &Value) -> [(&'static str, Value); 6] {
        let Self { state, policy, target, now, .. } = self;
        let limits = policy.rules.limits_by_key(target.rule).into_iter();
        let banned = overrides::time_banned(policy, &state.limiter, target.rule, target.key, *now);
        let counters = limits.filter(|(role, _)| *role != CheckRole::Ban).filter_map(|(_, limit)| {
            let quota = state.limiter.quota_in_force(limit, target.key, *now)?;
            let usage = state.limiter.usage_with_holds(limit, target.key, *now)?;
            let shares = u32::from(quota.units_per_request().get());
            Some(json!({
                "limit": quota.limit().to_string(),
                "algorithm": quota.algorithm().as_str(),
                "burst": quota.burst(),
                "used": usage.used.div_ceil(shares),
                // As in headers: nothing is left while a ban runs.
                "remaining": if banned.is_some() { 0 } else { usage.remaining / shares },
            }))
        });
        let end = |left| rfc3339(state.process.wall_clock().saturating_add(left));
        let is_unexpected = banned.is_some() && query.path != BAN_PATH;
        [
            ("rule", (*self.rule.name).into()),
            ("key", self.key_text().into()),
            ("fingerprint", self.fingerprint().into()),
            ("limits", counters.collect()),
            ("banned_until", banned.map(end).into()),
            ("notes", self.notes(is_unexpected, result["counters_freed"] == 0).into()),
        ]
    }

    /// Returns what an operator might not expect.
    fn notes(&self, is_still_banned: bool, had_no_counter: bool) -> Vec<String> {
        let mut notes = Vec::new();
        if had_no_counter {
            notes.push(document_limits::NO_COUNTER.to_owned());
        }
        if is_still_banned {
            notes.push("still banned, POST /limits/unban lifts it".to_owned());
        }
        if matches!(self.limiting.source, LimitSource::Shared(_)) {
            notes.push("the rule is shared (`scope: shared`): only this instance is affected".to_owned());
        }
        if self.limiting.throttle == Throttle::Shadow {
            notes.push("the rule is in shadow mode: it rejects nothing, banned or not".to_owned());
        }
        let is_other = |rule: &&Rule| rule.counter() == self.rule.counter() && rule.name != self.rule.name;
        let others: Vec<&str> =
            self.policy.rules.rules().iter().filter(is_other).map(|rule| &*rule.name).collect();
        if self.limiting.counter.is_some() && !others.is_empty() {
            notes.push(format!("rules with the same counter are affected too: {}", others.join(", ")));
        }
        if self.limiting.limits.iter().any(|limit| limit.own_key().is_some()) {
            notes.push("limits of wider networks are not affected".to_owned());
        }
        notes
    }
}

/// Returns the rule that `rule` names.
fn rule_of<'p>(
    policy: &'p Policy,
    query: &Query<'_>,
) -> Result<(RuleIndex, &'p Rule, &'p LimitAction), CommandError> {
    let name = query.get("rule").ok_or_else(|| CommandError::bad_request("`rule` is missing"))?;
    let names = policy.rules.rules().iter().map(|rule| &*rule.name);
    let index = policy
        .rules
        .position(&name)
        .ok_or_else(|| CommandError::unknown_name(format_args!("unknown rule `{name}`"), &name, names))?;
    let rule = policy.rules.get(index).ok_or(OverrideError::NoLimits)?;
    let Action::Limit(limiting) = &rule.action else { return Err(OverrideError::NoLimits.into()) };
    Ok((index, rule, limiting))
}

/// Reads `key` or `fingerprint`.
fn parse_target(
    state: &AdminState,
    policy: &Policy,
    query: &Query<'_>,
    rule: RuleIndex,
) -> Result<OverrideTarget, CommandError> {
    match (query.get("key"), query.get("fingerprint")) {
        (Some(_), Some(_)) => Err(CommandError::bad_request("expected only one of `key` and `fingerprint`")),
        (None, Some(fingerprint)) => {
            let key = state.limiter.hasher().key_of_fingerprint(&fingerprint);
            let key = key.map_err(|error| CommandError::bad_request(format!("fingerprint: {error}")))?;
            Ok(OverrideTarget { rule, key, key_parts: None })
        }
        (key, None) => {
            let prefix = policy.identify.ipv6_prefix;
            let key = policy.rules.parse_key(rule, &key.unwrap_or_default(), prefix);
            let ParsedKey { hash, parts } = key
                .ok_or(OverrideError::NoLimits)?
                .map_err(|error| CommandError::bad_request(format!("key: {error}")))?;
            let key_parts = (!parts.is_empty()).then(|| parts.into());
            Ok(OverrideTarget { rule, key: hash, key_parts })
        }
    }
}

fn report(state: &AdminState, policy: &Policy, entry: &ActiveOverride, now: Timestamp) -> OverrideReport {
    let until = state.process.wall_clock().saturating_add(entry.until.since(now));
    let limiting =
        policy.rules.position(&entry.rule).and_then(|rule| policy.rules.get(rule)?.action.limiting());
    let key = entry.key_parts.as_ref().zip(limiting);
    let key =
        key.map(|(parts, limiting)| state.key_writer(policy).write_parts(&limiting.key, parts.to_vec()));
    override_report(entry, key, state.limiter.hasher(), rfc3339(until))
}

fn shown(state: &AdminState, policy: &Policy, entry: &ActiveOverride, now: Timestamp) -> Value {
    // Strings always serialise.
    serde_json::to_value(report(state, policy, entry, now)).unwrap_or_default()
}
