//! Settings of a limit that another rate limit service keeps: the query, and what happens without a response.
//!
//! A service with Envoy's rate limit protocol is queried with a descriptor, a list of keys and values. A rule builds
//! it from the parts of its key and from fixed values. The names default to those of Envoy's actions.

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Deserialize;
use smallvec::SmallVec;

use super::RuleIndex;
use super::attribute::IncompleteKey;
use super::key::KeyTemplate;
use super::pattern::Route;
use super::selection::SelectedCheck;
use crate::identify::Attributes;
use crate::identify::lookup::Ambiguity;
use weir_limiter::key::KeyHash;

/// Settings of a rule's limit in another service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteLimit {
    /// Position of the service in the configuration.
    pub service: usize,
    /// Address of the service, for display.
    pub service_address: Box<str>,
    /// Domain of the query.
    pub domain: Box<str>,
    /// Entries of the descriptor; at least one.
    pub entries: Box<[EntryTemplate]>,
    /// Prefix length of IPv6 clients, in bits, for key parts that set none.
    pub ipv6_prefix: u8,
    /// What happens if the service does not respond.
    pub on_error: OnError,
}

/// One entry of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryTemplate {
    /// An entry that is the same for all requests.
    Fixed { key: Box<str>, value: Box<str> },
    /// An entry with a part of the rule's key as its value.
    Part {
        key: Box<str>,
        /// Position of the part in the rule's key.
        part: usize,
    },
}

/// What happens to a request if the service does not respond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// It is admitted (fail open).
    #[default]
    Allow,
    /// It is rejected (fail closed).
    Deny,
    /// The rule's own limits decide.
    Local,
}

/// The query to a rule's service for one request.
#[derive(Clone, Debug)]
pub struct RemoteQuery {
    pub rule: RuleIndex,
    /// Key of the request under the rule.
    pub key: KeyHash,
    /// Whether the rule is enforced for the request, not in shadow mode.
    pub is_enforced: bool,
    /// Keys and values of the descriptor, in order.
    pub entries: Vec<(String, String)>,
    /// Cost of the request.
    pub hits: u32,
    /// Checks that decide if the service does not respond, for [`OnError::Local`].
    pub local_fallback: SmallVec<[SelectedCheck; 2]>,
}

impl OnError {
    /// Returns the keyword in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Local => "local",
        }
    }
}

impl RemoteLimit {
    /// Returns the descriptor of a request that matched by `route`. A missing part of `key` has an empty value.
    ///
    /// # Errors
    /// [`Ambiguity`] if the request has several values for a part.
    pub(super) fn descriptor(
        &self,
        key: &KeyTemplate,
        request: &Attributes<'_>,
        route: Route<'_>,
    ) -> Result<Vec<(String, String)>, Ambiguity> {
        let entry = |entry: &EntryTemplate| match entry {
            EntryTemplate::Fixed { key, value } => Ok((key.to_string(), value.to_string())),
            EntryTemplate::Part { key: name, part } => {
                let value = match key.0.get(*part).map(|part| part.text(request, route, self.ipv6_prefix)) {
                    None | Some(Err(IncompleteKey::Missing)) => String::new(),
                    Some(Err(IncompleteKey::Ambiguous(ambiguity))) => return Err(ambiguity),
                    Some(Ok(value)) => value,
                };
                Ok((name.to_string(), value))
            }
        };
        self.entries.iter().map(entry).collect()
    }
}
