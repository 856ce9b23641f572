//! Requests that the limits counted here admit: the other limits decide, and the request is forwarded.

use std::rc::Rc;
use std::time::Duration;

use http::request;

use super::body::RequestBody;
use super::classes;
use super::fallback::CachedFallbacks;
use super::finish;
use super::forward::{forward, response_timeout};
use super::grpc;
use super::headers::overrides::RequestOverrides;
use super::local_reply::{DownstreamResponse, LocalReply, PendingBody};
use super::request_context::RequestContext;
use super::resolve;
use super::respond::respond;
use super::view::GenerationView;
use weir_http::http1::head::ReceivedHead;
use weir_limits::PendingLimits;
use weir_upstream::Upstream;
use weir_upstream::outgoing::OutgoingRequest;

/// A request that the limits counted here admit.
pub(super) struct AdmittedRequest {
    pub(super) view: Rc<GenerationView>,
    pub(super) context: Box<RequestContext>,
    pub(super) pending: PendingLimits,
    pub(super) request: OutgoingRequest,
    pub(super) unread: PendingBody,
    pub(super) upstream: Option<Rc<Upstream>>,
    pub(super) overrides: Option<Box<RequestOverrides>>,
    pub(super) cached: CachedFallbacks,
}

impl AdmittedRequest {
    /// Returns the future that forwards the request after `delay`, and returns the response.
    // Inline: all of it would be moved once more.
    #[inline(always)]
    #[expect(clippy::manual_async_fn, reason = "an async function has room for its parameters twice")]
    pub(super) fn forward(
        mut self,
        delay: Option<Duration>,
    ) -> impl Future<Output = DownstreamResponse> + use<> {
        async move {
            let (view, context, request) = (&self.view, &mut self.context, &mut self.request);
            let request::Parts { method, headers, .. } = &mut request.head;
            let resolved =
                resolve::resolve_admitted(&view.limits, context, &mut self.pending, delay, headers).await;
            let limits = match resolved {
                Ok(limits) => limits,
                Err(rejected) => {
                    let reply = rejected.reply(&view.limits, self.cached, method, headers);
                    return reply.send(self.context, self.unread.into());
                }
            };
            if context.is_last_hop {
                let mut reply = match context.inquiry {
                    Some(_) => LocalReply::decided(),
                    None => LocalReply::last_hop(),
                };
                finish::settle(context, &reply.request_end(), limits);
                limits.write_all(reply.headers_mut(), &view.limits);
                return reply.send(self.context, self.unread.into());
            }
            let waited = match self.upstream.as_deref().and_then(|upstream| classes::enter(upstream, context))
            {
                None => Ok(Duration::ZERO),
                // Boxed, because few requests wait and every request's future would be larger.
                Some(wait) => Box::pin(wait.hold(context, headers)).await,
            };
            let waited = match waited {
                Ok(waited) => waited,
                Err(reason) => {
                    finish::refund_shed(context, limits);
                    let mut reply = LocalReply::without_slot(reason);
                    limits.write_all(reply.headers_mut(), &view.limits);
                    return reply.send(self.context, self.unread.into());
                }
            };
            grpc::apply_client_deadline(context, headers, waited);
            let (upstream, overrides) = (self.upstream.as_deref(), self.overrides.as_deref());
            let body = RequestBody::new(self.unread.body, context, response_timeout(upstream, overrides));
            let result = forward(upstream, context, request, body, overrides).await;
            // It is in the memory of the next request's bytes.
            context.received = ReceivedHead::default();
            respond(self.context, view, upstream, limits, result)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size of the future that a function returns.
    fn future_size<A, B, T>(_: impl FnOnce(A, B) -> T) -> usize {
        size_of::<T>()
    }

    #[test]
    fn future_of_a_forwarded_request_is_small() {
        let size = future_size(AdmittedRequest::forward);
        // A size class of jemalloc; the next is 2560 bytes.
        assert!(size <= 2048, "{size} bytes");
    }
}
