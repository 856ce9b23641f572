//! Local replies to rejected requests, and bans, as written in the configuration.

use std::collections::BTreeMap;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::secret::Secret;
use super::values::{Duration, Json, Method, OneOrMany, Origin, Size};
#[cfg(test)]
use crate::defaults;
#[cfg(test)]
use crate::parse::format_duration as shown;

/// Local reply to the requests that a rule rejects, and bans of their keys.
// `fallback` and `ban` have no meaning for requests that are rejected without a limit.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OnLimit {
    /// What becomes of a request that the rule rejects: it gets a response (`respond`), or its connection is closed
    /// without one (`close`). See [Close the connection](fallback.md#close-the-connection).
    #[cfg_attr(test, schemars(extend("default" = "respond")))]
    pub action: Option<LimitAction>,
    /// Status code of the rejection, 400 to 599. With `action: deny` and `on_missing: deny` it is 403 unless given.
    #[cfg_attr(test, schemars(range(min = 400, max = 599), extend("default" = defaults::REJECTION_STATUS)))]
    pub status: Option<u16>,
    /// Body of the rejection: a map with exactly one of `text`, `json`, `file` and `fallback`, or `problem` for [problem
    /// details](fallback.md#problem-details). May have [placeholders](fallback.md#placeholders). Default: `too many
    /// requests`, and `forbidden` for `action: deny` and `on_missing: deny`.
    pub body: Option<Body>,
    /// Headers of the rejection by name; values may have [placeholders](fallback.md#placeholders). Not headers that
    /// Weir sets itself or that belong to the connection: `connection`, `content-length`, `keep-alive`, `te`,
    /// `trailer`, `transfer-encoding`, `upgrade`, `x-envoy-ratelimited`, and `retry-after` except with `action: deny`.
    pub headers: Option<BTreeMap<String, Secret<String>>>,
    /// Pages that may read the rejection in a browser: a map with `origins`. See [Browsers](fallback.md#browsers).
    pub cors: Option<Cors>,
    /// Degraded response in place of a rejection: a map with `cached`, `file` or both. See [Serve stale
    /// responses](fallback.md#serve-stale-responses).
    pub fallback: Option<Fallback>,
    /// Name of an upstream in `upstreams` to which requests over the limit are sent instead of being rejected. They are
    /// not charged to the rule. See [Another upstream](throttling.md#another-upstream).
    pub upstream: Option<String>,
    /// Duration of the first ban of a key, which begins when the rule rejects one of its requests; until it ends, the
    /// rule rejects all of them. Each further ban lasts twice as long as the one before, at most `ban_max`.
    pub ban: Option<Duration>,
    /// Maximum duration of a ban, and the time for which a ban is remembered after its end. Valid with `ban` only.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::MAX_BAN))))]
    pub ban_max: Option<Duration>,
}

/// Pages that may read the local replies of a rule in a browser.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Cors {
    /// Origins of the pages, as browsers write them, such as `https://app.example`; `https://*.example.com` for all
    /// hosts below a domain, or `*` for every page.
    #[cfg_attr(test, schemars(required))]
    pub origins: Option<OneOrMany<Origin>>,
    /// Whether pages may also read the replies to requests that they send with cookies (`credentials: "include"`). Not
    /// valid with `*`.
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub credentials: Option<bool>,
}

/// What becomes of a request that a rule rejects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, schemars(inline))]
pub enum LimitAction {
    /// It gets a response.
    Respond,
    /// Its connection is closed without a response.
    Close,
}

/// Body of a rejection.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
#[cfg_attr(test, schemars(inline))]
pub enum Body {
    /// Format of a body that Weir generates.
    Format(BodyFormat),
    /// Configured body.
    Content(Box<BodyContent>),
}

/// Format of a body that Weir generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, schemars(inline))]
pub enum BodyFormat {
    /// Problem details (RFC 9457).
    Problem,
}

impl Body {
    /// Returns the configured body.
    pub fn content(&self) -> Option<&BodyContent> {
        match self {
            Self::Format(BodyFormat::Problem) => None,
            Self::Content(content) => Some(content),
        }
    }
}

/// Configured body of a rejection; exactly one of these fields.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, schemars(extend("minProperties" = 1, "maxProperties" = 1)))]
pub struct BodyContent {
    /// Text of the rejection's body.
    pub text: Option<String>,
    /// JSON value of the rejection's body, sent with the content type `application/json`.
    pub json: Option<Json>,
    /// File with the rejection's body, up to 1 MiB, relative to the file that names it; reloaded when it changes. The
    /// content type follows the extension: `.html`, `.json`, `.txt`, `.xml` or `.svg`; any other needs `headers: {
    /// content-type: ... }`.
    pub file: Option<String>,
    /// File with a degraded response to a GET or HEAD request; short for `fallback.file`.
    pub fallback: Option<String>,
}

/// Degraded response in place of a rejection: the last good response (`cached`), or a file.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Fallback {
    /// Memory for all stored responses of the rule together, such as `16MiB`; a rejected request receives the last
    /// good response to the same GET from it.
    pub cached: Option<Size>,
    /// Maximum size of a stored response, at most a quarter of `cached`, which is the default if that is less; larger
    /// responses are not stored. Default: `1MiB`.
    pub largest: Option<Size>,
    /// Maximum age of a stored response; older ones are not sent.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::MAX_CACHED_AGE))))]
    pub max_age: Option<Duration>,
    /// Request headers on which no response to these requests depends, such as `[user-agent, referer]`; they are not
    /// part of the cache key. Not `authorization`, `connection`, `cookie`, `host` and `proxy-authorization`.
    pub ignore_headers: Option<OneOrMany<String>>,
    /// File with a degraded response, up to 1 MiB, relative to the file that names it; reloaded when it changes. The
    /// content type follows the extension: `.html`, `.json`, `.txt`, `.xml` or `.svg`; any other needs `headers: {
    /// content-type: ... }`. With `cached`, it is sent if there is no stored response.
    pub file: Option<String>,
    /// Methods of the requests that receive the file; all other requests receive the rejection. Default: `[GET,
    /// HEAD]`.
    pub methods: Option<OneOrMany<Method>>,
    /// Status code with which the file is sent, 200 to 599.
    #[cfg_attr(test, schemars(range(min = 200, max = 599), extend("default" = defaults::FALLBACK_STATUS)))]
    pub status: Option<u16>,
}
