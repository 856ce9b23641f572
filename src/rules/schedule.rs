//! When a rule holds: days and times as the clock on the wall shows them in a time zone.
//!
//! Nothing is said about how much time passes between two readings of that clock: on the day it is put
//! forward, `01:00-06:00` is four hours long, and an hour that comes twice is inside both times. The zone is
//! asked only where the answer may change; until then a request pays for one load and two comparisons.

use std::sync::atomic::{AtomicU64, Ordering};

use jiff::SignedDuration;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::limiter::timestamp::Timestamp;

/// The day's last minute, and how `24:00` is kept.
pub const DAY: u16 = 24 * 60;

const MINUTE: u64 = 60;

/// Any of several spans.
#[derive(Debug)]
pub struct Schedule {
    spans: Box<[Span]>,
    /// The last answer and how long it holds; see [`Known`]. Whoever loses a race writes as good an answer.
    known: AtomicU64,
}

impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        self.spans == other.spans
    }
}

/// Times on certain days in one zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Days on which times begin.
    pub days: Days,
    /// Within a day; none means all of it.
    pub times: Box<[Times]>,
    /// Whose clock is read.
    pub zone: TimeZone,
}

/// A set of days of the week.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Days(u8);

/// From a minute of a day to another one, which is not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Minutes since midnight, less than [`DAY`].
    pub start: u16,
    /// Minutes since midnight, at most [`DAY`]; not after `start` where it is on the next day.
    pub end: u16,
}

/// An answer and the whole seconds in which it holds: zones change their offsets at whole seconds, and an
/// answer ends at midnight at the latest. So all of it fits into a word: 35 bits for the first second (the
/// year 2554 is the end of time), 28 for how many there are, one for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    from: u64,
    until: u64,
    answer: bool,
}

impl Days {
    /// Every day.
    pub const ALL: Self = Self(0b111_1111);

    /// This day, 0 for Monday to 6 for Sunday.
    pub fn add(&mut self, day: u8) {
        self.0 |= 1 << (day % 7);
    }

    /// Whether this day, 0 for Monday to 6 for Sunday, is one of them.
    pub const fn contains(self, day: u8) -> bool {
        self.0 & (1 << (day % 7)) != 0
    }
}

impl Schedule {
    /// Whenever one of `spans` holds.
    pub fn new(spans: impl Into<Box<[Span]>>) -> Self {
        Self { spans: spans.into(), known: AtomicU64::new(0) }
    }

    /// Whether `now` is in the schedule.
    #[inline]
    pub fn contains(&self, now: Timestamp) -> bool {
        let seconds = now.as_secs();
        let known = Known::unpack(self.known.load(Ordering::Relaxed));
        if known.from <= seconds && seconds < known.until { known.answer } else { self.learn(seconds) }
    }

    /// Asks the zones, and keeps their answer for as long as it holds.
    #[cold]
    fn learn(&self, now: u64) -> bool {
        let always = Known { from: 0, until: u64::MAX, answer: false };
        let known = self.spans.iter().map(|span| span.at(now)).fold(always, |all, one| Known {
            from: all.from.max(one.from),
            until: all.until.min(one.until),
            answer: all.answer | one.answer,
        });
        self.known.store(known.pack(), Ordering::Relaxed);
        known.answer
    }
}

impl Clone for Schedule {
    fn clone(&self) -> Self {
        Self::new(self.spans.clone())
    }
}

impl Span {
    /// The answer `now`, in seconds since the epoch, and how far around it holds at least.
    fn at(&self, now: u64) -> Known {
        // The end of our time is long before the end of the zones'.
        let moment = i64::try_from(now).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
        let moment = moment.unwrap_or(jiff::Timestamp::MAX);
        let local = self.zone.to_datetime(moment);
        let second = second_of_day(local);
        let (before, after) = self.edges_around(second);
        // A clock that is put forward or back shows other times than those reckoned from this one.
        let (since, up_to) = same_offset(&self.zone, moment);
        Known {
            from: now.saturating_sub(second - before).max(since),
            until: now.saturating_add(after - second).min(up_to),
            answer: self.shows(weekday(local), second),
        }
    }

    /// Whether this reading of the clock is inside. Times that go past midnight belong to the day they start on.
    fn shows(&self, day: u8, second: u64) -> bool {
        let (today, yesterday) = (self.days.contains(day), self.days.contains((day + 6) % 7));
        if self.times.is_empty() {
            return today;
        }
        self.times.iter().any(|times| {
            let (start, end) = (u64::from(times.start) * MINUTE, u64::from(times.end) * MINUTE);
            if start < end {
                today && start <= second && second < end
            } else {
                (today && start <= second) || (yesterday && second < end)
            }
        })
    }

    /// The last edge at or before this second of a day, and the next one after it; midnights are edges.
    fn edges_around(&self, second: u64) -> (u64, u64) {
        let edges = self.times.iter().flat_map(|times| [times.start, times.end]);
        edges.map(|minute| u64::from(minute) * MINUTE).fold(
            (0, u64::from(DAY) * MINUTE),
            |(before, after), edge| {
                if edge <= second { (before.max(edge), after) } else { (before, after.min(edge)) }
            },
        )
    }
}

impl Known {
    const LENGTH: u32 = 28;

    const fn pack(self) -> u64 {
        let most = (1 << Self::LENGTH) - 1;
        let length = self.until.saturating_sub(self.from);
        let length = if length > most { most } else { length };
        self.from << (Self::LENGTH + 1) | length << 1 | self.answer as u64
    }

    const fn unpack(word: u64) -> Self {
        let from = word >> (Self::LENGTH + 1);
        let length = (word >> 1) & ((1 << Self::LENGTH) - 1);
        Self { from, until: from + length, answer: word & 1 == 1 }
    }
}

fn second_of_day(local: DateTime) -> u64 {
    let part = |value: i8| u64::try_from(value).unwrap_or(0);
    (part(local.hour()) * 60 + part(local.minute())) * MINUTE + part(local.second())
}

/// 0 for Monday to 6 for Sunday.
fn weekday(local: DateTime) -> u8 {
    u8::try_from(local.weekday().to_monday_zero_offset()).unwrap_or(0)
}

/// The seconds since the epoch from which and until which the zone's clock runs on evenly around `moment`.
fn same_offset(zone: &TimeZone, moment: jiff::Timestamp) -> (u64, u64) {
    let seconds = |at: jiff::Timestamp| u64::try_from(at.as_second()).unwrap_or(0);
    // The transitions before the next second are those that have happened.
    let later = moment.checked_add(SignedDuration::from_secs(1)).unwrap_or(moment);
    let since = zone.preceding(later).next().map_or(0, |last| seconds(last.timestamp()));
    let until = zone.following(moment).next().map_or(u64::MAX, |next| seconds(next.timestamp()));
    (since, until)
}

#[cfg(test)]
mod tests;
