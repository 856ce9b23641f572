//! `on_limit.upstream`: requests over the limit of a rule are sent to another upstream instead of being rejected.

use super::{given_keys, map_items};
use crate::UpstreamConfig;
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::parse::nearest_name;
use crate::quoting::{backquoted, backquoted_list, quoted};
use crate::raw;
use weir_limiter::check_options::OnDenied;
use weir_policy::rules::rule::{Action, LimitAction, LimitSource, OnMissing, Rule, Throttle};
use weir_policy::rules::shared_limit::Mode;

/// Returns the name of the upstream that receives requests over the limit of a rule.
pub(super) fn read_name(raw: &raw::Rule) -> Option<&str> {
    raw.on_limit.as_deref()?.upstream.as_deref()
}

/// Whether any rule sends requests to the upstream of this name, or to one whose name is unknown and may be meant for it.
pub(super) fn is_target(root: &raw::Root, name: &str) -> bool {
    let upstreams = || root.upstreams.iter().flat_map(|upstreams| upstreams.items());
    let is_known = |target: &str| upstreams().any(|(_, upstream)| upstream.name.as_deref() == Some(target));
    let rules = root.rules.iter().flat_map(|rules| rules.items());
    let mut targets = rules.filter_map(|(_, rule)| read_name(rule));
    targets.any(|target| target == name || !is_known(target))
}

/// Reports settings of the rule at `at` that contradict its diversion, and those without an effect.
pub(super) fn check_rule(raw: &raw::Rule, rule: &Rule, at: At<'_>) {
    let Some(on_limit) = raw.on_limit.as_deref().filter(|on_limit| on_limit.upstream.is_some()) else {
        return;
    };
    let on_limit_at = at.key("on_limit");
    let limiting = match &rule.action {
        Action::Limit(limiting) => limiting,
        Action::Deny => {
            let condition = ValueError::new("with `action: deny`");
            let condition = condition.with_hint("route such requests with `match` of an upstream");
            return on_limit_at.inapplicable_key("upstream", condition);
        }
        // Reported for the whole of `on_limit`.
        Action::Allow => return,
    };
    if let Some((what, hint)) = conflict(raw, rule, limiting) {
        let error = ValueError::new(format!("`upstream` cannot be combined with {what}"));
        on_limit_at.key("upstream").key_error(error.with_hint(hint));
    }
    check_reply(on_limit, limiting.on_missing, on_limit_at);
}

/// Returns the setting with which a rule cannot divert requests, and what to do instead.
fn conflict(raw: &raw::Rule, rule: &Rule, limiting: &LimitAction) -> Option<(&'static str, &'static str)> {
    let of_throttle = match limiting.throttle {
        Throttle::Hard | Throttle::Soft { .. } => None,
        Throttle::Shadow => Some(("`throttle: shadow`", "such a rule only counts; use `enforce: 10%`")),
        Throttle::Delay(_) => Some(("`throttle: delay`", "a request is delayed or diverted; use `soft 10%`")),
        Throttle::Wait => Some(("`throttle: wait`", "a request waits or is diverted; use `soft 10%`")),
        Throttle::Elastic(_) => Some((
            "`throttle: elastic`",
            "the limit grows with the headroom of the upstream that it protects",
        )),
    };
    let of_scope = match &limiting.source {
        LimitSource::Local => None,
        LimitSource::Shared(shared) if shared.mode == Mode::Split => None,
        LimitSource::Shared(_) => Some((
            "`scope: shared` with leases",
            "the store may have more units while the request is sent away; use `scope: { shared: split }`",
        )),
        LimitSource::Remote(_) => {
            Some(("`scope: {rls: …}`", "the upstream is chosen before that service decides"))
        }
    };
    let other = [
        (
            limiting.on_denied == OnDenied::Charge,
            "`on_denied: charge`",
            "a diverted request is not charged to the rule",
        ),
        (
            limiting.feedback.is_some(),
            "`feedback`",
            "the response of the other upstream says nothing about the limit",
        ),
        (raw.respond.is_some(), "`respond`", "a call over the limit waits in the store"),
        (rule.domain.is_some(), "`domain`", "Envoy forwards its requests itself"),
    ];
    let other = other.into_iter().find(|(is_given, ..)| *is_given).map(|(_, what, hint)| (what, hint));
    of_throttle.or(of_scope).or(other)
}

/// Reports what describes a rejection, which no request receives, except those that lack a part of the key.
fn check_reply(on_limit: &raw::OnLimit, on_missing: OnMissing, at: At<'_>) {
    let denies = on_missing == OnMissing::Deny;
    let keys = [
        ("action", on_limit.action.is_some() && !denies),
        ("status", on_limit.status.is_some() && !denies),
        ("body", on_limit.body.is_some() && !denies),
        ("headers", on_limit.headers.is_some() && !denies),
        ("cors", on_limit.cors.is_some() && !denies),
        ("fallback", on_limit.fallback.is_some()),
    ];
    for key in given_keys(keys) {
        let condition = ValueError::new("with `upstream`");
        at.inapplicable_key(
            key,
            condition.with_hint("the other upstream responds to requests over the limit"),
        );
    }
}

/// Checks that the upstreams to which the rules at `at` send requests are among `upstreams`, if those are valid.
pub(super) fn check_names(root: &raw::Root, upstreams: Option<&[UpstreamConfig]>, at: At<'_>) {
    let (Some(rules), Some(upstreams)) = (&root.rules, upstreams) else { return };
    let names = || upstreams.iter().map(|upstream| &*upstream.settings.name);
    let deferring = rules.items().find(|(_, rule)| rule.respond.is_some()).map(|(_, rule)| rule);
    map_items(rules, at, |rule, at| {
        let name = read_name(rule)?;
        let at = at.key("on_limit");
        let at = at.key("upstream");
        if root.upstreams.is_none() || upstreams.len() < 2 {
            let error = ValueError::new("there is only one upstream, which receives every request");
            at.error(error.with_hint("list both in `upstreams`"));
        } else if !names().any(|known| known == name) {
            let error = ValueError::new(format!("unknown upstream {}", quoted(name)));
            let error = error.with_hint(format!("the upstreams are {}", backquoted_list(names())));
            at.error(error.with_suggestion(nearest_name(name, names())));
        }
        if root
            .listeners
            .iter()
            .flat_map(|list| list.items())
            .any(|(_, listener)| listener.is_forward_proxy())
        {
            let error = ValueError::new("a forward proxy sends requests to the destinations that they name");
            at.key_error(error.with_hint("remove `upstream`, or `forward_proxy` of the listener"));
        }
        if let Some(deferring) = deferring.and_then(|rule| rule.name.as_deref()) {
            let rule = backquoted(deferring);
            let error =
                format!("cannot be combined with rule {rule}, which stores calls and sends them later");
            at.key_error(ValueError::new(error).with_hint("such a call has one upstream"));
        }
        Some(())
    });
}
