//! Plans as people write them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::values::PlanName;

/// Tiers of clients: who is on which plan. What a plan allows is said by rules.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plans {
    /// Attribute by which members of plans are identified: a map with one of `header`, `cookie`, `query` and `jwt`,
    /// or the word `host`, `country` or `continent`.
    #[schemars(required)]
    pub of: Option<Badge>,
    /// Members: a map from the identifying value to the name of a plan, or a map with only `file`. The identifying
    /// values are secrets and are never shown.
    #[schemars(required)]
    pub members: Option<Members>,
    /// Name of the plan of all clients that are not members.
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
    /// Name of a header; its value identifies the member.
    pub header: Option<String>,
    /// Name of a cookie; its value identifies the member.
    pub cookie: Option<String>,
    /// Name of a query parameter; its decoded value identifies the member.
    pub query: Option<String>,
    /// Claim of the client's [token](tokens.md); its value identifies the member.
    pub jwt: Option<String>,
}

/// Who is on which plan: `file` alone, or members by what they are known by.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
// Members are known by their API keys more often than not.
#[schemars(extend("propertyNames" = { "writeOnly": true }))]
pub struct Members {
    /// File with a YAML or JSON map from identifying values to plans: see [Data files](lists.md#members-of-plans).
    pub file: Option<String>,
    /// Members and their plans.
    #[serde(flatten)]
    pub written: BTreeMap<String, PlanName>,
}
