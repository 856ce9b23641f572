//! What a rule can refer to beyond itself.

use std::cell::RefCell;
use std::sync::Arc;

use crate::config::files::Files;
use crate::config::raw::TrailingSlash;
use crate::identify::jwt::claim::Claim;
use crate::remote::service::Settings;
use crate::rules::membership::Plans;

/// The rest of the configuration, as far as rules ask for it.
#[derive(Debug)]
pub(super) struct Scope<'f> {
    /// The data files.
    pub(super) files: &'f mut Files,
    /// Whether a slash at the end of a path makes a difference, where a matcher does not say.
    pub(super) trailing_slash: TrailingSlash,
    /// Whether `geo.database` is written; whether it is any good is said there.
    pub(super) has_places: bool,
    /// Whether `geo.asn_database` is.
    pub(super) has_systems: bool,
    /// Whether `plans` is written.
    pub(super) has_plans: bool,
    /// The plans, if they are any good.
    pub(super) plans: Option<Arc<Plans>>,
    /// The names of all plans, where no file can add others.
    pub(super) plan_names: Option<Vec<String>>,
    /// There is a section that says which tokens are believed.
    pub(super) has_tokens: bool,
    /// Whether any listener verifies clients' certificates.
    pub(super) has_certificates: bool,
    /// Whether Envoy's rate limit service is written.
    pub(super) has_service: bool,
    /// Who asks about matchers and keys.
    pub(super) asks: Asks,
    /// Leading bits of an IPv6 address that make one client.
    pub(super) ipv6_prefix: u8,
    /// Whether `store` is written; whether it is any good is said there.
    pub(super) has_store: bool,
    /// Whether any rule so far needs it.
    pub(super) has_shared_limits: bool,
    /// The services that keep limits of rules so far.
    pub(super) services: Vec<Settings>,
    /// The claims of tokens that have been asked for so far.
    pub(super) claims: RefCell<Vec<Claim>>,
}

impl Scope<'_> {
    /// The position of the service with these settings, which is among them from now on.
    pub(super) fn service(&mut self, settings: Settings) -> usize {
        let known = self.services.iter().position(|known| *known == settings);
        known.unwrap_or_else(|| {
            self.services.push(settings);
            self.services.len() - 1
        })
    }
}

/// Who asks about a matcher or a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Asks {
    /// An upstream, about proxied requests.
    #[default]
    Upstream,
    /// A rule, about proxied requests.
    Rule,
    /// A rule, about what Envoy asks in its domain too.
    Domain,
}
