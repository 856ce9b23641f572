//! Which upstream takes a request.

use super::matcher::{Match, Matcher};
use crate::identify::Attributes;

/// What each upstream is for, in the order of the configuration. None at all means that there is one upstream and
/// that it takes everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routes(Box<[Matcher]>);

impl Routes {
    /// The first whose fields all hold takes a request.
    pub fn new(matchers: impl IntoIterator<Item = Matcher>) -> Self {
        Self(matchers.into_iter().collect())
    }

    /// The position of the upstream that takes the request; `None` if none does. One that may or may not be meant
    /// does not.
    pub fn choose(&self, request: &Attributes<'_>) -> Option<usize> {
        if self.0.is_empty() {
            return Some(0);
        }
        self.0.iter().position(|matcher| matches!(matcher.matches(request), Match::Yes(_)))
    }
}
