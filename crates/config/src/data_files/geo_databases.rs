//! Geolocation databases.

use super::{DataFileError, DataFileKind};
use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use weir_policy::identify::geo::{AsnDatabase, DatabaseContent, DatabaseError, LocationDatabase};

/// Maximum size in bytes: twice the largest commercial database.
const MAX_SIZE: u64 = 1 << 30;

/// Countries and continents.
pub(crate) const LOCATION_DATABASE: DataFileKind<LocationDatabase> = DataFileKind {
    name: "country database",
    max_size: MAX_SIZE,
    parse: |bytes| LocationDatabase::open(bytes).map_err(|damage| vec![database_error(&damage)]),
};

/// Autonomous systems.
pub(crate) const ASN_DATABASE: DataFileKind<AsnDatabase> = DataFileKind {
    name: "ASN database",
    max_size: MAX_SIZE,
    parse: |bytes| AsnDatabase::open(bytes).map_err(|damage| vec![database_error(&damage)]),
};

fn database_error(error: &DatabaseError) -> DataFileError {
    let DatabaseError::Other { required: wanted, kind, has, record } = error else {
        return DataFileError::for_file(error.to_string());
    };
    let error = ValueError::new(format!("no {wanted} in this database of type {}", quoted(kind)));
    DataFileError::for_file(match has {
        Some(DatabaseContent::Locations) => error.with_hint("it belongs in `geo.database`"),
        Some(DatabaseContent::AutonomousSystems) => error.with_hint("it belongs in `geo.asn_database`"),
        None => match record {
            Some(record) => error.with_hint(format!("expected {}, found {record}", expected_fields(*wanted))),
            None => error,
        },
    })
}

/// Names the fields that contain the data.
const fn expected_fields(content: DatabaseContent) -> &'static str {
    match content {
        DatabaseContent::Locations => "a two-letter code in `country.iso_code` or `continent.code`",
        DatabaseContent::AutonomousSystems => {
            "an AS number such as 64500 or `AS64500` in `autonomous_system_number` or `asn`"
        }
    }
}
