//! Logs when the counter table is full: once when it becomes full, and once a minute while it stays full.

use std::time::Duration;

use crate::limiter::timestamp::Timestamp;
use crate::proxy::ProxyState;

/// Interval between checks of the limiter.
const LOOK: Duration = Duration::from_secs(1);

/// Minimum time between two log lines. After this time without a charge to the overflow counter, the table is
/// no longer taken as full.
const QUIET: Duration = Duration::from_secs(60);

/// State of a full counter table.
#[derive(Debug, Default)]
struct Crowding {
    /// Number of charges to the overflow counter at the last check.
    shared: u64,
    /// The same number at the last log line, and the time of that.
    said: Option<(u64, Timestamp)>,
    /// Time of the last check that found new charges to the overflow counter.
    last: Timestamp,
}

/// A change that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// Number of charges to the overflow counter since the last line.
    Full(u64),
    /// There were no such charges for a while.
    Over,
}

impl Crowding {
    fn look(&mut self, shared: u64, now: Timestamp) -> Option<News> {
        let since_last_look = shared.saturating_sub(self.shared);
        let grown = since_last_look > 0;
        self.shared = shared;
        if grown {
            self.last = now;
        }
        match self.said {
            None if grown => {
                self.said = Some((shared, now));
                Some(News::Full(since_last_look))
            }
            None => None,
            Some(_) if now.since(self.last) >= QUIET => {
                self.said = None;
                Some(News::Over)
            }
            Some((before, at)) if shared > before && now.since(at) >= QUIET => {
                self.said = Some((shared, now));
                Some(News::Full(shared - before))
            }
            Some(_) => None,
        }
    }
}

/// Watches the table for as long as it is polled.
pub(super) async fn watch(shared: &ProxyState, capacity: usize) {
    let mut crowding = Crowding { shared: shared.limiter.overflows(), ..Crowding::default() };
    loop {
        tokio::time::sleep(LOOK).await;
        match crowding.look(shared.limiter.overflows(), shared.clock.now()) {
            Some(News::Full(charges)) => {
                let entries = shared.limiter.live_keys();
                tracing::warn!(
                    charges,
                    entries,
                    capacity,
                    "the counter table is full: new keys share overflow counters"
                );
            }
            Some(News::Over) => tracing::info!("the counter table has room again"),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(1_795_248_000 + seconds)
    }

    #[test]
    fn a_full_table_is_said_at_once_and_then_once_a_minute() {
        let mut crowding = Crowding::default();
        assert_eq!(crowding.look(0, at(0)), None);
        assert_eq!(crowding.look(5, at(1)), Some(News::Full(5)));
        let said: Vec<_> =
            (2..182).filter_map(|second| Some((second, crowding.look(5 + second, at(second))?))).collect();
        assert_eq!(said, [(61, News::Full(61)), (121, News::Full(60)), (181, News::Full(60))]);
    }

    #[test]
    fn the_end_is_said_once() {
        let mut crowding = Crowding::default();
        assert_eq!(crowding.look(5, at(0)), Some(News::Full(5)));
        assert_eq!(crowding.look(5, at(59)), None);
        assert_eq!(crowding.look(5, at(60)), Some(News::Over));
        assert_eq!(crowding.look(5, at(600)), None);
        assert_eq!(crowding.look(6, at(601)), Some(News::Full(1)));
    }
}
