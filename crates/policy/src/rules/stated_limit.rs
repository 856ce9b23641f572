//! Limits that requests state: in a claim, in a header of a trusted proxy, or by their member of the plans.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::attribute::{Attribute, IncompleteKey};
use super::membership::Plans;
use super::pattern::Route;
use crate::identify::Attributes;
use weir_limiter::quota::{Limit, Quota, TimeUnit};
use weir_limiter::request_limit::RequestLimit;

/// How the limit of a request is read, in place of the configured one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatedLimit {
    /// Where it is read.
    pub source: LimitValueSource,
    /// Maximum: a faster one becomes this one, and no burst is above its count.
    pub max: Option<Limit>,
    /// Burst, if it does not follow the limit.
    pub burst: Option<NonZeroU32>,
}

/// Where the limit of a request is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitValueSource {
    /// A claim, or a header, which is believed only from trusted proxies.
    Attribute(Attribute),
    /// The limit of the member that sends the request.
    Member(Arc<Plans>),
}

/// What a request states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatedValue {
    /// Nothing: the configured limit applies.
    Absent,
    /// Something that is not a limit, or not one that can be counted: the configured limit applies.
    Unreadable,
    /// A limit for its key.
    Limit(RequestLimit),
}

impl StatedLimit {
    /// Returns what `request` states for a limit that is configured as `quota`.
    pub fn read(&self, quota: &Quota, request: &Attributes<'_>) -> StatedValue {
        let found = match &self.source {
            LimitValueSource::Attribute(Attribute::Header(_)) if !request.client.peer_is_trusted => {
                return StatedValue::Absent;
            }
            LimitValueSource::Attribute(attribute) => {
                attribute.read(request, Route(""), |value| self.parse(value, quota))
            }
            LimitValueSource::Member(plans) => match plans.limit_of(request) {
                Ok(limit) => limit.map(Some).ok_or(IncompleteKey::Missing),
                Err(ambiguity) => Err(ambiguity.into()),
            },
        };
        match found {
            Ok(Some(limit)) => self.applied(limit, quota),
            Err(IncompleteKey::Missing) => StatedValue::Absent,
            Ok(None) | Err(IncompleteKey::Ambiguous(_)) => StatedValue::Unreadable,
        }
    }

    /// Returns the attribute of requests that it reads.
    pub fn attribute(&self) -> &Attribute {
        match &self.source {
            LimitValueSource::Attribute(attribute) => attribute,
            LimitValueSource::Member(plans) => &plans.attribute,
        }
    }

    /// Returns the most that can be admitted at once; `None` if only the values bound it.
    pub fn max_burst(&self) -> Option<NonZeroU32> {
        self.burst.or_else(|| self.max.map(|max| max.count))
    }

    fn parse(&self, value: &[u8], quota: &Quota) -> Option<Limit> {
        let text = std::str::from_utf8(value).ok()?;
        Limit::from_text(text).or_else(|| Limit::from_count(text, quota.window()))
    }

    /// Returns a limit within the maximum, if it can be counted in place of `quota`.
    fn applied(&self, limit: Limit, quota: &Quota) -> StatedValue {
        let limit = in_period_of(limit, quota);
        let bounded = match self.max {
            Some(max) if max.is_slower_than(limit) && has_fitting_period(limit, quota) => max,
            _ => limit,
        };
        let most = self.max.map_or(NonZeroU32::MAX, |max| max.count);
        let burst = self.burst.unwrap_or_else(|| bounded.count.min(most));
        if bounded == quota.limit() && burst == quota.burst() {
            return StatedValue::Absent;
        }
        let requested = RequestLimit { limit: bounded, burst };
        match quota.with_request_limit(requested) {
            Some(_) => StatedValue::Limit(requested),
            None => StatedValue::Unreadable,
        }
    }
}

/// The notation is `from header x-quota, at most 1000/min`.
impl fmt::Display for StatedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            LimitValueSource::Attribute(attribute) => {
                write!(f, "from {} {}", attribute.word(), attribute.parameter().unwrap_or_default())?;
            }
            LimitValueSource::Member(_) => f.write_str("from member")?,
        }
        match self.max {
            Some(max) => write!(f, ", at most {max}"),
            None => Ok(()),
        }
    }
}

/// Whether limits of this period can be counted in place of `quota`: a window cannot change its length.
fn has_fitting_period(limit: Limit, quota: &Quota) -> bool {
    quota.algorithm().refills_continuously() || limit.period == quota.window()
}

/// Returns the limit in the notation of the period of `quota`, if both are of one length: `60s` and `min` are one window.
fn in_period_of(limit: Limit, quota: &Quota) -> Limit {
    let window = quota.window();
    // Longer ones may be those of a calendar.
    let is_short = limit.period.unit() <= TimeUnit::Hour && window.unit() <= TimeUnit::Hour;
    match is_short && limit.period.nanos() == window.nanos() {
        true => Limit::new(limit.count, window),
        false => limit,
    }
}

#[cfg(test)]
mod tests;
