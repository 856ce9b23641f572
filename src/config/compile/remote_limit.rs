//! Limits of rules that another rate limit service decides (`scope: {rls: …}`).
//!
//! The service decides and counts once, before the request is forwarded. Keys about the end of a request or
//! about a counter of this process have no meaning then; they are listed in `applicability`.

use super::scope::Scope;
use super::{each, grpc, shared, timeout};
use crate::config::at::At;
use crate::config::problem::{Fault, Report, quoted};
use crate::config::{defaults, raw};
use crate::remote::service::Settings;
use crate::rules::attribute::Attribute;
use crate::rules::key::KeyTemplate;
use crate::rules::remote_limit::{EntryTemplate, OnError, RemoteLimit};

/// Compiles the remote limit of the rule at `at`; `None` if the limit is not remote.
pub(super) fn compile(
    raw: &raw::Rule,
    key: &KeyTemplate,
    at: At<'_>,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> Option<RemoteLimit> {
    let (remote, own) = (of(raw)?, at.key("scope"));
    for (key, is_given) in [("rls", remote.rls.is_some()), ("domain", remote.domain.is_some())] {
        if !is_given && !report.is_faulty(own.key(key)) {
            report.value(own.key(key), format!("missing, `{key}` is required"));
        }
    }
    let domain = remote.domain.as_deref()?;
    if domain.is_empty() {
        report.value(own.key("domain"), "empty, expected the name of a domain");
    } else if domain.trim() != domain {
        let fault = Fault::new(format!("leading or trailing spaces in the domain, got {}", quoted(domain)));
        report.value(own.key("domain"), fault.hint("it is sent exactly as written"));
    }
    let entries = match &remote.descriptor {
        Some(given) => entries(given, key, own.key("descriptor"), report),
        None => usual(raw.name.as_deref().unwrap_or_default(), key),
    };
    let (place, tls) =
        grpc::place(("rls", remote.rls.as_ref()?), remote.tls.as_deref(), own, scope.files, report)?;
    let timeout = timeout(&remote.timeout, defaults::REMOTE_TIMEOUT, own.key("timeout"), report);
    let settings = Settings { place, tls, timeout };
    let place = settings.place.to_string().into();
    Some(RemoteLimit {
        service: scope.service(settings),
        service_address: place,
        domain: domain.into(),
        entries: entries.into(),
        ipv6_prefix: scope.ipv6_prefix,
        on_error: remote.on_error.unwrap_or_default(),
    })
}

/// Whether the limit is remote and needs no local limit for failures of the service.
pub(super) fn needs_no_limit(raw: &raw::Rule) -> bool {
    of(raw).is_some_and(|remote| remote.on_error != Some(OnError::Local))
}

/// Returns the scope of a rule with a remote limit.
pub(super) fn of(raw: &raw::Rule) -> Option<&raw::ScopeMap> {
    match raw.scope.as_ref()? {
        raw::Scope::Map(map) if !shared::is_shared(map) => Some(map),
        raw::Scope::Map(_) | raw::Scope::Word(_) => None,
    }
}

/// Returns the default descriptor: the parts of the key under their usual names, or the rule's name if it has
/// no key.
fn usual(rule: &str, key: &KeyTemplate) -> Vec<EntryTemplate> {
    if key.0.is_empty() {
        return vec![EntryTemplate::Fixed { key: "generic_key".into(), value: rule.into() }];
    }
    let part = |(part, of): (usize, &Attribute)| EntryTemplate::Part { key: of.entry_key().into(), part };
    key.0.iter().enumerate().map(part).collect()
}

fn entries(
    raw: &raw::OneOrMany<raw::DescriptorEntry>,
    key: &KeyTemplate,
    at: At<'_>,
    report: &mut Report<'_>,
) -> Vec<EntryTemplate> {
    let mut parts = 0..;
    let entries = each(raw, at, |raw, at| match raw {
        raw::DescriptorEntry::Name(name) => {
            if name.is_empty() {
                report.value(at, "empty, expected the key of an entry");
            }
            Some(EntryTemplate::Part { key: name.as_str().into(), part: parts.next()? })
        }
        raw::DescriptorEntry::Fixed(map) => {
            let mut pairs = map.iter();
            let (Some((key, value)), None) = (pairs.next(), pairs.next()) else {
                let fault = Fault::new(format!("expected one key and its value, got {}", map.len()));
                report.value(at, fault.hint("use a list for several entries"));
                return None;
            };
            if key.is_empty() {
                report.key(at, "empty, expected the key of an entry");
            }
            Some(EntryTemplate::Fixed { key: key.as_str().into(), value: value.as_str().into() })
        }
    });
    let (named, there) = (parts.start, key.0.len());
    if named != there && !report.is_faulty(at) {
        let fault = Fault::new(format!("expected one name for each part of `key`, got {named} for {there}"));
        report.value(at, fault.hint("the service cannot distinguish parts that are not sent"));
    }
    entries
}
