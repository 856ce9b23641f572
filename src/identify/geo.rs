//! Where an address is: its country and continent, and the autonomous system that announces it.
//!
//! A database is read elsewhere and handed in as bytes; a lookup walks those bytes, allocates nothing, and
//! happens at the first question of a request, so that requests nobody asks about pay for none.

mod database;
mod number;

use std::cell::OnceCell;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

pub use self::database::{Content, Damage, Places, Systems};

/// The databases of one configuration.
#[derive(Clone, Debug, Default)]
pub struct Geo {
    /// Countries and continents.
    pub places: Option<Arc<Places>>,
    /// Autonomous systems.
    pub systems: Option<Arc<Systems>>,
}

/// What the databases say is compared by their files.
impl PartialEq for Geo {
    fn eq(&self, other: &Self) -> bool {
        self.places.is_some() == other.places.is_some() && self.systems.is_some() == other.systems.is_some()
    }
}

/// A country or territory by its code of two letters (ISO 3166-1), in upper case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Country([u8; 2]);

/// A continent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Continent {
    /// Africa.
    Africa,
    /// Antarctica.
    Antarctica,
    /// Asia.
    Asia,
    /// Europe.
    Europe,
    /// North America, with Central America and the Caribbean.
    NorthAmerica,
    /// Oceania.
    Oceania,
    /// South America.
    SouthAmerica,
}

/// The number of an autonomous system (RFC 6793).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asn(pub u32);

/// Not a code of two letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a code of two letters")]
pub struct NotACode;

/// What is known of where an address is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Where it is, or else where whoever uses it has registered it.
    pub country: Option<Country>,
    /// Where it is.
    pub continent: Option<Continent>,
}

/// What has been found out about where one request comes from: each database is asked once at most.
#[derive(Clone, Debug)]
pub(super) struct Whereabouts<'a> {
    geo: &'a Geo,
    place: OnceCell<Place>,
    system: OnceCell<Option<Asn>>,
}

impl<'a> Whereabouts<'a> {
    pub(super) const fn unknown(geo: &'a Geo) -> Self {
        Self { geo, place: OnceCell::new(), system: OnceCell::new() }
    }

    pub(super) fn place(&self, ip: IpAddr) -> Place {
        let find = || self.geo.places.as_ref().map_or_else(Place::default, |places| places.find(ip));
        *self.place.get_or_init(find)
    }

    pub(super) fn system(&self, ip: IpAddr) -> Option<Asn> {
        *self.system.get_or_init(|| self.geo.systems.as_ref()?.find(ip))
    }
}

impl Country {
    /// The two letters.
    pub const fn code(self) -> [u8; 2] {
        self.0
    }
}

impl FromStr for Country {
    type Err = NotACode;

    /// Case makes no difference.
    fn from_str(text: &str) -> Result<Self, NotACode> {
        match text.as_bytes() {
            [one, two] if one.is_ascii_alphabetic() && two.is_ascii_alphabetic() => {
                Ok(Self([one.to_ascii_uppercase(), two.to_ascii_uppercase()]))
            }
            _ => Err(NotACode),
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
    /// Every continent, by code.
    pub const ALL: [Self; 7] = [
        Self::Africa,
        Self::Antarctica,
        Self::Asia,
        Self::Europe,
        Self::NorthAmerica,
        Self::Oceania,
        Self::SouthAmerica,
    ];

    /// The code of two letters that databases use.
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
    type Err = NotACode;

    /// Case makes no difference.
    fn from_str(text: &str) -> Result<Self, NotACode> {
        Self::ALL.into_iter().find(|continent| continent.code().eq_ignore_ascii_case(text)).ok_or(NotACode)
    }
}

#[cfg(test)]
mod tests;
