//! One generation of the configuration on one worker: limits, upstreams, stored responses, TLS.

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
    /// The stream idle timeout until the upstream is chosen.
    pub(super) stream_idle_timeout: Duration,
    pub(super) fallbacks: Arc<Fallbacks>,
    /// TLS, by listener.
    pub(super) tls: Box<[Option<Arc<Server>>]>,
}

impl View {
    /// A view of `generation`. What stays the same keeps the connections of `before`.
    pub(super) fn new(generation: &Generation, before: Option<&Self>, shared: &Shared) -> Self {
        let policy = &generation.policy;
        let upstream = |cluster| {
            let mut known = before.into_iter().flat_map(|before| &before.upstreams);
            let kept = known.find(|kept| Arc::ptr_eq(kept.cluster(), cluster));
            kept.map_or_else(|| Rc::new(Upstream::new(cluster, &shared.metrics)), Rc::clone)
        };
        let idle_timeouts = generation.upstreams.iter().map(|cluster| cluster.settings().idle_timeout);
        Self {
            policy: Arc::clone(policy),
            limits: Rc::new(limits::View::new(
                policy,
                &generation.services,
                before.map(|before| &*before.limits),
                &shared.limiter,
                &shared.clock,
                &shared.metrics,
            )),
            stream_idle_timeout: idle_timeouts.max().unwrap_or_default(),
            upstreams: generation.upstreams.iter().map(upstream).collect(),
            fallbacks: Arc::clone(&generation.fallbacks),
            tls: generation.tls.clone(),
        }
    }

    /// The upstream of the route that the request takes.
    pub(super) fn upstream(&self, request: &Attributes<'_>) -> Option<&Rc<Upstream>> {
        self.upstreams.get(self.policy.routes.choose(request)?)
    }
}
