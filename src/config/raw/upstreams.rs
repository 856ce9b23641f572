//! Upstreams as people write them.

use schemars::JsonSchema;
use serde::Deserialize;

use super::rules::Matcher;
use super::values::{Duration, OneOrMany, UpstreamAddress};
use crate::config::defaults;
use crate::config::parse::duration_text as shown;

/// The service beside us.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Upstream {
    /// Only its address.
    Address(UpstreamAddress),
    /// With more to say.
    Map(Box<UpstreamMap>),
}

/// A service to which requests are passed on.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpstreamMap {
    /// Its name in metrics and logs. That of the only one is `upstream` unless given; in a list, its address.
    pub name: Option<String>,
    /// Which requests it takes, in `upstreams`: every field must hold. Without it, all that are left.
    #[serde(rename = "match")]
    pub matching: Option<Matcher>,
    /// Where it is: one place or several.
    #[schemars(required)]
    pub address: Option<OneOrMany<UpstreamAddress>>,
    /// Until a connection stands.
    #[schemars(extend("default" = shown(defaults::CONNECT_TIMEOUT)))]
    pub connect_timeout: Option<Duration>,
    /// From the request's last byte to the answer's headers; a body may then flow as long as it moves.
    #[schemars(extend("default" = shown(defaults::UPSTREAM_TIMEOUT)))]
    pub timeout: Option<Duration>,
    /// How long a body may stand still, and an unused connection is kept.
    #[schemars(extend("default" = shown(defaults::UPSTREAM_IDLE_TIMEOUT)))]
    pub idle_timeout: Option<Duration>,
}
