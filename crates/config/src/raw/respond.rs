//! Acceptance of calls that are sent later, as written in the configuration.

use std::num::{NonZeroU32, NonZeroU64};

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Backoff, Duration, Size};
#[cfg(test)]
use crate::defaults;
#[cfg(test)]
use crate::parse::format_duration as shown;

/// Acceptance of calls that are sent later: a status code, or a map.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Respond {
    /// Status code of the response to an accepted call, 200 to 299.
    Status(#[cfg_attr(test, schemars(range(min = 200, max = 299)))] u16),
    /// Map with `status` and the settings of retries and sizes.
    Map(Box<RespondMap>),
}

/// How calls are accepted, stored and sent later.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RespondMap {
    /// Status code of the response to an accepted call, 200 to 299.
    #[cfg_attr(test, schemars(range(min = 200, max = 299), extend("default" = defaults::DEFERRAL_STATUS)))]
    pub status: Option<u16>,
    /// Maximum number of attempts to send a call, 1 to 1000. After the last one, the call goes to the dead-letter
    /// stream.
    #[cfg_attr(test, schemars(range(min = 1, max = 1000), extend("default" = defaults::DEFERRAL_ATTEMPTS)))]
    pub attempts: Option<NonZeroU32>,
    /// Pause before the next attempt, as `FIRST..MAX`: exponential with full jitter.
    #[cfg_attr(test, schemars(extend("default" = defaults::DEFERRAL_BACKOFF_TEXT)))]
    pub backoff: Option<Backoff>,
    /// Maximum age of a call that is sent, above 0. An older call goes to the dead-letter stream.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::DEFERRAL_MAX_AGE))))]
    pub max_age: Option<Duration>,
    /// Maximum size of a call's body, 1B to 8MiB. A call with a larger body is rejected with 413.
    #[cfg_attr(test, schemars(extend("default" = defaults::DEFERRAL_MAX_BODY_TEXT)))]
    pub max_body: Option<Size>,
    /// Maximum number of stored calls, and of dead letters, 1 to 1000000000. Further calls are rejected with 503;
    /// the oldest dead letters are removed.
    #[cfg_attr(
        test,
        schemars(range(min = 1, max = 1_000_000_000), extend("default" = defaults::DEFERRAL_MAX_STORED))
    )]
    pub max_stored: Option<NonZeroU64>,
}
