//! Requests by which callers read their own limits: where, and for which paths and methods rules are selected.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use http::Method;

use super::attribute::Attribute;
use super::rule::{LimitAction, Rule};
use weir_limiter::RateLimiter;
use weir_limiter::quota::Quota;
use weir_limiter::timestamp::Timestamp;

/// Maximum number of examples for which rules are selected, which bounds the work of one request.
const MAX_EXAMPLES: usize = 32;

/// Where callers of a listener read their own limits.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnLimitsSettings {
    /// Normalised path.
    pub path: Box<str>,
    /// Limit of the requests of one address to the path.
    pub quota: Quota,
}

/// Where callers of a listener read their own limits, and how often they have.
pub struct OwnLimits {
    settings: OwnLimitsSettings,
    callers: RateLimiter<IpAddr>,
}

impl fmt::Debug for OwnLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnLimits").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl OwnLimits {
    pub fn new(settings: OwnLimitsSettings) -> Self {
        let callers = RateLimiter::keyed(settings.quota);
        Self { settings, callers }
    }

    pub fn settings(&self) -> &OwnLimitsSettings {
        &self.settings
    }

    /// Counts a request of `client`.
    ///
    /// # Errors
    /// The time until the client may ask again.
    pub fn check(&self, client: IpAddr, now: Timestamp) -> Result<(), Duration> {
        self.callers.check(&client, now).map(drop).map_err(|rejected| rejected.wait())
    }
}

/// Whether the limits of a rule count each path apart, so that they have no counter without one.
pub fn counts_by_path(limiting: &LimitAction) -> bool {
    limiting.key.0.contains(&Attribute::Path)
}

/// Returns the methods and paths that rules name, each once, and whether these are all.
pub fn examples(rules: &[Rule]) -> (Vec<(Method, String)>, bool) {
    let mut found = vec![(Method::GET, "/".to_owned())];
    let mut is_complete = true;
    for rule in rules.iter().filter(|rule| rule.action.limiting().is_some() && !rule.reads_descriptors()) {
        let method = rule.matcher.methods.first().cloned().unwrap_or(Method::GET);
        let path = match rule.matcher.paths.first() {
            None => Some("/".to_owned()),
            Some(_) => rule.matcher.paths.iter().find_map(|path| path.any_example()),
        };
        // A regular expression has no example.
        // A caller has the limit of a rule that counts values only together with one of them.
        let is_partial = |limiting: &LimitAction| counts_by_path(limiting) || limiting.distinct.is_some();
        let Some(path) = path.filter(|_| !rule.action.limiting().is_some_and(is_partial)) else {
            is_complete = false;
            continue;
        };
        let example = (method, path);
        if !found.contains(&example) {
            if found.len() == MAX_EXAMPLES {
                return (found, false);
            }
            found.push(example);
        }
    }
    (found, is_complete)
}
