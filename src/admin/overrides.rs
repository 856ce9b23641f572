//! `POST /limits/reset`, `boost`, `ban` and `unban`, and the list of overrides in force.
//!
//! Each command changes one key of one rule and writes one line to the log, with the target `weir::audit`. Keys that may
//! be credentials are not written: neither to the log nor to a list.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use super::AdminState;
use super::query::Query;
use super::response::{self, FullResponse};
use crate::config::diagnostic::ValueError;
use crate::config::parse;
use crate::engine::Policy;
use crate::engine::overrides::{
    self, ActiveOverride, MAX_OVERRIDES, OverrideAction, OverrideError, OverrideKind, OverrideTarget,
};
use crate::explain::{OverrideReport, override_report};
use crate::limiter::key::KeyHash;
use crate::limiter::quota::{BoostFactor, QuotaChange};
use crate::limiter::timestamp::Timestamp;
use crate::rules::rule::{Action, LimitAction, LimitSource, Rule, Throttle};
use crate::rules::selection::CheckRole;
use crate::telemetry::rfc3339;

/// Maximum duration of an override.
const MAX_DURATION: Duration = Duration::from_secs(30 * 86_400);

/// Hundredths in a factor of 1.
const HUNDREDTHS: u32 = 100;

/// Why a command is rejected.
#[derive(Debug)]
struct CommandError {
    status: StatusCode,
    problem: String,
}

impl CommandError {
    fn bad_request(problem: impl fmt::Display) -> Self {
        Self { status: StatusCode::BAD_REQUEST, problem: problem.to_string() }
    }

    fn invalid(parameter: &str, ValueError { message, hint }: &ValueError) -> Self {
        let hint = hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
        Self::bad_request(format!("{parameter}: {message}{hint}"))
    }
}

impl From<OverrideError> for CommandError {
    fn from(error: OverrideError) -> Self {
        let status = match error {
            OverrideError::Full => StatusCode::CONFLICT,
            OverrideError::NoLimits
            | OverrideError::Remote
            | OverrideError::SeveralLimits
            | OverrideError::TooLarge => StatusCode::BAD_REQUEST,
        };
        Self { status, problem: error.to_string() }
    }
}

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
    let now = state.process.now();
    let all: Vec<Value> = state.overrides.active(now).iter().map(|entry| shown(state, entry, now)).collect();
    response::json(&json!({ "max": MAX_OVERRIDES, "overrides": all }))
}

/// `POST /limits/reset?rule=R&key=K`
pub(super) fn reset(state: &AdminState, query: &Query<'_>) -> FullResponse {
    run(state, query, &[], |command| {
        let freed = overrides::reset(command.policy, &state.limiter, &command.target)?;
        command.audit("reset", "", None);
        Ok(json!({ "counters_freed": freed }))
    })
}

/// `POST /limits/boost?rule=R&key=K&factor=3&for=1h`, or with `limit=500/s`; `factor=1` ends it.
pub(super) fn boost(state: &AdminState, query: &Query<'_>) -> FullResponse {
    run(state, query, &["factor", "limit", "for"], |command| {
        let change = match (query.get("factor"), query.get("limit")) {
            (Some(factor), None) => parse_factor(&factor)?.map(QuotaChange::Factor),
            (None, Some(limit)) => {
                let limit = parse::rate(&limit).map_err(|error| CommandError::invalid("limit", &error))?;
                Some(QuotaChange::Limit(limit))
            }
            _ => return Err(CommandError::bad_request("expected exactly one of `factor` and `limit`")),
        };
        match change {
            Some(change) => command.set(query, OverrideAction::Boost(change)),
            None => Ok(command.clear(OverrideKind::Boost, "end boost")),
        }
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
        let mut done = act(&command)?;
        for (name, value) in command.description() {
            done[name] = value;
        }
        Ok(done)
    });
    match result {
        Ok(done) => response::json(&done),
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
        check_parameters(query, parameters)?;
        let name = query.get("rule").ok_or_else(|| CommandError::bad_request("`rule` is missing"))?;
        let names = policy.rules.rules().iter().map(|rule| &*rule.name);
        let index = policy.rules.position(&name).ok_or_else(|| {
            let hint = parse::nearest_name(&name, names);
            let hint = hint.map(|name| format!(", did you mean `{name}`?")).unwrap_or_default();
            CommandError { status: StatusCode::NOT_FOUND, problem: format!("unknown rule `{name}`{hint}") }
        })?;
        let rule = policy.rules.get(index).ok_or(OverrideError::NoLimits)?;
        let Action::Limit(limiting) = &rule.action else { return Err(OverrideError::NoLimits.into()) };
        let key_text = query.get("key").filter(|_| !limiting.key.may_be_secret());
        let key = match (query.get("key"), query.get("fingerprint")) {
            (Some(_), Some(_)) => {
                return Err(CommandError::bad_request("expected only one of `key` and `fingerprint`"));
            }
            (None, Some(fingerprint)) => fingerprint
                .parse::<KeyHash>()
                .map_err(|error| CommandError::bad_request(format!("fingerprint: {error}")))?,
            (key, None) => policy
                .rules
                .parse_key(index, &key.unwrap_or_default(), policy.identify.ipv6_prefix)
                .ok_or(OverrideError::NoLimits)?
                .map_err(|error| CommandError::bad_request(format!("key: {error}")))?,
        };
        Ok(Self {
            state,
            policy,
            rule,
            limiting,
            target: OverrideTarget { rule: index, key, key_text: key_text.map(Into::into) },
            peer: query.peer.map_or_else(|| "-".to_owned(), |peer| peer.to_string()),
            now: state.process.now(),
        })
    }

    fn set(&self, query: &Query<'_>, action: OverrideAction) -> Result<Value, CommandError> {
        let until = self.now.saturating_add(parse_duration(query)?);
        let Self { state, policy, target, now, .. } = self;
        let entry = state.overrides.set(policy, &state.limiter, target, action, until, *now)?;
        let OverrideReport { change, until, .. } = report(state, &entry, *now);
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
        let mut done = self.clear(OverrideKind::Ban, "unban");
        let limits = self.policy.rules.limits_by_key(self.target.rule).into_iter();
        let bans = limits.filter(|(role, _)| *role == CheckRole::Ban);
        let ended =
            bans.filter(|(_, limit)| self.state.limiter.reset_counter(*limit, self.target.key)).count();
        if ended > 0 {
            done["was_in_force"] = true.into();
        }
        done
    }

    /// Writes the audit line.
    fn audit(&self, action: &str, change: &str, until: Option<&str>) {
        tracing::info!(
            target: "weir::audit",
            peer = %self.peer,
            action,
            rule = %self.rule.name,
            key = self.target.key_text.as_deref().unwrap_or("-"),
            fingerprint = %self.target.key,
            change,
            until = until.unwrap_or("-"),
            "limit of a key changed"
        );
    }

    /// Returns the fields that every response has.
    fn description(&self) -> [(&'static str, Value); 5] {
        let Self { state, policy, target, .. } = self;
        let limits = policy.rules.limits_by_key(target.rule).into_iter();
        let counters = limits.filter(|(role, _)| *role != CheckRole::Ban).filter_map(|(_, limit)| {
            let quota = state.limiter.quota_in_force(limit, target.key, self.now)?;
            let usage = state.limiter.usage_with_holds(limit, target.key, self.now)?;
            let shares = u32::from(quota.units_per_request().get());
            Some(json!({
                "limit": quota.limit().to_string(),
                "algorithm": quota.algorithm().as_str(),
                "burst": quota.burst(),
                "used": usage.used.div_ceil(shares),
                "remaining": usage.remaining / shares,
            }))
        });
        [
            ("rule", (*self.rule.name).into()),
            ("key", target.key_text.as_deref().into()),
            ("fingerprint", target.key.to_string().into()),
            ("limits", counters.collect()),
            ("notes", self.notes().into()),
        ]
    }

    /// Returns what an operator might not expect.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
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

fn check_parameters(query: &Query<'_>, parameters: &[&str]) -> Result<(), CommandError> {
    let known = || ["rule", "key", "fingerprint"].into_iter().chain(parameters.iter().copied());
    let mut seen = Vec::new();
    for (name, _) in query.pairs() {
        let Some(known) = known().find(|known| *known == name) else {
            let names = known().collect::<Vec<_>>().join(", ");
            return Err(CommandError::bad_request(format!(
                "unknown parameter `{name}`, expected one of {names}"
            )));
        };
        if seen.contains(&known) {
            return Err(CommandError::bad_request(format!("`{known}` occurs twice")));
        }
        seen.push(known);
    }
    Ok(())
}

/// Reads `for`.
fn parse_duration(query: &Query<'_>) -> Result<Duration, CommandError> {
    let text =
        query.get("for").ok_or_else(|| CommandError::bad_request("`for` is missing, such as `for=1h`"))?;
    let duration = parse::duration(&text).map_err(|error| CommandError::invalid("for", &error))?;
    if duration.is_zero() || duration > MAX_DURATION {
        return Err(CommandError::bad_request(format!(
            "for: expected more than 0s and at most 30d, got `{text}`"
        )));
    }
    Ok(duration)
}

/// Reads a factor with up to two decimals; `None` is a factor of 1.
fn parse_factor(text: &str) -> Result<Option<BoostFactor>, CommandError> {
    let invalid = || {
        let most = BoostFactor::MAX;
        let expected = "factor: expected a number from 1 to";
        CommandError::bad_request(format!("{expected} {most} with up to two decimals, got `{text}`"))
    };
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || decimals.len() > 2 {
        return Err(invalid());
    }
    let decimals = format!("{decimals:0<2}").parse::<u32>().map_err(|_| invalid())?;
    let hundredths = whole.parse::<u32>().ok().and_then(|whole| whole.checked_mul(HUNDREDTHS));
    let hundredths = hundredths.and_then(|whole| whole.checked_add(decimals)).ok_or_else(invalid)?;
    if hundredths == HUNDREDTHS {
        return Ok(None);
    }
    BoostFactor::from_hundredths(hundredths).map(Some).ok_or_else(invalid)
}

fn report(state: &AdminState, entry: &ActiveOverride, now: Timestamp) -> OverrideReport {
    let until = state.process.wall_clock().saturating_add(entry.until.since(now));
    override_report(entry, rfc3339(until))
}

fn shown(state: &AdminState, entry: &ActiveOverride, now: Timestamp) -> Value {
    // Strings always serialise.
    serde_json::to_value(report(state, entry, now)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_have_up_to_two_decimals() {
        let factor = |text: &str| parse_factor(text).map(|factor| factor.map(|factor| factor.to_string()));
        for (text, expected) in
            [("1", None), ("1.00", None), ("3", Some("3")), ("1.5", Some("1.5")), ("1000", Some("1000"))]
        {
            assert_eq!(factor(text).unwrap().as_deref(), expected, "{text}");
        }
        for text in
            ["", "0", "0.5", "-3", "+3", "1.", ".5", "1.555", "1000.01", "1e3", "NaN", "99999999999", "3x"]
        {
            assert!(factor(text).is_err(), "{text}");
        }
    }
}
