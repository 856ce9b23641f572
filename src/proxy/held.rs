//! Requests that are held before they are forwarded: in a queue for room in a limit, or until the store responds.
//!
//! Thousands of them may wait, so they have no room for the future that forwards them, which is created when they are
//! admitted.

use std::rc::Rc;
use std::time::Duration;

use super::body::DownstreamBody;
use super::decide::{self, CachedFallbacks};
use super::headers::Expectation;
use super::headers::overrides::RequestOverrides;
use super::local_reply::{self, PendingBody};
use super::request_context::RequestContext;
use super::response_future::HeldFuture;
use super::view::GenerationView;
use crate::limits::PendingLimits;
use crate::upstream::Upstream;
use crate::upstream::outgoing::OutgoingRequest;

/// Maximum size of the future of a held request, in bytes.
const MAX_FUTURE_SIZE: usize = 1024;

/// What is needed to forward a request that is held, or to reject it.
pub(super) struct HeldRequest {
    pub(super) view: Rc<GenerationView>,
    pub(super) context: Box<RequestContext>,
    pub(super) pending: PendingLimits,
    pub(super) request: OutgoingRequest,
    pub(super) body: DownstreamBody,
    pub(super) upstream: Option<Rc<Upstream>>,
    pub(super) overrides: Option<Box<RequestOverrides>>,
    pub(super) cached: CachedFallbacks,
    pub(super) expectation: Expectation,
}

/// Holds a request until its limits decide, and then calls `forward` with its delay, or rejects it.
pub(super) fn hold<F: 'static>(
    held: HeldRequest,
    forward: impl FnOnce(HeldRequest, Option<Duration>) -> F + 'static,
) -> HeldFuture<F> {
    let mut held = Box::new(held);
    let waiting = async move {
        let HeldRequest { view, context, pending, request, .. } = &mut *held;
        let headers = &mut request.head.headers;
        match decide::await_admission(&view.limits, context, pending, headers).await {
            Ok(delay) => Ok(Box::pin(forward(*held, delay))),
            Err(rejection) => {
                let HeldRequest {
                    view, mut context, mut pending, request, body, cached, expectation, ..
                } = *held;
                let rejected = rejection.of(&mut context, &mut pending);
                let (view, unread) = (&view.limits, PendingBody::new(expectation, body));
                let method = &request.head.method;
                Err(local_reply::rejected_remotely(context, view, &rejected, cached, method, unread))
            }
        }
    };
    debug_assert!(size_of_val(&waiting) <= MAX_FUTURE_SIZE, "{} bytes", size_of_val(&waiting));
    HeldFuture::Held(Box::pin(waiting))
}
