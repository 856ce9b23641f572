//! The rules of a policy as limits: global ones in fixed windows, local ones as token buckets.

use super::super::ledger::Ledger;
use super::super::limit_draft::{LimitContent, LimitDraft};
use super::super::remark::{Effect, brief};
use super::super::selection::RequestSet;
use super::super::tree::{as_u64, field_text, get, is_true, items};
use super::messages;
use super::selectors::SelectedClients;
use weir_yaml::Node;

/// Where Envoy Gateway counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RateLimitSection {
    /// A rate limit service counts for all proxies.
    Global,
    /// Each proxy counts on its own.
    Local,
}

impl RateLimitSection {
    pub(super) const fn field(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Local => "local",
        }
    }
}

/// A rule of a policy.
#[derive(Debug)]
pub(super) struct TrafficRule {
    pub(super) section: RateLimitSection,
    pub(super) index: usize,
    /// Whether it selects clients; the local rule that does not is for the requests of no other.
    pub(super) has_selectors: bool,
    /// Whether all targets of the policy share the counter.
    pub(super) is_shared: bool,
    pub(super) clients: SelectedClients,
    /// Without name and origin; `None` if the rule limits nothing.
    pub(super) draft: Option<LimitDraft>,
    /// The length of the unit in seconds.
    pub(super) unit: u64,
}

impl TrafficRule {
    pub(super) fn read(node: &Node, section: RateLimitSection, index: usize, ledger: &Ledger) -> Self {
        ledger.message(node, &messages::RULE);
        let selectors = items(get(node, "clientSelectors"));
        let clients = SelectedClients::read(selectors, ledger);
        let limit = read_limit(node, section, ledger);
        let unit = limit.as_ref().map_or(0, |limit| limit.unit);
        let draft = limit.and_then(|limit| limit.draft(node, section, ledger)).map(|mut draft| {
            draft.key.clone_from(&clients.key);
            draft.on_missing = clients.may_lack_key.then_some("skip");
            draft
        });
        let draft = draft.and_then(|draft| {
            let is_default = section == RateLimitSection::Local && selectors.is_empty();
            in_shadow_mode(draft, node, is_default, ledger)
        });
        let is_shared = section == RateLimitSection::Global && is_true(node, "shared");
        if let Some(shared) = get(node, "shared") {
            let reason = match section {
                RateLimitSection::Global => "whether all targets share one counter",
                RateLimitSection::Local => "has no effect on local limits",
            };
            ledger.lose(shared, Effect::None, reason);
        }
        Self { section, index, has_selectors: !selectors.is_empty(), is_shared, clients, draft, unit }
    }

    /// The requests that count for this rule among those of a target.
    pub(super) fn requests(&self, target: &RequestSet) -> RequestSet {
        target.and(&self.clients.selection)
    }

    /// The requests that a local rule takes from the one without selectors.
    pub(super) fn taken(&self) -> RequestSet {
        let mut taken = self.clients.selection.clone();
        if self.clients.may_lack_key {
            taken.add(Effect::Tighter, "a parameter of the query decides which rule counts");
        }
        taken
    }
}

/// The limit of a rule.
struct TrafficLimit {
    count: u64,
    /// The length of the unit in seconds.
    unit: u64,
    /// The unit in a rate.
    period: &'static str,
}

fn read_limit(rule: &Node, section: RateLimitSection, ledger: &Ledger) -> Option<TrafficLimit> {
    let Some(limit) = get(rule, "limit") else {
        ledger.lose(rule, Effect::Looser, format!("{} rule left out: no `limit`", section.field()));
        return None;
    };
    ledger.message(limit, &messages::LIMIT);
    let requests = get(limit, "requests");
    let Some(count) = requests.and_then(as_u64).filter(|count| *count <= u64::from(u32::MAX)) else {
        let reason = format!("left out: expected `requests` from 0 to {}", u32::MAX);
        ledger.lose(requests.unwrap_or(limit), Effect::Looser, reason);
        return None;
    };
    let given = field_text(limit, "unit").unwrap_or_default();
    let Some((unit, period)) = unit_length(given) else {
        let reason = format!("left out: unknown unit {}", brief(given));
        ledger.lose(get(limit, "unit").unwrap_or(limit), Effect::Looser, reason);
        return None;
    };
    requests.into_iter().chain(get(limit, "unit")).for_each(|value| ledger.use_all(value));
    Some(TrafficLimit { count, unit, period })
}

impl TrafficLimit {
    /// Returns the limit with the cost of a rule; `None` if it limits nothing.
    fn draft(&self, rule: &Node, section: RateLimitSection, ledger: &Ledger) -> Option<LimitDraft> {
        let Some(cost) = read_cost(rule, section, ledger) else {
            let limit = get(rule, "limit");
            let reason = "no rule, as requests cost nothing";
            limit.into_iter().for_each(|limit| ledger.lose(limit, Effect::None, reason));
            return None;
        };
        let Self { count, period, .. } = self;
        if cost > *count {
            let limit = get(rule, "limit");
            let unit = limit.and_then(|limit| get(limit, "unit"));
            let reason = format!("a request costs {cost}, more than {count} in any time: all are rejected");
            unit.into_iter().for_each(|unit| ledger.lose(unit, Effect::None, reason.clone()));
            return Some(LimitDraft::new("", "", LimitContent::Nothing));
        }
        let algorithm = match section {
            RateLimitSection::Global => "fixed_window",
            RateLimitSection::Local => "token_bucket",
        };
        let mut fields = vec![("limit", format!("{count}/{period}")), ("algorithm", algorithm.to_owned())];
        if cost > 1 {
            fields.push(("cost", cost.to_string()));
        }
        let mut draft = LimitDraft::new("", "", LimitContent::Fields(fields));
        if section == RateLimitSection::Global {
            draft.add(
                Effect::Looser,
                "each instance has the whole limit, Envoy Gateway counts all together: use `store` and `scope: shared`",
            );
        }
        Some(draft)
    }
}

/// Applies the shadow mode of a rule; returns nothing if the rule rejects nothing then.
fn in_shadow_mode(
    mut draft: LimitDraft,
    rule: &Node,
    is_default: bool,
    ledger: &Ledger,
) -> Option<LimitDraft> {
    let Some(shadow) = get(rule, "shadowMode") else { return Some(draft) };
    if is_default {
        ledger.lose(shadow, Effect::None, "has no effect on a local rule without selectors");
    } else if !is_true(rule, "shadowMode") {
        ledger.use_all(shadow);
    } else if draft.counting == LimitContent::Nothing {
        ledger.lose(shadow, Effect::None, "no rule, as nothing is rejected in shadow mode");
        return None;
    } else {
        ledger.use_all(shadow);
        draft.others.push(("throttle", "shadow".to_owned()));
    }
    Some(draft)
}

/// Returns the length of a unit in seconds, and its period in a rate. Months and years are those of Envoy Gateway.
fn unit_length(name: &str) -> Option<(u64, &'static str)> {
    const DAY: u64 = 86_400;
    Some(match name {
        "Second" => (1, "s"),
        "Minute" => (60, "m"),
        "Hour" => (3600, "h"),
        "Day" => (DAY, "d"),
        "Week" => (7 * DAY, "7d"),
        "Month" => (30 * DAY, "30d"),
        "Year" => (365 * DAY, "365d"),
        _ => return None,
    })
}

/// Returns the cost of a request; `None` if no request costs anything.
fn read_cost(rule: &Node, section: RateLimitSection, ledger: &Ledger) -> Option<u64> {
    let Some(cost) = get(rule, "cost") else { return Some(1) };
    if section == RateLimitSection::Local {
        ledger.lose(cost, Effect::None, "has no effect on local limits");
        return Some(1);
    }
    ledger.message(cost, &messages::COST);
    let response = get(cost, "response");
    if let Some(response) = response {
        let text = "the cost of a response is not converted: use `cost: { response_header: … }` or `cost: { tokens: … }`";
        ledger.lose(response, Effect::Looser, text);
    }
    let Some(request) = get(cost, "request") else { return Some(1) };
    ledger.message(request, &messages::SPECIFIER);
    let number = get(request, "number");
    let is_number = field_text(request, "from") == Some("Number");
    match number.and_then(as_u64).filter(|_| is_number) {
        None => {
            let text =
                "a cost from metadata is not supported: use `cost: { header: … }`, each request costs 1 here";
            ledger.lose(request, Effect::Differs, text);
            Some(1)
        }
        Some(0) => {
            let (effect, text) = match response.is_some() {
                true => (Effect::Differs, "requests that cost nothing themselves cost 1 here"),
                false => (Effect::None, "requests that cost nothing are never over the limit: no rule"),
            };
            ledger.lose(request, effect, text);
            response.map(|_| 1)
        }
        Some(cost) => {
            get(request, "from").into_iter().chain(number).for_each(|value| ledger.use_all(value));
            Some(cost)
        }
    }
}
