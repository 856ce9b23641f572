//! Classes of requests: which class a request belongs to, and its slot at an upstream whose concurrency is limited.

use std::time::Duration;

use http::{HeaderMap, request};

use super::connection::DownstreamConnection;
use super::delay;
use super::finish;
use super::request_context::RequestContext;
use super::view::GenerationView;
use weir_limiter::classes::{Entrance, Waiting};
use weir_limits::{AppliedLimits, waiting_size};
use weir_net::overload::LoadShed;
use weir_policy::identify::Attributes;
use weir_policy::rules::cost::RequestEnd;
use weir_upstream::Upstream;

/// A request that waits for a slot.
pub(super) struct WaitForSlot {
    waiting: Waiting,
    /// Maximum time of the wait.
    patience: Duration,
}

/// Why a request gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSlot {
    /// Its wait has been too long.
    Shed,
    /// There is no memory for its wait.
    Memory,
}

/// Removes the header in which an untrusted peer names a class, before rules read it. Those of a forward proxy's clients
/// are meant for the destination, and a stored call has lost it already.
pub(super) fn remove_untrusted_name(
    connection: &DownstreamConnection,
    headers: &mut HeaderMap,
    view: &GenerationView,
) {
    let Some(header) = view.policy.classes.as_ref().and_then(|classes| classes.header()) else { return };
    let is_meant = connection.stored.is_some() || connection.is_forward_proxy();
    if !is_meant
        && !view.policy.identify.trusted_proxies.contains(connection.peer)
        && headers.remove(header).is_some()
    {
        connection.worker.metrics.record_removed_client_headers(1);
    }
}

/// Determines the class of a request as the client has sent it.
pub(super) fn classify(
    context: &mut RequestContext,
    view: &GenerationView,
    head: &request::Parts,
    attributes: &Attributes<'_>,
) {
    let Some(classes) = view.policy.classes.as_deref().filter(|_| !context.is_proxied) else { return };
    let named = classes.header().and_then(|header| head.headers.get(header));
    let worker = &context.connection.worker;
    let class = classes.classify(attributes, named, worker.shared.limiter.hasher());
    if class.is_unknown {
        worker.metrics.record_unknown_class();
    }
    context.class = Some(class);
}

/// Tells the upstream the class of the request, unless it is to learn nothing about the client.
pub(super) fn name_class(context: &RequestContext, view: &GenerationView, headers: &mut HeaderMap) {
    let Some((class, classes)) = context.class.zip(view.policy.classes.as_deref()) else { return };
    match (classes.header(), classes.get(class.index)) {
        (Some(header), Some(class)) if !context.hides_client => {
            headers.insert(header, class.name.clone());
        }
        (Some(header), _) => {
            headers.remove(header);
        }
        (None, _) => {}
    }
}

/// Takes a slot at the upstream, if its concurrency is limited. Returns the wait for it if none is free.
pub(super) fn enter(upstream: &Upstream, context: &mut RequestContext) -> Option<WaitForSlot> {
    let gate = upstream.cluster().gate()?;
    let class = context.class.unwrap_or_default();
    match gate.enter(class.index, class.flow, context.forwarded_at) {
        Entrance::Admitted(slot) => {
            context.slot = Some(slot);
            None
        }
        Entrance::Waits(waiting, patience) => Some(WaitForSlot { waiting, patience }),
    }
}

impl WaitForSlot {
    /// Holds the request until it has a slot.
    ///
    /// # Errors
    /// The reason why it gets none.
    pub(super) async fn hold(self, context: &mut RequestContext, headers: &HeaderMap) -> Result<(), NoSlot> {
        let Self { mut waiting, patience } = self;
        let limiter = &context.connection.worker.shared.limiter;
        let Some(memory) = limiter.queues().take_memory(waiting_size(headers)) else {
            context.connection.worker.metrics.record_load_shed(LoadShed::Waiting);
            return Err(NoSlot::Memory);
        };
        let left = context.deadline.map_or(Duration::MAX, |deadline| deadline.since(context.forwarded_at));
        let slot = tokio::time::timeout(patience.min(left), &mut waiting);
        let slot = delay::hold_request(context, slot).await;
        drop(memory);
        context.slot = match slot {
            Ok(slot) => Some(slot),
            Err(_) => waiting.give_up(context.forwarded_at),
        };
        context.slot.as_ref().map(|_| ()).ok_or(NoSlot::Shed)
    }
}

/// Refunds a request that gets no slot.
pub(super) fn refund(context: &mut RequestContext, limits: &mut AppliedLimits) {
    let shared = &context.connection.worker.shared;
    let now = shared.clock.now();
    limits.refund_unsettled(&shared.limiter, now);
    if let Some(followed) = context.followed.take() {
        followed.refund_owed(now);
    }
    finish::settle(context, &RequestEnd::Rejected, limits);
    context.connection.postpone_shed_call();
}
