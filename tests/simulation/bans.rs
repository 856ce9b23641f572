//! Who is kept out until when, and for how long the next time.

use weir::limiter::quota::Ban;

/// One key under one ban.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Banned {
    end: u64,
    /// How often it has been doubled.
    doubled: u32,
    /// It was too long ago under a `ban_max` of then; it may be remembered until its place is needed.
    may_be_forgotten: bool,
}

impl Banned {
    /// The ban that begins at `now`, after this one or the first, and another that it may be instead.
    pub(crate) fn begin(before: Option<Self>, ban: Ban, now: u64) -> [Self; 2] {
        let after = |doubled: u32| {
            let length = u64::try_from(u128::from(nanos(ban.first)) << doubled).unwrap_or(u64::MAX);
            Self { end: now + length.min(nanos(ban.most)), doubled, may_be_forgotten: false }
        };
        match before {
            Some(before) if !before.is_past(ban, now) => {
                let next = after((before.doubled + 1).min(63));
                [next, if before.may_be_forgotten { after(0) } else { next }]
            }
            _ => [after(0); 2],
        }
    }

    /// Another `ban_max` may come.
    pub(crate) fn change(&mut self, from: Ban, now: u64) {
        self.may_be_forgotten |= self.is_past(from, now);
    }

    fn is_past(&self, ban: Ban, now: u64) -> bool {
        now > self.end.saturating_add(nanos(ban.most))
    }

    pub(crate) fn runs(&self, now: u64) -> bool {
        now < self.end
    }

    /// Nanoseconds from `now` on.
    pub(crate) fn rest(&self, now: u64) -> u64 {
        self.end.saturating_sub(now)
    }

    /// Another process takes over whose clock may be behind: the rest is as long as it was.
    pub(crate) fn rebase(&mut self, (then, now): (u64, u64)) {
        self.end = self.end.saturating_sub(then.saturating_sub(now));
    }
}

fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
