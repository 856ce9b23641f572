//! Waiting for conditions. The only place of these tests that reads a clock or sleeps.

use std::time::{Duration, Instant};

/// How long anything may take before a test gives up. Generous: it only runs out when something is wrong.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// Asks `probe` until it has an answer.
pub(crate) fn until<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    within(DEADLINE, probe).unwrap_or_else(|| panic!("waited in vain for {what}"))
}

/// Asks `condition` until it holds.
pub(crate) fn until_true(what: &str, mut condition: impl FnMut() -> bool) {
    until(what, || condition().then_some(()));
}

/// The time, to measure what has passed.
#[expect(clippy::disallowed_methods, reason = "a test has no clock to be handed")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Asks `probe` until it has an answer or the time is up.
#[expect(clippy::disallowed_methods, reason = "a test has no clock to be handed")]
pub(crate) fn within<T>(limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(answer) = probe() {
            return Some(answer);
        }
        if start.elapsed() > limit {
            return None;
        }
        pause(Duration::from_millis(5));
    }
}

/// Calls `check` over and over for `time`: for claims that something keeps holding.
pub(crate) fn throughout(time: Duration, mut check: impl FnMut()) {
    within(time, || {
        check();
        None::<()>
    });
}

/// Is slow on purpose: a part of what a test plays, never a way to wait for something.
#[expect(clippy::disallowed_methods, reason = "blocks a thread of the test, not a worker")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
