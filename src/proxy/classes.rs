//! Classes of requests: which class a request belongs to, and its slot at an upstream whose concurrency is limited.

use std::time::Duration;

use http::{HeaderMap, request};

use super::connection::DownstreamConnection;
use super::delay;
use super::grpc;
use super::request_context::RequestContext;
use super::view::GenerationView;
use weir_limiter::classes::{ConcurrencySlot, Entrance, Waiting};
use weir_limiter::wait_queue::WaitingMemory;
use weir_limits::waiting_size;
use weir_net::overload::LoadShed;
use weir_policy::identify::Attributes;
use weir_upstream::Upstream;

/// A request without a slot.
pub(super) enum WaitForSlot {
    /// It waits for one, for this time at most.
    Waits(Waiting, Duration),
    /// The upstream would probably reject it.
    Throttled,
}

/// Why a request gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSlot {
    /// Its wait has been too long.
    Shed,
    /// There is no memory for its wait.
    Memory,
    /// The deadline of its client has passed.
    Deadline,
    /// The upstream would probably reject it.
    Throttled,
}

/// Removes the header in which an untrusted peer names a class, before rules read it. Those of a forward proxy's clients
/// are meant for the destination.
pub(super) fn remove_untrusted_name(
    connection: &DownstreamConnection,
    headers: &mut HeaderMap,
    view: &GenerationView,
) {
    let Some(header) = view.policy.classes.as_ref().and_then(|classes| classes.header()) else { return };
    if !connection.is_forward_proxy()
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
    let RequestContext { connection, .. } = context;
    // Checked again: a request that has waited may have been validated by an earlier configuration.
    let is_trusted = view.policy.identify.trusted_proxies.contains(connection.peer);
    let named = classes.header().filter(|_| is_trusted).and_then(|header| head.headers.get(header));
    let worker = &connection.worker;
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

/// Takes a slot at the upstream, if its concurrency is limited. Returns the wait for it if none is free, or if the upstream
/// would probably reject the request.
pub(super) fn enter(upstream: &Upstream, context: &mut RequestContext) -> Option<WaitForSlot> {
    let cluster = upstream.cluster();
    if let Some(throttle) = cluster.throttle() {
        let random = context.connection.worker.random() as u64;
        if !throttle.admits(random, context.forwarded_at) {
            cluster.record_throttled();
            return Some(WaitForSlot::Throttled);
        }
    }
    let class = context.class.unwrap_or_default();
    match cluster.gate()?.enter(class.index, class.flow, context.forwarded_at) {
        Entrance::Admitted(slot) => {
            context.slot = Some(slot);
            None
        }
        Entrance::Waits(waiting, patience) => Some(WaitForSlot::Waits(waiting, patience)),
    }
}

impl WaitForSlot {
    /// Holds the request until it has a slot. Returns how long that took.
    ///
    /// # Errors
    /// The reason why it gets none.
    pub(super) async fn hold(
        self,
        context: &mut RequestContext,
        headers: &HeaderMap,
    ) -> Result<Duration, NoSlot> {
        let Self::Waits(mut waiting, patience) = self else { return Err(NoSlot::Throttled) };
        let since = context.forwarded_at;
        let Some(memory) = take_memory(context, headers) else {
            return with_slot(context, waiting.give_up(since), NoSlot::Memory).map(|()| Duration::ZERO);
        };
        let deadline = grpc::call_deadline(context, headers).unwrap_or(Duration::MAX);
        let slot = tokio::time::timeout(patience.min(deadline), &mut waiting);
        let slot = delay::hold_request(context, slot).await;
        drop(memory);
        let now = context.forwarded_at;
        let ended = match slot {
            Ok(slot) => with_slot(context, Some(slot), NoSlot::Shed),
            Err(_) if deadline <= patience => with_slot(context, waiting.end_at_deadline(), NoSlot::Deadline),
            Err(_) => with_slot(context, waiting.give_up(now), NoSlot::Shed),
        };
        ended.map(|()| now.since(since))
    }
}

/// Gives the request the slot, which it may have got as its wait ended.
fn with_slot(
    context: &mut RequestContext,
    slot: Option<ConcurrencySlot>,
    reason: NoSlot,
) -> Result<(), NoSlot> {
    context.slot = slot;
    if context.slot.is_some() { Ok(()) } else { Err(reason) }
}

/// Takes memory for a request that waits; `None` if waiting requests take as much as they may.
fn take_memory(context: &RequestContext, headers: &HeaderMap) -> Option<WaitingMemory> {
    let worker = &context.connection.worker;
    let memory = worker.shared.limiter.queues().take_memory(waiting_size(headers));
    if memory.is_none() {
        worker.metrics.record_load_shed(LoadShed::Waiting);
    }
    memory
}
