//! What rules read of bodies, as written in the configuration.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::values::Size;
use weir_policy::identify::body::OnUnreadable;

/// What rules read of the bodies of requests. Only bodies of requests that a rule with a `json` or `form` field may apply to are read.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Bodies {
    /// Maximum size of the part of a body that is held until the fields that rules need are known, from 1KiB to 16MiB. Of a compressed
    /// body, it is also the maximum size of its content.
    #[cfg_attr(test, schemars(extend("default" = "64KiB")))]
    pub max: Option<Size>,
    /// What follows if the fields of a body stay unknown, because it is invalid, longer than `max`, nested deeper than 64 levels, states
    /// a field twice, or has another content type or an unknown coding: rules that depend on the fields reject the request with 400
    /// (`deny`), or its fields count as absent (`missing`).
    #[cfg_attr(test, schemars(extend("default" = "deny")))]
    pub on_unreadable: Option<OnUnreadable>,
}
