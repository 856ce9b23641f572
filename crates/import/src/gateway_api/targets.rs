//! What a policy is attached to: `targetRef`, `targetRefs` and `targetSelectors`, and the requests of these.

use super::super::kubernetes::Manifest;
use super::super::ledger::{Ledger, Message};
use super::super::remark::{Effect, Remark, brief};
use super::super::tree::{entries, field_text, get, items, scalar_text};
use super::{GROUP, GatewayRoutes, PartId};
use weir_yaml::Node;

static TARGET: Message = Message {
    name: "a target of a policy",
    read: &["group", "kind", "name", "namespace", "sectionName"],
    lost: &[],
    other: &[],
};
static SELECTOR: Message = Message {
    name: "a selector of targets",
    read: &["group", "kind", "matchLabels"],
    lost: &[
        ("matchExpressions", Effect::Tighter, "expressions on labels are not supported: any labels match"),
        ("namespaces", Effect::Looser, "targets in other namespaces are not found here"),
    ],
    other: &[],
};

/// How close a target is to a request; closer policies replace others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum TargetLevel {
    Gateway,
    Listener,
    Route,
    RouteRule,
}

/// A target of a policy, with the parts of routes that it has.
#[derive(Debug)]
pub(in super::super) struct PolicyTarget {
    pub(in super::super) level: TargetLevel,
    /// Empty if the routes are not in the input.
    pub(in super::super) parts: Vec<PartId>,
    /// What to say of the rules if they are for all requests, since there are no parts.
    pub(in super::super) unresolved: Remark,
}

/// Returns the targets of a policy with this spec. Marks what names them.
pub(in super::super) fn targets(
    policy: &Manifest<'_>,
    spec: &Node,
    routes: &GatewayRoutes<'_>,
    ledger: &Ledger,
) -> Vec<PolicyTarget> {
    let several = items(get(spec, "targetRefs"));
    let named = get(spec, "targetRef").into_iter().chain(several);
    let mut targets: Vec<PolicyTarget> =
        named.map(|target| named_target(policy, target, routes, ledger)).collect();
    for selector in items(get(spec, "targetSelectors")) {
        targets.extend(selected_targets(policy, selector, routes, ledger));
    }
    targets
}

fn named_target(
    policy: &Manifest<'_>,
    target: &Node,
    routes: &GatewayRoutes<'_>,
    ledger: &Ledger,
) -> PolicyTarget {
    ledger.message(target, &TARGET);
    let text = |name: &str| field_text(target, name);
    let (kind, name) = (text("kind").unwrap_or_default(), text("name").unwrap_or_default());
    let namespace = text("namespace").or(policy.namespace);
    let section = text("sectionName");
    let is_gateway = kind == "Gateway";
    let level = match (is_gateway, section) {
        (true, None) => TargetLevel::Gateway,
        (true, Some(_)) => TargetLevel::Listener,
        (false, None) => TargetLevel::Route,
        (false, Some(_)) => TargetLevel::RouteRule,
    };
    let found = match (text("group") == Some(GROUP), is_gateway) {
        (false, _) => Vec::new(),
        (true, true) => routes.attached_to(name, namespace, section),
        (true, false) => routes.find(kind, name, namespace).into_iter().collect(),
    };
    let section_of_route = section.filter(|_| !is_gateway);
    let parts: Vec<PartId> = found.iter().flat_map(|route| routes.parts(*route, section_of_route)).collect();
    let address = namespace.map_or_else(|| name.to_owned(), |space| format!("{space}/{name}"));
    let place = section.map_or_else(String::new, |section| format!(", section {section}"));
    let (title, before) =
        (brief(&format!("{kind} {address}{place}")), if is_gateway { "no route of " } else { "" });
    let ending = if is_gateway { "is in the input" } else { "is not in the input" };
    let reason = format!("{before}{title} {ending}: the rule is for all requests");
    if parts.is_empty() {
        ledger.lose(target, Effect::Tighter, reason.clone());
    } else {
        mark_named(target, ledger);
        found.iter().filter(|_| is_gateway).for_each(|route| routes.mark_parents(*route, ledger));
        parts
            .iter()
            .filter(|_| level == TargetLevel::RouteRule)
            .for_each(|part| routes.mark_section(*part, ledger));
    }
    PolicyTarget { level, parts, unresolved: Remark::new(Effect::Tighter, reason) }
}

fn mark_named(target: &Node, ledger: &Ledger) {
    let fields = TARGET.read.iter().filter_map(|name| get(target, name));
    fields.for_each(|value| ledger.use_all(value));
}

/// Returns the routes of the policy's namespace with the labels of a selector.
fn selected_targets(
    policy: &Manifest<'_>,
    selector: &Node,
    routes: &GatewayRoutes<'_>,
    ledger: &Ledger,
) -> Vec<PolicyTarget> {
    ledger.message(selector, &SELECTOR);
    let kind = field_text(selector, "kind").unwrap_or_default();
    let wanted: Vec<(&str, &str)> = get(selector, "matchLabels")
        .map(entries)
        .unwrap_or_default()
        .iter()
        .filter_map(|(name, value)| Some((scalar_text(name)?, scalar_text(value)?)))
        .collect();
    let is_selected = |manifest: &Manifest<'_>| {
        manifest.kind == kind
            && manifest.may_share_namespace(policy.namespace)
            && wanted.iter().all(|(name, value)| manifest.label(name) == Some(*value))
    };
    let selected = routes.routes.iter().enumerate().filter(|(_, route)| is_selected(&route.manifest));
    let parts: Vec<PartId> = selected.flat_map(|(index, _)| routes.parts(index, None)).collect();
    let reason = format!("no selected {} is in the input: the rule is for all requests", brief(kind));
    let fields = ["group", "kind", "matchLabels"].into_iter().filter_map(|name| get(selector, name));
    if parts.is_empty() {
        ledger.lose(selector, Effect::Tighter, reason.clone());
    } else {
        fields.for_each(|value| ledger.lose(value, Effect::None, "selects the targets"));
    }
    vec![PolicyTarget { level: TargetLevel::Route, parts, unresolved: Remark::new(Effect::Tighter, reason) }]
}
