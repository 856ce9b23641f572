//! Failures of a request that got no response from the upstream, and their effect on metrics, outlier detection and
//! charges.

use http::StatusCode;

use super::timeouts::{SetBy, TimeoutKind};
use weir_policy::rules::cost::{RequestEnd, UpstreamFailure};
use weir_telemetry::metrics::UpstreamOutcome;
use weir_upstream::error::{NoAddress, UpstreamError};

/// Reason why a request got no response from the upstream.
#[derive(Debug)]
pub(super) enum ForwardFailure {
    /// No route matches the request.
    NoRoute,
    /// The client requires an upgrade that the upstream does not support or is not configured for.
    UpgradeUnavailable,
    /// No endpoint of the upstream is available.
    NoEndpoint,
    /// The destination of a forward proxy has no address.
    NoAddress(NoAddress),
    /// An error of the upstream, or of the connection to it.
    Upstream(UpstreamError),
    /// The response switches to a protocol that the client has not requested.
    UnexpectedProtocol,
    /// The head of the response did not arrive within the response timeout, which was set by this party.
    ResponseTimeout(SetBy),
    /// The head of the response did not arrive within the timeout of one attempt, which was set by this party.
    PerTryTimeout(SetBy),
    /// The client stopped sending its request.
    RequestStalled,
    /// The request body was malformed, or its connection failed.
    BrokenRequest,
    /// The response failed after its head had arrived, before any of it was sent.
    BrokenResponse,
}

impl ForwardFailure {
    /// Returns the outcome as which the attempt is counted.
    pub(super) const fn outcome(&self) -> UpstreamOutcome {
        self.effects().0
    }

    /// Returns how a request that got a local reply with `status` is charged. `was_sent`: the upstream has some of it.
    pub(super) const fn request_end(&self, status: StatusCode, was_sent: bool) -> RequestEnd<'static> {
        match self.effects().1 {
            Some(failure) => RequestEnd::Failed { status, failure },
            // The upstream may still be processing the request.
            None if was_sent => RequestEnd::Unanswered,
            None => RequestEnd::Abandoned,
        }
    }

    /// Returns the outcome of the attempt, and the failure by which the request is charged; `None` if the client has caused
    /// it.
    const fn effects(&self) -> (UpstreamOutcome, Option<UpstreamFailure>) {
        use UpstreamOutcome as Outcome;
        match self {
            Self::NoRoute | Self::UpgradeUnavailable | Self::NoAddress(_) | Self::NoEndpoint => {
                (Outcome::Abandoned, Some(UpstreamFailure::Connect))
            }
            Self::Upstream(UpstreamError::Connect(_) | UpstreamError::ConnectTimeout) => {
                (Outcome::ConnectFailed, Some(UpstreamFailure::Connect))
            }
            Self::Upstream(UpstreamError::ServerName(_)) => {
                (Outcome::WrongName, Some(UpstreamFailure::Connect))
            }
            Self::Upstream(UpstreamError::Overflow) => (Outcome::Overflowed, Some(UpstreamFailure::Connect)),
            Self::Upstream(UpstreamError::Reset(_)) | Self::BrokenResponse => {
                (Outcome::Reset, Some(UpstreamFailure::Reset))
            }
            Self::Upstream(UpstreamError::Malformed(_)) | Self::UnexpectedProtocol => {
                (Outcome::Malformed, Some(UpstreamFailure::Malformed))
            }
            Self::ResponseTimeout(SetBy::Configuration) | Self::PerTryTimeout(SetBy::Configuration) => {
                (Outcome::TimedOut, Some(UpstreamFailure::Timeout))
            }
            // A client that sets a very short timeout must not cause endpoints to be ejected.
            Self::ResponseTimeout(SetBy::Client)
            | Self::PerTryTimeout(SetBy::Client)
            | Self::RequestStalled
            | Self::BrokenRequest => (Outcome::Abandoned, None),
        }
    }
}

impl From<TimeoutKind> for ForwardFailure {
    fn from(expired: TimeoutKind) -> Self {
        match expired {
            TimeoutKind::Response(set_by) => Self::ResponseTimeout(set_by),
            TimeoutKind::Idle | TimeoutKind::Head | TimeoutKind::StreamIdle | TimeoutKind::Linger => {
                Self::RequestStalled
            }
        }
    }
}
