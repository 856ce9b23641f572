//! Geolocation databases.

use super::{Flaw, Kind};
use crate::config::problem::{Fault, quoted};
use crate::identify::geo::{AsnDatabase, DatabaseContent, DatabaseError, LocationDatabase};

/// Maximum size in bytes: twice the largest commercial database.
const LARGEST: u64 = 1 << 30;

/// Countries and continents.
pub(in crate::config) const PLACES: Kind<LocationDatabase> = Kind {
    name: "country database",
    largest: LARGEST,
    parse: |bytes| LocationDatabase::open(bytes).map_err(|damage| vec![flaw(&damage)]),
};

/// Autonomous systems.
pub(in crate::config) const SYSTEMS: Kind<AsnDatabase> = Kind {
    name: "ASN database",
    largest: LARGEST,
    parse: |bytes| AsnDatabase::open(bytes).map_err(|damage| vec![flaw(&damage)]),
};

fn flaw(damage: &DatabaseError) -> Flaw {
    let DatabaseError::Other { wanted, kind, has, record } = damage else {
        return Flaw::whole(damage.to_string());
    };
    let fault = Fault::new(format!("no {wanted} in this database of type {}", quoted(kind)));
    Flaw::whole(match has {
        Some(DatabaseContent::Locations) => fault.hint("it belongs in `geo.database`"),
        Some(DatabaseContent::AutonomousSystems) => fault.hint("it belongs in `geo.asn_database`"),
        None => match record {
            Some(record) => fault.hint(format!("expected {}, found {record}", fields(*wanted))),
            None => fault,
        },
    })
}

/// Names the fields that contain the data.
const fn fields(wanted: DatabaseContent) -> &'static str {
    match wanted {
        DatabaseContent::Locations => "a two-letter code in `country.iso_code` or `continent.code`",
        DatabaseContent::AutonomousSystems => {
            "an AS number such as 64500 or `AS64500` in `autonomous_system_number` or `asn`"
        }
    }
}
