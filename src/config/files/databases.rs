//! Databases of where addresses are.

use super::{Flaw, Kind};
use crate::config::problem::{Fault, quoted};
use crate::identify::geo::{Content, Damage, Places, Systems};

/// Twice the largest that is sold.
const LARGEST: u64 = 1 << 30;

/// Countries and continents.
pub(in crate::config) const PLACES: Kind<Places> = Kind {
    name: "country database",
    largest: LARGEST,
    parse: |bytes| Places::open(bytes).map_err(|damage| vec![flaw(&damage)]),
};

/// Autonomous systems.
pub(in crate::config) const SYSTEMS: Kind<Systems> = Kind {
    name: "ASN database",
    largest: LARGEST,
    parse: |bytes| Systems::open(bytes).map_err(|damage| vec![flaw(&damage)]),
};

fn flaw(damage: &Damage) -> Flaw {
    let Damage::Other { wanted, kind, has, record } = damage else { return Flaw::whole(damage.to_string()) };
    let fault = Fault::new(format!("no {wanted} in this database of type {}", quoted(kind)));
    Flaw::whole(match has {
        Some(Content::Places) => fault.hint("it belongs in `geo.database`"),
        Some(Content::Systems) => fault.hint("it belongs in `geo.asn_database`"),
        None => match record {
            Some(record) => fault.hint(format!("expected {}, found {record}", fields(*wanted))),
            None => fault,
        },
    })
}

/// Where content is looked for.
const fn fields(wanted: Content) -> &'static str {
    match wanted {
        Content::Places => "a code of two letters in `country.iso_code` or `continent.code`",
        Content::Systems => "a number or `AS` and a number in `autonomous_system_number` or `asn`",
    }
}
