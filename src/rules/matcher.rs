//! Whom a rule is for: every field that is given must hold; within a field, any of its values.

use http::{HeaderName, Method};

use super::pattern::{HeaderPattern, HostPattern, PathPattern};
use super::schedule::Schedule;
use crate::identify::Attributes;
use crate::identify::cidr::CidrSet;

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
        if self.paths.is_empty() {
            return Some(Route(""));
        }
        self.paths.iter().find(|path| path.matches(&request.path)).map(|path| Route(path.as_str()))
    }
}
