//! The limits of the rate limit service's documents: what each did, their heaviest keys, and the reset of one key.
//!
//! They are no rules, and have no names of their own. A limit is named by its domain and its name in statistics, which
//! several limits may have: `a.b` is that of the key `a.b`, and of `b` below `a`. A key is named by the entries of its
//! descriptor, as in `/explain`, or by its fingerprint, as far as it is tracked.

use std::cmp::Reverse;

use serde_json::{Value, json};

use super::AdminState;
use super::command_error::CommandError;
use super::key_counts::{counts_json, top_json};
use super::query::Query;
use weir_limiter::key::KeyHash;
use weir_limiter::timestamp::Timestamp;
use weir_rls::decider::{DocumentCounter, UnknownLimit};
use weir_rls::handler::RlsHandler;
use weir_rls::request::RlsEntry;
use weir_rls::rules::DocumentLimit;
use weir_telemetry::logging::AUDIT_TARGET;
use weir_telemetry::metrics::DescriptorHits;
use weir_telemetry::observe::top_keys::RuleTop;

/// Maximum number of names in the text of an error.
const MAX_NAMES: usize = 8;

/// Returns all limits with their hits; `None` without the service.
pub(super) fn list(state: &AdminState) -> Option<Value> {
    let service = state.process.rate_limit_service()?;
    let shown = |limit: &DocumentLimit| {
        let mut shown = limit_json(limit);
        shown["unlimited"] = limit.rate.is_none().into();
        shown["requests_per_unit"] = limit.rate.map(|rate| rate.requests_per_unit).into();
        shown["unit"] = limit.rate.map(|rate| rate.unit.as_str()).into();
        shown["shadow_mode"] = limit.shadow_mode.into();
        shown["quota_mode"] = limit.quota_mode.into();
        let has_hits = !limit.has_values_in_statistics && limit.rate.is_some();
        shown["hits"] = has_hits.then(|| hits_json(service.stats().hits(&limit.name))).into();
        shown
    };
    Some(service.document_limits().iter().map(shown).collect())
}

/// Returns the `max` heaviest keys of the limits that `query` names, or of all; `None` without the service.
pub(super) fn top(
    state: &AdminState,
    query: &Query<'_>,
    max: usize,
    now: Timestamp,
) -> Result<Option<Value>, CommandError> {
    let Some(service) = state.process.rate_limit_service() else {
        return query.get("domain").map_or(Ok(None), |_| Err(no_service()));
    };
    let mut limits = service.document_limits();
    if let Some(domain) = query.get("domain") {
        limits = of_domain(limits, &domain)?;
        if let Some(name) = query.get("name") {
            limits = named(limits, &name)?;
        }
    }
    limits.retain(|limit| limit.rate.is_some());
    let shown = limits
        .iter()
        .map(|limit| keys_json(state, limit, &state.top_keys.top(&limit.sketch_name(), max, now), now));
    Ok(Some(shown.collect()))
}

/// Returns the `max` heaviest keys of the limits with the most decisions of tracked keys, at most `max_limits`.
pub(super) fn heaviest(state: &AdminState, max: usize, max_limits: usize, now: Timestamp) -> Vec<Value> {
    let limits = state.process.rate_limit_service().map(RlsHandler::document_limits).unwrap_or_default();
    let counted = limits.iter().filter(|limit| limit.rate.is_some());
    let mut tops: Vec<(&DocumentLimit, RuleTop)> = counted
        .map(|limit| (limit, state.top_keys.top(&limit.sketch_name(), max, now)))
        .filter(|(_, top)| top.tracked > 0)
        .collect();
    tops.sort_by_key(|(_, top)| Reverse(top.decisions()));
    tops.iter().take(max_limits).map(|(limit, top)| keys_json(state, limit, top, now)).collect()
}

fn keys_json(state: &AdminState, limit: &DocumentLimit, top: &RuleTop, now: Timestamp) -> Value {
    let mut shown = limit_json(limit);
    shown.as_object_mut().into_iter().for_each(|shown| {
        shown.extend(top_json(top, |key| counts_json(state, key, now)));
    });
    shown
}

/// Note on a reset that frees nothing.
pub(super) const NO_COUNTER: &str =
    "there was no counter: nothing has been counted for this key, or its time is over";

/// `POST /limits/reset?domain=D&descriptor.KEY=VALUE`, or with `name=N&fingerprint=F` of a tracked key
pub(super) fn reset(state: &AdminState, query: &Query<'_>) -> Result<Value, CommandError> {
    let service = state.process.rate_limit_service().ok_or_else(no_service)?;
    let named = NamedKey::parse(query)?;
    let counter = find_counter(state, service, &named)?;
    let freed = counter.reset(&state.limiter);
    let fingerprint = state.limiter.hasher().fingerprint(counter.key);
    tracing::info!(
        target: AUDIT_TARGET,
        peer = %query.peer_text(),
        action = "reset",
        domain = named.domain,
        name = &*counter.name,
        key = counter.text.as_deref().unwrap_or("-"),
        fingerprint,
        "limit of a key changed"
    );
    let notes = [
        (freed == 0).then_some(NO_COUNTER),
        counter.is_shared.then_some("the limit is shared: only this instance is affected"),
    ];
    Ok(json!({
        "counters_freed": freed,
        "domain": named.domain,
        "name": &*counter.name,
        "key": counter.text,
        "fingerprint": fingerprint,
        "notes": notes.into_iter().flatten().collect::<Vec<_>>(),
    }))
}

/// A key as the parameters of a command name it.
#[derive(Debug, Default)]
struct NamedKey {
    domain: String,
    entries: Vec<(String, String)>,
    /// Name of the limit, and the fingerprint.
    name: Option<String>,
    fingerprint: Option<String>,
}

impl NamedKey {
    fn parse(query: &Query<'_>) -> Result<Self, CommandError> {
        let (mut key, mut domain) = (Self::default(), None);
        for (name, value) in query.pairs() {
            let field = match (&*name, name.split_once('.')) {
                ("domain", _) => &mut domain,
                ("name", _) => &mut key.name,
                ("fingerprint", _) => &mut key.fingerprint,
                (_, Some(("descriptor", entry))) => {
                    key.entries.push((entry.to_owned(), value.into_owned()));
                    continue;
                }
                _ => {
                    let known = "domain, descriptor.KEY, name, fingerprint";
                    let problem = format!("unknown parameter `{name}`, expected one of {known}");
                    return Err(CommandError::bad_request(problem));
                }
            };
            if field.replace(value.into_owned()).is_some() {
                return Err(CommandError::bad_request(format!("`{name}` occurs twice")));
            }
        }
        let has_entries = !key.entries.is_empty();
        if (key.name.is_some(), key.fingerprint.is_some()) != (!has_entries, !has_entries) {
            let problem = "expected either `descriptor.KEY` for each entry, or `name` and `fingerprint`";
            return Err(CommandError::bad_request(problem));
        }
        Ok(Self { domain: domain.unwrap_or_default(), ..key })
    }
}

fn find_counter(
    state: &AdminState,
    service: &RlsHandler,
    key: &NamedKey,
) -> Result<DocumentCounter, CommandError> {
    let unlimited = || CommandError::bad_request("the limit is unlimited, it has no counters");
    if let (Some(name), Some(fingerprint)) = (&key.name, &key.fingerprint) {
        let limits = named(of_domain(service.document_limits(), &key.domain)?, name)?;
        if limits.iter().all(|limit| limit.rate.is_none()) {
            return Err(unlimited());
        }
        let hash = state.limiter.hasher().key_of_fingerprint(fingerprint);
        let hash = hash.map_err(|error| CommandError::bad_request(format!("fingerprint: {error}")))?;
        let tracking = limits.iter().find(|limit| tracks(state, limit, hash));
        let counter = tracking.and_then(|limit| service.counter_with_key(limit, hash));
        return counter.ok_or_else(|| untracked(name));
    }
    service.document_counter(&key.domain, &key.entries).map_err(|unknown| match unknown {
        UnknownLimit::Unlimited => unlimited(),
        UnknownLimit::Domain | UnknownLimit::Descriptor => {
            match of_domain(service.document_limits(), &key.domain) {
                Ok(limits) => unknown_descriptor(&key.domain, &limits),
                Err(error) => error,
            }
        }
    })
}

/// Returns the limits of a domain.
fn of_domain(mut limits: Vec<DocumentLimit>, domain: &str) -> Result<Vec<DocumentLimit>, CommandError> {
    if limits.iter().any(|limit| *limit.domain == *domain) {
        limits.retain(|limit| *limit.domain == *domain);
        return Ok(limits);
    }
    let problem = format!("no document has limits in the domain `{domain}`");
    Err(CommandError::unknown_name(problem, domain, limits.iter().map(|limit| &*limit.domain)))
}

/// Returns the limits with a name, which is unambiguous only together with a descriptor.
fn named(mut limits: Vec<DocumentLimit>, name: &str) -> Result<Vec<DocumentLimit>, CommandError> {
    if limits.iter().any(|limit| *limit.name == *name) {
        limits.retain(|limit| *limit.name == *name);
        return Ok(limits);
    }
    let problem = format!("no limit of this domain has the name `{name}`");
    Err(CommandError::unknown_name(problem, name, limits.iter().map(|limit| &*limit.name)))
}

/// Whether a key is among the tracked ones of a limit. All limits of a unit have their counters in one table, so the key
/// alone does not say whose it is.
fn tracks(state: &AdminState, limit: &DocumentLimit, key: KeyHash) -> bool {
    let top = state.top_keys.top(&limit.sketch_name(), usize::MAX, state.process.now());
    top.keys.iter().any(|tracked| tracked.key == key)
}

fn untracked(name: &str) -> CommandError {
    CommandError::not_found(format!(
        "the limit `{name}` tracks no key with this fingerprint, use `descriptor.KEY=VALUE` for each entry of the \
         descriptor in place of `name` and `fingerprint` (/limits/top lists the tracked keys)"
    ))
}

fn unknown_descriptor(domain: &str, limits: &[DocumentLimit]) -> CommandError {
    let names = limits.iter().map(|limit| &*limit.name).take(MAX_NAMES).collect::<Vec<_>>().join(", ");
    let more = if limits.len() > MAX_NAMES { ", …" } else { "" };
    let problem =
        format!("no limit of the domain `{domain}` has these entries, its limits are {names}{more}");
    CommandError::not_found(problem)
}

fn no_service() -> CommandError {
    CommandError::not_found("there is no rate limit service, so no document has limits")
}

fn limit_json(limit: &DocumentLimit) -> Value {
    let entry = |entry: &RlsEntry| {
        let value = Some(&*entry.value).filter(|value| !value.is_empty());
        json!({ "key": entry.key, "value": value })
    };
    json!({
        "domain": limit.domain,
        "name": &*limit.name,
        "descriptor": limit.entries.iter().map(entry).collect::<Vec<_>>(),
    })
}

fn hits_json(hits: DescriptorHits) -> Value {
    let DescriptorHits { total, over_limit, near_limit, within_limit, shadow_mode } = hits;
    json!({
        "total": total,
        "over_limit": over_limit,
        "near_limit": near_limit,
        "within_limit": within_limit,
        "shadow_mode": shadow_mode,
    })
}
