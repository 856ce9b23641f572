//! The cost of requests, and which of them are counted.

use std::num::NonZeroU64;
use std::ops::RangeInclusive;

use super::limits::check_cost;
use super::matching::{header_name, headers as headers_of};
use super::scope::Scope;
use super::{each, given};
use crate::config::at::At;
use crate::config::defaults::COST;
use crate::config::parse::{self, nearest};
use crate::config::problem::{Fault, Report, listed, quoted};
use crate::config::raw;
use crate::rules::cost::{ByteCost, Cost, CostModel, HeaderCost, Refunds, ResponseCondition, Statuses};
use crate::rules::grpc::GrpcStatus;
use crate::rules::rule::RuleLimit;

/// Failures that `refund_on` accepts in addition to status codes.
const FAILURES: [&str; 3] = ["timeout", "connect_failure", "reset"];

pub(super) fn compile(
    raw: &raw::Rule,
    limits: &[RuleLimit],
    at: At<'_>,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> CostModel {
    let cost = match &raw.cost {
        None => Cost::Fixed(COST),
        Some(raw::Cost::Units(units)) => Cost::Fixed(*units),
        Some(raw::Cost::Told(told)) => told_cost(told, at.key("cost"), report).unwrap_or(Cost::Fixed(COST)),
    };
    check_arrival(&cost, limits, at, report);
    note_debt(&cost, at, report);
    let refunds = raw.refund_on.as_ref();
    CostModel {
        cost,
        counts: raw.count.as_ref().map(|count| counted(count, at.key("count"), scope, report)),
        refunds: refunds.map_or_else(Refunds::default, |raw| compile_refunds(raw, at, report)),
    }
}

/// Compiles which responses count.
fn counted(
    raw: &raw::Count,
    at: At<'_>,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> ResponseCondition {
    let statuses = raw.response_status.as_ref().map(|statuses| {
        let statuses = each(statuses, at.key("response_status"), |status, at| match status {
            raw::Status::Code(code) => report.take(at, parse::statuses(&code.to_string())),
            raw::Status::Pattern(text) => report.take(at, parse::statuses(text)),
        });
        statuses.into_iter().collect()
    });
    let headers = raw.response_header.as_ref();
    let headers = headers.map(|map| headers_of(map.iter(), at.key("response_header"), scope, report));
    let calls = raw.grpc_status.as_ref().map(|calls| {
        let calls = each(calls, at.key("grpc_status"), |status, at| match status {
            raw::GrpcStatus::Code(code) => GrpcStatus::from_code((*code).into()),
            raw::GrpcStatus::Name(name) => report.take(at, grpc_status(name)),
        });
        calls.into_iter().collect()
    });
    ResponseCondition { statuses, headers: headers.unwrap_or_default().into(), calls }
}

/// Parses a gRPC status by name, or by number in quotes.
fn grpc_status(text: &str) -> Result<GrpcStatus, Fault> {
    let name = text.trim();
    let code = || name.parse().ok().and_then(GrpcStatus::from_code);
    GrpcStatus::from_name(name).or_else(code).ok_or_else(|| {
        let fault = Fault::new(format!(
            "expected a gRPC status such as `unauthenticated` or 16, got {}",
            quoted(text)
        ));
        let fault = fault.hint("0 to 16, or a name; HTTP status codes are for `response_status`");
        fault.meant(nearest(&name.to_ascii_lowercase(), GrpcStatus::names()))
    })
}

/// Compiles the source of a variable cost, which exactly one key names.
fn told_cost(raw: &raw::ToldCost, at: At<'_>, report: &mut Report<'_>) -> Option<Cost> {
    let sources = [
        ("header", raw.header.is_some()),
        ("request_bytes", raw.request_bytes.is_some()),
        ("response_header", raw.response_header.is_some()),
        ("response_bytes", raw.response_bytes.is_some()),
    ];
    if sources.iter().any(|(source, _)| report.is_faulty(at.key(source))) {
        return None;
    }
    let given: Vec<_> = given(sources).collect();
    let [source] = given[..] else {
        let known = listed(sources.map(|(source, _)| source));
        report.value(at, format!("expected exactly one of {known}, got {}", given.len()));
        return None;
    };
    let beside = [("default", raw.default, "header"), ("estimate", raw.estimate, "response_header")];
    for (key, _, owner) in beside.iter().filter(|(_, given, owner)| given.is_some() && *owner != source) {
        report.key(
            at.key(key),
            Fault::new(format!("`{key}` has no meaning with `{source}`"))
                .hint(format!("it belongs to `{owner}`")),
        );
    }
    let most = raw.max;
    let told = |name: &str, given: Option<u32>, key: &str, report: &mut Report<'_>| {
        let otherwise = given.unwrap_or(COST);
        if let Some(most) = most.filter(|most| otherwise > *most) {
            report.value(at.key(key), format!("above `max`, {otherwise} > {most}"));
        }
        Some(HeaderCost {
            name: report.take(at.key(source), header_name(name))?,
            default: otherwise,
            max_units: most,
        })
    };
    let measure = |size: &raw::Size, report: &mut Report<'_>| {
        let octets = report.take(at.key(source), parse::size(&size.0))?;
        let unit = NonZeroU64::new(octets).ok_or("must be at least 1B, got 0");
        Some(ByteCost { bytes_per_unit: report.take(at.key(source), unit)?, max_units: most })
    };
    if let Some(name) = &raw.header {
        return told(name, raw.default, "default", report).map(Cost::Header);
    }
    if let Some(name) = &raw.response_header {
        return told(name, raw.estimate, "estimate", report).map(Cost::ResponseHeader);
    }
    if let Some(size) = &raw.request_bytes {
        return measure(size, report).map(Cost::RequestBytes);
    }
    measure(raw.response_bytes.as_ref()?, report).map(Cost::ResponseBytes)
}

/// Reports a cost at admission that could never be admitted.
fn check_arrival(cost: &Cost, limits: &[RuleLimit], at: At<'_>, report: &mut Report<'_>) {
    let cost_at = at.key("cost");
    match cost {
        Cost::Fixed(units) => check_cost(*units, limits, cost_at, report),
        Cost::Header(told) => check_cost(told.default, limits, cost_at.key("default"), report),
        Cost::ResponseHeader(told) => check_cost(told.default, limits, cost_at.key("estimate"), report),
        Cost::RequestBytes(_) | Cost::ResponseBytes(_) => {}
    }
}

/// Adds a note for a cost without `max` that becomes known only after the request has passed. It may exceed
/// the limit; the excess reduces what later requests may use.
fn note_debt(cost: &Cost, at: At<'_>, report: &mut Report<'_>) {
    let most = match cost {
        Cost::Fixed(_) | Cost::Header(_) => return,
        Cost::ResponseHeader(told) => told.max_units,
        Cost::RequestBytes(measure) | Cost::ResponseBytes(measure) => measure.max_units,
    };
    if most.is_none() {
        let note =
            Fault::new("the cost is known only after the request is admitted, and can exceed the limit");
        report.note(at.key("cost"), note.hint("set `max` to bound the cost of a request"));
    }
}

fn compile_refunds(raw: &raw::OneOrMany<raw::Refund>, at: At<'_>, report: &mut Report<'_>) -> Refunds {
    let mut refunds = Refunds::default();
    let mut calls = Vec::new();
    let statuses = each(raw, at.key("refund_on"), |refund, at| {
        let text = match refund {
            raw::Refund::Code(code) => code.to_string(),
            raw::Refund::Pattern(text) => text.clone(),
        };
        match text.as_str() {
            "timeout" => refunds.timeout = true,
            "connect_failure" => refunds.connect_failure = true,
            "reset" => refunds.reset = true,
            name => match GrpcStatus::from_name(name) {
                Some(status) => {
                    note_own_doing(status, at, report);
                    calls.push(status);
                }
                None => {
                    let expected = "status codes such as `5xx`, or gRPC statuses such as `unavailable`";
                    let expected = format!("{}, {expected}", listed(FAILURES));
                    let known = FAILURES.into_iter().chain(GrpcStatus::names());
                    return report.take(at, statuses_or(known, &expected, name));
                }
            },
        }
        None
    });
    Refunds { statuses: Statuses::from_iter(statuses), calls: calls.into_iter().collect(), ..refunds }
}

/// Adds a note for a refund that a client can cause itself, and thereby avoid the limit.
fn note_own_doing(status: GrpcStatus, at: At<'_>, report: &mut Report<'_>) {
    if [GrpcStatus::CANCELLED, GrpcStatus::DEADLINE_EXCEEDED].contains(&status) {
        let note =
            Fault::new(format!("clients can cause `{status}` at will, so that every call is refunded"));
        report.note(at, note.hint("for example with a short `grpc-timeout`"));
    }
}

/// Parses status codes where one of the `known` words is also allowed. Text that does not begin with a digit
/// is reported as a misspelt word.
pub(super) fn statuses_or<'w>(
    known: impl IntoIterator<Item = &'w str> + Clone,
    expected: &str,
    text: &str,
) -> Result<RangeInclusive<u16>, Fault> {
    parse::statuses(text).map_err(|fault| match text.starts_with(|first: char| first.is_ascii_digit()) {
        true => fault,
        false => Fault::new(format!("expected {expected}, got {}", quoted(text))).meant(nearest(text, known)),
    })
}
