//! The headers that the service itself adds to answers, beside those that Envoy makes from the statuses.

use std::sync::Arc;

use super::answer::Status;
use super::settings::HeaderNames;

/// The headers of the descriptor that `refused` or that has the least left.
pub(super) fn headers(
    names: &HeaderNames,
    statuses: &[Status],
    refused: impl Fn(usize) -> bool,
) -> Vec<(Arc<str>, String)> {
    let limited = || statuses.iter().enumerate().filter(|(_, status)| status.current_limit.is_some());
    // The last one of those that refuse, the first one of those with the least left.
    let refusing = limited().rfind(|(index, _)| refused(*index));
    let Some((_, status)) = refusing.or_else(|| limited().min_by_key(|(_, status)| status.limit_remaining))
    else {
        return Vec::new();
    };
    let limit = status.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
    let reset = status.duration_until_reset.unwrap_or_default().as_secs();
    vec![
        (Arc::clone(&names.limit), limit.to_string()),
        (Arc::clone(&names.remaining), status.limit_remaining.to_string()),
        (Arc::clone(&names.reset), reset.to_string()),
    ]
}
