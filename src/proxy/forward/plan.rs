//! Retry policy of one request.

use std::time::Duration;

use http::{HeaderName, request};

use crate::proxy::headers::overrides::RequestOverrides;
use crate::proxy::timeouts::Timeout;
use weir_upstream::settings::{RetryOn, UpstreamSettings};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// How often, and after which outcomes, one request may be retried.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct RetryPlan<'a> {
    /// Maximum retries after the first attempt.
    pub(super) retries: u32,
    /// Outcomes after which a retry is made.
    pub(super) retry_on: &'a RetryOn,
    /// Timeout of each attempt.
    pub(super) per_try_timeout: Option<Timeout>,
    /// Maximum time for which a retry waits because the upstream asks for it.
    pub(super) max_wait: Duration,
    /// Whether the upstream receives the number of each attempt.
    sends_attempt_count: bool,
    /// Whether an `idempotency-key` makes a request repeatable.
    by_idempotency_key: bool,
}

impl<'a> RetryPlan<'a> {
    /// Creates the plan from the configuration and the overrides of the request.
    pub(in crate::proxy) fn new(
        settings: &'a UpstreamSettings,
        overrides: Option<&'a RequestOverrides>,
    ) -> Self {
        let own = &settings.retries;
        let plan = Self {
            retries: own.attempts,
            retry_on: &own.on,
            per_try_timeout: own.per_try_timeout.map(Timeout::configured),
            max_wait: own.max_wait,
            sends_attempt_count: own.attempt_count,
            by_idempotency_key: own.idempotency_key,
        };
        let Some(overrides) = overrides else { return plan };
        Self {
            retries: overrides.retries.unwrap_or(own.attempts),
            retry_on: overrides.retry_on.as_ref().unwrap_or(&own.on),
            per_try_timeout: overrides.per_try_timeout.map(Timeout::by_client).or(plan.per_try_timeout),
            ..plan
        }
    }

    /// Whether the request has to be kept for further attempts: it may be retried after it was sent (RFC 9110 section
    /// 9.2.2), or carries its attempt number. `is_call`: it is a gRPC call.
    pub(in crate::proxy) fn needs_retry_loop(&self, head: &request::Parts, is_call: bool) -> bool {
        let may_be_refused = is_call && !self.retry_on.grpc_codes.is_empty();
        self.retries_sent_requests() && (may_be_refused || self.may_repeat(head)) || self.sends_attempt_count
    }

    /// Whether the upstream cannot distinguish a repeated request from a single one: its method is idempotent, or it has
    /// a key by which the upstream detects repetitions (draft-ietf-httpapi-idempotency-key-header).
    pub(super) fn may_repeat(&self, head: &request::Parts) -> bool {
        let has_key =
            || head.headers.get(IDEMPOTENCY_KEY).is_some_and(|key| !key.as_bytes().trim_ascii().is_empty());
        head.method.is_idempotent() || self.by_idempotency_key && has_key()
    }

    /// Whether other outcomes than a failed connection are retried.
    pub(super) const fn retries_sent_requests(&self) -> bool {
        self.retries > 0 && self.retry_on.covers_sent_requests()
    }

    /// Whether another attempt is allowed after `tried` attempts.
    pub(super) fn allows_another(&self, tried: usize) -> bool {
        u32::try_from(tried).is_ok_and(|tried| tried <= self.retries)
    }
}
