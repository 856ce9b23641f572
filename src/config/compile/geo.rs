//! Where clients come from: the databases, and the fields of rules that need them.

use std::sync::Arc;

use super::each;
use super::scope::Scope;
use crate::config::at::At;
use crate::config::files::databases::{PLACES, SYSTEMS};
use crate::config::files::{Files, Kind};
use crate::config::problem::{Fault, Report};
use crate::config::{parse, raw};
use crate::identify::geo::Geo;
use crate::rules::matcher::Origin;

/// The databases of the section `geo` at `at`.
pub(super) fn databases(
    raw: Option<&raw::Geo>,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Geo {
    let Some(raw) = raw else { return Geo::default() };
    if raw.database.is_none() && raw.asn_database.is_none() && !report.is_faulty(at) {
        report.value(at, "empty map, expected `database`, `asn_database` or both");
    }
    Geo {
        places: database(raw.database.as_deref(), &PLACES, at.key("database"), files, report),
        systems: database(raw.asn_database.as_deref(), &SYSTEMS, at.key("asn_database"), files, report),
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

/// `country`, `continent` and `asn` of the matcher at `at`; `None` without any of them.
pub(super) fn origin(
    raw: &raw::Matcher,
    at: At<'_>,
    scope: &Scope<'_>,
    report: &mut Report<'_>,
) -> Option<Box<Origin>> {
    let mut origin = Origin::default();
    if let Some(countries) = &raw.country {
        let at = at.key("country");
        places_for(at, "country", scope, report);
        origin.countries = each(countries, at, |raw, at| report.take(at, parse::country(&raw.0))).into();
    }
    if let Some(continents) = &raw.continent {
        let at = at.key("continent");
        places_for(at, "continent", scope, report);
        origin.continents = each(continents, at, |raw, at| report.take(at, parse::continent(&raw.0))).into();
    }
    if let Some(systems) = &raw.asn {
        let at = at.key("asn");
        systems_for(at, scope, report);
        let read = |raw: &raw::Asn| match raw {
            raw::Asn::Number(number) => parse::asn(&number.to_string()),
            raw::Asn::Text(text) => parse::asn(text),
        };
        origin.systems = each(systems, at, |raw, at| report.take(at, read(raw))).into();
    }
    (origin != Origin::default()).then(|| Box::new(origin))
}

/// What stands at `at` asks for countries or continents.
pub(super) fn places_for(at: At<'_>, what: &str, scope: &Scope<'_>, report: &mut Report<'_>) {
    if !scope.has_places {
        report.value(at, needs(what, "geo.database"));
    }
}

/// What stands at `at` asks for autonomous systems.
pub(super) fn systems_for(at: At<'_>, scope: &Scope<'_>, report: &mut Report<'_>) {
    if !scope.has_systems {
        report.value(at, needs("asn", "geo.asn_database"));
    }
}

fn needs(what: &str, section: &str) -> Fault {
    Fault::new(format!("`{what}` needs `{section}`, and there is none"))
}
