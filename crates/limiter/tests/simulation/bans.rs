//! Model of bans: the end of each ban, and the duration of the next one.

use weir_limiter::quota::Ban;

/// One key under one ban.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BanModel {
    end: u64,
    /// Number of times that the duration has been doubled.
    doubled: u32,
    /// The ban was past its `ban_max` before a reload. It may still be remembered until its slot is needed.
    may_be_forgotten: bool,
}

impl BanModel {
    /// Returns the ban that begins at `now`, and the alternative that is also permitted.
    pub(crate) fn start(before: Option<Self>, ban: Ban, now: u64) -> [Self; 2] {
        let after = |doubled: u32| {
            let length =
                u64::try_from(u128::from(nanos(ban.initial_duration)) << doubled).unwrap_or(u64::MAX);
            Self { end: now + length.min(nanos(ban.max_duration)), doubled, may_be_forgotten: false }
        };
        match before {
            Some(before) if !before.is_past(ban, now) => {
                let next = after((before.doubled + 1).min(63));
                [next, if before.may_be_forgotten { after(0) } else { next }]
            }
            _ => [after(0); 2],
        }
    }

    /// Prepares for a reload, which may change `ban_max`.
    pub(crate) fn prepare_reload(&mut self, from: Ban, now: u64) {
        self.may_be_forgotten |= self.is_past(from, now);
    }

    fn is_past(&self, ban: Ban, now: u64) -> bool {
        now > self.end.saturating_add(nanos(ban.max_duration))
    }

    pub(crate) fn is_active(&self, now: u64) -> bool {
        now < self.end
    }

    /// Returns the remaining nanoseconds at `now`.
    pub(crate) fn remaining(&self, now: u64) -> u64 {
        self.end.saturating_sub(now)
    }

    /// Adapts to a new process whose clock may be behind: the remaining time stays the same.
    pub(crate) fn rebase(&mut self, (then, now): (u64, u64)) {
        self.end = self.end.saturating_sub(then.saturating_sub(now));
    }
}

fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
