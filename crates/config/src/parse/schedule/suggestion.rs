//! Corrections of schedules in other notations, such as `Mo-Fr 9-17 CEST`.

use super::{DAY_ABBREVIATIONS, DAY_NAMES, is_digits, is_time_zone, parse_schedule};

/// Maximum length of a text that is corrected.
const MAX_LENGTH: usize = 100;

/// Returns the hint with the corrected schedule; `None` if it is not clear what was meant, or if only one word of
/// several would change, for which the parser has a more precise message.
pub(super) fn corrected_schedule(text: &str) -> Option<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    if text.len() > MAX_LENGTH || !(2..=3).contains(&words.len()) {
        return None;
    }
    let (mut corrected, mut is_zone_unknown, mut changed) = (Vec::new(), false, 0_usize);
    for word in &words {
        let fixed = correct_days(word).or_else(|| correct_times(word)).or_else(|| {
            let is_zone = is_time_zone(word) || is_abbreviated_zone(word);
            is_zone_unknown |= is_zone && !is_time_zone(word);
            is_zone.then(|| if is_time_zone(word) { (*word).to_owned() } else { "ZONE".to_owned() })
        })?;
        changed += usize::from(fixed != **word);
        corrected.push(fixed);
    }
    let plain: Vec<&str> = corrected.iter().map(String::as_str).filter(|word| *word != "ZONE").collect();
    let has_times = text.bytes().any(|byte| byte.is_ascii_digit());
    if parse_schedule(&plain.join(" ")).is_err()
        || changed == 0
        || (changed == 1 && text.contains(':'))
        || !has_times
    {
        return None;
    }
    let zone = if is_zone_unknown { "; a zone is a name such as `Europe/Berlin`" } else { "" };
    Some(format!("write `{}`{zone}", corrected.join(" ")))
}

/// Whether the word looks like the abbreviation of a zone, such as `CEST` or `PST`, which several zones share.
fn is_abbreviated_zone(word: &str) -> bool {
    (3..=4).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_uppercase())
}

fn correct_days(word: &str) -> Option<String> {
    let days = word.split(',').map(|item| correct_range(item, correct_day));
    Some(days.collect::<Option<Vec<_>>>()?.join(","))
}

fn correct_times(word: &str) -> Option<String> {
    let times =
        word.split(',').map(|item| item.contains('-').then(|| correct_range(item, correct_time)).flatten());
    Some(times.collect::<Option<Vec<_>>>()?.join(","))
}

/// Corrects both ends of a range, or a single item.
fn correct_range(item: &str, correct: fn(&str) -> Option<String>) -> Option<String> {
    match item.split_once('-') {
        Some((first, last)) => Some(format!("{}-{}", correct(first)?, correct(last)?)),
        None => correct(item),
    }
}

/// Returns the abbreviation of the day that begins with `word`, or that `word` extends, such as `Thurs`.
fn correct_day(word: &str) -> Option<String> {
    let word = word.trim_end_matches('.').to_lowercase();
    let is_meant = |name: &str| {
        let name = name.to_lowercase();
        name.starts_with(&word) || word.starts_with(&name[..3]) && word.len() <= 5
    };
    let index = DAY_NAMES.iter().position(|name| word.len() >= 2 && word.is_ascii() && is_meant(name))?;
    Some(DAY_ABBREVIATIONS[index].to_owned())
}

/// Corrects a time of day such as `9`, `9:30` or `5pm`.
fn correct_time(word: &str) -> Option<String> {
    let lower = word.to_ascii_lowercase();
    let (digits, half) = match (lower.strip_suffix("am"), lower.strip_suffix("pm")) {
        (Some(digits), _) => (digits, Some(0)),
        (_, Some(digits)) => (digits, Some(12)),
        _ => (lower.as_str(), None),
    };
    let (hour, minute) = digits.split_once(':').unwrap_or((digits, "00"));
    let is_time = is_digits(hour) && hour.len() <= 2 && is_digits(minute) && minute.len() == 2;
    let hour: u8 = hour.parse().ok().filter(|_| is_time)?;
    let hour = match half {
        Some(half) if (1..=12).contains(&hour) => hour % 12 + half,
        Some(_) => return None,
        None => hour,
    };
    (hour <= 24).then(|| format!("{hour:02}:{minute}"))
}
