//! How a request ended that has no response of the upstream's, for those who charge it.

use http::StatusCode;

use super::forward::Failure;
use super::timeouts::SetBy;
use crate::rules::tariff::{self, Ending};
use crate::upstream::error::Error as UpstreamError;

/// The end of a request that got `status` in place of the upstream's response.
pub(super) fn of_failure(failure: &Failure, status: StatusCode) -> Ending<'static> {
    let failure = match failure {
        // The client's doing: the upstream may be at work all the same.
        Failure::Stalled
        | Failure::BrokenRequest
        | Failure::Late(SetBy::Client)
        | Failure::TryLate(SetBy::Client) => return Ending::Abandoned,
        Failure::NoRoute
        | Failure::NoProtocol
        | Failure::NoEndpoint
        | Failure::Upstream(
            UpstreamError::Connect(_) | UpstreamError::ConnectTimeout | UpstreamError::Overflow,
        ) => tariff::Failure::Connect,
        Failure::Upstream(UpstreamError::Reset(_)) | Failure::BrokenOff => tariff::Failure::Reset,
        Failure::Upstream(UpstreamError::Malformed(_)) | Failure::Unreadable => tariff::Failure::Malformed,
        Failure::Late(SetBy::Configuration) | Failure::TryLate(SetBy::Configuration) => {
            tariff::Failure::Timeout
        }
    };
    Ending::Failed { status, failure }
}
