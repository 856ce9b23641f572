//! Whom a rule is for: every field that is given must hold; within a field, any of its values.

use std::sync::Arc;

use http::{HeaderName, Method};

use super::membership::Plans;
use super::pattern::{HeaderPattern, HostPattern, PathPattern};
use super::schedule::Schedule;
use crate::identify::Attributes;
use crate::identify::certificate::CertificateName;
use crate::identify::cidr::CidrSet;
use crate::identify::descriptor::Entries;
use crate::identify::geo::{Asn, Continent, Country};
use crate::identify::jwt::claim::Claim;
use crate::identify::lookup::Ambiguity;

/// The compiled `match` or `except` of a rule. Empty fields hold for every request.
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// Envoy's descriptor is such a one; no proxied request has any.
    pub told: Option<Box<Told>>,
}

/// What a descriptor of Envoy's must be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    /// For each of these keys, any of its patterns by any of the key's values.
    pub some: Box<[Entry]>,
    /// Exactly these entries in this order.
    pub all: Option<Box<[Entry]>>,
}

/// A key and the patterns of its values, one of which must hold.
pub type Entry = (Box<str>, Box<[HeaderPattern]>);

/// Which plans a rule is for.
#[derive(Clone, Debug)]
pub struct OnPlan {
    /// All plans.
    pub plans: Arc<Plans>,
    /// The names of those it is for.
    pub any: Box<[Box<str>]>,
}

/// Who the members are is no matter of a rule.
impl PartialEq for OnPlan {
    fn eq(&self, other: &Self) -> bool {
        let (one, two) = (&*self.plans, &*other.plans);
        self.any == other.any && one.of == two.of && one.default == two.default
    }
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

/// Whether a rule is for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match<'a> {
    /// It is not, in whatever way the request is read.
    No,
    /// It is, by this route.
    Yes(Route<'a>),
    /// It may be, by this route: that depends on how the request is read.
    Unclear(Route<'a>, Ambiguity),
}

impl Matcher {
    /// Whether all fields hold for the request, and by which route.
    pub fn matches(&self, request: &Attributes<'_>) -> Match<'_> {
        let is_meant = |method| self.methods.contains(method);
        let holds = (self.methods.is_empty() || request.method.is_some_and(is_meant))
            && (self.hosts.is_empty() || self.matches_host(request))
            && self
                .client_ip
                .as_ref()
                .is_none_or(|set| request.client_ip().is_some_and(|ip| set.contains(ip)))
            && self.schedule.as_ref().is_none_or(|schedule| schedule.contains(request.now))
            && self.headers.iter().all(|(name, patterns)| {
                patterns.iter().any(|pattern| pattern.matches(&request.headers.get_all(name)))
            })
            && self.told.as_ref().is_none_or(|told| request.descriptor.is_some_and(|said| told.is(said)));
        if !holds {
            return Match::No;
        }
        let route = if self.paths.is_empty() {
            Route("")
        } else {
            match self.paths.iter().find(|path| path.matches(&request.path)) {
                // Some regexes find a match in a path that is not there.
                Some(path) if !request.path.is_empty() => Route(path.as_str()),
                _ => return Match::No,
            }
        };
        // Last, since these may be what has a database asked, members searched, and a signature verified.
        let asks_little = self.plan.is_none() && self.origin.is_none() && self.claims.is_empty();
        if asks_little && self.certificate.is_empty() {
            return Match::Yes(route);
        }
        self.matches_client(request, route)
    }

    fn matches_host(&self, request: &Attributes<'_>) -> bool {
        let host = request.host.as_str();
        // A head without a host is for the host of no name; a descriptor without one says nothing about it.
        let is_absent = host.is_empty() && request.descriptor.is_some();
        !is_absent && self.hosts.iter().any(|pattern| pattern.matches(host))
    }

    /// Whether those fields hold that say who the client is.
    fn matches_client<'a>(&self, request: &Attributes<'_>, route: Route<'a>) -> Match<'a> {
        let plan = self.plan.iter().map(|plan| plan.contains(request));
        let origin = self.origin.iter().map(|origin| Ok(origin.contains(request)));
        let claims = self.claims.iter().map(|(claim, patterns)| {
            let value = request.claim(claim)?;
            Ok(patterns.iter().any(|pattern| pattern.matches_value(value)))
        });
        let names = self.certificate.iter();
        let certificate = names.map(|(name, patterns)| Ok(is_named(request, *name, patterns)));
        let mut outcome = Match::Yes(route);
        for holds in plan.chain(origin).chain(claims).chain(certificate) {
            match holds {
                Ok(true) => {}
                Ok(false) => return Match::No,
                Err(ambiguity) => outcome = Match::Unclear(route, ambiguity),
            }
        }
        outcome
    }
}

fn is_named(request: &Attributes<'_>, name: CertificateName, patterns: &[HeaderPattern]) -> bool {
    let names = request.certificate.map_or(&[][..], |certificate| certificate.names(name));
    patterns.iter().any(|pattern| match names {
        [] => pattern.matches_value(None),
        names => names.iter().any(|name| pattern.matches_value(Some(name))),
    })
}

impl Told {
    /// Every key that is looked at, with its patterns.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> + Clone {
        self.some.iter().chain(self.all.iter().flatten())
    }

    fn is(&self, said: Entries<'_>) -> bool {
        let some =
            |(key, patterns): &Entry| patterns.iter().any(|pattern| pattern.matches_values(said.values(key)));
        self.some.iter().all(some) && self.all.as_ref().is_none_or(|all| is_exactly(all, said.0))
    }
}

fn is_exactly(wanted: &[Entry], said: &[(&str, &str)]) -> bool {
    let each = |((key, patterns), (given, value)): (&Entry, &(&str, &str))| {
        **key == **given && patterns.iter().any(|pattern| pattern.matches_value(Some(value)))
    };
    wanted.len() == said.len() && wanted.iter().zip(said).all(each)
}

impl OnPlan {
    fn contains(&self, request: &Attributes<'_>) -> Result<bool, Ambiguity> {
        let plan = self.plans.of(request)?;
        Ok(plan.is_some_and(|plan| self.any.iter().any(|wanted| **wanted == *plan)))
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
