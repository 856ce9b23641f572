//! MaxMind databases, and databases of other vendors in the same format.
//!
//! Countries are read from `country.iso_code`, or else from `registered_country.iso_code`; continents from
//! `continent.code`; autonomous systems from the fields listed in `number`. Every record is read once when a database
//! is opened, so that a damaged or unsuitable file is rejected as a whole instead of failing single requests.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;

use maxminddb::{LookupResult, MaxMindDbError, Reader, WithinOptions};
use serde::Deserialize;

use super::number::AsnField;
use super::{Asn, GeoLocation};

/// Maximum number of networks per node of a tree without cycles.
const MAX_NETWORKS_PER_NODE: usize = 3;

/// Maximum number of characters of a record in an error message.
const MAX_SHOWN: usize = 160;

/// Countries and continents by address.
#[derive(Debug)]
pub struct LocationDatabase(Database);

/// Autonomous systems by address.
#[derive(Debug)]
pub struct AsnDatabase(Database);

/// A database in memory.
struct Database {
    reader: Reader<Vec<u8>>,
}

/// Why a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseError {
    /// It does not end with MaxMind metadata.
    #[error("not a MaxMind database, or truncated")]
    Foreign,
    /// It has metadata but is inconsistent.
    #[error("damaged MaxMind database: {0}")]
    Broken(String),
    /// It is valid, but does not contain the required data.
    #[error("no {required} in this database")]
    Other {
        /// The required data.
        required: DatabaseContent,
        /// Type of database according to the file, such as `GeoLite2-ASN`.
        kind: String,
        /// Data it contains instead, if that is supported.
        has: Option<DatabaseContent>,
        /// Its first record, if that can be formatted.
        record: Option<String>,
    },
}

/// Data that a database may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseContent {
    /// Countries and continents.
    Locations,
    AutonomousSystems,
}

type LookupRecord<'a> = LookupResult<'a, Vec<u8>>;

/// The fields of a record that are used; others are skipped.
#[derive(Debug, Deserialize)]
struct LocationRecord<'a> {
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

impl LocationDatabase {
    /// Opens a database. Reads every record, which takes a moment.
    ///
    /// # Errors
    /// [`DatabaseError`] if it is not a database, or contains no countries.
    pub fn open(bytes: Vec<u8>) -> Result<Self, DatabaseError> {
        Database::open(bytes, DatabaseContent::Locations).map(Self)
    }

    /// Returns the location of `ip`; empty if the database does not contain it.
    pub fn find(&self, ip: IpAddr) -> GeoLocation {
        // Records that cannot be decoded were rejected when the database was opened.
        self.0.find(ip).and_then(|found| location(&found).ok()).unwrap_or_default()
    }
}

impl AsnDatabase {
    /// Opens a database. Reads every record, which takes a moment.
    ///
    /// # Errors
    /// [`DatabaseError`] if it is not a database, or contains no autonomous systems.
    pub fn open(bytes: Vec<u8>) -> Result<Self, DatabaseError> {
        Database::open(bytes, DatabaseContent::AutonomousSystems).map(Self)
    }

    /// Returns the autonomous system that announces `ip`, if the database contains it.
    pub fn find(&self, ip: IpAddr) -> Option<Asn> {
        self.0.find(ip).and_then(|found| autonomous_system(&found).ok()?)
    }
}

impl Database {
    fn open(bytes: Vec<u8>, required: DatabaseContent) -> Result<Self, DatabaseError> {
        let reader = Reader::from_source(bytes).map_err(|error| match error {
            // The metadata at the end has a unique marker. Without the marker the file is another format, or truncated.
            MaxMindDbError::InvalidDatabase { offset: None, .. } => DatabaseError::Foreign,
            error => DatabaseError::Broken(error.to_string()),
        })?;
        let database = Self { reader };
        if database.has(required)? {
            return Ok(database);
        }
        let other = match required {
            DatabaseContent::Locations => DatabaseContent::AutonomousSystems,
            DatabaseContent::AutonomousSystems => DatabaseContent::Locations,
        };
        let has = database.has(other)?.then_some(other);
        Err(DatabaseError::Other {
            required,
            kind: database.kind().to_owned(),
            has,
            record: database.first_record(),
        })
    }

    /// Returns the type of database according to the file, such as `GeoLite2-Country`.
    fn kind(&self) -> &str {
        &self.reader.metadata().database_type
    }

    /// Returns the first network and its record as JSON, for messages.
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

    fn find(&self, ip: IpAddr) -> Option<LookupRecord<'_>> {
        // Otherwise the library would create an error for each request.
        if ip.is_ipv6() && self.reader.metadata().ip_version == 4 {
            return None;
        }
        self.reader.lookup(ip).ok()
    }

    /// Reads all records; returns whether any of them contains `content`.
    fn has(&self, content: DatabaseContent) -> Result<bool, DatabaseError> {
        let broken = |error: MaxMindDbError| DatabaseError::Broken(error.to_string());
        let max_networks = (self.reader.metadata().node_count as usize).saturating_mul(MAX_NETWORKS_PER_NODE);
        let mut seen = HashSet::new();
        let mut has = false;
        let networks = self.reader.networks(WithinOptions::default()).map_err(broken)?;
        for (index, found) in networks.enumerate() {
            let found = found.map_err(broken)?;
            if index > max_networks {
                return Err(DatabaseError::Broken("the search tree has a cycle".to_owned()));
            }
            // Many networks share a record.
            if !found.offset().is_some_and(|offset| seen.insert(offset)) {
                continue;
            }
            let contains = match content {
                DatabaseContent::Locations => location(&found).map(|place| place != GeoLocation::default()),
                DatabaseContent::AutonomousSystems => {
                    autonomous_system(&found).map(|system| system.is_some())
                }
            };
            match contains {
                Ok(says) => has |= says,
                // A valid record in which the field has another meaning.
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

impl fmt::Display for DatabaseContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Locations => "countries",
            Self::AutonomousSystems => "autonomous systems",
        })
    }
}

fn location(found: &LookupRecord<'_>) -> Result<GeoLocation, MaxMindDbError> {
    let Some(record) = found.decode::<LocationRecord<'_>>()? else { return Ok(GeoLocation::default()) };
    let code = |country: Option<CountryRecord<'_>>| country?.iso_code?.parse().ok();
    Ok(GeoLocation {
        country: code(record.country).or_else(|| code(record.registered_country)),
        continent: record.continent.and_then(|continent| continent.code?.parse().ok()),
    })
}

fn autonomous_system(found: &LookupRecord<'_>) -> Result<Option<Asn>, MaxMindDbError> {
    Ok(found.decode::<AsnField>()?.and_then(|number| number.0).map(Asn))
}
