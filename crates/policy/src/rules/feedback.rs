//! Which signals of a provider a rule follows.

use std::time::Duration;

use http::StatusCode;

use super::cost::Statuses;
use super::grpc::{GrpcStatus, GrpcStatuses};
use weir_limiter::feedback::controller::ControllerSettings;

/// Maximum time for which a signal pauses a limit.
pub const MAX_PAUSE: Duration = Duration::from_secs(3600);

/// Resolution of times in seconds.
const ROUNDING: Duration = Duration::from_secs(1);

/// How a rule's limits follow the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feedback {
    /// How the share of the limits changes.
    pub controller: ControllerSettings,
    /// Status codes of rejections.
    pub statuses: Statuses,
    /// Statuses of gRPC calls that are rejections.
    pub calls: GrpcStatuses,
    /// Longest period of the limits.
    pub period: Duration,
    /// Whether the headers of responses pause the limits.
    pub reads_headers: bool,
}

impl Feedback {
    /// Returns the time for which an admitted request pauses the limits, if the provider's quota is used up for
    /// `used_up_for` then.
    ///
    /// A provider whose limit is used as a whole says with many responses that nothing is left, and admits the next call
    /// a moment later. Only a time longer than the period of the limits belongs to a quota of the provider that they do
    /// not enforce.
    pub fn pause_after_success(&self, used_up_for: Option<Duration>) -> Option<Duration> {
        used_up_for.filter(|time| *time > self.period.saturating_add(ROUNDING))
    }

    /// Whether a response is a rejection by the provider. `asks_to_wait`: it states when to retry, which makes
    /// `Service Unavailable` and `UNAVAILABLE` rejections of a client and not failures of the server.
    pub fn is_rejection(&self, status: StatusCode, call: Option<GrpcStatus>, asks_to_wait: bool) -> bool {
        self.statuses.contain(status)
            || call.is_some_and(|call| self.calls.contain(call))
            || asks_to_wait
                && (status == StatusCode::SERVICE_UNAVAILABLE || call == Some(GrpcStatus::UNAVAILABLE))
    }
}
