//! Costs that the body of a response states: `response_json` and `tokens`, and what is reserved for them.

mod formats;

use std::num::NonZeroU64;
use std::sync::Arc;

use self::formats::{ANY_END, EndFields, EndpointFields, FAILURE, RequiredField, TokenFields};
use super::bodies::{add_used, json_field, register};
use super::context::{CompileContext, UsedFields};
use super::map_items;
use crate::at::At;
use crate::defaults::REQUEST_COST;
use crate::diagnostic::ValueError;
use crate::raw;
use crate::raw::TokenFormat;
use weir_bodies::fields::FieldName;
use weir_bodies::response::ResponseFields;
use weir_policy::identify::body::BodyField;
use weir_policy::rules::cost::{
    CostEstimate, EndpointPattern, ResponseFieldsCost, StatedMax, StreamEnd, UsageOptionFields, WEIGHT_SCALE,
    WeightedFields,
};

/// Maximum weight of a number, in thousandths.
const MAX_WEIGHT: f64 = 1e9;

/// Returns the fields of responses that rules read, if there are any.
pub(super) fn fields(used: &UsedFields) -> Option<Arc<ResponseFields>> {
    let fields = used.responses.take();
    (!fields.is_empty()).then(|| Arc::new(ResponseFields::new(fields, used.event_type.get())))
}

/// Compiles a cost with `response_json` or `tokens`.
pub(super) fn compile(
    raw: &raw::VariableCost,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Option<ResponseFieldsCost> {
    let terms = match (&raw.response_json, raw.tokens) {
        (Some(raw::ResponseJson::Path(path)), _) => {
            let field = register_response(path, at.key("response_json"), context)?;
            Box::from([WeightedFields { fields: [field].into(), weight: WEIGHT_SCALE }])
        }
        (Some(raw::ResponseJson::Weights(weights)), _) => {
            compile_weights(weights.iter(), at.key("response_json"), context)?
        }
        (None, Some(format)) => compile_format(format, at.key("tokens"), context)?,
        (None, None) => return None,
    };
    let estimate = match &raw.estimate {
        None => CostEstimate::fixed(REQUEST_COST),
        Some(raw::Estimate::Units(units)) => CostEstimate::fixed(*units),
        Some(raw::Estimate::Request(request)) => compile_estimate(request, raw, at.key("estimate"), context)?,
    };
    if let Some(max) = raw.max.filter(|max| estimate.default > *max) {
        at.key("estimate").error(format!("above `max`, {} > {max}", estimate.default));
    }
    let injects_usage = if raw.inject_usage == Some(true) {
        Some(compile_injection(raw, at.key("inject_usage"), context)?)
    } else {
        None
    };
    let end = raw.tokens.map_or(&ANY_END, |format| &TokenFields::of(format).end);
    let stream_end = compile_end(end, at, context)?;
    Some(ResponseFieldsCost { terms, estimate, max_units: raw.max, stream_end, injects_usage })
}

/// Returns the estimate of a cost that does not depend on bodies.
pub(super) fn fixed_estimate(raw: Option<&raw::Estimate>, at: At<'_>) -> Option<u32> {
    match raw? {
        raw::Estimate::Units(units) => Some(*units),
        raw::Estimate::Request(_) => {
            let error = ValueError::new("with `response_header`, expected a number");
            at.error(error.with_hint("a map derives the estimate of `response_json` and `tokens`"));
            None
        }
    }
}

fn compile_weights<'w>(
    weights: impl Iterator<Item = (&'w String, &'w f64)>,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Option<Box<[WeightedFields]>> {
    let terms = weights.map(|(path, weight)| {
        let at = at.key(path);
        let weight = at.ok(scaled(*weight));
        let field = register_response(path, at, context)?;
        Some(WeightedFields { fields: [field].into(), weight: weight? })
    });
    let terms: Vec<_> = terms.collect();
    if terms.is_empty() && !at.is_reported() {
        at.error("empty map, expected at least one path with its weight");
        return None;
    }
    terms.into_iter().collect()
}

/// Returns a weight in thousandths.
fn scaled(weight: f64) -> Result<i64, ValueError> {
    let thousandths = weight * WEIGHT_SCALE as f64;
    let rounded = thousandths.round();
    let is_exact = (thousandths - rounded).abs() < 1e-6;
    if weight == 0.0 || !is_exact || rounded.abs() > MAX_WEIGHT {
        let error = ValueError::new(format!(
            "expected a weight up to a million with at most three decimals and not 0, got {weight}"
        ));
        return Err(error.with_hint("negative weights reduce the cost, such as those of cached tokens"));
    }
    #[expect(clippy::cast_possible_truncation, reason = "it is an integer, and small enough")]
    Ok(rounded as i64)
}

fn compile_format(
    format: TokenFormat,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Option<Box<[WeightedFields]>> {
    let terms = TokenFields::of(format).response.iter().map(|paths| {
        let fields = paths.iter().map(|path| register_response(path, at, context));
        Some(WeightedFields { fields: fields.collect::<Option<_>>()?, weight: WEIGHT_SCALE })
    });
    terms.collect()
}

fn compile_estimate(
    raw: &raw::RequestEstimate,
    cost: &raw::VariableCost,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Option<CostEstimate> {
    let format = cost.tokens.map(TokenFields::of);
    let stated: Box<[StatedMax]> = match (&raw.json, format) {
        (Some(paths), _) => {
            let fields = map_items(paths, at.key("json"), |path, at| register(json_field(path), at, context));
            [StatedMax { fields: fields.into_iter().collect(), endpoint: EndpointPattern::default() }].into()
        }
        (None, Some(format)) => {
            let endpoints = format.endpoints.iter().map(|endpoint| compile_endpoint(endpoint, at, context));
            endpoints.collect::<Option<_>>()?
        }
        (None, None) => Box::default(),
    };
    let repetitions = format.map_or(&[][..], |format| format.repetitions);
    let repetitions = repetitions.iter().map(|path| register(json_field(path), at, context));
    let repetitions = repetitions.collect::<Option<_>>()?;
    let prompts = match format.and_then(|format| format.prompts) {
        Some(path) => Some(register(text_count(path), at, context)?),
        None => None,
    };
    Some(CostEstimate {
        stated,
        default: raw.default.unwrap_or(REQUEST_COST),
        repetitions,
        prompts,
        bytes_per_unit: raw.prompt.and_then(|bytes| NonZeroU64::new(bytes.into())),
    })
}

fn compile_endpoint(
    endpoint: &EndpointFields,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Option<StatedMax> {
    let required = endpoint.required.iter().map(|field| match field {
        RequiredField::Text(path) => register(text_count(path), at, context),
        RequiredField::Scalar(path) => register(json_field(path), at, context),
    });
    let fields = required.collect::<Option<_>>()?;
    let max = endpoint.max.iter().map(|path| register(json_field(path), at, context));
    let endpoint = EndpointPattern { fields, last_segments: endpoint.last_segments };
    Some(StatedMax { fields: max.collect::<Option<_>>()?, endpoint })
}

/// Returns the number of texts at a path.
fn text_count(path: &str) -> Result<FieldName, ValueError> {
    json_field(path).map(|field| match field {
        FieldName::Json(path) => FieldName::JsonCount(path),
        other => other,
    })
}

fn compile_end(end: &EndFields, at: At<'_>, context: &CompileContext<'_>) -> Option<StreamEnd> {
    let registered = |path: &&str| register_response(path, at, context);
    let mut last = end.fields.iter().map(registered).collect::<Option<Vec<_>>>()?;
    if end.has_type {
        let event_type = register_response("type", at, context)?;
        context.used_fields.event_type.set(Some(event_type.index));
        last.push(event_type);
    }
    let failed = [registered(&FAILURE)?].into();
    Some(StreamEnd { is_known: end.is_known, is_done: end.is_done, last: last.into(), failed })
}

fn compile_injection(
    raw: &raw::VariableCost,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Option<UsageOptionFields> {
    if !matches!(raw.tokens, None | Some(TokenFormat::Openai)) {
        let error =
            ValueError::new("streams of this format state their tokens, only OpenAI's have an option");
        at.error(error.with_hint("remove `inject_usage`"));
        return None;
    }
    let field = |path: &str| register(json_field(path), at, context);
    Some(UsageOptionFields([field("stream")?, field("stream_options.include_usage")?]))
}

/// Registers a field of responses as used.
fn register_response(path: &str, at: At<'_>, context: &CompileContext<'_>) -> Option<BodyField> {
    add_used(json_field(path), &context.used_fields.responses, "responses", at)
}
