//! Registry of the time zones whose calendars windows follow; entries live as long as the process.
//!
//! A quota is copied with every verdict and cannot contain a zone, so it contains the zone's number. Zones are
//! registered when a configuration is read. The number of zone names bounds the registry, and clients cannot add to it.

use std::sync::OnceLock;

use jiff::tz::TimeZone;

/// Maximum number of zones, which is more than the IANA database has names.
const MAX_ZONES: usize = 1024;

static ZONES: [OnceLock<TimeZone>; MAX_ZONES] = [const { OnceLock::new() }; MAX_ZONES];

/// A time zone: UTC, or one that has been registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Zone(u16);

impl Zone {
    /// Coordinated Universal Time.
    pub const UTC: Self = Self(0);

    /// Registers `zone`; `None` if the registry is full (1024 different zones).
    pub fn register(zone: &TimeZone) -> Option<Self> {
        if *zone == TimeZone::UTC || zone.iana_name() == Some("UTC") {
            return Some(Self::UTC);
        }
        // A zone whose rules changed on disk compares as different, and gets a new entry.
        let is_same = |entry: &OnceLock<TimeZone>| entry.get_or_init(|| zone.clone()) == zone;
        let position = ZONES.iter().position(is_same)?;
        u16::try_from(position + 1).ok().map(Self)
    }

    /// Returns the registered zone of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        (0..=MAX_ZONES as u16).map(Self).take_while(|zone| zone.is_known()).find(|zone| zone.name() == name)
    }

    /// Returns the zone's name in the IANA database.
    pub fn name(self) -> &'static str {
        self.time_zone().and_then(TimeZone::iana_name).unwrap_or("UTC")
    }

    /// Returns the zone's rules; `None` for UTC.
    pub(super) fn time_zone(self) -> Option<&'static TimeZone> {
        ZONES.get(usize::from(self.0).checked_sub(1)?)?.get()
    }

    pub(super) const fn number(self) -> u16 {
        self.0
    }

    pub(super) const fn from_number(number: u16) -> Self {
        Self(number)
    }

    fn is_known(self) -> bool {
        self == Self::UTC || self.time_zone().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_zone_is_registered_once() {
        let [berlin, tokyo] = ["Europe/Berlin", "Asia/Tokyo"].map(|name| TimeZone::get(name).unwrap());
        let known = Zone::register(&berlin).unwrap();
        assert_ne!(Zone::register(&tokyo).unwrap(), known);
        assert_eq!(Zone::register(&berlin), Some(known));
        assert_eq!((known.name(), Zone::named("Europe/Berlin")), ("Europe/Berlin", Some(known)));
        assert_eq!(Zone::named("Mars/Olympus_Mons"), None);
    }

    #[test]
    fn utc_needs_no_registration() {
        for name in ["UTC", "utc"] {
            assert_eq!(Zone::register(&TimeZone::get(name).unwrap()), Some(Zone::UTC));
        }
        assert_eq!((Zone::UTC.name(), Zone::named("UTC")), ("UTC", Some(Zone::UTC)));
    }
}
