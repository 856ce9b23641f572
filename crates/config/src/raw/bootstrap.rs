//! Source of the rest of the configuration, as written in the bootstrap file.

use std::collections::BTreeMap;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Duration, OrOff, Secret, UpstreamTls};
#[cfg(test)]
use crate::defaults;
#[cfg(test)]
use crate::parse::format_duration as shown;

/// HTTP server from which Weir fetches the keys that are not in this file.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Bootstrap {
    /// URL of the document: `http://host[:port]/path`, or the same with `https`. A query is allowed; credentials and
    /// a fragment are not.
    #[cfg_attr(test, schemars(required))]
    pub http: Option<DocumentUrl>,
    /// File that keeps the last good document, relative to this file. `disabled` keeps none. Default: this file's
    /// name with `.cache` appended.
    pub cache: Option<OrOff<String>>,
    /// Maximum time for which the server may hold a request until the document changes (long polling): whole seconds,
    /// at most 1h. With `0s` Weir only polls.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::CENTRAL_WAIT))))]
    pub wait: Option<Duration>,
    /// Interval between two requests if the server does not hold them, randomised by a tenth up or down; at least
    /// 100ms.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::CENTRAL_INTERVAL))))]
    pub interval: Option<Duration>,
    /// Maximum time for a response, including the connection. The time for which the server holds the request is not
    /// counted.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::CENTRAL_TIMEOUT))))]
    pub timeout: Option<Duration>,
    /// Map of headers that are sent with each request, such as `authorization`. The values are secrets and are never
    /// shown.
    pub headers: Option<BTreeMap<String, Secret<String>>>,
    /// TLS settings for a `config.http` that begins with `https://`, as a map.
    pub tls: Option<Box<UpstreamTls>>,
}

/// URL of a configuration document: `http://host[:port]/path`, or the same with `https`.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "URL of a document", "examples" = ["https://config.internal/weir.yaml"])))]
pub struct DocumentUrl(pub String);
