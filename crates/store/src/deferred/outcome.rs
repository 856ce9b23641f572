//! Result of sending a deferred call, and what follows from it.

use std::time::Duration;

use http::StatusCode;

/// Report of a worker about a call that it was given. A report of [`SendOutcome::Admitted`] is followed by another one.
#[derive(Clone, Copy, Debug)]
pub struct SendReport {
    /// Number under which the call was given to the worker.
    pub number: u64,
    /// What has happened.
    pub outcome: SendOutcome,
}

/// Progress of a call that is being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// The limit has room, and the call is in flight.
    Admitted,
    /// The listener on which the call arrived does not exist here.
    NoListener,
    /// The limit, or this process, has no room for this time.
    NoRoom(Duration),
    /// There is a response, from the upstream or a local reply.
    Responded {
        status: StatusCode,
        /// Time after which the upstream wants the next attempt.
        retry_after: Option<Duration>,
    },
    /// The call was dropped, for example because the process ends.
    Aborted,
}

/// What to do after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseVerdict {
    /// The upstream has the call.
    Sent,
    /// Another attempt may succeed.
    Retry,
    /// No further attempt would succeed.
    Dead,
}

/// Evaluates a status code. Redirects are not followed, and a client error will be the same in the next attempt, except
/// for those that depend on time (RFC 9110 section 15.5.9, RFC 8470, RFC 6585).
pub(super) fn evaluate(status: StatusCode) -> ResponseVerdict {
    match status.as_u16() {
        200..=299 => ResponseVerdict::Sent,
        408 | 425 | 429 | 500..=599 => ResponseVerdict::Retry,
        _ => ResponseVerdict::Dead,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_that_may_pass_are_retried() {
        let verdict = |status| evaluate(StatusCode::from_u16(status).unwrap());
        assert!([200, 202, 204].iter().all(|status| verdict(*status) == ResponseVerdict::Sent));
        assert!(
            [408, 425, 429, 500, 503, 504].iter().all(|status| verdict(*status) == ResponseVerdict::Retry)
        );
        assert!(
            [301, 400, 401, 404, 410, 413, 422]
                .iter()
                .all(|status| verdict(*status) == ResponseVerdict::Dead)
        );
    }
}
