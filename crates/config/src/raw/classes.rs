//! Classes of requests, as written in the configuration.

use std::num::NonZeroU32;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

#[cfg(test)]
use crate::defaults;

use super::rules::{KeyPart, Matcher};
use super::values::ZeroOrMany;

/// A class of requests, which has a share in the concurrency of each upstream.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RequestClass {
    /// Unique name of the class, used in metrics and in the header that names it. Visible ASCII without quotes and
    /// backslashes, at most 128 characters.
    #[cfg_attr(test, schemars(required))]
    pub name: Option<String>,
    /// Conditions that a request of the class meets: the fields of a rule's [`match`](matching.md), all of which must hold. The
    /// first class that matches takes a request. A class without `match` takes what no other class matches.
    #[serde(rename = "match")]
    pub matching: Option<Matcher>,
    /// Weight of the class, from 1 to 1000: while requests wait, it has at least this part of the concurrency, of
    /// the sum of all shares. What it leaves unused is used by other classes.
    #[cfg_attr(test, schemars(range(min = 1, max = 1000), extend("default" = defaults::CLASS_SHARE.get())))]
    pub share: Option<NonZeroU32>,
    /// Whether requests of this class are the first to be rejected: as soon as they would only wait in a queue that does
    /// not get shorter.
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub sheddable: Option<bool>,
    /// What identifies a client, as in a rule's [`key`](keys.md). Clients of a class share its part evenly. With `[]`, all
    /// requests of the class are served in the order of their arrival. Default: `client_ip`.
    pub key: Option<ZeroOrMany<KeyPart>>,
}
