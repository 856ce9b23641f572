//! MaxMind databases, and those of others in the same shape.
//!
//! Countries are read from `country.iso_code`, or where there is none from `registered_country.iso_code`;
//! continents from `continent.code`; systems from the fields that `number` knows. Every record is looked at once
//! when a database is opened: a file that is damaged, or of another kind, is refused as a whole and not
//! request by request.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;

use maxminddb::{LookupResult, MaxMindDbError, Reader, WithinOptions};
use serde::Deserialize;

use super::number::Number;
use super::{Asn, Place};

/// A tree without cycles has no more networks than this, for each of its nodes.
const MOST_NETWORKS_OF_A_NODE: usize = 3;

/// Characters of a record that a message shows.
const MAX_SHOWN: usize = 160;

/// Countries and continents by address.
#[derive(Debug)]
pub struct Places(Database);

/// Autonomous systems by address.
#[derive(Debug)]
pub struct Systems(Database);

/// A database in memory.
struct Database {
    reader: Reader<Vec<u8>>,
}

/// Why a file is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// It does not end as such a database does.
    #[error("not a MaxMind database, or cut off")]
    Foreign,
    /// It ends as it should, but does not hold together.
    #[error("damaged MaxMind database: {0}")]
    Broken(String),
    /// Sound, but nothing is in it that was looked for.
    #[error("no {wanted} in this database")]
    Other {
        /// What was looked for.
        wanted: Content,
        /// What the file says it is, e.g. `GeoLite2-ASN`.
        kind: String,
        /// What it has instead, if that is something of ours.
        has: Option<Content>,
        /// Its first record, if that can be shown.
        record: Option<String>,
    },
}

/// What a database can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Countries and continents.
    Places,
    /// Autonomous systems.
    Systems,
}

type Found<'a> = LookupResult<'a, Vec<u8>>;

/// A record as far as it concerns us; names and coordinates are passed over.
#[derive(Debug, Deserialize)]
struct PlaceRecord<'a> {
    #[serde(borrow)]
    country: Option<CountryRecord<'a>>,
    #[serde(borrow)]
    registered_country: Option<CountryRecord<'a>>,
    #[serde(borrow)]
    continent: Option<ContinentRecord<'a>>,
}

#[derive(Debug, Deserialize)]
struct CountryRecord<'a> {
    iso_code: Option<&'a str>,
}

#[derive(Debug, Deserialize)]
struct ContinentRecord<'a> {
    code: Option<&'a str>,
}

impl Places {
    /// The database whose bytes these are. Looks at every record, which takes a moment.
    ///
    /// # Errors
    /// [`Damage`] if it is none, or knows no countries.
    pub fn open(bytes: Vec<u8>) -> Result<Self, Damage> {
        Database::open(bytes, Content::Places).map(Self)
    }

    /// Where `ip` is: nowhere, if the database does not know it.
    pub fn find(&self, ip: IpAddr) -> Place {
        // What cannot be read was refused when the database was opened.
        self.0.find(ip).and_then(|found| place(&found).ok()).unwrap_or_default()
    }
}

impl Systems {
    /// The database whose bytes these are. Looks at every record, which takes a moment.
    ///
    /// # Errors
    /// [`Damage`] if it is none, or knows no autonomous systems.
    pub fn open(bytes: Vec<u8>) -> Result<Self, Damage> {
        Database::open(bytes, Content::Systems).map(Self)
    }

    /// The system that announces `ip`, if the database knows it.
    pub fn find(&self, ip: IpAddr) -> Option<Asn> {
        self.0.find(ip).and_then(|found| system(&found).ok()?)
    }
}

impl Database {
    fn open(bytes: Vec<u8>, wanted: Content) -> Result<Self, Damage> {
        let reader = Reader::from_source(bytes).map_err(|error| match error {
            // Metadata stands at the end, behind a mark that nothing else has.
            MaxMindDbError::InvalidDatabase { offset: None, .. } => Damage::Foreign,
            error => Damage::Broken(error.to_string()),
        })?;
        let database = Self { reader };
        if database.has(wanted)? {
            return Ok(database);
        }
        let other = match wanted {
            Content::Places => Content::Systems,
            Content::Systems => Content::Places,
        };
        let has = database.has(other)?.then_some(other);
        Err(Damage::Other { wanted, kind: database.kind().to_owned(), has, record: database.first_record() })
    }

    /// What kind of database the file says it is, e.g. `GeoLite2-Country`.
    fn kind(&self) -> &str {
        &self.reader.metadata().database_type
    }

    /// The first network and its record, as JSON, for messages.
    fn first_record(&self) -> Option<String> {
        let mut networks = self.reader.networks(WithinOptions::default()).ok()?;
        let (network, record) = networks.find_map(|found| {
            let found = found.ok()?;
            Some((found.network().ok()?, found.decode::<serde_json::Value>().ok()??))
        })?;
        let mut record = record.to_string();
        if let Some((end, _)) = record.char_indices().nth(MAX_SHOWN) {
            record.truncate(end);
            record.push('…');
        }
        Some(format!("{network}: {record}"))
    }

    fn find(&self, ip: IpAddr) -> Option<Found<'_>> {
        // Asked all the same, the library would write an error for each request.
        if ip.is_ipv6() && self.reader.metadata().ip_version == 4 {
            return None;
        }
        self.reader.lookup(ip).ok()
    }

    /// Whether any record says something about `content`, once all of them have been looked at.
    fn has(&self, content: Content) -> Result<bool, Damage> {
        let broken = |error: MaxMindDbError| Damage::Broken(error.to_string());
        let most = (self.reader.metadata().node_count as usize).saturating_mul(MOST_NETWORKS_OF_A_NODE);
        let mut seen = HashSet::new();
        let mut has = false;
        let networks = self.reader.networks(WithinOptions::default()).map_err(broken)?;
        for (index, found) in networks.enumerate() {
            let found = found.map_err(broken)?;
            if index > most {
                return Err(Damage::Broken("its tree leads round in circles".to_owned()));
            }
            // Many networks share a record.
            if !found.offset().is_some_and(|offset| seen.insert(offset)) {
                continue;
            }
            let says = match content {
                Content::Places => place(&found).map(|place| place != Place::default()),
                Content::Systems => system(&found).map(|system| system.is_some()),
            };
            match says {
                Ok(says) => has |= says,
                // Sound, but not what this field means elsewhere.
                Err(MaxMindDbError::Decoding { .. }) => {}
                Err(error) => return Err(broken(error)),
            }
        }
        Ok(has)
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("kind", &self.kind()).finish_non_exhaustive()
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Places => "countries",
            Self::Systems => "autonomous systems",
        })
    }
}

fn place(found: &Found<'_>) -> Result<Place, MaxMindDbError> {
    let Some(record) = found.decode::<PlaceRecord<'_>>()? else { return Ok(Place::default()) };
    let code = |country: Option<CountryRecord<'_>>| country?.iso_code?.parse().ok();
    Ok(Place {
        country: code(record.country).or_else(|| code(record.registered_country)),
        continent: record.continent.and_then(|continent| continent.code?.parse().ok()),
    })
}

fn system(found: &Found<'_>) -> Result<Option<Asn>, MaxMindDbError> {
    Ok(found.decode::<Number>()?.and_then(|number| number.0).map(Asn))
}
