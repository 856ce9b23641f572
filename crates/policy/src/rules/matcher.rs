//! Conditions of a rule. Every configured field must hold; within a field, any of its values is enough.

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
    /// The path matches any of these.
    pub paths: Box<[PathPattern]>,
    /// The method is any of these.
    pub methods: Box<[Method]>,
    /// The host matches any of these.
    pub hosts: Box<[HostPattern]>,
    /// The client's address is in this set.
    pub client_ip: Option<CidrSet>,
    /// The time is within this schedule.
    pub schedule: Option<Schedule>,
    /// All of these hold. Expensive conditions are tested last: database look-ups, member look-ups, signature
    /// verification.
    pub conditions: Box<[Condition]>,
    /// The Envoy descriptor has exactly these entries in this order. Proxied requests have none.
    pub entries: Option<Box<[EntryPattern]>>,
}

/// An attribute and its patterns, any of which must match.
#[derive(Clone, Debug)]
pub struct Condition {
    /// The attribute to compare.
    pub attribute: Attribute,
    pub patterns: Box<[HeaderPattern]>,
}

/// The members of plans are left out: changing them does not change the rule.
impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        let is_same = match (&self.attribute, &other.attribute) {
            (Attribute::Plan(one), Attribute::Plan(other)) => {
                one.attribute == other.attribute && one.default == other.default
            }
            (one, other) => one == other,
        };
        is_same && self.patterns == other.patterns
    }
}

/// A descriptor key and the patterns of its value, any of which must match.
pub type EntryPattern = (Box<str>, Box<[HeaderPattern]>);

/// Whether a rule applies to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match<'a> {
    /// It does not, however the request is read.
    No,
    /// It does, by this route.
    Yes(Route<'a>),
    /// It may, by this route: that depends on how the request is read.
    Unclear(Route<'a>, Ambiguity),
}

impl<'a> Match<'a> {
    /// Returns the route by which the request matches or may match.
    pub const fn route(self) -> Option<Route<'a>> {
        match self {
            Self::Yes(route) | Self::Unclear(route, _) => Some(route),
            Self::No => None,
        }
    }
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
                // Some regexes match the empty path of a request without a path.
                Some(path) if !request.path.is_empty() => Route(path.as_str()),
                _ => return Match::No,
            }
        };
        let mut outcome = Match::Yes(route);
        for Condition { attribute, patterns: any } in &self.conditions {
            match attribute.matches(request, any) {
                Ok(true) => {}
                Ok(false) => return Match::No,
                Err(ambiguity) => outcome = Match::Unclear(route, ambiguity),
            }
        }
        outcome
    }

    /// Whether it reads attributes that only Envoy descriptors have.
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

    pub(super) fn matches_host(&self, request: &Attributes<'_>) -> bool {
        let host = request.host.as_str();
        // A request without a host has the empty host. A descriptor without a host leaves the host unknown.
        let is_absent = host.is_empty() && request.descriptor.is_some();
        !is_absent && self.hosts.iter().any(|pattern| pattern.matches(host))
    }
}

pub(super) fn has_exactly(request: &Attributes<'_>, required: &[EntryPattern]) -> bool {
    let Some(said) = request.descriptor else { return false };
    let each = |((key, patterns), (given, value)): (&EntryPattern, &(&str, &str))| {
        let matches = |pattern: &HeaderPattern| pattern.matches_any(std::iter::once(value.as_bytes()));
        **key == **given && patterns.iter().any(matches)
    };
    required.len() == said.0.len() && required.iter().zip(said.0).all(each)
}
