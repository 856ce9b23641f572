//! Plans, as written in the configuration.

use std::collections::BTreeMap;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::values::{PlanName, Rate};

/// Plans, which are tiers of clients. Rules set the limits of each plan.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Plans {
    /// Attribute by which members of plans are identified: a map with one of `header`, `cookie`, `query` and `jwt`,
    /// or the word `host`, `country` or `continent`.
    #[cfg_attr(test, schemars(required))]
    pub of: Option<MemberAttribute>,
    /// Members: a map from the identifying value to the name of a plan, or to a map with `plan` and `limit`; or a map with only `file`. The identifying
    /// values are secrets and are never shown.
    #[cfg_attr(test, schemars(required))]
    pub members: Option<Members>,
    /// Name of the plan of all clients that are not members.
    pub default: Option<PlanName>,
}

/// Attribute by which members of plans are identified.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum MemberAttribute {
    /// `host`, `country` or `continent`.
    Plain(PlainMemberAttribute),
    /// Map with one of `header`, `cookie`, `query` and `jwt`.
    Named(NamedMemberAttribute),
}

/// Attribute by which members of plans are identified, in one word.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PlainMemberAttribute {
    /// Host of the request.
    Host,
    /// Country of the client's address. Needs `geo.database`.
    Country,
    /// Continent of the client's address. Needs `geo.database`.
    Continent,
}

/// Attribute by which members of plans are identified, with its name: exactly one of `header`, `cookie`, `query` and
/// `jwt`.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, schemars(extend("minProperties" = 1, "maxProperties" = 1)))]
pub struct NamedMemberAttribute {
    /// Name of a header; its value identifies the member.
    pub header: Option<String>,
    /// Name of a cookie; its value identifies the member.
    pub cookie: Option<String>,
    /// Name of a query parameter; its decoded value identifies the member.
    pub query: Option<String>,
    /// Claim of the client's [token](tokens.md); its value identifies the member.
    pub jwt: Option<String>,
}

/// Members of plans: a map from identifying values to names of plans, or a map with only `file`.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
// Identifying values are usually API keys.
#[cfg_attr(test, schemars(extend("propertyNames" = { "writeOnly": true })))]
pub struct Members {
    /// File with a YAML or JSON map from identifying values to plans: see [Data files](lists.md#members-of-plans).
    pub file: Option<String>,
    /// Map from identifying values to names of plans, or to maps with `plan` and `limit`.
    #[serde(flatten)]
    pub inline_members: BTreeMap<String, Member>,
}

/// A member: the name of its plan, or a map.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Member {
    /// Name of its plan.
    Plan(PlanName),
    /// Map with `plan` and `limit`.
    Map(MemberMap),
}

/// A member with a limit of its own.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MemberMap {
    /// Name of its plan.
    #[cfg_attr(test, schemars(required))]
    pub plan: Option<PlanName>,
    /// Rate of this member, for rules with `limit: { from: member, … }`. Default: that of the rule.
    pub limit: Option<Rate>,
}

impl Member {
    /// Returns the name of its plan, if it has one.
    pub fn plan(&self) -> Option<&PlanName> {
        match self {
            Self::Plan(plan) => Some(plan),
            Self::Map(map) => map.plan.as_ref(),
        }
    }
}
