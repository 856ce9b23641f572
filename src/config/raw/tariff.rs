//! What requests cost and which of them count, as people write it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::values::{HeaderValues, OneOrMany, Size};
use crate::config::defaults;

/// What each request costs.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Cost {
    /// So many units.
    Units(#[schemars(range(min = 1, max = 4_294_967_295_u64), extend("default" = defaults::COST))] u32),
    /// Told by the request or its answer.
    Told(ToldCost),
}

/// A cost that the request or its answer tells; exactly one of the first four.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 1))]
pub struct ToldCost {
    /// The number in this header of the request, at least 1.
    pub header: Option<String>,
    /// One unit for every so many bytes of the request's body that are begun.
    pub request_bytes: Option<Size>,
    /// The number in this header of the answer.
    pub response_header: Option<String>,
    /// One unit for every so many bytes of the answer's body that are begun.
    pub response_bytes: Option<Size>,
    /// Units of a request without the header, or with one that is no number.
    #[schemars(range(min = 1, max = 4_294_967_295_u64), extend("default" = defaults::COST))]
    pub default: Option<u32>,
    /// Units reserved until the answer tells, and charged where it does not.
    #[schemars(range(min = 1, max = 4_294_967_295_u64), extend("default" = defaults::COST))]
    pub estimate: Option<u32>,
    /// Units at the most, whatever is told.
    #[schemars(range(min = 1, max = 4_294_967_295_u64))]
    pub max: Option<u32>,
}

/// Which requests count: all fields must hold; a list means any of its items.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 1))]
pub struct Count {
    /// The status of the response.
    pub response_status: Option<OneOrMany<Status>>,
    /// Headers of the response by name.
    pub response_header: Option<BTreeMap<String, OneOrMany<HeaderValues>>>,
    /// The status of a gRPC call.
    pub grpc_status: Option<OneOrMany<GrpcStatus>>,
}

/// A status of gRPC calls.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum GrpcStatus {
    /// By its number.
    Code(#[schemars(range(min = 0, max = 16))] u8),
    /// By its name.
    Name(
        #[schemars(extend("title" = "gRPC status", "examples" = ["unauthenticated", "permission_denied"]))]
        String,
    ),
}

/// Statuses: a code, a class or a range.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum Status {
    /// One code.
    Code(#[schemars(range(min = 100, max = 599))] u16),
    /// `4xx`, `500-504`, or a code in quotes.
    Pattern(#[schemars(extend("title" = "status", "examples" = ["401", "5xx", "500-504"]))] String),
}

/// Ends of requests for which the charge is given back.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum Refund {
    /// One code.
    Code(#[schemars(range(min = 100, max = 599))] u16),
    /// `timeout`, `connect_failure`, `reset`, statuses, or names of gRPC statuses.
    Pattern(
        #[schemars(extend("title" = "failure", "examples" = ["5xx", "timeout", "connect_failure", "reset"]))]
        String,
    ),
}
