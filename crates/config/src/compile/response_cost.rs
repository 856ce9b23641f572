//! Costs that the body of a response states: `response_json` and `tokens`, and what is reserved for them.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::bodies::{add_used, json_field, register};
use super::context::CompileContext;
use super::map_items;
use crate::at::At;
use crate::defaults::REQUEST_COST;
use crate::diagnostic::ValueError;
use crate::raw;
use crate::raw::TokenFormat;
use weir_bodies::fields::{FieldName, FieldSet};
use weir_policy::identify::body::BodyField;
use weir_policy::rules::cost::{
    CostEstimate, ResponseFieldsCost, UsageOptionFields, WEIGHT_SCALE, WeightedFields,
};

/// Maximum weight of a number, in thousandths.
const MAX_WEIGHT: f64 = 1e9;

/// Fields of a language model's API.
struct TokenFields {
    /// Fields of responses. Each inner list is one number, which different responses and events have at different paths.
    response: &'static [&'static [&'static str]],
    /// Fields of requests with the maximum number of tokens of a response.
    max: &'static [&'static str],
    /// Field of requests with the number of responses that are generated.
    repetitions: Option<&'static str>,
}

impl TokenFields {
    const fn of(format: TokenFormat) -> Self {
        match format {
            // Chat Completions and embeddings; the event `response.completed` of Responses.
            TokenFormat::Openai => Self {
                response: &[&["usage.total_tokens", "response.usage.total_tokens"]],
                max: &["max_completion_tokens", "max_tokens", "max_output_tokens"],
                repetitions: Some("n"),
            },
            // Input tokens are in the event `message_start`, the tokens of the output in each `message_delta`.
            TokenFormat::Anthropic => Self {
                response: &[
                    &["usage.input_tokens", "message.usage.input_tokens"],
                    &["usage.cache_creation_input_tokens", "message.usage.cache_creation_input_tokens"],
                    &["usage.cache_read_input_tokens", "message.usage.cache_read_input_tokens"],
                    &["usage.output_tokens", "message.usage.output_tokens"],
                ],
                max: &["max_tokens"],
                repetitions: None,
            },
            TokenFormat::Gemini => Self {
                response: &[&["usageMetadata.totalTokenCount"]],
                max: &["generationConfig.maxOutputTokens"],
                repetitions: Some("generationConfig.candidateCount"),
            },
            // Converse and its stream; InvokeModel with a model of Anthropic.
            TokenFormat::Bedrock => Self {
                response: &[
                    &["usage.totalTokens"],
                    &["usage.input_tokens"],
                    &["usage.cache_creation_input_tokens"],
                    &["usage.cache_read_input_tokens"],
                    &["usage.output_tokens"],
                ],
                max: &["inferenceConfig.maxTokens", "max_tokens"],
                repetitions: None,
            },
        }
    }
}

/// Returns the fields of responses that rules read, if there are any.
pub(super) fn field_set(fields: Vec<FieldName>) -> Option<Arc<FieldSet>> {
    (!fields.is_empty()).then(|| Arc::new(FieldSet::new(fields)))
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
    Some(ResponseFieldsCost { terms, estimate, max_units: raw.max, injects_usage })
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
    let stated: Vec<BodyField> = match (&raw.json, &format) {
        (Some(paths), _) => {
            map_items(paths, at.key("json"), |path, at| register(json_field(path), at, context))
                .into_iter()
                .collect()
        }
        (None, Some(format)) => {
            let fields = format.max.iter().map(|path| register(json_field(path), at, context));
            fields.collect::<Option<_>>()?
        }
        (None, None) => Vec::new(),
    };
    let repetitions = match format.and_then(|format| format.repetitions) {
        Some(path) => Some(register(json_field(path), at, context)?),
        None => None,
    };
    Some(CostEstimate {
        stated: stated.into(),
        default: raw.default.unwrap_or(REQUEST_COST),
        repetitions,
        bytes_per_unit: raw.prompt.and_then(|bytes| NonZeroU64::new(bytes.into())),
    })
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
