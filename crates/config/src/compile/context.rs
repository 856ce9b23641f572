//! Parts of the configuration that rules refer to.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use crate::at::At;
use crate::data_files::DataFiles;
use crate::raw::TrailingSlash;
use crate::{defaults, raw};
use weir_bodies::fields::{FieldIndex, FieldName};
use weir_policy::identify::jwt::claim::ClaimName;
use weir_policy::response::LimitHeaderSettings;
use weir_policy::rules::membership::Plans;
use weir_store::remote::service::RemoteServiceSettings;
use weir_store::settings::StoreSettings;

/// The rest of the configuration, as far as rules need it.
#[derive(Debug)]
pub(super) struct CompileContext<'f> {
    /// The data files.
    pub(super) files: &'f mut DataFiles,
    /// The headers about limits that responses have.
    pub(super) limit_headers: LimitHeaderSettings,
    /// How a trailing slash of a path is treated, if a matcher does not set it.
    pub(super) trailing_slash: TrailingSlash,
    /// Names of the listeners.
    pub(super) listeners: Vec<Box<str>>,
    /// Names of those that decide for another proxy.
    pub(super) deciding_listeners: Vec<Box<str>>,
    /// Whether `geo.database` is given; its problems are reported separately.
    pub(super) has_geo_database: bool,
    /// Whether `geo.asn_database` is given.
    pub(super) has_asn_database: bool,
    /// Whether `plans` is given.
    pub(super) has_plans: bool,
    /// The plans, if they are valid.
    pub(super) plans: Option<Arc<Plans>>,
    /// The names of all plans; `None` if a file may add others.
    pub(super) plan_names: Option<Vec<String>>,
    /// Whether the section `jwt` is given.
    pub(super) has_jwt: bool,
    /// Whether any peer is trusted to state what it knows of clients.
    pub(super) has_trusted_proxies: bool,
    /// Whether any listener verifies client certificates.
    pub(super) has_client_certificates: bool,
    /// Whether `rls`, Envoy's rate limit service, is given.
    pub(super) has_rls: bool,
    /// Owner of the matchers and keys that are being compiled.
    pub(super) matcher_owner: MatcherOwner,
    /// Leading bits of an IPv6 address that identify a client.
    pub(super) ipv6_prefix: u8,
    pub(super) store: StoreFacts,
    /// Whether any rule so far needs the store.
    pub(super) needs_store: bool,
    /// Remote rate limit services that rules have used so far.
    pub(super) remote_services: Vec<RemoteServiceSettings>,
    /// Claims of tokens that rules have used so far.
    pub(super) used_claims: RefCell<Vec<ClaimName>>,
    /// Fields of bodies that rules have used so far.
    pub(super) used_fields: UsedFields,
}

/// What rules have to know of the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreFacts {
    /// Whether `store` is given; its problems are reported separately.
    pub(super) is_given: bool,
    /// Time for which the store holds back the part of an instance that it does not hear of.
    pub(super) registration: Duration,
    /// Maximum number of regions that share limits, if there are several.
    pub(super) regions: Option<u8>,
}

impl StoreFacts {
    /// Reads the section at `at`, of which `settings` is what has been compiled.
    pub(super) fn read(raw: Option<&raw::Store>, settings: Option<&StoreSettings>, at: At<'_>) -> Self {
        Self {
            is_given: raw.is_some() || at.is_reported(),
            registration: settings.map_or(defaults::STORE_REGISTRATION, |settings| settings.registration),
            regions: raw.and_then(raw::Store::region_count),
        }
    }
}

/// Fields of bodies that rules use, by their positions.
#[derive(Debug, Default)]
pub(super) struct UsedFields {
    pub(super) requests: RefCell<Vec<FieldName>>,
    pub(super) responses: RefCell<Vec<FieldName>>,
    /// The field of responses with the type of an event.
    pub(super) event_type: Cell<Option<FieldIndex>>,
}

impl CompileContext<'_> {
    /// Returns the index of the service with these settings; adds it if it is new.
    pub(super) fn register_service(&mut self, settings: RemoteServiceSettings) -> usize {
        let known = self.remote_services.iter().position(|known| *known == settings);
        known.unwrap_or_else(|| {
            self.remote_services.push(settings);
            self.remote_services.len() - 1
        })
    }
}

/// The owner of a matcher or a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum MatcherOwner {
    /// The route of an upstream, for proxied requests.
    #[default]
    Upstream,
    /// A rule for proxied requests.
    Rule,
    /// A rule for proxied requests and for Envoy's calls in its domain.
    DomainRule,
}
