//! One generation of the configuration, with what a worker has of it for itself: limits, upstreams.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::fallback::Fallbacks;
use super::{Generation, Shared};
use crate::engine::Policy;
use crate::identify::Attributes;
use crate::limits;
use crate::tls::server::Server;
use crate::upstream::Upstream;

/// One generation of the configuration on one worker. A request keeps the view with which it began.
#[derive(Debug)]
pub(super) struct View {
    pub(super) policy: Arc<Policy>,
    pub(super) limits: Rc<limits::View>,
    pub(super) upstreams: Box<[Rc<Upstream>]>,
    /// How long bodies may stand still before it is known where they go.
    pub(super) stall: Duration,
    pub(super) fallbacks: Arc<Fallbacks>,
    /// TLS, beside the listeners.
    pub(super) tls: Box<[Option<Arc<Server>>]>,
}

impl View {
    /// A view of `generation`. The connections to whatever stays are as good as `before`.
    pub(super) fn new(generation: &Generation, before: Option<&Self>, shared: &Shared) -> Self {
        let upstream = |cluster| {
            let mut known = before.into_iter().flat_map(|before| &before.upstreams);
            let kept = known.find(|kept| Arc::ptr_eq(kept.cluster(), cluster));
            kept.map_or_else(|| Rc::new(Upstream::new(cluster, &shared.metrics)), Rc::clone)
        };
        let stalls = generation.upstreams.iter().map(|cluster| cluster.settings().idle_timeout);
        Self {
            policy: Arc::clone(&generation.policy),
            limits: Rc::new(limits::View::new(
                &generation.policy,
                &generation.services,
                before.map(|before| &*before.limits),
                (&shared.limiter, &shared.clock, &shared.metrics),
            )),
            stall: stalls.max().unwrap_or_default(),
            upstreams: generation.upstreams.iter().map(upstream).collect(),
            fallbacks: Arc::clone(&generation.fallbacks),
            tls: generation.tls.clone(),
        }
    }

    /// Which upstream takes the request.
    pub(super) fn upstream(&self, request: &Attributes<'_>) -> Option<&Rc<Upstream>> {
        self.upstreams.get(self.policy.routes.choose(request)?)
    }
}
