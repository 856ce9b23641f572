//! Geolocation databases, and the conditions and key parts that need them.

use std::sync::Arc;

use super::context::CompileContext;
use crate::at::At;
use crate::data_files::geo_databases::{ASN_DATABASE, LOCATION_DATABASE};
use crate::data_files::{DataFileKind, DataFiles};
use crate::diagnostic::ValueError;
use crate::{parse, raw};
use weir_policy::identify::geo::GeoDatabases;
use weir_policy::rules::pattern::HeaderPattern;

/// Loads the databases of the section `geo` at `at`.
pub(super) fn load_databases(raw: Option<&raw::Geo>, at: At<'_>, files: &mut DataFiles) -> GeoDatabases {
    let Some(raw) = raw else { return GeoDatabases::default() };
    if raw.database.is_none() && raw.asn_database.is_none() && !at.is_reported() {
        at.error("empty map, expected `database`, `asn_database` or both");
    }
    GeoDatabases {
        locations: load_database(raw.database.as_deref(), &LOCATION_DATABASE, at.key("database"), files),
        autonomous_systems: load_database(
            raw.asn_database.as_deref(),
            &ASN_DATABASE,
            at.key("asn_database"),
            files,
        ),
    }
}

fn load_database<T: Send + Sync + 'static>(
    name: Option<&str>,
    kind: &DataFileKind<T>,
    at: At<'_>,
    files: &mut DataFiles,
) -> Option<Arc<T>> {
    at.load(files, name?, kind)
}

/// Compiles a country of a matcher.
pub(super) fn compile_country(
    raw: &raw::Country,
    at: At<'_>,
    _: &CompileContext<'_>,
) -> Option<HeaderPattern> {
    Some(HeaderPattern::Exact(at.ok(parse::country(&raw.0))?.to_string().into()))
}

/// Compiles a continent of a matcher.
pub(super) fn compile_continent(
    raw: &raw::Continent,
    at: At<'_>,
    _: &CompileContext<'_>,
) -> Option<HeaderPattern> {
    Some(HeaderPattern::Exact(at.ok(parse::continent(&raw.0))?.code().into()))
}

/// Compiles an autonomous system of a matcher.
pub(super) fn compile_asn(raw: &raw::Asn, at: At<'_>, _: &CompileContext<'_>) -> Option<HeaderPattern> {
    let number = match raw {
        raw::Asn::Number(number) => *number,
        raw::Asn::Text(text) => at.ok(parse::asn(text))?.0,
    };
    Some(HeaderPattern::Number(number))
}

/// Reports that `what` at `at` needs a database of countries and continents, if there is none.
pub(super) fn require_geo_database(at: At<'_>, what: &str, context: &CompileContext<'_>) {
    if !context.has_geo_database {
        at.error(missing_section(what, "geo.database"));
    }
}

/// Reports that the setting at `at` needs a database of autonomous systems, if there is none.
pub(super) fn require_asn_database(at: At<'_>, context: &CompileContext<'_>) {
    if !context.has_asn_database {
        at.error(missing_section("asn", "geo.asn_database"));
    }
}

fn missing_section(what: &str, section: &str) -> ValueError {
    ValueError::new(format!("`{what}` needs `{section}`, and there is none"))
}
