//! Plans as people write them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::values::PlanName;

/// Tiers of clients: who is on which plan. What a plan allows is said by rules.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plans {
    /// What a client is known by.
    #[schemars(required)]
    pub of: Option<Badge>,
    /// Who is on which plan.
    #[schemars(required)]
    pub members: Option<Members>,
    /// The plan of everybody else.
    pub default: Option<PlanName>,
}

/// What a client is known by.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Badge {
    /// By its kind alone.
    Plain(PlainBadge),
    /// With a name.
    Named(NamedBadge),
}

/// What a client is known by, without a name.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlainBadge {
    /// The host it asks for.
    Host,
    /// The country of its address; needs `geo.database`.
    Country,
    /// The continent of its address; needs `geo.database`.
    Continent,
}

/// What a client is known by; exactly one of these.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 1, "maxProperties" = 1))]
pub struct NamedBadge {
    /// The value of this header.
    pub header: Option<String>,
    /// The cookie of this name.
    pub cookie: Option<String>,
    /// The query parameter of this name.
    pub query: Option<String>,
    /// What its token says; needs `jwt`.
    pub jwt: Option<String>,
}

/// Who is on which plan: `file` alone, or members by what they are known by.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
// Members are known by their API keys more often than not.
#[schemars(extend("propertyNames" = { "writeOnly": true }))]
pub struct Members {
    /// A file of them, relative to the one that names it.
    pub file: Option<String>,
    /// Members and their plans.
    #[serde(flatten)]
    pub written: BTreeMap<String, PlanName>,
}
