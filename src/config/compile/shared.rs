//! `scope` of a rule: where its limit is counted, and how instances share it.

use std::time::Duration;

use super::scope::Scope;
use super::{duration, remote_limit};
use crate::config::at::At;
use crate::config::parse::{self};
use crate::config::problem::{Fault, Report, listed};
use crate::config::{defaults, raw};
use crate::rules::key::KeyTemplate;
use crate::rules::rule::LimitSource;
use crate::rules::shared_limit::{InstanceSource, Mode, SharedLimit};

/// A key that belongs to one kind of scope, and whether it is given.
type Given = (&'static str, bool);

/// Compiles where the limit of the rule at `at` is counted.
pub(super) fn source(
    raw: &raw::Rule,
    key: &KeyTemplate,
    at: At<'_>,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> LimitSource {
    let own = at.key("scope");
    let shared = match &raw.scope {
        None | Some(raw::Scope::Word(raw::ScopeWord::Local)) => return LimitSource::Local,
        Some(raw::Scope::Word(raw::ScopeWord::Shared)) => limit(
            &raw::ScopeMap { shared: Some(Mode::Lease), ..raw::ScopeMap::default() },
            own.same(),
            report,
        ),
        Some(raw::Scope::Map(map)) if is_shared(map) => {
            void(map, own.same(), report);
            limit(map, own.same(), report)
        }
        Some(raw::Scope::Map(map)) => {
            void(map, own, report);
            let remote = remote_limit::compile(raw, key, at, scope, report);
            return remote.map_or(LimitSource::Local, |remote| LimitSource::Remote(Box::new(remote)));
        }
    };
    let Some(shared) = shared else { return LimitSource::Local };
    scope.has_shared_limits |= shared.needs_store();
    if shared.needs_store() && !scope.has_store {
        report.value(own, needs_store());
    }
    LimitSource::Shared(shared)
}

/// Compiles how instances of the rate limit service share the limits of its documents; `None` if each
/// instance counts for itself. With a store they are shared by default.
pub(super) fn of_service(
    raw: Option<&raw::RlsScope>,
    at: At<'_>,
    has_store: bool,
    report: &mut Report<'_>,
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
        let fault = Fault::new("`split` is not supported for `rls`, expected `lease` or `exact`");
        report.value(
            at.key("shared"),
            fault.hint("`on_store_loss: split` divides limits while the store is unavailable"),
        );
        return None;
    }
    if !has_store {
        report.value(at.same(), needs_store());
    }
    limit(&map, at.same(), report)
}

fn needs_store() -> Fault {
    let fault = Fault::new("needs a `store`, and there is none");
    fault.hint("add `store: { redis: \"redis://HOST:6379\" }` at the top level")
}

/// Whether the instances share the limit.
pub(super) fn is_shared(map: &raw::ScopeMap) -> bool {
    map.rls.is_none()
        && (map.shared.is_some() || map.instances.is_some() || !remote_keys(map).any(|(_, given)| given))
}

fn remote_keys(map: &raw::ScopeMap) -> impl Iterator<Item = Given> {
    [
        ("domain", map.domain.is_some()),
        ("descriptor", map.descriptor.is_some()),
        ("timeout", map.timeout.is_some()),
        ("on_error", map.on_error.is_some()),
        ("tls", map.tls.is_some()),
    ]
    .into_iter()
}

fn shared_keys(map: &raw::ScopeMap) -> impl Iterator<Item = Given> {
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
fn void(map: &raw::ScopeMap, at: At<'_>, report: &mut Report<'_>) {
    let (keys, place): (Vec<Given>, _) = if is_shared(map) {
        (remote_keys(map).collect(), "without `rls`")
    } else {
        (shared_keys(map).collect(), "with `rls`")
    };
    for (key, _) in keys.into_iter().filter(|(_, is_given)| *is_given) {
        report.key(at.key(key), format!("`{key}` has no meaning {place}"));
    }
}

fn limit(map: &raw::ScopeMap, at: At<'_>, report: &mut Report<'_>) -> Option<SharedLimit> {
    let Some(mode) = map.shared.or_else(|| map.instances.as_ref().map(|_| Mode::Split)) else {
        if !report.is_faulty(at) {
            let expected = listed(["shared", "instances", "rls"]);
            report.value(at, format!("missing, expected one of {expected}"));
        }
        return None;
    };
    let instances = match (&map.instances, mode) {
        (Some(raw), Mode::Split) => Some(instances(raw, at.key("instances"), report)?),
        (None, Mode::Split) => Some(InstanceSource::Members),
        (Some(_), Mode::Lease | Mode::Exact) => {
            let fault = format!("`instances` has no meaning with `shared: {}`", mode.as_str());
            report.key(
                at.key("instances"),
                Fault::new(fault).hint("`shared: split` divides the limit by the number of instances"),
            );
            return None;
        }
        (None, Mode::Lease | Mode::Exact) => None,
    };
    let divides = "requests do not wait for the store";
    let claims = "only `shared: lease` distributes units by demand";
    let has_no_store = matches!(instances, Some(InstanceSource::Count(_) | InstanceSource::Dns(_)));
    let void = [
        ("wait", map.wait.is_some() && mode == Mode::Split, divides),
        ("on_store_loss", map.on_store_loss.is_some() && has_no_store, "no store is used"),
        ("fairness", map.fairness.is_some() && mode != Mode::Lease, claims),
        ("priority", map.priority.is_some() && mode != Mode::Lease, claims),
    ];
    for (key, _, reason) in void.into_iter().filter(|(_, is_void, _)| *is_void) {
        let place = if map.shared.is_some() {
            format!("`shared: {}`", mode.as_str())
        } else {
            "`instances`".to_owned()
        };
        report.key(at.key(key), format!("`{key}` has no meaning with {place}: {reason}"));
    }
    Some(SharedLimit {
        mode,
        wait: if mode == Mode::Split { Duration::ZERO } else { wait(map, at.key("wait"), report) },
        on_store_loss: map.on_store_loss.unwrap_or_default(),
        fairness: map.fairness.unwrap_or_default(),
        priority: map.priority.unwrap_or(defaults::SHARED_PRIORITY),
        instances,
    })
}

fn wait(map: &raw::ScopeMap, at: At<'_>, report: &mut Report<'_>) -> Duration {
    let wait = duration(map.wait.as_ref(), at.same(), report).unwrap_or(defaults::SHARED_WAIT);
    if wait > defaults::MAX_SHARED_WAIT {
        let most = parse::duration_text(defaults::MAX_SHARED_WAIT);
        report.value(at, format!("longer than {most}, got {}", parse::duration_text(wait)));
    }
    wait
}

fn instances(raw: &raw::Instances, at: At<'_>, report: &mut Report<'_>) -> Option<InstanceSource> {
    match raw {
        raw::Instances::Count(count) => Some(InstanceSource::Count(*count)),
        raw::Instances::Auto(_) => Some(InstanceSource::Members),
        raw::Instances::Dns(name) => {
            let host = name.dns.as_deref()?;
            report.take(at.key("dns"), parse::host(host)).map(InstanceSource::Dns)
        }
    }
}
