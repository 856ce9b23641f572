//! Selection of the upstream for a request.

use http::HeaderName;

use super::attribute::Attribute;
use super::matcher::{Match, Matcher};
use crate::identify::Attributes;

/// Conditions of each upstream, in configuration order. Empty if the only upstream takes every request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routes(Box<[Matcher]>);

impl Routes {
    /// Creates routes of these conditions. The first upstream whose conditions all hold takes a request.
    pub fn new(matchers: impl IntoIterator<Item = Matcher>) -> Self {
        Self(matchers.into_iter().collect())
    }

    /// Yields the request headers on which the choice depends.
    pub fn headers(&self) -> impl Iterator<Item = HeaderName> + '_ {
        let conditions = self.0.iter().flat_map(|matcher| &matcher.conditions);
        conditions.filter_map(|condition| condition.attribute.source().header().cloned())
    }

    /// Returns the position of the upstream that takes the request; `None` if none does. An upstream whose conditions
    /// hold under one reading of the request only is skipped.
    pub fn choose(&self, request: &Attributes<'_>) -> Option<usize> {
        if self.0.is_empty() {
            return Some(0);
        }
        self.0.iter().position(|matcher| takes(matcher, request))
    }

    /// Returns the position of the upstream that takes a request whose target names its destination; `None` if none
    /// does. Only upstreams with a condition on the host or the listener are considered: others are meant for requests
    /// to this process.
    pub fn choose_for_destination(&self, request: &Attributes<'_>) -> Option<usize> {
        let is_on_listener =
            |matcher: &Matcher| matcher.conditions.iter().any(|part| part.attribute == Attribute::Listener);
        let is_meant = |matcher: &Matcher| !matcher.hosts.is_empty() || is_on_listener(matcher);
        self.0.iter().position(|matcher| is_meant(matcher) && takes(matcher, request))
    }
}

fn takes(matcher: &Matcher, request: &Attributes<'_>) -> bool {
    matches!(matcher.matches(request), Match::Yes(_))
}
