//! Logs when the counter table is full: once when it becomes full, and once a minute while it stays full.

use std::time::Duration;

use tokio::time::MissedTickBehavior;

use crate::proxy::ProxyState;
use weir_limiter::timestamp::Timestamp;

/// Interval between checks of the limiter.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum time between two log lines. After this time without a charge to the overflow counter, the table is
/// no longer taken as full.
const MIN_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// State of a full counter table.
#[derive(Debug, Default)]
struct TableFullAlert {
    /// Number of charges to the overflow counter at the last check.
    last_overflows: u64,
    /// The same number at the last log line, and the time of that.
    last_logged: Option<(u64, Timestamp)>,
    /// Time of the last check that found new charges to the overflow counter.
    last_growth: Timestamp,
}

/// A change that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TableFullEvent {
    /// Number of charges to the overflow counter since the last line.
    Full(u64),
    /// There were no such charges for a while.
    Cleared,
}

impl TableFullAlert {
    fn update(&mut self, overflows: u64, now: Timestamp) -> Option<TableFullEvent> {
        let since_last_check = overflows.saturating_sub(self.last_overflows);
        let grown = since_last_check > 0;
        self.last_overflows = overflows;
        if grown {
            self.last_growth = now;
        }
        match self.last_logged {
            None if grown => {
                self.last_logged = Some((overflows, now));
                Some(TableFullEvent::Full(since_last_check))
            }
            None => None,
            Some(_) if now.since(self.last_growth) >= MIN_LOG_INTERVAL => {
                self.last_logged = None;
                Some(TableFullEvent::Cleared)
            }
            Some((before, at)) if overflows > before && now.since(at) >= MIN_LOG_INTERVAL => {
                self.last_logged = Some((overflows, now));
                Some(TableFullEvent::Full(overflows - before))
            }
            Some(_) => None,
        }
    }
}

/// Watches the table for as long as it is polled.
pub(super) async fn watch(shared: &ProxyState) {
    let mut alert =
        TableFullAlert { last_overflows: shared.limiter.overflows(), ..TableFullAlert::default() };
    // Intervals of one length on one thread expire together, and so wake it once.
    let mut interval = tokio::time::interval(CHECK_INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        match alert.update(shared.limiter.overflows(), shared.clock.now()) {
            Some(TableFullEvent::Full(charges)) => {
                let (entries, capacity) = (shared.limiter.live_keys(), shared.limiter.max_keys());
                tracing::warn!(
                    charges,
                    entries,
                    capacity,
                    "the counter table is full: new keys share overflow counters"
                );
            }
            Some(TableFullEvent::Cleared) => tracing::info!("the counter table has room again"),
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
    fn full_table_is_logged_at_once_and_then_once_a_minute() {
        let mut alert = TableFullAlert::default();
        assert_eq!(alert.update(0, at(0)), None);
        assert_eq!(alert.update(5, at(1)), Some(TableFullEvent::Full(5)));
        let logged: Vec<_> =
            (2..182).filter_map(|second| Some((second, alert.update(5 + second, at(second))?))).collect();
        assert_eq!(
            logged,
            [
                (61, TableFullEvent::Full(61)),
                (121, TableFullEvent::Full(60)),
                (181, TableFullEvent::Full(60))
            ]
        );
    }

    #[test]
    fn end_of_full_table_is_logged_once() {
        let mut alert = TableFullAlert::default();
        assert_eq!(alert.update(5, at(0)), Some(TableFullEvent::Full(5)));
        assert_eq!(alert.update(5, at(59)), None);
        assert_eq!(alert.update(5, at(60)), Some(TableFullEvent::Cleared));
        assert_eq!(alert.update(5, at(600)), None);
        assert_eq!(alert.update(6, at(601)), Some(TableFullEvent::Full(1)));
    }
}
