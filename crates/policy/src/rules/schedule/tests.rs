use proptest::prelude::*;

use super::*;

/// A change of a zone's offset: seconds since the epoch, and the offsets before and after it.
struct OffsetChange {
    zone: &'static str,
    at: i64,
    before: i64,
    after: i64,
}

const HOUR: i64 = 3600;

/// Offset changes by law, independent of a time zone database.
const CHANGES: [OffsetChange; 8] = [
    // 2026-03-29T01:00Z and 2026-10-25T01:00Z.
    OffsetChange { zone: "Europe/Berlin", at: 1_774_746_000, before: HOUR, after: 2 * HOUR },
    OffsetChange { zone: "Europe/Berlin", at: 1_792_890_000, before: 2 * HOUR, after: HOUR },
    // 2026-03-08T07:00Z and 2026-11-01T06:00Z.
    OffsetChange { zone: "America/New_York", at: 1_772_953_200, before: -5 * HOUR, after: -4 * HOUR },
    OffsetChange { zone: "America/New_York", at: 1_793_512_800, before: -4 * HOUR, after: -5 * HOUR },
    // 2026-04-04T15:00Z and 2026-10-03T15:30Z: by half an hour.
    OffsetChange {
        zone: "Australia/Lord_Howe",
        at: 1_775_314_800,
        before: 11 * HOUR,
        after: 10 * HOUR + 1800,
    },
    OffsetChange {
        zone: "Australia/Lord_Howe",
        at: 1_791_041_400,
        before: 10 * HOUR + 1800,
        after: 11 * HOUR,
    },
    // 1985-12-31T18:30Z, permanently.
    OffsetChange { zone: "Asia/Kathmandu", at: 504_901_800, before: 5 * HOUR + 1800, after: 5 * HOUR + 2700 },
    OffsetChange { zone: "UTC", at: 1_774_746_000, before: 0, after: 0 },
];

impl OffsetChange {
    /// Returns the weekday, 0 for Monday, and the minute of the day in local time at a second since the epoch.
    fn local_time(&self, at: i64) -> (u8, u16) {
        let local = at + if at < self.at { self.before } else { self.after };
        // The epoch was a Thursday.
        let day = (local.div_euclid(86_400) + 3).rem_euclid(7);
        (u8::try_from(day).unwrap(), u16::try_from(local.rem_euclid(86_400) / 60).unwrap())
    }

    /// Reference implementation: enumerates the minutes of the day.
    fn holds(&self, days: Days, times: &[Times], at: i64) -> bool {
        let (day, minute) = self.local_time(at);
        if times.is_empty() {
            return days.contains(day);
        }
        times.iter().any(|times| {
            // Enumerates the minutes from the start, into the next day if necessary.
            let length =
                if times.start < times.end { times.end - times.start } else { DAY - times.start + times.end };
            (0..length).any(|step| {
                let inside = times.start + step;
                let day = if inside < DAY { day } else { (day + 6) % 7 };
                inside % DAY == minute && days.contains(day)
            })
        })
    }
}

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).unwrap()
}

fn timestamp_at(at: i64) -> Timestamp {
    Timestamp::from_secs(u64::try_from(at).unwrap())
}

fn span(days: Days, times: &[(u16, u16)], zone: &TimeZone) -> ScheduleSpan {
    let times = times.iter().map(|(start, end)| Times { start: *start, end: *end }).collect();
    ScheduleSpan { days, times, zone: zone.clone() }
}

fn at(text: &str) -> Timestamp {
    let moment: jiff::Timestamp = text.parse().unwrap();
    Timestamp::from_nanos(u64::try_from(moment.as_nanosecond()).unwrap())
}

/// Minutes since midnight of `hh:mm`.
const fn minute_of_day(hour: u16, minute: u16) -> u16 {
    hour * 60 + minute
}

fn times() -> impl Strategy<Value = Times> {
    // Mostly quarters of an hour, at which offsets change, and times around midnight.
    let minute = prop_oneof![0..DAY, (0..96u16).prop_map(|quarter| quarter * 15), Just(0)];
    let end = prop_oneof![0..=DAY, (0..=96u16).prop_map(|quarter| quarter * 15), Just(DAY), Just(0)];
    (minute, end).prop_filter_map("empty", |(start, end)| (start != end).then_some(Times { start, end }))
}

fn days() -> impl Strategy<Value = Days> {
    prop_oneof![(0..128u8).prop_map(Days), Just(Days::ALL)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn schedule_matches_the_calendar_around_offset_changes(
        which in 0..CHANGES.len(),
        days in days(),
        times in proptest::collection::vec(times(), 0..3),
        asked in proptest::collection::vec(-2880..2880_i64, 200),
    ) {
        let change = &CHANGES[which];
        let schedule = Schedule::new([ScheduleSpan { days, times: times.clone().into(), zone: zone(change.zone) }]);
        let mut said = Vec::new();
        // From two days before the change to two days after it, in order.
        for minute in -2880..2880 {
            let at = change.at + minute * 60;
            let expected = change.holds(days, &times, at);
            prop_assert_eq!(schedule.contains(timestamp_at(at)), expected, "{} {:?}", change.zone, change.local_time(at));
            let last = timestamp_at(at + 60).as_nanos() - 1;
            prop_assert_eq!(schedule.contains(Timestamp::from_nanos(last)), expected, "the end of the minute");
            said.push(expected);
        }
        // Then in any order, with a filled cache.
        for minute in asked {
            let expected = said[usize::try_from(minute + 2880).unwrap()];
            prop_assert_eq!(schedule.contains(timestamp_at(change.at + minute * 60 + 17)), expected);
        }
    }

    #[test]
    fn schedule_is_the_union_of_its_spans(
        first in (days(), times(), 0..CHANGES.len()),
        other in (days(), times(), 0..CHANGES.len()),
        asked in proptest::collection::vec(1_770_000_000..1_800_000_000_u64, 100),
    ) {
        let span = |(days, times, which): (Days, Times, usize)| {
            ScheduleSpan { days, times: [times].into(), zone: zone(CHANGES[which].zone) }
        };
        let both = Schedule::new([span(first), span(other)]);
        let (first, other) = (Schedule::new([span(first)]), Schedule::new([span(other)]));
        for at in asked.into_iter().map(Timestamp::from_secs) {
            prop_assert_eq!(both.contains(at), first.contains(at) || other.contains(at));
        }
    }

    #[test]
    fn cached_schedule_result_packs_into_a_word(from in 0..18_446_744_074_u64, length in 0..86_401_u64, is_active: bool) {
        let known = CachedResult { from, until: from + length, is_active };
        prop_assert_eq!(CachedResult::unpack(known.pack()), known);
    }
}

#[test]
fn schedule_skips_the_hour_missing_at_spring_change() {
    // On Sunday, 29 March 2026, 02:00 became 03:00 in Berlin.
    let schedule = Schedule::new([span(
        Days::ALL,
        &[(minute_of_day(1, 0), minute_of_day(6, 0))],
        &zone("Europe/Berlin"),
    )]);
    for (moment, inside) in [
        ("2026-03-28T23:59:59.999999999Z", false),
        ("2026-03-29T00:00:00Z", true),
        ("2026-03-29T00:59:59Z", true),
        ("2026-03-29T01:00:00Z", true),
        ("2026-03-29T03:59:59.999999999Z", true),
        ("2026-03-29T04:00:00Z", false),
    ] {
        assert_eq!(schedule.contains(at(moment)), inside, "{moment}");
    }
    let missing = Schedule::new([span(
        Days::ALL,
        &[(minute_of_day(2, 0), minute_of_day(3, 0))],
        &zone("Europe/Berlin"),
    )]);
    let night = (0..24 * 60).filter(|minute| missing.contains(timestamp_at(1_774_738_800 + minute * 60)));
    assert_eq!(night.count(), 0, "an hour that the change to daylight saving time skips");
}

#[test]
fn schedule_includes_both_occurrences_of_a_repeated_hour() {
    // On Sunday, 25 October 2026, 03:00 became 02:00 in Berlin.
    let schedule = Schedule::new([span(
        Days::ALL,
        &[(minute_of_day(2, 30), minute_of_day(2, 45))],
        &zone("Europe/Berlin"),
    )]);
    for (moment, inside) in [
        ("2026-10-25T00:29:59Z", false),
        ("2026-10-25T00:30:00Z", true),
        ("2026-10-25T00:45:00Z", false),
        ("2026-10-25T01:29:59Z", false),
        ("2026-10-25T01:30:00Z", true),
        ("2026-10-25T01:45:00Z", false),
        ("2026-10-26T01:30:00Z", true),
    ] {
        assert_eq!(schedule.contains(at(moment)), inside, "{moment}");
    }
}

#[test]
fn overnight_schedule_belongs_to_its_starting_day() {
    let mut friday = Days::default();
    friday.add(4);
    let schedule =
        Schedule::new([span(friday, &[(minute_of_day(22, 0), minute_of_day(6, 0))], &TimeZone::UTC)]);
    for (moment, inside) in [
        ("2026-11-20T05:59:59Z", false),
        ("2026-11-20T21:59:59Z", false),
        ("2026-11-20T22:00:00Z", true),
        ("2026-11-21T05:59:59Z", true),
        ("2026-11-21T06:00:00Z", false),
        ("2026-11-21T22:00:00Z", false),
    ] {
        assert_eq!(schedule.contains(at(moment)), inside, "{moment}");
    }
}

#[test]
fn schedule_is_correct_when_time_goes_backwards() {
    let schedule =
        Schedule::new([span(Days::ALL, &[(minute_of_day(1, 0), minute_of_day(6, 0))], &TimeZone::UTC)]);
    let (night, noon) = (at("2026-11-20T03:00:00Z"), at("2026-11-20T12:00:00Z"));
    for _ in 0..3 {
        assert!(schedule.contains(night));
        assert!(!schedule.contains(noon));
    }
    assert!(!schedule.contains(Timestamp::EPOCH));
    assert!(!schedule.contains(Timestamp::from_nanos(u64::MAX)), "23:34 of the last representable day");
}

#[test]
fn schedule_result_is_cached_until_it_may_change() {
    let schedule = Schedule::new([span(
        Days::ALL,
        &[(minute_of_day(1, 0), minute_of_day(6, 0))],
        &zone("Europe/Berlin"),
    )]);
    assert!(schedule.contains(at("2026-11-20T03:00:00Z")));
    let known = CachedResult::unpack(schedule.known.load(Ordering::Relaxed));
    let hours = known.until - known.from;
    assert_eq!((known.from, hours), (at("2026-11-20T00:00:00Z").as_secs(), 5 * 3600));
}

#[test]
fn schedule_without_spans_is_never_active() {
    assert!(!Schedule::new([]).contains(Timestamp::EPOCH));
}
