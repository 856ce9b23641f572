//! Cost, charging and refunds of requests, as written in the configuration.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::values::{HeaderValues, OneOrMany, Size};
#[cfg(test)]
use crate::defaults;

/// Units that each request costs.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Cost {
    /// Fixed number of units, from 1 to 4294967295.
    Units(
        #[cfg_attr(test, schemars(range(min = 1, max = 4_294_967_295_u64), extend("default" = defaults::REQUEST_COST)))]
         u32,
    ),
    /// Cost that depends on the request or its response.
    Variable(Box<VariableCost>),
}

/// Cost that depends on the request or its response: exactly one of `header`, `json`, `form`, `graphql`, `request_bytes`,
/// `response_header`, `response_bytes`, `response_json`, `tokens`, `messages` and `response_messages`.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, schemars(extend("minProperties" = 1)))]
pub struct VariableCost {
    /// Name of a request header with the number of units, rounded up, at least 1.
    pub header: Option<String>,
    /// Path of a field in a JSON body with the number of units, rounded up, at least 1, such as `max_tokens`. See `bodies`.
    pub json: Option<String>,
    /// Name of a field in a form with the number of units, rounded up, at least 1.
    pub form: Option<String>,
    /// Units of a GraphQL request: `complexity` is the number of fields that its operation selects, times the elements of the lists that it asks
    /// for.
    pub graphql: Option<GraphqlCost>,
    /// Number of bytes of the request's body for which one unit is charged, such as `1KiB`. The cost is rounded up
    /// and at least 1.
    pub request_bytes: Option<Size>,
    /// Name of a response header with the number of units, rounded up; 0 charges nothing.
    pub response_header: Option<String>,
    /// Number of bytes of the response's body for which one unit is charged, such as `1KiB`. The cost is rounded up
    /// and at least 1.
    pub response_bytes: Option<Size>,
    /// Path of a field in a JSON response with the number of units, such as `usage.total_tokens`, or a map from paths to weights, such as
    /// `{ usage.input_tokens: 1, usage.output_tokens: 4 }`. The sum is rounded up; 0 charges nothing. Of an event stream, the last
    /// event that has the field counts.
    pub response_json: Option<ResponseJson>,
    /// Format of a language model's API: the tokens that its responses and event streams state are the cost.
    pub tokens: Option<TokenFormat>,
    /// Units of each message that a client sends inside a stream, in place of requests, 1 to 4294967295: of a WebSocket, or of a gRPC
    /// call. A message over the limit waits. See [Limits inside streams](streams.md).
    #[cfg_attr(test, schemars(range(min = 1, max = 4_294_967_295_u64)))]
    pub messages: Option<NonZeroU32>,
    /// Units of each message that the upstream sends inside a stream, in place of requests, 1 to 4294967295.
    #[cfg_attr(test, schemars(range(min = 1, max = 4_294_967_295_u64)))]
    pub response_messages: Option<NonZeroU32>,
    /// Units that a request costs if the header named by `header` is absent or empty, the field of the body is absent,
    /// or a GraphQL request has no document, 1 to 4294967295. Valid with `header`, `json`, `form` and `graphql` only.
    #[cfg_attr(test, schemars(range(min = 1, max = 4_294_967_295_u64), extend("default" = defaults::REQUEST_COST)))]
    pub default: Option<u32>,
    /// Maximum depth of the fields of a GraphQL operation, from 1 to 100. Deeper ones are unreadable, see `bodies.on_unreadable`. Valid with
    /// `graphql` only.
    #[cfg_attr(test, schemars(range(min = 1, max = 100), extend("default" = defaults::GRAPHQL_DEPTH)))]
    pub depth: Option<u32>,
    /// Names of arguments of GraphQL fields that state a number of elements. Valid with `graphql` only.
    #[cfg_attr(test, schemars(extend("default" = defaults::GRAPHQL_LISTS)))]
    pub lists: Option<OneOrMany<String>>,
    /// Units reserved until the response states the cost, and charged if it states none, 1 to 4294967295; best set to
    /// the usual maximum cost of a request. With `response_json` and `tokens`, a map derives it from the request. Valid with
    /// `response_header`, `response_json` and `tokens` only.
    #[cfg_attr(test, schemars(extend("default" = defaults::REQUEST_COST)))]
    pub estimate: Option<Estimate>,
    /// Whether `stream_options.include_usage` is added to requests of OpenAI's format with `stream: true`, so that the stream states its
    /// tokens. Valid with `tokens: openai` and `response_json` only.
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub inject_usage: Option<bool>,
    /// Maximum number of units that one request costs, whatever the request or the response states, 1 to 4294967295.
    /// Without it, a cost that becomes known after admission can make a counter owe at most its burst (or count) once
    /// more.
    #[cfg_attr(test, schemars(range(min = 1, max = 4_294_967_295_u64)))]
    pub max: Option<u32>,
}

/// What a GraphQL request costs.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum GraphqlCost {
    /// The number of fields that its operation selects, times the elements of their lists.
    Complexity,
}

/// Numbers of a response that make up a cost.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
#[cfg_attr(test, schemars(inline))]
pub enum ResponseJson {
    /// Path of one field, such as `usage.total_tokens`.
    Path(#[cfg_attr(test, schemars(extend("title" = "path", "examples" = ["usage.total_tokens"])))] String),
    /// Map from path to units per unit of the number, with at most three decimals.
    Weights(BTreeMap<String, f64>),
}

/// Format of a language model's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, schemars(inline))]
pub enum TokenFormat {
    /// OpenAI: Chat Completions, Responses, embeddings, and compatible APIs.
    Openai,
    /// Anthropic: Messages.
    Anthropic,
    /// Google: Gemini.
    Gemini,
    /// Amazon Bedrock: Converse, and models of Anthropic, Llama and Titan by InvokeModel.
    Bedrock,
}

/// Units that are reserved for a request.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
#[cfg_attr(test, schemars(inline))]
pub enum Estimate {
    /// Fixed number of units, from 1 to 4294967295.
    Units(#[cfg_attr(test, schemars(range(min = 1, max = 4_294_967_295_u64)))] u32),
    /// Derived from the request.
    Request(RequestEstimate),
}

/// Units that are reserved for a request, by its body.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, schemars(extend("minProperties" = 1)))]
pub struct RequestEstimate {
    /// Path of a field in a JSON body with the maximum number of units, such as `max_tokens`, or a list of paths, of which the highest number
    /// counts. With `tokens`, by default those of its format. See `bodies`.
    pub json: Option<OneOrMany<String>>,
    /// Units if the request has no such field, 1 to 4294967295.
    #[cfg_attr(test, schemars(range(min = 1, max = 4_294_967_295_u64), extend("default" = defaults::REQUEST_COST)))]
    pub default: Option<u32>,
    /// Number of bytes of the request's body for which one unit is added, such as 4 for the tokens of a prompt, 1 to 4294967295.
    #[cfg_attr(test, schemars(range(min = 1, max = 4_294_967_295_u64)))]
    pub prompt: Option<u32>,
}

/// Conditions on the response under which a request is charged. All given fields must match; within a list, one item
/// is enough.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, schemars(extend("minProperties" = 1)))]
pub struct Count {
    /// Status codes of responses that count: codes (`401`), classes (`4xx`) and ranges (`500-504`), from 100 to 599.
    pub response_status: Option<OneOrMany<StatusPattern>>,
    /// Map from response header name to pattern: an exact value, `*` (present), `!present` (absent), `~regex`
    /// (unanchored) or `{ file: NAME }` (a list of values). If a header is repeated, one matching line is enough.
    pub response_header: Option<BTreeMap<String, OneOrMany<HeaderValues>>>,
    /// gRPC statuses of calls that count: numbers from 0 to 16 or names such as `unauthenticated`, in upper or lower
    /// case.
    pub grpc_status: Option<OneOrMany<GrpcStatus>>,
}

/// Status of gRPC calls.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
#[cfg_attr(test, schemars(inline))]
pub enum GrpcStatus {
    /// Number, from 0 to 16.
    Code(#[cfg_attr(test, schemars(range(min = 0, max = 16)))] u8),
    /// Name, such as `unauthenticated`, in upper or lower case.
    Name(
        #[cfg_attr(test, schemars(extend("title" = "gRPC status", "examples" = ["unauthenticated", "permission_denied"])))]
         String,
    ),
}

/// Status codes: one code, a class or a range.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
#[cfg_attr(test, schemars(inline))]
pub enum StatusPattern {
    /// One status code, from 100 to 599.
    Code(#[cfg_attr(test, schemars(range(min = 100, max = 599)))] u16),
    /// Class such as `4xx`, range such as `500-504`, or a code in quotes.
    Pattern(
        #[cfg_attr(test, schemars(extend("title" = "status", "examples" = ["401", "5xx", "500-504"])))]
        String,
    ),
}

/// Outcome of requests, for refunds and retries.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
#[cfg_attr(test, schemars(inline))]
pub enum OutcomePattern {
    /// One status code, from 100 to 599.
    Code(#[cfg_attr(test, schemars(range(min = 100, max = 599)))] u16),
    /// `timeout`, `connect_failure`, `reset`, a class or range of status codes, or the name of a gRPC status.
    Pattern(
        #[cfg_attr(test, schemars(extend("title" = "failure", "examples" = ["5xx", "timeout", "connect_failure", "reset"])))]
         String,
    ),
}
