//! Parts of the configuration that rules refer to.

use std::cell::RefCell;
use std::sync::Arc;

use crate::config::files::Files;
use crate::config::raw::TrailingSlash;
use crate::identify::jwt::claim::ClaimName;
use crate::remote::service::Settings;
use crate::rules::membership::Plans;

/// The rest of the configuration, as far as rules need it.
#[derive(Debug)]
pub(super) struct Scope<'f> {
    /// The data files.
    pub(super) files: &'f mut Files,
    /// How a trailing slash of a path is treated, if a matcher does not set it.
    pub(super) trailing_slash: TrailingSlash,
    /// Whether `geo.database` is given; its problems are reported separately.
    pub(super) has_places: bool,
    /// Whether `geo.asn_database` is given.
    pub(super) has_systems: bool,
    /// Whether `plans` is given.
    pub(super) has_plans: bool,
    /// The plans, if they are valid.
    pub(super) plans: Option<Arc<Plans>>,
    /// The names of all plans; `None` if a file may add others.
    pub(super) plan_names: Option<Vec<String>>,
    /// Whether the section `jwt` is given.
    pub(super) has_tokens: bool,
    /// Whether any listener verifies client certificates.
    pub(super) has_certificates: bool,
    /// Whether `rls`, Envoy's rate limit service, is given.
    pub(super) has_service: bool,
    /// Owner of the matchers and keys that are being compiled.
    pub(super) asks: Asks,
    /// Leading bits of an IPv6 address that identify a client.
    pub(super) ipv6_prefix: u8,
    /// Whether `store` is given; its problems are reported separately.
    pub(super) has_store: bool,
    /// Whether any rule so far needs the store.
    pub(super) has_shared_limits: bool,
    /// Remote rate limit services that rules have used so far.
    pub(super) services: Vec<Settings>,
    /// Claims of tokens that rules have used so far.
    pub(super) claims: RefCell<Vec<ClaimName>>,
}

impl Scope<'_> {
    /// Returns the index of the service with these settings; adds it if it is new.
    pub(super) fn service(&mut self, settings: Settings) -> usize {
        let known = self.services.iter().position(|known| *known == settings);
        known.unwrap_or_else(|| {
            self.services.push(settings);
            self.services.len() - 1
        })
    }
}

/// The owner of a matcher or a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Asks {
    /// The route of an upstream, for proxied requests.
    #[default]
    Upstream,
    /// A rule for proxied requests.
    Rule,
    /// A rule for proxied requests and for Envoy's calls in its domain.
    Domain,
}
