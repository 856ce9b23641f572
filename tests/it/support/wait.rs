//! Waiting for conditions. No other module of these tests reads a clock or sleeps.

use std::time::{Duration, Instant};

/// Maximum duration of any wait. It is generous, since it expires only if something is wrong.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// Polls `probe` until it returns a value.
///
/// # Panics
///
/// If there is none within [`DEADLINE`].
pub(crate) fn until<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    within(DEADLINE, probe).unwrap_or_else(|| panic!("timed out waiting for {what}"))
}

/// Polls `condition` until it holds.
///
/// # Panics
///
/// If it does not hold within [`DEADLINE`].
pub(crate) fn until_true(what: &str, mut condition: impl FnMut() -> bool) {
    until(what, || condition().then_some(()));
}

/// Returns the current time, for measuring durations.
#[expect(clippy::disallowed_methods, reason = "a test has no clock to be handed")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Polls `probe` until it returns a value or `limit` has passed.
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

/// Repeats `check` for `time`, for conditions that must keep holding.
pub(crate) fn throughout(time: Duration, mut check: impl FnMut()) {
    within(time, || {
        check();
        None::<()>
    });
}

/// Sleeps. Only for slowness that is part of a scenario, never for waiting until something has happened.
#[expect(clippy::disallowed_methods, reason = "blocks a thread of the test, not a worker")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
