//! Deferred calls in the request pipeline: [`accept`] stores the request of a client, [`send`] runs a stored call through
//! the same pipeline as an internal request.

pub(super) mod accept;
pub(super) mod send;

use std::rc::Rc;
use std::time::Duration;

use http::{Method, request};

use super::connection::DownstreamConnection;
use super::headers;
use super::request_context::RequestContext;
use super::view::GenerationView;
use weir_policy::identify::Attributes;
use weir_policy::rules::deferral::{DeferredRequest, DeniedDeferral};
use weir_policy::rules::selection::Denial;
use weir_upstream::settings::UpstreamSettings;

/// Pause of the sender of a rule's calls after this process had no room for one.
const OVERLOAD_PAUSE: Duration = Duration::from_secs(1);

/// Returns how the request is deferred; `None` if it is forwarded at once.
///
/// # Errors
/// The rule that rejects the request.
pub(super) fn find(
    context: &RequestContext,
    view: &GenerationView,
    head: &request::Parts,
    attributes: &Attributes<'_>,
) -> Result<Option<DeferredRequest>, DeniedDeferral> {
    let deferral = view.policy.rules.deferral(attributes)?;
    match deferral {
        // Its caller waits for more than a status code.
        Some(DeferredRequest { rule, .. })
            if context.is_grpc
                || head.method == Method::CONNECT
                || is_upgrade(context, view, head, attributes) =>
        {
            Err(DeniedDeferral { rule, denial: Denial::NotDeferrable })
        }
        deferral => Ok(deferral),
    }
}

fn is_upgrade(
    context: &RequestContext,
    view: &GenerationView,
    head: &request::Parts,
    attributes: &Attributes<'_>,
) -> bool {
    let proxy =
        || view.forward_proxy(context.connection.listener).map(|pool| &pool.proxy().settings().upstream);
    let upstream = || view.upstream(attributes).map(|upstream| upstream.settings());
    let upgrades = |settings: &UpstreamSettings| {
        let upgrades = &settings.upgrades;
        headers::upgrade_protocol(&head.method, head.version, &head.headers, upgrades).is_some()
    };
    context.requires_upgrade() || upstream().is_some_and(upgrades) || proxy().is_some_and(upgrades)
}

impl DownstreamConnection {
    /// Records that a stored call is being sent.
    pub(super) fn admit_stored(&self) {
        if let Some(stored) = &self.stored {
            stored.admit();
        }
    }

    /// Records that there is no room for a stored call for this time.
    pub(super) fn reject_stored(&self, retry_after: Duration) {
        if let Some(stored) = &self.stored {
            stored.reject(retry_after);
        }
    }

    /// Records that a stored call was shed, so that it is sent again later.
    pub(super) fn postpone_shed_call(&self) {
        self.reject_stored(OVERLOAD_PAUSE);
    }

    /// Returns the view of the generation that applies to a request: the one in force, or that in which the rule of the
    /// stored call was found.
    pub(super) fn view(&self) -> Rc<GenerationView> {
        self.stored.as_ref().map_or_else(|| self.worker.view(), |stored| Rc::clone(&stored.view))
    }

    /// Returns 128 bits for the ID of a request: random ones, or those of the stored call.
    pub(super) fn request_bits(&self) -> u128 {
        self.stored.as_ref().map_or_else(|| self.worker.random(), |stored| stored.id)
    }
}
