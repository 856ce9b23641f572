//! Limits as the script gets them.

/// Limits of each kind that the script supports; times are in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    Bucket { interval: u64, burst: u64 },
    Window { count: u64, length: u64 },
    Sliding { count: u64, length: u64 },
    Refill { count: u64, every: u64, burst: u64 },
}

impl Limit {
    /// Returns what this limit and `other` admit together while both are in force: up to the higher rate and the higher burst.
    pub(crate) fn combined(self, other: Self) -> Self {
        match (self, other) {
            (
                Self::Bucket { interval, burst },
                Self::Bucket { interval: other_interval, burst: other_burst },
            ) => Self::Bucket { interval: interval.min(other_interval), burst: burst.max(other_burst) },
            (limit, _) => limit,
        }
    }

    /// Returns a query at `now` for leases that are valid for `valid`. `rest` has the numbers of the query, `tail` the last two.
    pub(crate) fn question(self, now: u64, valid: u64, rest: &str, tail: &str) -> String {
        match self {
            Self::Bucket { interval, burst } => format!("b {interval} {burst} {valid} 1 0 1 {rest} {tail}"),
            Self::Window { count, length } => {
                let start = now - now % length;
                let marks = format!("{start} {} {}", start + length, start + 2 * length);
                format!("w {count} {valid} 1 1 {rest} {marks} {tail}")
            }
            Self::Sliding { count, length } => format!("s {count} {length} 100 {valid} 1 1 {rest} {tail}"),
            Self::Refill { count, every, burst } => {
                format!("r {count} {every} {burst} {valid} 1 1 {rest} {tail}")
            }
        }
    }
}
