//! A limit that another rate limit service keeps: what it is asked, and what holds if it does not answer.
//!
//! A service of Envoy's protocol is asked about a descriptor, a list of named values. A rule makes one of the parts of
//! its key, under the names that Envoy's own actions have unless it gives others, and of fixed values.

use schemars::JsonSchema;
use serde::Deserialize;
use smallvec::SmallVec;

use super::RuleIndex;
use super::attribute::Incomplete;
use super::key::KeyTemplate;
use super::pattern::Route;
use super::selection::Selected;
use crate::identify::Attributes;
use crate::identify::lookup::Ambiguity;

/// A rule's limit in another service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteLimit {
    /// Position of the service among those of the configuration.
    pub service: usize,
    /// Where that is, for people.
    pub place: Box<str>,
    /// The domain under which it is asked.
    pub domain: Box<str>,
    /// The descriptor; at least one entry.
    pub entries: Box<[Entry]>,
    /// Leading bits of an IPv6 address that make one client, where the key does not say.
    pub ipv6_prefix: u8,
    /// What holds where it gives no answer.
    pub on_error: OnError,
}

/// One entry of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The same for all requests.
    Fixed {
        /// Its key.
        key: Box<str>,
        /// Its value.
        value: Box<str>,
    },
    /// A part of the rule's key.
    Part {
        /// Its key.
        key: Box<str>,
        /// Position of the part.
        part: usize,
    },
}

/// What becomes of a request without an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// It passes.
    #[default]
    Allow,
    /// It is refused.
    Deny,
    /// The rule's own limits decide.
    Local,
}

/// What the service of a rule is asked about one request.
#[derive(Clone, Debug)]
pub struct RemoteQuery {
    /// The rule.
    pub rule: RuleIndex,
    /// Else the rule is in shadow mode for the request.
    pub is_enforced: bool,
    /// Keys and values, in order.
    pub entries: Vec<(String, String)>,
    /// What the request costs.
    pub hits: u32,
    /// What decides without a response, with [`OnError::Local`].
    pub local_fallback: SmallVec<[Selected; 2]>,
}

impl OnError {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Local => "local",
        }
    }
}

impl RemoteLimit {
    /// The descriptor of a request that matched by `route`; a part of `key` that is missing has an empty value.
    ///
    /// # Errors
    /// [`Ambiguity`] if the request has several of a part.
    pub(super) fn descriptor(
        &self,
        key: &KeyTemplate,
        request: &Attributes<'_>,
        route: Route<'_>,
    ) -> Result<Vec<(String, String)>, Ambiguity> {
        let entry = |entry: &Entry| match entry {
            Entry::Fixed { key, value } => Ok((key.to_string(), value.to_string())),
            Entry::Part { key: name, part } => {
                let value = match key.0.get(*part).map(|part| part.text(request, route, self.ipv6_prefix)) {
                    None | Some(Err(Incomplete::Missing)) => String::new(),
                    Some(Err(Incomplete::Ambiguous(ambiguity))) => return Err(ambiguity),
                    Some(Ok(value)) => value,
                };
                Ok((name.to_string(), value))
            }
        };
        self.entries.iter().map(entry).collect()
    }
}
