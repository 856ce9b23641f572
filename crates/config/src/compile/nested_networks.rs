//! The network size of a client's address in a rule's key: a prefix for one rule, or limits on several nested
//! networks.

use super::{given_keys, limits, map_items};
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::raw;
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::key::KeyTemplate;
use weir_policy::rules::rule::{NestedNetwork, RuleLimit, Throttle};

/// Compiles the part `{client_ip: {…}}` at `at`; of several networks, the narrowest.
pub(super) fn compile_key_part(raw: &raw::ClientNetworks, at: At<'_>) -> Attribute {
    match (&raw.prefix, &raw.prefixes, &raw.limits) {
        (Some(_), Some(_), _) => {
            at.key("prefixes").key_error("both `prefix` and `prefixes`, expected one of them");
        }
        (_, None, Some(_)) if !at.is_reported() => {
            let condition = ValueError::new("without `prefixes`");
            let hint = "use the rule's `limit` for a single limit";
            at.inapplicable_key("limits", condition.with_hint(hint));
        }
        (_, Some(_), None) if !at.is_reported() => {
            at.key("limits").error("missing, each of `prefixes` needs a limit");
        }
        (None, None, None) if raw.ipv4_prefix.is_none() && !at.is_reported() => {
            at.error("empty map, expected `prefix`, `ipv4_prefix` or `prefixes` with `limits`");
        }
        _ => {}
    }
    let prefixes = prefix_lengths(raw);
    if !prefixes.is_sorted_by(|narrow, wide| narrow > wide) {
        let given = prefixes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let message = format!("expected prefixes from the narrowest network to the widest, got {given}");
        at.key("prefixes").error(ValueError::new(message).with_hint("such as `[64, 56, 48]`"));
    }
    let ipv6 = raw.prefix.or_else(|| prefixes.first().copied());
    Attribute::ClientNetwork { ipv4: raw.ipv4_prefix, ipv6 }
}

/// Compiles the limits inside the key of the rule at `at`, one for each network; `None` if there are none.
pub(super) fn compile_limits(
    raw: &raw::Rule,
    key: &KeyTemplate,
    throttle: Throttle,
    at: At<'_>,
) -> Option<Vec<RuleLimit>> {
    let mut nested = parts_with_prefixes(raw);
    let (index, client) = nested.next()?;
    let key_at = at.key("key");
    if nested.next().is_some() {
        key_at.error("`prefixes` more than once, expected at most one in a key");
    }
    for name in given_keys(limits::limit_keys(raw)) {
        let error = ValueError::new(format!("`{name}` conflicts with the limits of `client_ip.prefixes`"));
        at.key(name).key_error(error.with_hint("use a separate rule for other limits"));
    }
    let Some(entries) = &client.limits else { return Some(Vec::new()) };
    let part_at = index.map_or_else(|| key_at.single_item(), |index| key_at.item(index));
    let client_at = part_at.key("client_ip");
    let mut limits = limits::compile_list(entries, client_at.key("limits"), raw, throttle, at);
    let prefixes = prefix_lengths(client);
    if limits.len() != prefixes.len() && !client_at.is_reported() {
        let message =
            format!("expected a limit for each of {} prefixes, got {}", prefixes.len(), limits.len());
        client_at.key("limits").error(message);
    }
    let narrowest = prefixes.first().copied();
    for (limit, prefix) in limits.iter_mut().zip(prefixes) {
        let own = (Some(prefix) != narrowest).then(|| key_with_prefix(key, prefix));
        limit.nested = Some(Box::new(NestedNetwork { prefix, key: own }));
    }
    Some(limits)
}

/// Returns the parts of the key that have `prefixes`, with their indices.
pub(super) fn parts_with_prefixes(
    raw: &raw::Rule,
) -> impl Iterator<Item = (Option<usize>, &raw::ClientNetworks)> {
    raw.key.iter().flat_map(raw::List::items).filter_map(|(index, part)| match part {
        raw::KeyPart::Named(named) => {
            Some((index, named.client_ip.as_ref().filter(|it| it.prefixes.is_some())?))
        }
        raw::KeyPart::Plain(_) => None,
    })
}

/// Reports limits of networks in the parts at `at`, where they have no meaning for this reason.
pub(super) fn report_limits(parts: &raw::ZeroOrMany<raw::KeyPart>, at: At<'_>, reason: &str) {
    map_items(parts, at, |part, at| {
        let raw::KeyPart::Named(named) = part else { return None };
        let client = named.client_ip.as_ref()?;
        for key in given_keys([("prefixes", client.prefixes.is_some()), ("limits", client.limits.is_some())])
        {
            let error = ValueError::new(format!("{reason}, so one network identifies a client"));
            at.key("client_ip").key(key).key_error(error.with_hint("use `prefix`"));
        }
        Some(())
    });
}

/// Returns `key` with this prefix length for the client's network.
fn key_with_prefix(key: &KeyTemplate, prefix: u8) -> KeyTemplate {
    let wider = key.0.iter().map(|part| {
        let mut part = part.clone();
        if let Attribute::ClientNetwork { ipv6, .. } = &mut part {
            *ipv6 = Some(prefix);
        }
        part
    });
    KeyTemplate(wider.collect())
}

fn prefix_lengths(raw: &raw::ClientNetworks) -> Vec<u8> {
    raw.prefixes.iter().flat_map(raw::List::items).map(|(_, prefix)| prefix.0).collect()
}
