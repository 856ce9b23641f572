//! Schedules: days and times of day in a time zone at which a rule applies.
//!
//! Times are readings of the local clock, not durations. On the day that clocks go forward, `01:00-06:00` lasts four
//! hours; an hour that occurs twice is inside both times. The result is cached until it may change, so the time zone
//! is rarely consulted: a request usually costs one atomic load and two comparisons.

use std::sync::atomic::{AtomicU64, Ordering};

use jiff::SignedDuration;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use weir_limiter::timestamp::Timestamp;

/// Minutes of a day, which is also how `24:00` is stored.
pub const DAY: u16 = 24 * 60;

const MINUTE: u64 = 60;

/// A set of spans. It holds while any of them does.
#[derive(Debug)]
pub struct Schedule {
    spans: Box<[ScheduleSpan]>,
    /// The last result and its validity; see [`CachedResult`]. Concurrent writers are harmless: each writes a
    /// valid result.
    known: AtomicU64,
}

impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        self.spans == other.spans
    }
}

/// Times of day on certain weekdays in one time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleSpan {
    /// Weekdays on which the times begin.
    pub days: Days,
    /// Times of day; empty means the whole day.
    pub times: Box<[Times]>,
    /// Time zone whose clock is read.
    pub zone: TimeZone,
}

/// A set of weekdays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Days(u8);

/// A range of minutes of a day; the end is exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Minutes since midnight, less than [`DAY`].
    pub start: u16,
    /// Minutes since midnight, at most [`DAY`]. If it is not after `start`, it is on the next day.
    pub end: u16,
}

/// A cached result and the whole seconds for which it is valid. Time zones change their offsets at whole seconds, and
/// a result expires at midnight at the latest. So it fits into one word: 35 bits for the first second (until the year
/// 2554), 28 bits for the number of seconds, and one bit for the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CachedResult {
    from: u64,
    until: u64,
    is_active: bool,
}

impl Days {
    /// Every day.
    pub const ALL: Self = Self(0b111_1111);

    /// Adds a day, 0 for Monday to 6 for Sunday.
    pub fn add(&mut self, day: u8) {
        self.0 |= 1 << (day % 7);
    }

    /// Whether it contains a day, 0 for Monday to 6 for Sunday.
    pub const fn contains(self, day: u8) -> bool {
        self.0 & (1 << (day % 7)) != 0
    }
}

impl Schedule {
    /// Creates a schedule that holds while one of `spans` does.
    pub fn new(spans: impl Into<Box<[ScheduleSpan]>>) -> Self {
        Self { spans: spans.into(), known: AtomicU64::new(0) }
    }

    #[inline]
    pub fn contains(&self, now: Timestamp) -> bool {
        let seconds = now.as_secs();
        let known = CachedResult::unpack(self.known.load(Ordering::Relaxed));
        if known.from <= seconds && seconds < known.until { known.is_active } else { self.learn(seconds) }
    }

    /// Computes the result from the time zones and caches it for as long as it is valid.
    #[cold]
    fn learn(&self, now: u64) -> bool {
        let always = CachedResult { from: 0, until: u64::MAX, is_active: false };
        let known = self.spans.iter().map(|span| span.at(now)).fold(always, |all, one| CachedResult {
            from: all.from.max(one.from),
            until: all.until.min(one.until),
            is_active: all.is_active | one.is_active,
        });
        self.known.store(known.pack(), Ordering::Relaxed);
        known.is_active
    }
}

impl Clone for Schedule {
    fn clone(&self) -> Self {
        Self::new(self.spans.clone())
    }
}

impl ScheduleSpan {
    /// Returns the result for `now`, in seconds since the epoch, and a range around it in which it is valid.
    fn at(&self, now: u64) -> CachedResult {
        // `u64` seconds can exceed the range of jiff's timestamps.
        let moment = i64::try_from(now).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
        let moment = moment.unwrap_or(jiff::Timestamp::MAX);
        let local = self.zone.to_datetime(moment);
        let second = second_of_day(local);
        let (before, after) = self.edges_around(second);
        // Times computed from the local reading are wrong beyond a change of the zone's offset.
        let (since, up_to) = same_offset(&self.zone, moment);
        CachedResult {
            from: now.saturating_sub(second - before).max(since),
            until: now.saturating_add(after - second).min(up_to),
            is_active: self.shows(weekday(local), second),
        }
    }

    /// Whether this local reading is inside. Times that pass midnight belong to the day on which they start.
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

    /// Returns the last edge at or before this second of a day, and the next one after it. Midnights are edges.
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

impl CachedResult {
    const LENGTH: u32 = 28;

    const fn pack(self) -> u64 {
        let max_length = (1 << Self::LENGTH) - 1;
        let length = self.until.saturating_sub(self.from);
        let length = if length > max_length { max_length } else { length };
        self.from << (Self::LENGTH + 1) | length << 1 | self.is_active as u64
    }

    const fn unpack(word: u64) -> Self {
        let from = word >> (Self::LENGTH + 1);
        let length = (word >> 1) & ((1 << Self::LENGTH) - 1);
        Self { from, until: from + length, is_active: word & 1 == 1 }
    }
}

fn second_of_day(local: DateTime) -> u64 {
    let part = |value: i8| u64::try_from(value).unwrap_or(0);
    (part(local.hour()) * 60 + part(local.minute())) * MINUTE + part(local.second())
}

/// Returns 0 for Monday to 6 for Sunday.
fn weekday(local: DateTime) -> u8 {
    u8::try_from(local.weekday().to_monday_zero_offset()).unwrap_or(0)
}

/// Returns the seconds since the epoch between which the zone's offset is the same as at `moment`.
fn same_offset(zone: &TimeZone, moment: jiff::Timestamp) -> (u64, u64) {
    let seconds = |at: jiff::Timestamp| u64::try_from(at.as_second()).unwrap_or(0);
    // `preceding` is exclusive; adding a second includes a transition at `moment` itself.
    let later = moment.checked_add(SignedDuration::from_secs(1)).unwrap_or(moment);
    let since = zone.preceding(later).next().map_or(0, |last| seconds(last.timestamp()));
    let until = zone.following(moment).next().map_or(u64::MAX, |next| seconds(next.timestamp()));
    (since, until)
}

#[cfg(test)]
mod tests;
