//! Schedules: times of day on days of the week in a time zone, e.g. `Mon-Fri 01:00-06:00 Europe/Berlin`.

mod suggestion;

use jiff::tz::TimeZone;

use super::time_zone::{is_time_zone, time_zone};
use super::{is_digits, nearest_name};
use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use weir_policy::rules::schedule::{DAY, Days, ScheduleSpan, Times};

const DAY_ABBREVIATIONS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const DAY_NAMES: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// Parses days, times and a zone, in this order. Each may be left out, except that days or times are
/// required.
///
/// # Errors
/// Returns a [`ValueError`] that names the part that cannot be read.
pub fn schedule(text: &str) -> Result<ScheduleSpan, ValueError> {
    parse_schedule(text).map_err(|error| match suggestion::corrected_schedule(text) {
        Some(hint) => invalid_schedule(text).with_hint(hint),
        None => error,
    })
}

fn parse_schedule(text: &str) -> Result<ScheduleSpan, ValueError> {
    let mut words = text.split_whitespace().peekable();
    let has_times = text.contains(':');
    let days = words.next_if(|word| looks_like_days(word, has_times));
    let times = words.next_if(|word| word.contains(':'));
    let zone_name = words.next();
    if let Some(hours) =
        zone_name.filter(|word| times.is_none() && word.starts_with(|first: char| first.is_ascii_digit()))
    {
        return Err(invalid_times(hours));
    }
    if let Some(more) = words.next() {
        return Err(invalid_schedule(text)
            .with_hint(format!("unexpected text after the time zone, got {}", quoted(more))));
    }
    if days.is_none() && times.is_none() {
        return Err(match zone_name {
            Some(word) if !is_time_zone(word) && !word.contains('/') => unknown_day(word),
            _ => invalid_schedule(text),
        });
    }
    Ok(ScheduleSpan {
        days: days.map_or(Ok(Days::ALL), parse_days)?,
        times: times.map_or(Ok(Vec::new()), parse_times)?.into(),
        zone: zone_name.map_or(Ok(TimeZone::UTC), time_zone)?,
    })
}

/// Whether `word` is meant as days. A word before times can only be days; otherwise one valid day in it is
/// enough.
fn looks_like_days(word: &str, before_times: bool) -> bool {
    let is_day = |word: &str| parse_day(word).is_ok();
    !word.contains(':') && (before_times || word.split([',', '-']).any(is_day))
}

fn invalid_schedule(text: &str) -> ValueError {
    ValueError::new(format!(
        "expected days or times of day such as `Mon-Fri 01:00-06:00 Europe/Berlin`, got {}",
        quoted(text)
    ))
}

/// Parses days and ranges of days, separated by commas; a range may wrap around the end of the week.
fn parse_days(text: &str) -> Result<Days, ValueError> {
    let mut days = Days::default();
    for item in text.split(',') {
        let (first, last) = match item.split_once('-') {
            Some((first, last)) => (parse_day(first)?, parse_day(last)?),
            None => (parse_day(item)?, parse_day(item)?),
        };
        for step in 0..=(last + 7 - first) % 7 {
            days.add(first + step);
        }
    }
    Ok(days)
}

/// Parses the name of a day: 0 for Monday to 6 for Sunday.
fn parse_day(name: &str) -> Result<u8, ValueError> {
    let is = |known: &str| known.eq_ignore_ascii_case(name);
    let found = DAY_ABBREVIATIONS
        .iter()
        .position(|known| is(known))
        .or_else(|| DAY_NAMES.iter().position(|known| is(known)));
    found.and_then(|index| u8::try_from(index).ok()).ok_or_else(|| unknown_day(name))
}

fn unknown_day(name: &str) -> ValueError {
    let error = ValueError::new(format!(
        "unknown day {}, expected one of {}",
        quoted(name),
        DAY_ABBREVIATIONS.join(", ")
    ));
    let is_abbreviated_by =
        |known: &&&str| name.len() >= 2 && known.to_lowercase().starts_with(&name.to_lowercase());
    let likely = DAY_NAMES.iter().find(is_abbreviated_by).map(|known| &known[..3]);
    let near = || {
        nearest_name(name, DAY_ABBREVIATIONS)
            .or_else(|| nearest_name(name, DAY_NAMES).map(|known| &known[..3]))
    };
    error.with_suggestion(likely.or_else(near))
}

fn parse_times(text: &str) -> Result<Vec<Times>, ValueError> {
    text.split(',').map(parse_time_range).collect()
}

fn invalid_times(text: &str) -> ValueError {
    ValueError::new(format!("expected times such as `01:00-06:00`, got {}", quoted(text)))
}

fn parse_time_range(text: &str) -> Result<Times, ValueError> {
    let expected = || invalid_times(text);
    let (start, end) = text.split_once('-').ok_or_else(expected)?;
    if start.is_empty() || end.is_empty() {
        return Err(expected());
    }
    let (start, end) = (parse_time_of_day(start)?, parse_time_of_day(end)?);
    if start == DAY {
        return Err(ValueError::new(format!("24:00 is only valid as an end, got {}", quoted(text)))
            .with_hint("write `00:00`"));
    }
    if start == end {
        let error = ValueError::new(format!("start and end are equal, got {}", quoted(text)));
        return Err(error.with_hint("write `00:00-24:00` for the whole day"));
    }
    Ok(Times { start, end })
}

/// Parses a time of day into minutes since midnight.
fn parse_time_of_day(text: &str) -> Result<u16, ValueError> {
    let expected = || ValueError::new(format!("expected a time from 00:00 to 24:00, got {}", quoted(text)));
    let number = |digits: &str, lengths: &[usize]| -> Option<u16> {
        digits.parse().ok().filter(|_| is_digits(digits) && lengths.contains(&digits.len()))
    };
    let (hour, minute) = text.split_once(':').ok_or_else(expected)?;
    let minutes = number(hour, &[1, 2]).zip(number(minute, &[2])).filter(|(_, minute)| *minute < 60);
    let minutes = minutes.map(|(hour, minute)| hour * 60 + minute).filter(|minutes| *minutes <= DAY);
    minutes.ok_or_else(|| {
        let error = expected();
        if text.to_ascii_lowercase().ends_with('m') {
            error.with_hint("use the 24-hour clock")
        } else {
            error
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_and_hint(text: &str) -> (String, String) {
        let ValueError { message, hint } = schedule(text).unwrap_err();
        (message, hint.unwrap_or_default())
    }

    fn days_of(text: &str) -> Vec<u8> {
        let span = schedule(text).unwrap();
        (0..7).filter(|day| span.days.contains(*day)).collect()
    }

    fn times_of(text: &str) -> Vec<(u16, u16)> {
        schedule(text).unwrap().times.iter().map(|times| (times.start, times.end)).collect()
    }

    #[test]
    fn schedule_parts_are_optional() {
        assert_eq!(days_of("Mon-Fri 01:00-06:00 Europe/Berlin"), [0, 1, 2, 3, 4]);
        assert_eq!(times_of("Mon-Fri 01:00-06:00 Europe/Berlin"), [(60, 360)]);
        assert_eq!(days_of("22:00-06:00"), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(times_of("Sat,Sun"), []);
        assert_eq!(days_of("Sat,Sun Asia/Kathmandu"), [5, 6]);
        assert_eq!(schedule("Sat,Sun").unwrap().zone, TimeZone::UTC);
        assert_eq!(schedule("1:00-2:00 Europe/Berlin").unwrap().zone.iana_name(), Some("Europe/Berlin"));
    }

    #[test]
    fn schedule_day_ranges_wrap_around_the_week() {
        assert_eq!(days_of("fri-MON"), [0, 4, 5, 6]);
        assert_eq!(days_of("Monday,Wed-Thu"), [0, 2, 3]);
        assert_eq!(days_of("Sun-Sun"), [6]);
    }

    #[test]
    fn schedule_allows_several_times_and_midnight() {
        assert_eq!(times_of("08:00-12:00,13:00-24:00"), [(480, 720), (780, 1440)]);
        assert_eq!(times_of("22:00-00:00"), [(1320, 0)]);
    }

    #[test]
    fn schedule_in_another_notation_is_suggested_as_written_here() {
        let hint = |text: &str| error_and_hint(text).1;
        let zone = "a zone is a name such as `Europe/Berlin`";
        assert_eq!(hint("Mo-Fr 9-17 CEST"), format!("write `Mon-Fri 09:00-17:00 ZONE`; {zone}"));
        assert_eq!(hint("Mo-Fr 9-17"), "write `Mon-Fri 09:00-17:00`");
        assert_eq!(hint("mon-fri 9am-5pm UTC"), "write `Mon-Fri 09:00-17:00 UTC`");
        assert_eq!(hint("Weds,Thurs 9:30-12 Europe/Berlin"), "write `Wed,Thu 09:30-12:00 Europe/Berlin`");
        assert_eq!(hint("Mon-Fri 12am-12pm"), "write `Mon-Fri 00:00-12:00`");
    }

    #[test]
    fn invalid_schedules_are_rejected_with_hint() {
        let days = "expected one of Mon, Tue, Wed, Thu, Fri, Sat, Sun";
        assert_eq!(error_and_hint("Mon-Fry 01:00-02:00").0, format!("unknown day \"Fry\", {days}"));
        assert_eq!(error_and_hint("Mon-Fry 01:00-02:00").1, "did you mean `Fri`?");
        assert_eq!(error_and_hint("Thurs").1, "did you mean `Thu`?");
        assert_eq!(error_and_hint("Mo,Di 01:00-02:00").1, "did you mean `Mon`?");
        assert_eq!(error_and_hint("01:00-25:00").0, "expected a time from 00:00 to 24:00, got \"25:00\"");
        assert_eq!(error_and_hint("1:00pm-2:00pm").1, "use the 24-hour clock");
        assert_eq!(error_and_hint("24:00-06:00").0, "24:00 is only valid as an end, got \"24:00-06:00\"");
        assert_eq!(error_and_hint("06:00-06:00").1, "write `00:00-24:00` for the whole day");
        assert_eq!(error_and_hint("Mon 01:00-06:00 Europe/Berlni").1, "did you mean `Europe/Berlin`?");
        assert_eq!(
            error_and_hint("Mon 01:00-06:00 UTC again").1,
            "unexpected text after the time zone, got \"again\""
        );
        for bad in [
            "",
            " ",
            "UTC",
            "Europe/Berlin",
            "1-2",
            "01:00",
            "01:00-",
            "-",
            ",",
            "Mon,",
            "a:b-c:d",
            "01:60-02:00",
        ] {
            assert!(schedule(bad).is_err(), "{bad}");
        }
    }
}
