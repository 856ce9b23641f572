//! Whom a rule is for: every field that is given must hold; within a field, any of its values.

use std::sync::Arc;

use http::{HeaderName, Method};

use super::membership::Plans;
use super::pattern::{HeaderPattern, HostPattern, PathPattern};
use super::schedule::Schedule;
use crate::identify::Attributes;
use crate::identify::certificate::CertificateName;
use crate::identify::cidr::CidrSet;
use crate::identify::geo::{Asn, Continent, Country};
use crate::identify::jwt::claim::Claim;

/// The compiled `match` or `except` of a rule. Empty fields hold for every request.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    /// Any of these paths.
    pub paths: Box<[PathPattern]>,
    /// Any of these methods.
    pub methods: Box<[Method]>,
    /// Any of these hosts.
    pub hosts: Box<[HostPattern]>,
    /// For each of these headers, any of its patterns.
    pub headers: Box<[(HeaderName, Box<[HeaderPattern]>)]>,
    /// The client's address is in this set.
    pub client_ip: Option<CidrSet>,
    /// It is within these times.
    pub schedule: Option<Schedule>,
    /// The client is in one of these places.
    pub origin: Option<Box<Origin>>,
    /// For each of these claims of the client's token, any of its patterns.
    pub claims: Box<[(Claim, Box<[HeaderPattern]>)]>,
    /// For each of these kinds of names in the client's certificate, any of its patterns by any of the names.
    pub certificate: Box<[(CertificateName, Box<[HeaderPattern]>)]>,
    /// The client is on one of these plans.
    pub plan: Option<Box<OnPlan>>,
}

/// Which plans a rule is for.
#[derive(Clone, Debug)]
pub struct OnPlan {
    /// All plans.
    pub plans: Arc<Plans>,
    /// The names of those it is for.
    pub any: Box<[Box<str>]>,
}

/// Where clients come from. Empty fields hold for every client, the others for none of whom nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Any of these countries.
    pub countries: Box<[Country]>,
    /// Any of these continents.
    pub continents: Box<[Continent]>,
    /// Any of these autonomous systems.
    pub systems: Box<[Asn]>,
}

/// The pattern by which a path matched: the route. Empty for a rule that looks at no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route<'a>(pub &'a str);

impl Matcher {
    /// The route by which the request matches; `None` if any field does not hold.
    pub fn matches(&self, request: &Attributes<'_>) -> Option<Route<'_>> {
        let holds = (self.methods.is_empty() || self.methods.contains(request.method))
            && (self.hosts.is_empty() || self.hosts.iter().any(|host| host.matches(request.host.as_str())))
            && self.client_ip.as_ref().is_none_or(|set| set.contains(request.client.ip))
            && self.schedule.as_ref().is_none_or(|schedule| schedule.contains(request.now))
            && self.headers.iter().all(|(name, patterns)| {
                patterns.iter().any(|pattern| pattern.matches(&request.headers.get_all(name)))
            });
        if !holds {
            return None;
        }
        let route = if self.paths.is_empty() {
            Route("")
        } else {
            Route(self.paths.iter().find(|path| path.matches(&request.path))?.as_str())
        };
        // Last, since these may be what has a database asked, members searched, and a signature verified.
        let holds = self.plan.as_ref().is_none_or(|plan| plan.contains(request))
            && self.origin.as_ref().is_none_or(|origin| origin.contains(request))
            && self.claims.iter().all(|(claim, patterns)| {
                let value = request.claim(claim);
                patterns.iter().any(|pattern| pattern.matches_value(value))
            })
            && self.certificate.iter().all(|(name, patterns)| is_named(request, *name, patterns));
        holds.then_some(route)
    }
}

fn is_named(request: &Attributes<'_>, name: CertificateName, patterns: &[HeaderPattern]) -> bool {
    let names = request.certificate.map_or(&[][..], |certificate| certificate.names(name));
    patterns.iter().any(|pattern| match names {
        [] => pattern.matches_value(None),
        names => names.iter().any(|name| pattern.matches_value(Some(name))),
    })
}

impl OnPlan {
    fn contains(&self, request: &Attributes<'_>) -> bool {
        self.plans.of(request).is_some_and(|plan| self.any.iter().any(|wanted| **wanted == *plan))
    }
}

impl Origin {
    fn contains(&self, request: &Attributes<'_>) -> bool {
        let Self { countries, continents, systems } = self;
        holds(countries, || request.place().country)
            && holds(continents, || request.place().continent)
            && holds(systems, || request.system())
    }
}

/// Whether what is known is among `wanted`, or nothing is wanted.
fn holds<T: PartialEq>(wanted: &[T], known: impl FnOnce() -> Option<T>) -> bool {
    wanted.is_empty() || known().is_some_and(|known| wanted.contains(&known))
}
