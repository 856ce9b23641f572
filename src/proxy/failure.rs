//! Why a request got no response from the upstream, and what that means to metrics, outlier detection and charges.

use http::StatusCode;

use super::timeouts::SetBy;
use crate::rules::tariff::{self, Ending};
use crate::telemetry::metrics::UpstreamOutcome;
use crate::upstream::error::Error as UpstreamError;

/// Why a request got no response from the upstream.
#[derive(Debug)]
pub(super) enum Failure {
    /// No route takes such a request.
    NoRoute,
    /// The upstream is not asked for such a protocol, and the client requires it.
    NoProtocol,
    /// No endpoint of the upstream can be used.
    NoEndpoint,
    /// Between us and the upstream.
    Upstream(UpstreamError),
    /// The response begins a protocol that the client has not asked for.
    Unreadable,
    /// The response's head did not come in time, by a timeout that this party set.
    Late(SetBy),
    /// It did not come in the time that one attempt has, by a timeout that this party set.
    TryLate(SetBy),
    /// The client stopped sending in the middle of its request.
    Stalled,
    /// What the client sent is no body.
    BrokenRequest,
    /// The response broke off after its head, of which nothing was sent.
    BrokenOff,
}

impl Failure {
    /// How an attempt that failed so is counted.
    pub(super) const fn outcome(&self) -> UpstreamOutcome {
        match self {
            Self::Upstream(UpstreamError::Connect(_) | UpstreamError::ConnectTimeout) => {
                UpstreamOutcome::ConnectFailed
            }
            Self::Upstream(UpstreamError::Malformed(_)) | Self::Unreadable => UpstreamOutcome::Malformed,
            Self::Upstream(UpstreamError::Overflow) => UpstreamOutcome::Overflowed,
            Self::Late(SetBy::Configuration) | Self::TryLate(SetBy::Configuration) => {
                UpstreamOutcome::TimedOut
            }
            Self::Upstream(UpstreamError::Reset(_)) | Self::BrokenOff => UpstreamOutcome::Reset,
            // A client that gives its request no time must not have endpoints ejected.
            Self::Late(SetBy::Client)
            | Self::TryLate(SetBy::Client)
            | Self::Stalled
            | Self::BrokenRequest
            | Self::NoRoute
            | Self::NoProtocol
            | Self::NoEndpoint => UpstreamOutcome::Abandoned,
        }
    }

    /// The end of a request that got a local reply with `status` for it, as it is charged.
    pub(super) const fn ending(&self, status: StatusCode) -> Ending<'static> {
        let failure = match self {
            // The client's doing: the upstream may be at work all the same.
            Self::Stalled
            | Self::BrokenRequest
            | Self::Late(SetBy::Client)
            | Self::TryLate(SetBy::Client) => return Ending::Abandoned,
            Self::NoRoute
            | Self::NoProtocol
            | Self::NoEndpoint
            | Self::Upstream(
                UpstreamError::Connect(_) | UpstreamError::ConnectTimeout | UpstreamError::Overflow,
            ) => tariff::Failure::Connect,
            Self::Upstream(UpstreamError::Reset(_)) | Self::BrokenOff => tariff::Failure::Reset,
            Self::Upstream(UpstreamError::Malformed(_)) | Self::Unreadable => tariff::Failure::Malformed,
            Self::Late(SetBy::Configuration) | Self::TryLate(SetBy::Configuration) => {
                tariff::Failure::Timeout
            }
        };
        Ending::Failed { status, failure }
    }
}
