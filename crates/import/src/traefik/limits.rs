//! The middlewares `rateLimit` and `inFlightReq` as limits.

use super::super::duration::parse_duration;
use super::super::ledger::Ledger;
use super::super::limit_draft::{LimitContent, LimitDraft};
use super::super::remark::{Effect, brief};
use super::super::rule_text::{map, scalar};
use super::super::token_bucket::format_period;
use super::super::tree::{as_i64, as_u64, get, is_true, items, scalar_text};
use super::messages;
use weir_yaml::Node;

const SECOND: u128 = 1_000_000_000;
const MILLISECOND: u128 = 1_000_000;

/// Returns the limit of a `rateLimit`; `None` if it limits nothing.
pub(super) fn read_rate_limit(node: &Node, ledger: &Ledger) -> Option<LimitDraft> {
    ledger.message(node, &messages::RATE_LIMIT);
    let average = number(node, "average", 0, ledger)?;
    if average <= 0 {
        ledger.lose(node, Effect::None, "no limit, as `average` is not above 0");
        return None;
    }
    let burst = number(node, "burst", 1, ledger)?.max(1);
    let period = read_period(node, ledger)?;
    if let Some(redis) = get(node, "redis") {
        let reason = "each instance has the whole limit, Traefik counts all together: use `store` and `scope: shared`, without `throttle`";
        ledger.hide(redis, Effect::Looser, reason);
    }
    let average_count = u128::from(average.unsigned_abs());
    let limit = format_limit(average_count, period);
    let fields = vec![("limit", limit), ("burst", burst.to_string())];
    let mut draft = LimitDraft::new("", "", LimitContent::Fields(fields));
    let per_second = average_count * SECOND / period;
    // Traefik lets a request wait for half of the time between two requests.
    let delay = if per_second < 1 { SECOND / 2 } else { SECOND / (per_second * 2) };
    match delay / MILLISECOND {
        0 => draft
            .add(Effect::Tighter, format!("Traefik lets requests wait for up to {delay} ns, rules do not")),
        millis => draft.others.push(("throttle", format!("delay {millis}ms"))),
    }
    set_source(&mut draft, node, DefaultSource::ClientIp, ledger);
    Some(draft)
}

/// Returns a rate whose period has whole milliseconds, as rules need it.
fn format_limit(count: u128, period: u128) -> String {
    const FACTORS: [u128; 4] = [1, 10, 100, 1000];
    let is_whole = |factor: &&u128| {
        (period * **factor).is_multiple_of(MILLISECOND) && count * **factor <= u128::from(u32::MAX)
    };
    let factor = FACTORS.iter().find(is_whole).copied().unwrap_or(1);
    format!("{}/{}", count * factor, format_period(period * factor))
}

/// Returns the limit of an `inFlightReq`.
pub(super) fn read_in_flight(node: &Node, ledger: &Ledger) -> Option<LimitDraft> {
    ledger.message(node, &messages::IN_FLIGHT);
    let amount = number(node, "amount", 0, ledger)?;
    if amount <= 0 {
        ledger.lose(
            get(node, "amount").unwrap_or(node),
            Effect::None,
            "no request may be in flight: all are rejected",
        );
        get(node, "sourceCriterion")
            .into_iter()
            .for_each(|source| ledger.lose(source, Effect::None, "all requests are rejected"));
        return Some(LimitDraft::new("", "", LimitContent::Nothing));
    }
    let mut draft = LimitDraft::new("", "", LimitContent::Fields(vec![("in_flight", amount.to_string())]));
    set_source(&mut draft, node, DefaultSource::Host, ledger);
    Some(draft)
}

/// Returns a number; one that is none gets a remark.
fn number(node: &Node, name: &str, default: i64, ledger: &Ledger) -> Option<i64> {
    let Some(value) = get(node, name) else { return Some(default) };
    let number = as_i64(value).filter(|number| *number <= i64::from(u32::MAX));
    match number {
        Some(_) => ledger.use_all(value),
        None => {
            let reason = format!("the limit is left out, expected a number of at most {}", u32::MAX);
            ledger.lose(value, Effect::Looser, reason);
        }
    }
    number
}

/// Returns the period in nanoseconds: a duration, or a number of seconds.
fn read_period(node: &Node, ledger: &Ledger) -> Option<u128> {
    let Some(value) = get(node, "period") else { return Some(SECOND) };
    let seconds = as_u64(value).and_then(|seconds| u128::from(seconds).checked_mul(SECOND));
    let period = seconds.or_else(|| scalar_text(value).and_then(parse_duration));
    let Some(period) = period.filter(|period| *period <= i64::MAX as u128) else {
        ledger.lose(value, Effect::Looser, "the limit is left out, expected a duration such as `1m`");
        return None;
    };
    if period == 0 {
        ledger.lose(value, Effect::None, "0 means a second");
        return Some(SECOND);
    }
    if period < MILLISECOND {
        ledger.lose(value, Effect::Tighter, "the period is a millisecond here");
        return Some(MILLISECOND);
    }
    ledger.use_all(value);
    Some(period)
}

/// What requests are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DefaultSource {
    ClientIp,
    Host,
}

/// Sets the key by `sourceCriterion`, or else by `default`.
fn set_source(draft: &mut LimitDraft, node: &Node, default: DefaultSource, ledger: &Ledger) {
    let criterion = get(node, "sourceCriterion");
    criterion.into_iter().for_each(|criterion| ledger.message(criterion, &messages::CRITERION));
    let field = |name: &str| criterion.and_then(|criterion| get(criterion, name));
    let header = field("requestHeaderName").and_then(scalar_text).filter(|name| !name.is_empty());
    let is_host = criterion.is_some_and(|criterion| is_true(criterion, "requestHost"));
    let given =
        usize::from(header.is_some()) + usize::from(is_host) + usize::from(field("ipStrategy").is_some());
    if given > 1 {
        draft.add(
            Effect::Tighter,
            "Traefik does not accept several source criteria: the rule counts by the first",
        );
    }
    if let Some(strategy) = field("ipStrategy") {
        let prefix = read_ip_strategy(strategy, ledger);
        draft.key.push(map([("client_ip", map([("prefix", prefix.to_string())]))]));
    } else if let Some(name) = header {
        field("requestHeaderName").into_iter().for_each(|name| ledger.use_all(name));
        match http::HeaderName::from_bytes(name.as_bytes()) {
            Ok(name) => {
                draft.key.push(map([("header", scalar(name.as_str()))]));
                draft.on_missing = Some("shared");
            }
            Err(_) => draft.add(
                Effect::Tighter,
                format!("no name of a header, so all requests share one counter: {}", brief(name)),
            ),
        }
    } else if is_host || default == DefaultSource::Host {
        draft.key.push("host".to_owned());
        field("requestHost")
            .into_iter()
            .for_each(|host| ledger.lose(host, Effect::None, "the key is `host`"));
    } else {
        draft.key.push(map([("client_ip", map([("prefix", "128")]))]));
    }
}

/// Returns the prefix length of an IPv6 client.
fn read_ip_strategy(strategy: &Node, ledger: &Ledger) -> u64 {
    ledger.message(strategy, &messages::IP_STRATEGY);
    let Some(subnet) = get(strategy, "ipv6Subnet") else { return 128 };
    match as_u64(subnet).filter(|bits| (1..=128).contains(bits)) {
        // A strategy with a list of proxies has no subnets.
        Some(_) if has_pool(strategy) => {
            ledger.lose(subnet, Effect::None, "has no effect beside `excludedIPs`");
            128
        }
        Some(bits) => {
            ledger.use_all(subnet);
            bits
        }
        None => {
            ledger.lose(
                subnet,
                Effect::Differs,
                "expected a number from 1 to 128: each address has its counter",
            );
            128
        }
    }
}

fn has_pool(strategy: &Node) -> bool {
    let depth = get(strategy, "depth").and_then(as_i64).unwrap_or(0);
    depth <= 0 && !items(get(strategy, "excludedIPs")).is_empty()
}
