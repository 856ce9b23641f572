//! `scope` of a rule: where its limit is counted, and how instances share it.

use std::time::Duration;

use super::context::CompileContext;
use super::remote_limit;
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::parse::{self};
use crate::quoting::backquoted_list;
use crate::{defaults, raw};
use weir_limiter::leases;
use weir_policy::rules::key::KeyTemplate;
use weir_policy::rules::rule::{LimitAction, LimitSource};
use weir_policy::rules::shared_limit::{InstanceSource, Mode, OnStoreLoss, SharedLimit};

/// A key that belongs to one kind of scope, and whether it is given.
type KeyPresence = (&'static str, bool);

/// Compiles where the limit of the rule at `at` is counted.
pub(super) fn compile_source(
    raw: &raw::Rule,
    key: &KeyTemplate,
    at: At<'_>,
    context: &mut CompileContext<'_>,
) -> LimitSource {
    let scope_at = at.key("scope");
    let shared = match raw.scope.as_deref() {
        None | Some(raw::Scope::Word(raw::ScopeWord::Local)) => return LimitSource::Local,
        Some(raw::Scope::Word(raw::ScopeWord::Shared)) => compile_shared_limit(
            &raw::ScopeMap { shared: Some(Mode::Lease), ..raw::ScopeMap::default() },
            scope_at.single_item(),
        ),
        Some(raw::Scope::Map(map)) if is_shared(map) => {
            report_inapplicable_keys(map, scope_at.single_item());
            compile_shared_limit(map, scope_at.single_item())
        }
        Some(raw::Scope::Map(map)) => {
            report_inapplicable_keys(map, scope_at);
            let remote = remote_limit::compile(raw, key, at, context);
            return remote.map_or(LimitSource::Local, |remote| LimitSource::Remote(Box::new(remote)));
        }
    };
    let Some(shared) = shared else { return LimitSource::Local };
    context.needs_store |= shared.needs_store();
    if shared.needs_store() && !context.store.is_given {
        scope_at.error(missing_store());
    }
    LimitSource::Shared(shared)
}

/// Compiles how instances of the rate limit service share the limits of its documents; `None` if each
/// instance counts for itself. With a store they are shared by default.
pub(super) fn compile_rls_scope(
    raw: Option<&raw::RlsScope>,
    at: At<'_>,
    has_store: bool,
) -> Option<SharedLimit> {
    let map = match raw {
        Some(raw::RlsScope::Word(raw::ScopeWord::Local)) => return None,
        None if !has_store => return None,
        None | Some(raw::RlsScope::Word(raw::ScopeWord::Shared)) => raw::RlsScopeMap::default(),
        Some(raw::RlsScope::Map(map)) => map.clone(),
    };
    let map = raw::ScopeMap {
        shared: map.shared.or(Some(Mode::Lease)),
        wait: map.wait,
        on_store_loss: map.on_store_loss,
        fairness: map.fairness,
        ..raw::ScopeMap::default()
    };
    if map.shared == Some(Mode::Split) {
        let error = ValueError::new("`split` is not supported for `rls`, expected `lease` or `exact`");
        at.key("shared")
            .error(error.with_hint("`on_store_loss: split` divides limits while the store is unavailable"));
        return None;
    }
    if !has_store {
        at.single_item().error(missing_store());
    }
    compile_shared_limit(&map, at.single_item())
}

/// Returns the problem of a rule that needs the store, if there is none.
pub(super) fn missing_store() -> ValueError {
    let error = ValueError::new("needs a `store`, and there is none");
    error.with_hint("add `store: { redis: \"redis://HOST:6379\" }` at the top level")
}

/// Whether the instances share the limit.
pub(super) fn is_shared(map: &raw::ScopeMap) -> bool {
    map.rls.is_none()
        && (map.shared.is_some() || map.instances.is_some() || !remote_keys(map).any(|(_, given)| given))
}

fn remote_keys(map: &raw::ScopeMap) -> impl Iterator<Item = KeyPresence> {
    [
        ("domain", map.domain.is_some()),
        ("descriptor", map.descriptor.is_some()),
        ("timeout", map.timeout.is_some()),
        ("on_error", map.on_error.is_some()),
        ("tls", map.tls.is_some()),
    ]
    .into_iter()
}

fn shared_keys(map: &raw::ScopeMap) -> impl Iterator<Item = KeyPresence> {
    [
        ("shared", map.shared.is_some()),
        ("instances", map.instances.is_some()),
        ("wait", map.wait.is_some()),
        ("on_store_loss", map.on_store_loss.is_some()),
        ("fairness", map.fairness.is_some()),
        ("priority", map.priority.is_some()),
    ]
    .into_iter()
}

/// Reports keys that belong to the other kind of scope.
fn report_inapplicable_keys(map: &raw::ScopeMap, at: At<'_>) {
    let (keys, condition): (Vec<KeyPresence>, _) = if is_shared(map) {
        (remote_keys(map).collect(), "without `rls`")
    } else {
        (shared_keys(map).collect(), "with `rls`")
    };
    for (key, _) in keys.into_iter().filter(|(_, is_given)| *is_given) {
        at.inapplicable_key(key, condition);
    }
}

fn compile_shared_limit(map: &raw::ScopeMap, at: At<'_>) -> Option<SharedLimit> {
    let Some(mode) = map.shared.or_else(|| map.instances.as_ref().map(|_| Mode::Split)) else {
        if !at.is_reported() {
            let expected = backquoted_list(["shared", "instances", "rls"]);
            at.error(format!("missing, expected one of {expected}"));
        }
        return None;
    };
    let instances = match (&map.instances, mode) {
        (Some(raw), Mode::Split) => Some(compile_instances(raw, at.key("instances"))?),
        (None, Mode::Split) => Some(InstanceSource::Members),
        (Some(_), Mode::Lease | Mode::Exact) => {
            let condition = ValueError::new(format!("with `shared: {}`", mode.as_str()));
            let hint = "`shared: split` divides the limit by the number of instances";
            at.inapplicable_key("instances", condition.with_hint(hint));
            return None;
        }
        (None, Mode::Lease | Mode::Exact) => None,
    };
    let split_reason = "requests do not wait for the store";
    let lease_reason = "only `shared: lease` distributes units by demand";
    let has_no_store = matches!(instances, Some(InstanceSource::Count(_) | InstanceSource::Dns(_)));
    let is_strict = map.on_store_loss == Some(OnStoreLoss::StrictSplit);
    let inapplicable = [
        ("wait", map.wait.is_some() && mode == Mode::Split, split_reason),
        ("on_store_loss", map.on_store_loss.is_some() && has_no_store, "no store is used"),
        ("on_store_loss", is_strict && mode == Mode::Split && !has_no_store, "the store grants no units"),
        ("fairness", map.fairness.is_some() && mode != Mode::Lease, lease_reason),
        ("priority", map.priority.is_some() && mode != Mode::Lease, lease_reason),
    ];
    for (key, _, reason) in inapplicable.into_iter().filter(|(_, is_inapplicable, _)| *is_inapplicable) {
        let condition = if map.shared.is_some() {
            format!("`shared: {}`", mode.as_str())
        } else {
            "`instances`".to_owned()
        };
        at.inapplicable_key(key, format!("with {condition}: {reason}"));
    }
    Some(SharedLimit {
        mode,
        wait: if mode == Mode::Split { Some(Duration::ZERO) } else { read_wait(map, at.key("wait")) },
        on_store_loss: map.on_store_loss.unwrap_or_default(),
        fairness: map.fairness.unwrap_or_default(),
        priority: map.priority.unwrap_or(defaults::SHARED_PRIORITY),
        instances,
    })
}

/// Adds a note if limits have no parts, although their instances are to spend them without the store.
pub(super) fn note_undivided_limits(action: &LimitAction, at: At<'_>, context: &CompileContext<'_>) {
    let is_strict = |shared: &&SharedLimit| {
        shared.on_store_loss == OnStoreLoss::StrictSplit && shared.mode != Mode::Split
    };
    if action.shared().filter(is_strict).is_none() {
        return;
    }
    let times = action.limits.iter().filter_map(|limit| leases::settle_time(&limit.quota.leased()?));
    let longest = times.max().filter(|time| *time > context.store.registration);
    let note = match longest.map(parse::format_duration) {
        Some(time) => {
            let registration = parse::format_duration(context.store.registration);
            let note = ValueError::new(format!(
                "nothing is admitted without the store: only limits that are whole again within {registration} have \
                 parts, and this one takes {time}"
            ));
            note.with_hint("`store.registration` is that time, at most 1d")
        }
        None if action.in_flight.is_some() => ValueError::new(
            "no request is admitted without the store: a concurrency limit cannot be divided".to_owned(),
        ),
        None => return,
    };
    at.key("on_store_loss").note(note);
}

/// Reports what regions cannot share, and notes limits that are too small for each region to have a unit.
pub(super) fn check_regions(action: &LimitAction, at: At<'_>, context: &CompileContext<'_>) {
    let (Some(shared), Some(regions)) = (action.shared(), context.store.regions) else { return };
    if shared.mode == Mode::Split {
        return;
    }
    if shared.on_store_loss == OnStoreLoss::StrictSplit {
        at.key("scope").key("on_store_loss").error(strict_split_in_regions());
    }
    if action.in_flight.is_some() {
        let error =
            ValueError::new("regions cannot share a concurrency limit: permits do not move between stores");
        let hint = "put it in a rule of its own with `scope: local`, or `scope: { shared: split }` for a part in each instance";
        at.key("in_flight").error(error.with_hint(hint));
    }
    let least = u32::from(regions) * 2;
    let quotas = action.limits.iter().filter_map(|limit| limit.quota.leased());
    if let Some(units) = quotas.map(|quota| quota.capacity()).filter(|units| *units < least).min() {
        let note = ValueError::new(format!(
            "with {units} at once, not each of {regions} regions has a unit of its own: the first requests of a key in a region \
             are rejected until the global store has replied"
        ));
        at.key("scope")
            .note(note.with_hint(format!("a burst of at least {least}, or a smaller `store.regions.count`")));
    }
}

pub(super) fn strict_split_in_regions() -> ValueError {
    ValueError::new("`strict_split` is not available with `store.regions`: the part of an instance would be one of the whole limit")
        .with_hint("`store.regions.on_store_loss: strict_split` is for a region without the global store")
}

fn read_wait(map: &raw::ScopeMap, at: At<'_>) -> Option<Duration> {
    let wait = at.single_item().duration(map.wait.as_ref())?;
    if wait > defaults::MAX_SHARED_WAIT {
        let max = parse::format_duration(defaults::MAX_SHARED_WAIT);
        at.error(format!("longer than {max}, got {}", parse::format_duration(wait)));
    }
    Some(wait)
}

fn compile_instances(raw: &raw::Instances, at: At<'_>) -> Option<InstanceSource> {
    match raw {
        raw::Instances::Count(count) => Some(InstanceSource::Count(*count)),
        raw::Instances::Auto(_) => Some(InstanceSource::Members),
        raw::Instances::Dns(name) => {
            let host = name.dns.as_deref()?;
            at.key("dns").ok(parse::host_name(host)).map(InstanceSource::Dns)
        }
    }
}
