//! Time zones whose calendars windows follow, each known once for as long as the process lives.
//!
//! A quota is copied with every verdict and cannot hold a zone; it holds its number. Whoever reads a
//! configuration makes zones known; the number of names that there are bounds them, and nothing a client sends
//! leads here.

use std::sync::OnceLock;

use jiff::tz::TimeZone;

/// More than the IANA database has names.
const MOST: usize = 1024;

static KNOWN: [OnceLock<TimeZone>; MOST] = [const { OnceLock::new() }; MOST];

/// A time zone: UTC, or one that has been made known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Zone(u16);

impl Zone {
    /// Coordinated universal time.
    pub const UTC: Self = Self(0);

    /// Makes `zone` known; `None` if there is no room for another, after a thousand different ones.
    pub fn of(zone: &TimeZone) -> Option<Self> {
        if *zone == TimeZone::UTC || zone.iana_name() == Some("UTC") {
            return Some(Self::UTC);
        }
        // A zone whose rules have changed on disk differs from what it was, and is another one.
        let is_it = |place: &OnceLock<TimeZone>| place.get_or_init(|| zone.clone()) == zone;
        let place = KNOWN.iter().position(is_it)?;
        u16::try_from(place + 1).ok().map(Self)
    }

    /// The zone of this name, if it has been made known.
    pub(super) fn named(name: &str) -> Option<Self> {
        (0..=MOST as u16).map(Self).take_while(|zone| zone.is_known()).find(|zone| zone.name() == name)
    }

    /// Its name in the IANA database.
    pub fn name(self) -> &'static str {
        self.rules().and_then(TimeZone::iana_name).unwrap_or("UTC")
    }

    /// What its clocks show; `None` for UTC.
    pub(super) fn rules(self) -> Option<&'static TimeZone> {
        KNOWN.get(usize::from(self.0).checked_sub(1)?)?.get()
    }

    pub(super) const fn number(self) -> u16 {
        self.0
    }

    pub(super) const fn of_number(number: u16) -> Self {
        Self(number)
    }

    fn is_known(self) -> bool {
        self == Self::UTC || self.rules().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_known_once() {
        let [berlin, tokyo] = ["Europe/Berlin", "Asia/Tokyo"].map(|name| TimeZone::get(name).unwrap());
        let known = Zone::of(&berlin).unwrap();
        assert_ne!(Zone::of(&tokyo).unwrap(), known);
        assert_eq!(Zone::of(&berlin), Some(known));
        assert_eq!((known.name(), Zone::named("Europe/Berlin")), ("Europe/Berlin", Some(known)));
        assert_eq!(Zone::named("Mars/Olympus_Mons"), None);
    }

    #[test]
    fn universal_time_has_no_rules() {
        for name in ["UTC", "utc"] {
            assert_eq!(Zone::of(&TimeZone::get(name).unwrap()), Some(Zone::UTC));
        }
        assert_eq!((Zone::UTC.name(), Zone::named("UTC")), ("UTC", Some(Zone::UTC)));
    }
}
