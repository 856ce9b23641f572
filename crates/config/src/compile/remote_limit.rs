//! Limits of rules that another rate limit service decides (`scope: {rls: …}`).
//!
//! The service decides and counts once, before the request is forwarded. Keys about the end of a request or
//! about a counter of this process have no meaning then; they are listed in `applicability`.

use super::context::CompileContext;
use super::{grpc, limit_scope, map_items};
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use crate::{defaults, raw};
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::key::KeyTemplate;
use weir_policy::rules::remote_limit::{EntryTemplate, OnError, RemoteLimit};
use weir_store::remote::service::RemoteServiceSettings;

/// Compiles the remote limit of the rule at `at`; `None` if the limit is not remote.
pub(super) fn compile(
    raw: &raw::Rule,
    key: &KeyTemplate,
    at: At<'_>,
    context: &mut CompileContext<'_>,
) -> Option<RemoteLimit> {
    let (remote, scope_at) = (remote_scope(raw)?, at.key("scope"));
    for (key, is_given) in [("rls", remote.rls.is_some()), ("domain", remote.domain.is_some())] {
        if !is_given && !scope_at.key(key).is_reported() {
            scope_at.key(key).error(format!("missing, `{key}` is required"));
        }
    }
    let domain = remote.domain.as_deref()?;
    if domain.is_empty() {
        scope_at.key("domain").error("empty, expected the name of a domain");
    } else if domain.trim() != domain {
        let error =
            ValueError::new(format!("leading or trailing spaces in the domain, got {}", quoted(domain)));
        scope_at.key("domain").error(error.with_hint("it is sent exactly as written"));
    }
    let entries = match &remote.descriptor {
        Some(given) => compile_entries(given, key, scope_at.key("descriptor")),
        None => default_entries(raw.name.as_deref().unwrap_or_default(), key),
    };
    let (address, tls) =
        grpc::read_address("rls", remote.rls.as_ref()?, remote.tls.as_deref(), scope_at, context.files)?;
    let timeout = scope_at.key("timeout").timeout(&remote.timeout, defaults::REMOTE_TIMEOUT);
    let settings = RemoteServiceSettings { address, tls, timeout };
    let address = settings.address.to_string().into();
    Some(RemoteLimit {
        service: context.register_service(settings),
        service_address: address,
        domain: domain.into(),
        entries: entries.into(),
        ipv6_prefix: context.ipv6_prefix,
        on_error: remote.on_error.unwrap_or_default(),
    })
}

/// Whether the limit is remote and needs no local limit for failures of the service.
pub(super) fn needs_no_local_limit(raw: &raw::Rule) -> bool {
    remote_scope(raw).is_some_and(|remote| remote.on_error != Some(OnError::Local))
}

/// Returns the scope of a rule with a remote limit.
pub(super) fn remote_scope(raw: &raw::Rule) -> Option<&raw::ScopeMap> {
    match raw.scope.as_deref()? {
        raw::Scope::Map(map) if !limit_scope::is_shared(map) => Some(map),
        raw::Scope::Map(_) | raw::Scope::Word(_) => None,
    }
}

/// Returns the default descriptor: the parts of the key under their usual names, or the rule's name if it has
/// no key.
fn default_entries(rule: &str, key: &KeyTemplate) -> Vec<EntryTemplate> {
    if key.0.is_empty() {
        return vec![EntryTemplate::Fixed { key: "generic_key".into(), value: rule.into() }];
    }
    let part = |(part, attribute): (usize, &Attribute)| EntryTemplate::Part {
        key: attribute.entry_key().into(),
        part,
    };
    key.0.iter().enumerate().map(part).collect()
}

fn compile_entries(
    raw: &raw::OneOrMany<raw::DescriptorEntry>,
    key: &KeyTemplate,
    at: At<'_>,
) -> Vec<EntryTemplate> {
    let mut parts = 0..;
    let entries = map_items(raw, at, |raw, at| match raw {
        raw::DescriptorEntry::Name(name) => {
            if name.is_empty() {
                at.error("empty, expected the key of an entry");
            }
            Some(EntryTemplate::Part { key: name.as_str().into(), part: parts.next()? })
        }
        raw::DescriptorEntry::Fixed(map) => {
            let mut pairs = map.iter();
            let (Some((key, value)), None) = (pairs.next(), pairs.next()) else {
                let error = ValueError::new(format!("expected one key and its value, got {}", map.len()));
                at.error(error.with_hint("use a list for several entries"));
                return None;
            };
            if key.is_empty() {
                at.key_error("empty, expected the key of an entry");
            }
            Some(EntryTemplate::Fixed { key: key.as_str().into(), value: value.as_str().into() })
        }
    });
    let (named, part_count) = (parts.start, key.0.len());
    if named != part_count && !at.is_reported() {
        let error = ValueError::new(format!(
            "expected one name for each part of `key`, got {named} for {part_count}"
        ));
        at.error(error.with_hint("the service cannot distinguish parts that are not sent"));
    }
    entries
}
