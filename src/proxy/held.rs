//! Requests that are held before they are forwarded: in a queue for room in a limit, or until the store responds.
//!
//! Thousands of them may wait, so they have no room for the future that forwards them, which is created when they are
//! admitted.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::body::DownstreamBody;
use super::decide::{self, CachedFallbacks, HeldEnd, HeldRejection};
use super::headers::Expectation;
use super::headers::overrides::RequestOverrides;
use super::local_reply::{self, DownstreamResponse, PendingBody};
use super::queued::QueuedRequest;
use super::request_context::RequestContext;
use super::view::GenerationView;
use weir_limits::PendingLimits;
use weir_upstream::Upstream;
use weir_upstream::outgoing::OutgoingRequest;

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

/// A request that is held.
pub(super) enum HeldKind {
    /// Until the store responds.
    Leasing(Box<HeldRequest>),
    /// In a queue.
    Queued(Box<QueuedRequest>),
}

impl From<HeldRequest> for HeldKind {
    fn from(request: HeldRequest) -> Self {
        Self::Leasing(Box::new(request))
    }
}

impl From<QueuedRequest> for HeldKind {
    fn from(request: QueuedRequest) -> Self {
        Self::Queued(Box::new(request))
    }
}

/// The future that forwards a request, or the response to its rejection.
type HeldResult<F> = Result<Pin<Box<F>>, DownstreamResponse>;

/// Future of the response to a request that is held until its limits admit it. The future that forwards it is large, and
/// is created only then.
pub(super) enum HeldFuture<F> {
    /// The request is held. The result is the future that forwards it, or the response to a rejection.
    Held(Pin<Box<dyn Future<Output = HeldResult<F>>>>),
    /// It is being forwarded.
    Forwarding(Pin<Box<F>>),
}

impl<F: Future<Output = DownstreamResponse>> Future for HeldFuture<F> {
    type Output = DownstreamResponse;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut *self {
                Self::Held(held) => match ready!(held.as_mut().poll(cx)) {
                    Ok(forwarding) => *self = Self::Forwarding(forwarding),
                    Err(rejection) => return Poll::Ready(rejection),
                },
                Self::Forwarding(forwarding) => return forwarding.as_mut().poll(cx),
            }
        }
    }
}

/// Holds a request until its limits decide, and then forwards or rejects it.
pub(super) fn hold(held: HeldKind) -> HeldFuture<impl Future<Output = DownstreamResponse> + use<>> {
    let waiting = async move {
        let (admitted, delay) = match held {
            HeldKind::Leasing(held) => held.admit().await?,
            HeldKind::Queued(queued) => queued.admit().await?,
        };
        Ok(Box::pin(admitted.forward(delay)))
    };
    debug_assert!(size_of_val(&waiting) <= MAX_FUTURE_SIZE, "{} bytes", size_of_val(&waiting));
    HeldFuture::Held(Box::pin(waiting))
}

impl HeldRequest {
    /// Waits for the store. Returns the request with its delay.
    ///
    /// # Errors
    /// The response to its rejection.
    async fn admit(mut self: Box<Self>) -> Result<(Self, Option<Duration>), DownstreamResponse> {
        let mut delayed = None;
        loop {
            let Self { view, context, pending, request, .. } = &mut *self;
            let headers = Some(&mut request.head.headers);
            match decide::await_admission(&view.limits, context, pending, headers, &mut delayed).await {
                Ok(delay) => return Ok((*self, delay)),
                Err(HeldEnd::Rejected(rejection)) => return Err(self.reject(rejection)),
                Err(HeldEnd::Superseded) => self.pending.remove_uninstalled_limits(&self.view.limits),
            }
        }
    }

    fn reject(self, rejection: HeldRejection) -> DownstreamResponse {
        let Self { view, mut context, mut pending, request, body, cached, expectation, .. } = self;
        let rejected = rejection.of(&mut context, &mut pending);
        let unread = PendingBody::new(expectation, body);
        local_reply::rejected_remotely(context, &view.limits, &rejected, cached, &request.head.method, unread)
    }
}
