//! Whom a rule is for: every field that is given must hold; within a field, any of its values.

use http::Method;

use super::attribute::Attribute;
use super::pattern::{HeaderPattern, HostPattern, PathPattern, Route};
use super::schedule::Schedule;
use crate::identify::Attributes;
use crate::identify::cidr::CidrSet;
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
    /// The client's address is in this set.
    pub client_ip: Option<CidrSet>,
    /// It is within these times.
    pub schedule: Option<Schedule>,
    /// All of these. Tested in this order: last those that ask a database, search members, or verify a signature.
    pub conditions: Box<[Condition]>,
    /// Envoy's descriptor has exactly these entries in this order; no proxied request has any.
    pub entries: Option<Box<[Entry]>>,
}

/// One attribute and the patterns for it, any of which must match.
#[derive(Clone, Debug)]
pub struct Condition {
    /// What is compared.
    pub attribute: Attribute,
    /// With what.
    pub any: Box<[HeaderPattern]>,
}

/// Who is on which plan is no matter of a rule.
impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        let is_same = match (&self.attribute, &other.attribute) {
            (Attribute::Plan(one), Attribute::Plan(other)) => {
                one.of == other.of && one.default == other.default
            }
            (one, other) => one == other,
        };
        is_same && self.any == other.any
    }
}

/// A key of a descriptor and the patterns of its value, any of which must match.
pub type Entry = (Box<str>, Box<[HeaderPattern]>);

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
        let is_within = |set: &CidrSet| request.client_ip().is_some_and(|ip| set.contains(ip));
        let holds = (self.methods.is_empty() || request.method.is_some_and(is_meant))
            && (self.hosts.is_empty() || self.matches_host(request))
            && self.client_ip.as_ref().is_none_or(is_within)
            && self.schedule.as_ref().is_none_or(|schedule| schedule.contains(request.now))
            && self.entries.as_ref().is_none_or(|entries| has_exactly(request, entries));
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
        let mut outcome = Match::Yes(route);
        for Condition { attribute, any } in &self.conditions {
            match attribute.matches(request, any) {
                Ok(true) => {}
                Ok(false) => return Match::No,
                Err(ambiguity) => outcome = Match::Unclear(route, ambiguity),
            }
        }
        outcome
    }

    /// Whether it looks at what only Envoy's descriptors have.
    pub fn reads_descriptors(&self) -> bool {
        let reads = |condition: &Condition| condition.attribute.source().descriptor().is_some();
        self.entries.is_some() || self.conditions.iter().any(reads)
    }

    /// Whether it holds for every request.
    pub fn holds_for_all(&self) -> bool {
        let Self { paths, methods, hosts, client_ip, schedule, conditions, entries } = self;
        paths.is_empty()
            && methods.is_empty()
            && hosts.is_empty()
            && client_ip.is_none()
            && schedule.is_none()
            && conditions.is_empty()
            && entries.is_none()
    }

    fn matches_host(&self, request: &Attributes<'_>) -> bool {
        let host = request.host.as_str();
        // A head without a host is for the host of no name; a descriptor without one says nothing about it.
        let is_absent = host.is_empty() && request.descriptor.is_some();
        !is_absent && self.hosts.iter().any(|pattern| pattern.matches(host))
    }
}

fn has_exactly(request: &Attributes<'_>, wanted: &[Entry]) -> bool {
    let Some(said) = request.descriptor else { return false };
    let each = |((key, patterns), (given, value)): (&Entry, &(&str, &str))| {
        let matches = |pattern: &HeaderPattern| pattern.matches_any(std::iter::once(value.as_bytes()));
        **key == **given && patterns.iter().any(matches)
    };
    wanted.len() == said.0.len() && wanted.iter().zip(said.0).all(each)
}
