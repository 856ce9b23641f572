//! Failures of a request that got no response from the upstream, and their effect on metrics, outlier detection and
//! charges.

use http::StatusCode;

use super::timeouts::SetBy;
use weir_policy::rules::cost::{self, RequestEnd};
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
        match self {
            Self::Upstream(UpstreamError::Connect(_) | UpstreamError::ConnectTimeout) => {
                UpstreamOutcome::ConnectFailed
            }
            Self::Upstream(UpstreamError::Malformed(_)) | Self::UnexpectedProtocol => {
                UpstreamOutcome::Malformed
            }
            Self::Upstream(UpstreamError::Overflow) => UpstreamOutcome::Overflowed,
            Self::Upstream(UpstreamError::ServerName(_)) => UpstreamOutcome::WrongName,
            Self::ResponseTimeout(SetBy::Configuration) | Self::PerTryTimeout(SetBy::Configuration) => {
                UpstreamOutcome::TimedOut
            }
            Self::Upstream(UpstreamError::Reset(_)) | Self::BrokenResponse => UpstreamOutcome::Reset,
            // A client that sets a very short timeout must not cause endpoints to be ejected.
            Self::ResponseTimeout(SetBy::Client)
            | Self::PerTryTimeout(SetBy::Client)
            | Self::RequestStalled
            | Self::BrokenRequest
            | Self::NoRoute
            | Self::UpgradeUnavailable
            | Self::NoAddress(_)
            | Self::NoEndpoint => UpstreamOutcome::Abandoned,
        }
    }

    /// Returns how a request that got a local reply with `status` is charged. `was_sent`: the upstream has some of it.
    pub(super) const fn request_end(&self, status: StatusCode, was_sent: bool) -> RequestEnd<'static> {
        let failure = match self {
            // Caused by the client: the upstream may still be processing the request.
            Self::RequestStalled
            | Self::BrokenRequest
            | Self::ResponseTimeout(SetBy::Client)
            | Self::PerTryTimeout(SetBy::Client) => {
                return if was_sent { RequestEnd::Unanswered } else { RequestEnd::Abandoned };
            }
            Self::NoRoute
            | Self::UpgradeUnavailable
            | Self::NoEndpoint
            | Self::NoAddress(_)
            | Self::Upstream(
                UpstreamError::Connect(_)
                | UpstreamError::ConnectTimeout
                | UpstreamError::ServerName(_)
                | UpstreamError::Overflow,
            ) => cost::UpstreamFailure::Connect,
            Self::Upstream(UpstreamError::Reset(_)) | Self::BrokenResponse => cost::UpstreamFailure::Reset,
            Self::Upstream(UpstreamError::Malformed(_)) | Self::UnexpectedProtocol => {
                cost::UpstreamFailure::Malformed
            }
            Self::ResponseTimeout(SetBy::Configuration) | Self::PerTryTimeout(SetBy::Configuration) => {
                cost::UpstreamFailure::Timeout
            }
        };
        RequestEnd::Failed { status, failure }
    }
}
