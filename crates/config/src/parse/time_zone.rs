//! Time zones by their IANA names, from the system's database or, if it has none, from the one compiled in.

use jiff::tz::{self, TimeZone};

use super::nearest_name;
use crate::diagnostic::ValueError;
use crate::quoting::quoted;

/// Parses the name of a time zone, e.g. `Europe/Berlin` or `UTC`, case-insensitively.
///
/// # Errors
/// Returns a [`ValueError`] with the nearest known name.
pub fn time_zone(text: &str) -> Result<TimeZone, ValueError> {
    let known = || tz::db().available().filter(|name| !is_too_short_to_suggest(name.as_str()));
    let found = tz::db().get(text).ok().filter(|_| !text.is_empty());
    found.ok_or_else(|| {
        let names: Vec<String> = known().map(|name| name.as_str().to_owned()).collect();
        let error = ValueError::new(format!("unknown time zone {}", quoted(text)));
        error
            .with_hint("use a name such as `Europe/Berlin` or `UTC`")
            .with_suggestion(suggest_time_zone(text, &names))
    })
}

/// Whether `text` is the name of a zone, which may be a single word such as `UTC` or `Japan`.
pub(super) fn is_time_zone(text: &str) -> bool {
    !text.is_empty() && tz::db().get(text).is_ok()
}

/// Whether the name is too short to be suggested: any three letters are near to any other three.
fn is_too_short_to_suggest(name: &str) -> bool {
    name.len() <= 4 && name != "UTC"
}

/// Returns the zone of a city that is given alone, or the zone with the nearest name.
fn suggest_time_zone<'a>(text: &str, names: &'a [String]) -> Option<&'a str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace(' ', "_");
    let city_name = plain(text);
    let city = |name: &&String| name.rsplit('/').next().is_some_and(|city| plain(city) == city_name);
    names
        .iter()
        .find(city)
        .map(String::as_str)
        .or_else(|| nearest_name(text, names.iter().map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(text: &str) -> String {
        time_zone(text).unwrap_err().hint.unwrap()
    }

    #[test]
    fn time_zone_names_are_case_insensitive() {
        for name in ["UTC", "utc", "Europe/Berlin", "europe/berlin", "America/Argentina/Buenos_Aires"] {
            assert!(time_zone(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn unknown_time_zone_suggests_nearest_name() {
        assert_eq!(hint("Europe/Berlni"), "did you mean `Europe/Berlin`?");
        assert_eq!(hint("Berlin"), "did you mean `Europe/Berlin`?");
        assert_eq!(hint("new york"), "did you mean `America/New_York`?");
        assert_eq!(hint("Europe/Bern"), "did you mean `Europe/Berlin`?");
        for text in ["", "+02:00", "somewhere far away", "../../etc/passwd", "/etc/localtime"] {
            assert_eq!(hint(text), "use a name such as `Europe/Berlin` or `UTC`", "{text}");
        }
    }
}
