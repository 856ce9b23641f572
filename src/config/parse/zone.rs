//! Time zones by their IANA names, from the system's database or, if it has none, from the one compiled in.

use jiff::tz::{self, TimeZone};

use super::nearest;
use crate::config::problem::{Fault, quoted};

/// Parses the name of a time zone, e.g. `Europe/Berlin` or `UTC`, case-insensitively.
///
/// # Errors
/// Returns a [`Fault`] with the nearest known name.
pub fn zone(text: &str) -> Result<TimeZone, Fault> {
    let known = || tz::db().available().filter(|name| !is_abbreviated(name.as_str()));
    let found = tz::db().get(text).ok().filter(|_| !text.is_empty());
    found.ok_or_else(|| {
        let names: Vec<String> = known().map(|name| name.as_str().to_owned()).collect();
        let fault = Fault::new(format!("unknown time zone {}", quoted(text)));
        fault.hint("use a name such as `Europe/Berlin` or `UTC`").meant(likely(text, &names))
    })
}

/// Whether `text` is the name of a zone, which may be a single word such as `UTC` or `Japan`.
pub(super) fn is_zone(text: &str) -> bool {
    !text.is_empty() && tz::db().get(text).is_ok()
}

/// Whether the name is too short to be suggested: any three letters are near to any other three.
fn is_abbreviated(name: &str) -> bool {
    name.len() <= 4 && name != "UTC"
}

/// Returns the zone of a city that is given alone, or the zone with the nearest name.
fn likely<'a>(text: &str, names: &'a [String]) -> Option<&'a str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace(' ', "_");
    let wanted = plain(text);
    let city = |name: &&String| name.rsplit('/').next().is_some_and(|city| plain(city) == wanted);
    names.iter().find(city).map(String::as_str).or_else(|| nearest(text, names.iter().map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(text: &str) -> String {
        zone(text).unwrap_err().hint.unwrap()
    }

    #[test]
    fn zones_go_by_their_names() {
        for name in ["UTC", "utc", "Europe/Berlin", "europe/berlin", "America/Argentina/Buenos_Aires"] {
            assert!(zone(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn the_nearest_name_is_the_hint() {
        assert_eq!(hint("Europe/Berlni"), "did you mean `Europe/Berlin`?");
        assert_eq!(hint("Berlin"), "did you mean `Europe/Berlin`?");
        assert_eq!(hint("new york"), "did you mean `America/New_York`?");
        assert_eq!(hint("Europe/Bern"), "did you mean `Europe/Berlin`?");
        for text in ["", "+02:00", "somewhere far away", "../../etc/passwd", "/etc/localtime"] {
            assert_eq!(hint(text), "use a name such as `Europe/Berlin` or `UTC`", "{text}");
        }
    }
}
