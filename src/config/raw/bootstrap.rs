//! Where the rest of the configuration comes from, as people write it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Duration, OrOff, Secret, UpstreamTls};
use crate::config::defaults;
use crate::config::parse::duration_text as shown;

/// Where the rest of the configuration comes from.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bootstrap {
    /// The document with the keys that do not stand here: `http://host[:port]/path` or the same with `https`.
    #[schemars(required)]
    pub http: Option<DocumentUrl>,
    /// The file that keeps the last good document; beside this one, with `.cache` behind its name, unless given.
    pub cache: Option<OrOff<String>>,
    /// How long the server may hold a request until the document changes; `0s` where it is only polled.
    #[schemars(extend("default" = shown(defaults::CENTRAL_WAIT)))]
    pub wait: Option<Duration>,
    /// Between two requests where the server does not hold them, a tenth more or less.
    #[schemars(extend("default" = shown(defaults::CENTRAL_INTERVAL)))]
    pub interval: Option<Duration>,
    /// For a response, apart from the time for which the server holds the request.
    #[schemars(extend("default" = shown(defaults::CENTRAL_TIMEOUT)))]
    pub timeout: Option<Duration>,
    /// Headers sent along, such as `authorization`.
    pub headers: Option<BTreeMap<String, Secret<String>>>,
    /// TLS, where the URL begins with `https://`.
    pub tls: Option<Box<UpstreamTls>>,
}

/// Where a document is.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "URL of a document", "examples" = ["https://config.internal/weir.yaml"]))]
pub struct DocumentUrl(pub String);
