//! How often and for what a request may be retried.

use http::Method;

use crate::proxy::headers::overrides::RequestOverrides;
use crate::proxy::timeouts::Timeout;
use crate::upstream::settings::{RetryOn, Settings};

/// How often and for what one request may be retried.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct RetryPlan<'a> {
    /// Attempts after the first.
    pub(super) retries: u32,
    /// What is worth one.
    pub(super) on: &'a RetryOn,
    /// For each attempt.
    pub(super) per_try_timeout: Option<Timeout>,
    /// The upstream is told which attempt it is.
    counts: bool,
}

impl<'a> RetryPlan<'a> {
    /// What the configuration says, but for what the request overrides.
    pub(in crate::proxy) fn new(settings: &'a Settings, overrides: Option<&'a RequestOverrides>) -> Self {
        let own = &settings.retries;
        let plan = Self {
            retries: own.attempts,
            on: &own.on,
            per_try_timeout: own.per_try_timeout.map(Timeout::configured),
            counts: own.attempt_count,
        };
        let Some(overrides) = overrides else { return plan };
        Self {
            retries: overrides.retries.unwrap_or(own.attempts),
            on: overrides.retry_on.as_ref().unwrap_or(&own.on),
            per_try_timeout: overrides.per_try_timeout.map(Timeout::by_client).or(plan.per_try_timeout),
            ..plan
        }
    }

    /// Whether a request that was sent may be sent again (RFC 9110 section 9.2.2), or says which attempt it is.
    pub(in crate::proxy) fn repeats(&self, method: &Method) -> bool {
        self.outlasts_answers() && method.is_idempotent() || self.counts
    }

    /// Whether something else than a refused connection is worth another attempt.
    pub(super) const fn outlasts_answers(&self) -> bool {
        self.retries > 0 && self.on.is_more_than_connecting()
    }

    /// Whether there may be another attempt after so many that were `tried`.
    pub(super) fn allows_after(&self, tried: usize) -> bool {
        u32::try_from(tried).is_ok_and(|tried| tried <= self.retries)
    }
}
