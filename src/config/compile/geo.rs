//! Geolocation databases, and the conditions and key parts that need them.

use std::sync::Arc;

use super::scope::Scope;
use crate::config::at::At;
use crate::config::files::databases::{PLACES, SYSTEMS};
use crate::config::files::{Files, Kind};
use crate::config::problem::{Fault, Report};
use crate::config::{parse, raw};
use crate::identify::geo::GeoDatabases;
use crate::rules::pattern::HeaderPattern;

/// Loads the databases of the section `geo` at `at`.
pub(super) fn databases(
    raw: Option<&raw::Geo>,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> GeoDatabases {
    let Some(raw) = raw else { return GeoDatabases::default() };
    if raw.database.is_none() && raw.asn_database.is_none() && !report.is_faulty(at) {
        report.value(at, "empty map, expected `database`, `asn_database` or both");
    }
    GeoDatabases {
        locations: database(raw.database.as_deref(), &PLACES, at.key("database"), files, report),
        autonomous_systems: database(
            raw.asn_database.as_deref(),
            &SYSTEMS,
            at.key("asn_database"),
            files,
            report,
        ),
    }
}

fn database<T: Send + Sync + 'static>(
    name: Option<&str>,
    kind: &Kind<T>,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<Arc<T>> {
    files.load(name?, kind, at, report)
}

/// Compiles a country of a matcher.
pub(super) fn country(
    raw: &raw::Country,
    at: At<'_>,
    _: &Scope<'_>,
    report: &mut Report<'_>,
) -> Option<HeaderPattern> {
    Some(HeaderPattern::Exact(report.take(at, parse::country(&raw.0))?.to_string().into()))
}

/// Compiles a continent of a matcher.
pub(super) fn continent(
    raw: &raw::Continent,
    at: At<'_>,
    _: &Scope<'_>,
    report: &mut Report<'_>,
) -> Option<HeaderPattern> {
    Some(HeaderPattern::Exact(report.take(at, parse::continent(&raw.0))?.code().into()))
}

/// Compiles an autonomous system of a matcher.
pub(super) fn system(
    raw: &raw::Asn,
    at: At<'_>,
    _: &Scope<'_>,
    report: &mut Report<'_>,
) -> Option<HeaderPattern> {
    let number = match raw {
        raw::Asn::Number(number) => *number,
        raw::Asn::Text(text) => report.take(at, parse::asn(text))?.0,
    };
    Some(HeaderPattern::Number(number))
}

/// Reports that `what` at `at` needs a database of countries and continents, if there is none.
pub(super) fn places_for(at: At<'_>, what: &str, scope: &Scope<'_>, report: &mut Report<'_>) {
    if !scope.has_places {
        report.value(at, needs(what, "geo.database"));
    }
}

/// Reports that the setting at `at` needs a database of autonomous systems, if there is none.
pub(super) fn systems_for(at: At<'_>, scope: &Scope<'_>, report: &mut Report<'_>) {
    if !scope.has_systems {
        report.value(at, needs("asn", "geo.asn_database"));
    }
}

fn needs(what: &str, section: &str) -> Fault {
    Fault::new(format!("`{what}` needs `{section}`, and there is none"))
}
