//! Geolocation of client addresses: country, continent and autonomous system.
//!
//! Databases are read elsewhere and passed in as bytes. A look-up walks those bytes without allocating. It happens on
//! first use in a request, and once.

mod cache;
mod database;
mod number;

use std::cell::OnceCell;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

pub use self::cache::LocationCache;
pub use self::database::{AsnDatabase, DatabaseContent, DatabaseError, LocationDatabase};

/// The databases of one configuration.
#[derive(Clone, Debug, Default)]
pub struct GeoDatabases {
    /// Countries and continents.
    pub locations: Option<Arc<LocationDatabase>>,
    pub autonomous_systems: Option<Arc<AsnDatabase>>,
}

/// Compares presence only: the contents are compared by their files.
impl PartialEq for GeoDatabases {
    fn eq(&self, other: &Self) -> bool {
        self.locations.is_some() == other.locations.is_some()
            && self.autonomous_systems.is_some() == other.autonomous_systems.is_some()
    }
}

/// A country or territory by its ISO 3166-1 code of two upper-case letters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Country([u8; 2]);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Continent {
    Africa,
    Antarctica,
    Asia,
    Europe,
    /// North America, with Central America and the Caribbean.
    NorthAmerica,
    Oceania,
    SouthAmerica,
}

/// Number of an autonomous system (RFC 6793).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asn(pub u32);

/// Error: not a two-letter code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a two-letter code")]
pub struct InvalidCode;

/// Location of an address, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GeoLocation {
    /// Country of the address, or else the country in which the address is registered.
    pub country: Option<Country>,
    /// Continent of the address.
    pub continent: Option<Continent>,
}

/// Location of one request's client, cached so that each database is searched at most once.
#[derive(Clone, Debug)]
pub(super) struct GeoLookup<'a> {
    geo: &'a GeoDatabases,
    location: OnceCell<GeoLocation>,
    autonomous_system: OnceCell<Option<Asn>>,
}

impl<'a> GeoLookup<'a> {
    pub(super) const fn new(geo: &'a GeoDatabases) -> Self {
        Self { geo, location: OnceCell::new(), autonomous_system: OnceCell::new() }
    }

    /// Sets the location, if it is known from elsewhere and was not looked up yet.
    pub(super) fn set_location(&self, location: GeoLocation) {
        self.location.get_or_init(|| location);
    }

    pub(super) fn location(&self, ip: IpAddr) -> GeoLocation {
        let find = || self.geo.locations.as_ref().map_or_else(GeoLocation::default, |places| places.find(ip));
        *self.location.get_or_init(find)
    }

    pub(super) fn autonomous_system(&self, ip: IpAddr) -> Option<Asn> {
        *self.autonomous_system.get_or_init(|| self.geo.autonomous_systems.as_ref()?.find(ip))
    }
}

impl Country {
    /// Returns the two letters.
    pub const fn code(self) -> [u8; 2] {
        self.0
    }
}

impl FromStr for Country {
    type Err = InvalidCode;

    /// Case is ignored.
    fn from_str(text: &str) -> Result<Self, InvalidCode> {
        match text.as_bytes() {
            [one, two] if one.is_ascii_alphabetic() && two.is_ascii_alphabetic() => {
                Ok(Self([one.to_ascii_uppercase(), two.to_ascii_uppercase()]))
            }
            _ => Err(InvalidCode),
        }
    }
}

impl fmt::Display for Country {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|letter| fmt::Write::write_char(f, char::from(*letter)))
    }
}

impl fmt::Debug for Country {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Country({self})")
    }
}

impl Continent {
    /// Every continent, in the order of their codes.
    pub const ALL: [Self; 7] = [
        Self::Africa,
        Self::Antarctica,
        Self::Asia,
        Self::Europe,
        Self::NorthAmerica,
        Self::Oceania,
        Self::SouthAmerica,
    ];

    /// Returns the two-letter code that databases use.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Africa => "AF",
            Self::Antarctica => "AN",
            Self::Asia => "AS",
            Self::Europe => "EU",
            Self::NorthAmerica => "NA",
            Self::Oceania => "OC",
            Self::SouthAmerica => "SA",
        }
    }
}

impl FromStr for Continent {
    type Err = InvalidCode;

    /// Case is ignored.
    fn from_str(text: &str) -> Result<Self, InvalidCode> {
        Self::ALL.into_iter().find(|continent| continent.code().eq_ignore_ascii_case(text)).ok_or(InvalidCode)
    }
}

#[cfg(test)]
mod tests;
