//! Schedules: times of day on days of the week in a time zone, e.g. `Mon-Fri 01:00-06:00 Europe/Berlin`.

use jiff::tz::TimeZone;

use super::zone::{is_zone, zone};
use super::{is_digits, nearest};
use crate::config::problem::{Fault, quoted};
use crate::rules::schedule::{DAY, Days, ScheduleSpan, Times};

const NAMES: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const IN_FULL: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// Parses days, times and a zone, in this order. Each may be left out, except that days or times are
/// required.
///
/// # Errors
/// Returns a [`Fault`] that names the part that cannot be read.
pub fn schedule(text: &str) -> Result<ScheduleSpan, Fault> {
    let mut words = text.split_whitespace().peekable();
    let has_times = text.contains(':');
    let days = words.next_if(|word| looks_like_days(word, has_times));
    let times = words.next_if(|word| word.contains(':'));
    let place = words.next();
    if let Some(hours) =
        place.filter(|word| times.is_none() && word.starts_with(|first: char| first.is_ascii_digit()))
    {
        return Err(not_times(hours));
    }
    if let Some(more) = words.next() {
        return Err(
            not_a_schedule(text).hint(format!("unexpected text after the time zone, got {}", quoted(more)))
        );
    }
    if days.is_none() && times.is_none() {
        return Err(match place {
            Some(word) if !is_zone(word) && !word.contains('/') => unknown_day(word),
            _ => not_a_schedule(text),
        });
    }
    Ok(ScheduleSpan {
        days: days.map_or(Ok(Days::ALL), self::days)?,
        times: times.map_or(Ok(Vec::new()), self::times)?.into(),
        zone: place.map_or(Ok(TimeZone::UTC), zone)?,
    })
}

/// Whether `word` is meant as days. A word before times can only be days; otherwise one valid day in it is
/// enough.
fn looks_like_days(word: &str, before_times: bool) -> bool {
    let is_day = |word: &str| day(word).is_ok();
    !word.contains(':') && (before_times || word.split([',', '-']).any(is_day))
}

fn not_a_schedule(text: &str) -> Fault {
    Fault::new(format!(
        "expected days or times of day such as `Mon-Fri 01:00-06:00 Europe/Berlin`, got {}",
        quoted(text)
    ))
}

/// Parses days and ranges of days, separated by commas; a range may wrap around the end of the week.
fn days(text: &str) -> Result<Days, Fault> {
    let mut days = Days::default();
    for item in text.split(',') {
        let (first, last) = match item.split_once('-') {
            Some((first, last)) => (day(first)?, day(last)?),
            None => (day(item)?, day(item)?),
        };
        for step in 0..=(last + 7 - first) % 7 {
            days.add(first + step);
        }
    }
    Ok(days)
}

/// Parses the name of a day: 0 for Monday to 6 for Sunday.
fn day(name: &str) -> Result<u8, Fault> {
    let is = |known: &str| known.eq_ignore_ascii_case(name);
    let found =
        NAMES.iter().position(|known| is(known)).or_else(|| IN_FULL.iter().position(|known| is(known)));
    found.and_then(|index| u8::try_from(index).ok()).ok_or_else(|| unknown_day(name))
}

fn unknown_day(name: &str) -> Fault {
    let fault = Fault::new(format!("unknown day {}, expected one of {}", quoted(name), NAMES.join(", ")));
    let begun = |known: &&&str| name.len() >= 2 && known.to_lowercase().starts_with(&name.to_lowercase());
    let likely = IN_FULL.iter().find(begun).map(|known| &known[..3]);
    let near = || nearest(name, NAMES).or_else(|| nearest(name, IN_FULL).map(|known| &known[..3]));
    fault.meant(likely.or_else(near))
}

fn times(text: &str) -> Result<Vec<Times>, Fault> {
    text.split(',').map(range).collect()
}

fn not_times(text: &str) -> Fault {
    Fault::new(format!("expected times such as `01:00-06:00`, got {}", quoted(text)))
}

fn range(text: &str) -> Result<Times, Fault> {
    let expected = || not_times(text);
    let (start, end) = text.split_once('-').ok_or_else(expected)?;
    if start.is_empty() || end.is_empty() {
        return Err(expected());
    }
    let (start, end) = (time(start)?, time(end)?);
    if start == DAY {
        return Err(
            Fault::new(format!("24:00 is only valid as an end, got {}", quoted(text))).hint("write `00:00`")
        );
    }
    if start == end {
        let fault = Fault::new(format!("start and end are equal, got {}", quoted(text)));
        return Err(fault.hint("write `00:00-24:00` for the whole day"));
    }
    Ok(Times { start, end })
}

/// Parses a time of day into minutes since midnight.
fn time(text: &str) -> Result<u16, Fault> {
    let expected = || Fault::new(format!("expected a time from 00:00 to 24:00, got {}", quoted(text)));
    let number = |digits: &str, lengths: &[usize]| -> Option<u16> {
        digits.parse().ok().filter(|_| is_digits(digits) && lengths.contains(&digits.len()))
    };
    let (hour, minute) = text.split_once(':').ok_or_else(expected)?;
    let minutes = number(hour, &[1, 2]).zip(number(minute, &[2])).filter(|(_, minute)| *minute < 60);
    let minutes = minutes.map(|(hour, minute)| hour * 60 + minute).filter(|minutes| *minutes <= DAY);
    minutes.ok_or_else(|| {
        let fault = expected();
        if text.to_ascii_lowercase().ends_with('m') { fault.hint("use the 24-hour clock") } else { fault }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> (String, String) {
        let Fault { message, hint } = schedule(text).unwrap_err();
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
    fn parts_may_be_left_out() {
        assert_eq!(days_of("Mon-Fri 01:00-06:00 Europe/Berlin"), [0, 1, 2, 3, 4]);
        assert_eq!(times_of("Mon-Fri 01:00-06:00 Europe/Berlin"), [(60, 360)]);
        assert_eq!(days_of("22:00-06:00"), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(times_of("Sat,Sun"), []);
        assert_eq!(days_of("Sat,Sun Asia/Kathmandu"), [5, 6]);
        assert_eq!(schedule("Sat,Sun").unwrap().zone, TimeZone::UTC);
        assert_eq!(schedule("1:00-2:00 Europe/Berlin").unwrap().zone.iana_name(), Some("Europe/Berlin"));
    }

    #[test]
    fn days_are_lists_and_ranges_and_go_round_the_week() {
        assert_eq!(days_of("fri-MON"), [0, 4, 5, 6]);
        assert_eq!(days_of("Monday,Wed-Thu"), [0, 2, 3]);
        assert_eq!(days_of("Sun-Sun"), [6]);
    }

    #[test]
    fn several_times_and_the_end_of_a_day() {
        assert_eq!(times_of("08:00-12:00,13:00-24:00"), [(480, 720), (780, 1440)]);
        assert_eq!(times_of("22:00-00:00"), [(1320, 0)]);
    }

    #[test]
    fn mistakes_are_named() {
        let days = "expected one of Mon, Tue, Wed, Thu, Fri, Sat, Sun";
        assert_eq!(said("Mon-Fry 01:00-02:00").0, format!("unknown day \"Fry\", {days}"));
        assert_eq!(said("Mon-Fry 01:00-02:00").1, "did you mean `Fri`?");
        assert_eq!(said("Thurs").1, "did you mean `Thu`?");
        assert_eq!(said("Mo,Di 01:00-02:00").1, "did you mean `Mon`?");
        assert_eq!(said("01:00-25:00").0, "expected a time from 00:00 to 24:00, got \"25:00\"");
        assert_eq!(said("1:00pm-2:00pm").1, "use the 24-hour clock");
        assert_eq!(said("24:00-06:00").0, "24:00 is only valid as an end, got \"24:00-06:00\"");
        assert_eq!(said("06:00-06:00").1, "write `00:00-24:00` for the whole day");
        assert_eq!(said("Mon 01:00-06:00 Europe/Berlni").1, "did you mean `Europe/Berlin`?");
        assert_eq!(said("Mon 01:00-06:00 UTC again").1, "unexpected text after the time zone, got \"again\"");
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
