//! Limits inside streams: `cost: { messages: … }`, `bandwidth`, and the key `stream`.

use std::num::NonZeroU32;

use super::{given_keys, map_items};
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::parse;
use crate::raw;
use weir_limiter::algorithm::Algorithm;
use weir_limiter::quota::{Limit, Quota, TimeUnit};
use weir_policy::rules::key::KeyTemplate;
use weir_policy::rules::rule::RuleLimit;
use weir_policy::rules::stream_limit::{StreamDirection, StreamLimit, StreamLimits, StreamMeasure};

/// Whether the key of a rule is `stream`.
pub(super) fn is_keyed_by_stream(raw: &raw::Rule) -> bool {
    raw.key.iter().flat_map(|key| key.items()).any(|(_, part)| is_stream(part))
}

const fn is_stream(part: &raw::KeyPart) -> bool {
    matches!(part, raw::KeyPart::Plain(raw::PlainKey::Stream))
}

/// Returns the key of a rule whose streams are counted apart. The rule is at `rule`.
pub(super) fn stream_key(raw: &raw::Rule, rule: At<'_>) -> KeyTemplate {
    let Some(key) = &raw.key else { return KeyTemplate::default() };
    map_items(key, rule.key("key"), |part, at| {
        if !is_stream(part) {
            let error = ValueError::new("has no meaning beside `stream`: each stream is counted apart");
            at.error(
                error.with_hint(
                    "for a limit of all streams of a client, use `key: client_ip` in another rule",
                ),
            );
        }
        Some(())
    });
    KeyTemplate::default()
}

/// Compiles the limits inside streams of the rule at `at`. Takes those of `limits` that count messages.
pub(super) fn compile(raw: &raw::Rule, limits: &mut Vec<RuleLimit>, at: At<'_>) -> Option<Box<StreamLimits>> {
    let mut streams = Vec::new();
    for (key, direction, units) in messages(raw) {
        check_units(units, limits, at.key("cost").key(key));
        let measure = StreamMeasure::Messages(direction, units);
        streams.extend(limits.iter().map(|limit| StreamLimit { quota: limit.quota, measure }));
    }
    if raw.counts_messages() {
        check_notation(raw, limits, at);
        limits.clear();
    }
    if raw.bandwidth.is_some() && raw.respond.is_some() {
        let error =
            ValueError::new("cannot be combined with `respond`: a stored call has no client to slow down");
        at.key("bandwidth").key_error(error.with_hint("use a separate rule"));
    }
    if let Some(bandwidth) = raw.bandwidth.as_deref() {
        compile_bandwidth(bandwidth, at.key("bandwidth"), &mut streams);
    }
    let is_per_stream = is_keyed_by_stream(raw);
    if is_per_stream {
        check_stream_key(raw, limits, at);
    }
    (!streams.is_empty()).then(|| Box::new(StreamLimits { limits: streams.into(), is_per_stream }))
}

/// Yields the messages that the limits of a rule count: the key, who sends them, and the units of each.
fn messages(raw: &raw::Rule) -> impl Iterator<Item = (&'static str, StreamDirection, NonZeroU32)> + use<> {
    let cost = match raw.cost.as_deref() {
        Some(raw::Cost::Variable(variable)) => Some(variable),
        Some(raw::Cost::Units(_)) | None => None,
    };
    let units = cost.map(|cost| {
        [
            ("messages", StreamDirection::Request, cost.messages),
            ("response_messages", StreamDirection::Response, cost.response_messages),
        ]
    });
    units.into_iter().flatten().filter_map(|(key, direction, units)| Some((key, direction, units?)))
}

/// Reports a message above the burst, because it could never pass.
fn check_units(units: NonZeroU32, limits: &[RuleLimit], at: At<'_>) {
    let min_burst = limits.iter().map(|limit| limit.quota.burst()).min();
    if let Some(min) = min_burst.filter(|min| units > *min) {
        at.error(format!("no message would ever pass: at most {min} units at once, got {units}"));
    }
}

/// Reports notations of limits that depend on a request, in a rule that counts messages.
fn check_notation(raw: &raw::Rule, limits: &[RuleLimit], at: At<'_>) {
    if limits.iter().any(|limit| limit.stated.is_some()) {
        at.key("limit").error("a limit that requests state cannot count messages");
    }
    if limits.iter().any(|limit| limit.nested.is_some()) {
        let error = ValueError::new("`prefixes` cannot be combined with a cost by messages");
        at.key("key").error(error.with_hint("use a rule for each prefix"));
    }
    if limits.is_empty() && raw.in_flight.is_some() {
        let error = ValueError::new("a cost by messages needs `limit` or `limits`");
        at.key("cost").error(error.with_hint("`in_flight` counts requests"));
    }
}

/// Reports a rule with the key `stream` that limits requests, of which a stream has one.
fn check_stream_key(raw: &raw::Rule, limits: &[RuleLimit], at: At<'_>) {
    let is_limited = !limits.is_empty() || raw.in_flight.is_some();
    let has_streams = raw.bandwidth.is_some() || raw.counts_messages();
    if is_limited || !has_streams {
        let error = ValueError::new("`stream` is a key of limits inside streams only");
        at.key("key").error(error.with_hint("use it with `bandwidth`, or with `cost: { messages: 1 }`"));
    }
}

fn compile_bandwidth(raw: &raw::Bandwidth, at: At<'_>, streams: &mut Vec<StreamLimit>) {
    let (request, response, burst) = match raw {
        raw::Bandwidth::Rate(rate) => {
            let Some(limit) = at.single_item().ok(parse::byte_rate(&rate.0)) else { return };
            for direction in [StreamDirection::Request, StreamDirection::Response] {
                streams.extend(byte_limit(limit, None, direction, at));
            }
            return;
        }
        raw::Bandwidth::Map(map) => (&map.request, &map.response, &map.burst),
    };
    let directions =
        [("request", StreamDirection::Request, request), ("response", StreamDirection::Response, response)];
    let is_reported = |key: &str| at.key(key).is_reported();
    if given_keys(directions.map(|(key, _, rate)| (key, rate.is_some() || is_reported(key)))).next().is_none()
    {
        at.error(
            ValueError::new("missing, expected `request`, `response` or both")
                .with_hint("such as `bandwidth: 1MiB/s`"),
        );
    }
    let burst = burst.as_ref().and_then(|burst| compile_burst(burst, at.key("burst")));
    for (key, direction, rate) in directions {
        let Some(rate) = rate else { continue };
        let Some(limit) = at.key(key).ok(parse::byte_rate(&rate.0)) else { continue };
        streams.extend(byte_limit(limit, burst, direction, at.key(key)));
    }
}

fn compile_burst(raw: &raw::Size, at: At<'_>) -> Option<NonZeroU32> {
    let bytes = at.ok(parse::size(&raw.0))?;
    let burst = u32::try_from(bytes).ok().and_then(NonZeroU32::new);
    if burst.is_none() {
        at.error(format!("expected 1B to {}B, got {bytes}B", u32::MAX));
    }
    burst
}

/// Returns a limit on bytes. By default, what passes in a second may pass at once.
fn byte_limit(
    limit: Limit,
    burst: Option<NonZeroU32>,
    direction: StreamDirection,
    at: At<'_>,
) -> Option<StreamLimit> {
    let burst = burst.unwrap_or_else(|| bytes_per_second(limit));
    let per_millisecond = bytes_per_second(limit).get() / 1000;
    if burst.get() < per_millisecond {
        let note =
            format!("a stream passes at most one burst in a millisecond, and so less than {limit} of bytes");
        at.note(ValueError::new(note).with_hint(format!("set `burst` to {per_millisecond}B or more")));
    }
    match Quota::new(Algorithm::Gcra, limit, Some(burst)) {
        Ok(quota) => Some(StreamLimit { quota, measure: StreamMeasure::Bytes(direction) }),
        Err(error) => {
            at.error(error.to_string());
            None
        }
    }
}

/// Returns the bytes that pass in a second, at least 1.
fn bytes_per_second(Limit { count, period }: Limit) -> NonZeroU32 {
    let bytes =
        u64::from(count.get()).saturating_mul(TimeUnit::Second.nanos()).div_ceil(period.nanos().max(1));
    NonZeroU32::new(u32::try_from(bytes).unwrap_or(u32::MAX)).unwrap_or(NonZeroU32::MIN)
}
