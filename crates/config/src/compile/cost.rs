//! The cost of requests, and which of them are counted.

use std::num::NonZeroU64;
use std::ops::RangeInclusive;

use super::bodies;
use super::context::CompileContext;
use super::graphql;
use super::limits::check_cost;
use super::matching::{compile_header_patterns as headers_of, parse_header_name};
use super::{given_keys, map_items, response_cost};
use crate::at::At;
use crate::defaults::REQUEST_COST;
use crate::diagnostic::ValueError;
use crate::parse::{self, nearest_name};
use crate::quoting::{backquoted_list, quoted};
use crate::raw;
use weir_policy::rules::cost::{
    ByteCost, Cost, CostModel, FieldCost, HeaderCost, Refunds, ResponseCondition, Statuses,
};
use weir_policy::rules::grpc::GrpcStatus;
use weir_policy::rules::rule::RuleLimit;

/// Failures that `refund_on` accepts in addition to status codes.
const FAILURE_NAMES: [&str; 3] = ["timeout", "connect_failure", "reset"];

pub(super) fn compile(
    raw: &raw::Rule,
    limits: &[RuleLimit],
    at: At<'_>,
    context: &mut CompileContext<'_>,
) -> CostModel {
    let cost = match raw.cost.as_deref() {
        None => Cost::Fixed(REQUEST_COST),
        Some(raw::Cost::Units(units)) => Cost::Fixed(*units),
        Some(raw::Cost::Variable(variable)) => {
            note_missing_estimate(variable, at.key("cost"));
            compile_variable_cost(variable, at.key("cost"), context).unwrap_or(Cost::Fixed(REQUEST_COST))
        }
    };
    check_admission_cost(&cost, limits, at);
    note_unbounded_cost(&cost, at);
    let refunds = raw.refund_on.as_ref();
    CostModel {
        cost,
        counts: raw.count.as_deref().map(|count| compile_count(count, at.key("count"), context)),
        refunds: refunds.map_or_else(Refunds::default, |raw| compile_refunds(raw, at)),
    }
}

/// Compiles which responses count.
fn compile_count(raw: &raw::Count, at: At<'_>, context: &mut CompileContext<'_>) -> ResponseCondition {
    let statuses = raw.response_status.as_ref().map(|statuses| {
        let statuses = map_items(statuses, at.key("response_status"), |status, at| match status {
            raw::StatusPattern::Code(code) => at.ok(parse::status_range(&code.to_string())),
            raw::StatusPattern::Pattern(text) => at.ok(parse::status_range(text)),
        });
        statuses.into_iter().collect()
    });
    let headers = raw.response_header.as_ref();
    let headers = headers.map(|map| headers_of(map.iter(), at.key("response_header"), context));
    let calls = raw.grpc_status.as_ref().map(|calls| {
        let calls = map_items(calls, at.key("grpc_status"), |status, at| match status {
            raw::GrpcStatus::Code(code) => GrpcStatus::from_code((*code).into()),
            raw::GrpcStatus::Name(name) => at.ok(parse_grpc_status(name)),
        });
        calls.into_iter().collect()
    });
    ResponseCondition { statuses, headers: headers.unwrap_or_default().into(), calls }
}

/// Parses a gRPC status by name, or by number in quotes.
fn parse_grpc_status(text: &str) -> Result<GrpcStatus, ValueError> {
    let name = text.trim();
    let code = || name.parse().ok().and_then(GrpcStatus::from_code);
    GrpcStatus::from_name(name).or_else(code).ok_or_else(|| {
        let error = ValueError::new(format!(
            "expected a gRPC status such as `unauthenticated` or 16, got {}",
            quoted(text)
        ));
        let error = error.with_hint("0 to 16, or a name; HTTP status codes are for `response_status`");
        error.with_suggestion(nearest_name(&name.to_ascii_lowercase(), GrpcStatus::names()))
    })
}

/// Compiles the source of a variable cost, which exactly one key names.
fn compile_variable_cost(raw: &raw::VariableCost, at: At<'_>, context: &CompileContext<'_>) -> Option<Cost> {
    let sources = [
        ("header", raw.header.is_some()),
        ("json", raw.json.is_some()),
        ("form", raw.form.is_some()),
        ("graphql", raw.graphql.is_some()),
        ("request_bytes", raw.request_bytes.is_some()),
        ("response_header", raw.response_header.is_some()),
        ("response_bytes", raw.response_bytes.is_some()),
        ("response_json", raw.response_json.is_some()),
        ("tokens", raw.tokens.is_some()),
        ("messages", raw.messages.is_some()),
        ("response_messages", raw.response_messages.is_some()),
    ];
    if sources.iter().any(|(source, _)| at.key(source).is_reported()) {
        return None;
    }
    let given: Vec<_> = given_keys(sources).collect();
    let [source] = given[..] else {
        let known = backquoted_list(sources.map(|(source, _)| source));
        at.error(format!("expected exactly one of {known}, got {}", given.len()));
        return None;
    };
    report_dependent_keys(raw, source, at);
    if raw.messages.is_some() || raw.response_messages.is_some() {
        // The limits of the rule are not those of requests.
        return Some(Cost::Fixed(REQUEST_COST));
    }
    let max_units = raw.max;
    let check_max = |key: &str, default: u32| {
        if let Some(max_units) = max_units.filter(|max| default > *max) {
            at.key(key).error(format!("above `max`, {default} > {max_units}"));
        }
    };
    let header_cost = |name: &str, given: Option<u32>, key: &str| {
        let default = given.unwrap_or(REQUEST_COST);
        check_max(key, default);
        Some(HeaderCost { name: at.key(source).ok(parse_header_name(name))?, default, max_units })
    };
    let byte_cost = |size: &raw::Size| {
        let bytes = at.key(source).ok(parse::size(&size.0))?;
        let unit = NonZeroU64::new(bytes).ok_or("must be at least 1B, got 0");
        Some(ByteCost { bytes_per_unit: at.key(source).ok(unit)?, max_units })
    };
    if let Some(name) = &raw.header {
        return header_cost(name, raw.default, "default").map(Cost::Header);
    }
    if let Some(name) = &raw.response_header {
        let estimate = response_cost::fixed_estimate(raw.estimate.as_ref(), at.key("estimate"));
        return header_cost(name, estimate, "estimate").map(Cost::ResponseHeader);
    }
    if raw.response_json.is_some() || raw.tokens.is_some() {
        return response_cost::compile(raw, at, context).map(|stated| Cost::ResponseFields(Box::new(stated)));
    }
    let field = match raw.graphql {
        Some(raw::GraphqlCost::Complexity) => Some(Ok(graphql::complexity(raw, at))),
        None => {
            let form = || raw.form.as_deref().map(bodies::form_field);
            raw.json.as_deref().map(bodies::json_field).or_else(form)
        }
    };
    if let Some(field) = field {
        let default = raw.default.unwrap_or(REQUEST_COST);
        check_max("default", default);
        let field = bodies::register(field, at.key(source), context)?;
        return Some(Cost::RequestField(FieldCost { field, default, max_units }));
    }
    if let Some(size) = &raw.request_bytes {
        return byte_cost(size).map(Cost::RequestBytes);
    }
    byte_cost(raw.response_bytes.as_ref()?).map(Cost::ResponseBytes)
}

/// Reports keys that do not belong to the `source` of a cost.
fn report_dependent_keys(raw: &raw::VariableCost, source: &str, at: At<'_>) {
    let estimated = ["response_header", "response_json", "tokens"];
    let dependent_keys = [
        ("default", raw.default.is_some(), &["header", "json", "form", "graphql"][..]),
        ("depth", raw.depth.is_some(), &["graphql"]),
        ("lists", raw.lists.is_some(), &["graphql"]),
        ("estimate", raw.estimate.is_some(), &estimated),
        ("inject_usage", raw.inject_usage.is_some(), &["tokens", "response_json"]),
    ];
    for (key, _, owners) in
        dependent_keys.iter().filter(|(_, is_given, owners)| *is_given && !owners.contains(&source))
    {
        let owner = owners[0];
        let condition = ValueError::new(format!("with `{source}`"));
        at.inapplicable_key(key, condition.with_hint(format!("it belongs to `{owner}`")));
    }
    if raw.max.is_some() && matches!(source, "messages" | "response_messages") {
        at.inapplicable_key("max", format!("with `{source}`"));
    }
}

/// Reports a cost at admission that could never be admitted.
fn check_admission_cost(cost: &Cost, limits: &[RuleLimit], at: At<'_>) {
    let cost_at = at.key("cost");
    match cost {
        Cost::Fixed(units) => check_cost(*units, limits, cost_at),
        Cost::Header(header) => check_cost(header.default, limits, cost_at.key("default")),
        Cost::ResponseHeader(header) => check_cost(header.default, limits, cost_at.key("estimate")),
        Cost::RequestField(stated) => check_cost(stated.default, limits, cost_at.key("default")),
        Cost::ResponseFields(stated) => check_cost(stated.estimate.default, limits, cost_at.key("estimate")),
        Cost::RequestBytes(_) | Cost::ResponseBytes(_) => {}
    }
}

/// Adds a note for a cost in a response header without an estimate: a key may then have as many requests in flight as its
/// limit has units, whatever they cost.
fn note_missing_estimate(raw: &raw::VariableCost, at: At<'_>) {
    if raw.tokens == Some(raw::TokenFormat::Openai) && raw.inject_usage.is_none() {
        let note =
            ValueError::new("streams of Chat Completions state no tokens unless the request asks for them");
        at.note(note.with_hint("add `inject_usage: true`, or `false` to keep requests as they are"));
    }
    let is_stated_later =
        raw.response_header.is_some() || raw.response_json.is_some() || raw.tokens.is_some();
    if is_stated_later && raw.estimate.is_none() {
        let note =
            ValueError::new("without `estimate`, one unit is reserved until the response states the cost");
        at.note(note.with_hint(match raw.tokens {
            Some(_) => "reserve what the request asks for: `estimate: { default: 1000, prompt: 4 }`",
            None => "set it to the usual maximum cost of a request",
        }));
    }
}

/// Adds a note for a cost without `max` that becomes known only after the request has passed. It may exceed
/// the limit; the excess reduces what later requests may use.
fn note_unbounded_cost(cost: &Cost, at: At<'_>) {
    let max_units = match cost {
        Cost::Fixed(_) | Cost::Header(_) | Cost::RequestField(_) => return,
        Cost::ResponseHeader(header) => header.max_units,
        Cost::RequestBytes(measure) | Cost::ResponseBytes(measure) => measure.max_units,
        Cost::ResponseFields(stated) => stated.max_units,
    };
    if max_units.is_none() {
        let note =
            ValueError::new("the cost is known only after the request is admitted, and can exceed the limit");
        at.key("cost").note(note.with_hint("set `max` to bound the cost of a request"));
    }
}

fn compile_refunds(raw: &raw::OneOrMany<raw::OutcomePattern>, at: At<'_>) -> Refunds {
    let mut refunds = Refunds::default();
    let mut calls = Vec::new();
    let statuses = map_items(raw, at.key("refund_on"), |refund, at| {
        let text = match refund {
            raw::OutcomePattern::Code(code) => code.to_string(),
            raw::OutcomePattern::Pattern(text) => text.clone(),
        };
        match text.as_str() {
            "timeout" => refunds.timeout = true,
            "connect_failure" => refunds.connect_failure = true,
            "reset" => refunds.reset = true,
            name => match GrpcStatus::from_name(name) {
                Some(status) => {
                    note_client_controlled_refund(status, at);
                    calls.push(status);
                }
                None => {
                    let expected = "status codes such as `5xx`, or gRPC statuses such as `unavailable`";
                    let expected = format!("{}, {expected}", backquoted_list(FAILURE_NAMES));
                    let known = FAILURE_NAMES.into_iter().chain(GrpcStatus::names());
                    return at.ok(parse_statuses_or_word(known, &expected, name));
                }
            },
        }
        None
    });
    Refunds { statuses: Statuses::from_iter(statuses), calls: calls.into_iter().collect(), ..refunds }
}

/// Adds a note for a refund that a client can cause itself, and thereby avoid the limit.
fn note_client_controlled_refund(status: GrpcStatus, at: At<'_>) {
    if [GrpcStatus::CANCELLED, GrpcStatus::DEADLINE_EXCEEDED].contains(&status) {
        let note =
            ValueError::new(format!("clients can cause `{status}` at will, so that every call is refunded"));
        at.note(note.with_hint("for example with a short `grpc-timeout`"));
    }
}

/// Parses status codes where one of the `known` words is also allowed. Text that does not begin with a digit
/// is reported as a misspelt word.
pub(super) fn parse_statuses_or_word<'w>(
    known: impl IntoIterator<Item = &'w str> + Clone,
    expected: &str,
    text: &str,
) -> Result<RangeInclusive<u16>, ValueError> {
    parse::status_range(text).map_err(|error| match text.starts_with(|first: char| first.is_ascii_digit()) {
        true => error,
        false => ValueError::new(format!("expected {expected}, got {}", quoted(text)))
            .with_suggestion(nearest_name(text, known)),
    })
}
