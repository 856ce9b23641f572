//! Why results are incomplete or not usable. The exit code of a replay with such a problem is 1.

use super::{LogReport, grouped, per_cent};
use crate::timeline::REORDERING_WINDOW;

/// Maximum share of late requests, in per cent.
const MAX_LATE: u64 = 1;
/// Maximum share of requests with an implausible time, in per cent.
const MAX_IMPLAUSIBLE: u64 = 10;

/// Returns why the order of the log makes the results unusable: too many of `requests` were `late`, or too many further
/// lines were set aside for their `implausible` time.
pub(super) fn disorder(requests: u64, late: u64, implausible: u64) -> Option<String> {
    const REMEDY: &str =
        "Pass the logs as separate files, which are merged by time, or sort their lines by time of arrival";
    let exceeds = |part: u64, whole: u64, per_cent: u64| {
        u128::from(part) * 100 > u128::from(whole) * u128::from(per_cent)
    };
    let all = requests.saturating_add(implausible);
    let reason = if exceeds(late, requests, MAX_LATE) {
        format!(
            "{} requests ({}) are more than {} s earlier than lines before them, and were decided at a later time",
            grouped(late),
            per_cent(late, requests),
            REORDERING_WINDOW.as_secs()
        )
    } else if exceeds(implausible, all, MAX_IMPLAUSIBLE) {
        format!(
            "{} requests ({}) were set aside, since their time is far ahead of the lines around them",
            grouped(implausible),
            per_cent(implausible, all)
        )
    } else {
        return None;
    };
    Some(format!("results are not usable: {reason}. {REMEDY}"))
}

/// Returns why a log was not read to its end, if it was not.
pub(super) fn cut_off(log: &LogReport) -> Option<String> {
    let error = log.error.as_ref()?;
    let lines = grouped(log.counts.lines);
    Some(format!(
        "{}: cannot be read to its end, the results have only its first {lines} lines: {error}",
        log.name
    ))
}

/// Returns why a log has no request, if none of its lines has one.
pub(super) fn no_request(log: &LogReport) -> Option<String> {
    let counts = log.counts;
    let others = counts.unreadable.saturating_add(counts.no_request);
    if counts.lines == 0 || others < counts.lines || log.error.is_some() {
        return None;
    }
    let found = log.found.as_deref().unwrap_or("see --format and --field");
    Some(format!("{}: none of {} lines has a request: {found}", log.name, grouped(counts.lines)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_late_requests_leave_results_usable() {
        for (requests, late, implausible, is_usable) in
            [(0, 0, 0, true), (100, 1, 0, true), (100, 2, 0, false), (90, 0, 10, true), (89, 0, 11, false)]
        {
            let found = disorder(requests, late, implausible);
            assert_eq!(found.is_none(), is_usable, "{requests} {late} {implausible}: {found:?}");
        }
    }
}
