//! One attempt to send a request to an upstream, up to the head of the response.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderValue, StatusCode, request};
use smallvec::SmallVec;

use super::plan::RetryPlan;
use super::upstream_attempt::{AttemptResult, UpstreamAttempt, UpstreamResponse};
use crate::proxy::body::RequestBody;
use crate::proxy::failure::ForwardFailure;
use crate::proxy::request_context::RequestContext;
use crate::proxy::timeouts::TimeoutKind;
use weir_http::headers::{Headers, Response};
use weir_http::http1::head::list_elements;
use weir_upstream::Upstream;
use weir_upstream::endpoint::{Endpoint, PooledConnection};
use weir_upstream::error::{SendError, UpstreamError};
use weir_upstream::host::UpstreamHost;
use weir_upstream::outgoing::OutgoingRequest;

/// A request that is being forwarded, over all its attempts.
pub(super) struct Forwarding<'a> {
    pub(super) upstream: &'a Upstream,
    pub(super) context: &'a mut RequestContext,
    pub(super) plan: RetryPlan<'a>,
    /// Time for all attempts.
    pub(super) timeout: Duration,
    /// Endpoints that could not be reached, and those to which the request was sent if it may be sent again.
    pub(super) tried: SmallVec<[Arc<UpstreamHost>; 2]>,
    /// Whether one of them has responded or could not be reached: it may serve the request's name.
    name_may_be_served: bool,
}

/// Why an endpoint has not responded to a request.
enum EndpointFailure {
    /// It has not begun with the request, so that another one may work. With the unread body.
    Unprocessed(UpstreamError, RequestBody),
    /// Any other reason.
    Final(ForwardFailure),
}

impl<'a> Forwarding<'a> {
    pub(super) fn new(
        upstream: &'a Upstream,
        context: &'a mut RequestContext,
        plan: RetryPlan<'a>,
        timeout: Duration,
    ) -> Self {
        Self { upstream, context, plan, timeout, tried: SmallVec::new(), name_may_be_served: false }
    }

    /// Sends the request once. If no connection to the endpoint can be made, nothing has been sent, and another endpoint is
    /// tried. The same applies if a pooled connection turns out to be closed and no new one can be made.
    #[expect(
        clippy::manual_async_fn,
        reason = "the future of an async function has room for its parameters twice"
    )]
    pub(super) fn attempt(
        &mut self,
        request: &mut OutgoingRequest,
        mut body: RequestBody,
    ) -> impl Future<Output = AttemptResult> {
        async move {
            let endpoint = match self.upstream.pick(&self.tried) {
                Some(endpoint) => endpoint,
                None => Box::pin(self.pick_when_resolved()).await?,
            };
            let mut attempt = self.start(endpoint);
            let result = loop {
                match self.send(&attempt.endpoint, request, body).await {
                    Ok(response) => break Ok(response),
                    Err(EndpointFailure::Final(failure)) => break Err(failure),
                    Err(EndpointFailure::Unprocessed(error, unread)) => {
                        attempt = self.try_other_endpoint(attempt, error)?;
                        body = unread;
                    }
                }
            };
            if self.plan.retries_sent_requests() {
                self.tried.push(Arc::clone(attempt.endpoint.host()));
                self.name_may_be_served = true;
            }
            attempt.finish(result.as_ref(), self.context);
            result
        }
    }

    /// Waits until the upstream's addresses are known, and returns an endpoint.
    async fn pick_when_resolved(&self) -> Result<Rc<Endpoint>, ForwardFailure> {
        let endpoint = self.context.timer.limit(pin!(self.upstream.pick_when_resolved())).await?;
        let no_address = || self.upstream.no_address();
        endpoint.ok_or_else(|| no_address().map_or(ForwardFailure::NoEndpoint, ForwardFailure::NoAddress))
    }

    fn start(&mut self, endpoint: Rc<Endpoint>) -> UpstreamAttempt {
        if !self.tried.is_empty() {
            endpoint.metrics().request_retried();
        }
        UpstreamAttempt::start(endpoint, self.context)
    }

    /// Moves to another endpoint after that of `attempt` could not be reached or has not begun with the request. Fails if
    /// there is none, or the plan does not allow it.
    fn try_other_endpoint(
        &mut self,
        attempt: UpstreamAttempt,
        error: UpstreamError,
    ) -> Result<UpstreamAttempt, ForwardFailure> {
        let Self { upstream, plan, tried, .. } = self;
        tried.push(Arc::clone(attempt.endpoint.host()));
        self.name_may_be_served |= !matches!(error, UpstreamError::ServerName(_));
        let failure = ForwardFailure::Upstream(error);
        attempt.finish(Err(&failure), self.context);
        let may_move =
            plan.retry_on.connect_failure && plan.allows_another(tried.len()) && upstream.has_other(tried);
        if let Some(endpoint) = may_move.then(|| upstream.pick(tried)).flatten() {
            self.context.retries = self.context.retries.saturating_add(1);
            return Ok(self.start(endpoint));
        }
        Err(match failure {
            ForwardFailure::Upstream(UpstreamError::ServerName(error)) if self.name_may_be_served => {
                ForwardFailure::Upstream(UpstreamError::Connect(error))
            }
            failure => failure,
        })
    }

    /// Sends the request to `endpoint`, over a pooled connection or a new one.
    async fn send(
        &mut self,
        endpoint: &Endpoint,
        request: &mut OutgoingRequest,
        body: RequestBody,
    ) -> Result<UpstreamResponse, EndpointFailure> {
        let context = &*self.context;
        if context.upgrade.is_connect {
            return Box::pin(open_tunnel(context, endpoint, body)).await;
        }
        let connection = match checkout(context, endpoint).await? {
            Ok(connection) => connection,
            Err(error) => return Err(EndpointFailure::new(error, Some(body))),
        };
        if context.upgrade.protocol.is_some() {
            Box::pin(ensure_extended_connect(context, &mut request.head, &connection)).await?;
        }
        set_awaits_cost(context);
        let sent = {
            // Pinned in place: a future passed by value would take space in each future on the way.
            let (interims, was_sent) = (&context.connection.interims, context.timer.attempt_sent());
            let sending =
                pin!(endpoint.send(connection, request, &context.received, body, interims, was_sent));
            match self.plan.per_try_timeout {
                None => context.timer.limit(sending).await.map_err(ForwardFailure::from),
                Some(each) => {
                    let sending = Box::pin(tokio::time::timeout(each.time, sending));
                    let sent = context.timer.limit(sending).await.map_err(ForwardFailure::from);
                    sent.and_then(|sent| sent.map_err(|_| ForwardFailure::PerTryTimeout(each.set_by)))
                }
            }
        };
        context.timer.set_awaits_cost(None);
        match sent? {
            Ok(response) if is_expected_protocol(&response, context) => Ok(response),
            Ok(_) => Err(ForwardFailure::UnexpectedProtocol.into()),
            // A failed request body also breaks the connection to the upstream, but the client caused it.
            Err(_) if context.upload_has_failed() => Err(ForwardFailure::BrokenRequest.into()),
            Err(SendError { error, body }) => Err(EndpointFailure::new(error, body)),
        }
    }
}

impl EndpointFailure {
    /// Creates the failure of an endpoint that has not begun with the request, if that still has its unread body.
    fn new(error: UpstreamError, unread: Option<RequestBody>) -> Self {
        match unread {
            Some(body) if is_endpoint_error(&error) => Self::Unprocessed(error, body),
            _ => Self::Final(ForwardFailure::Upstream(error)),
        }
    }
}

impl From<ForwardFailure> for EndpointFailure {
    fn from(failure: ForwardFailure) -> Self {
        Self::Final(failure)
    }
}

impl From<TimeoutKind> for EndpointFailure {
    fn from(expired: TimeoutKind) -> Self {
        Self::Final(expired.into())
    }
}

/// Whether the error concerns only this endpoint, so that another one may work. That includes a name that this endpoint
/// does not serve: a fault of its TLS looks the same.
const fn is_endpoint_error(error: &UpstreamError) -> bool {
    matches!(
        error,
        UpstreamError::Connect(_)
            | UpstreamError::ConnectTimeout
            | UpstreamError::Reset(_)
            | UpstreamError::ServerName(_)
    )
}

/// Returns a connection of the pool to the endpoint, or opens one.
async fn checkout(
    context: &RequestContext,
    endpoint: &Endpoint,
) -> Result<Result<PooledConnection, UpstreamError>, TimeoutKind> {
    let RequestContext { client, is_grpc, .. } = *context;
    match endpoint.try_checkout(client, is_grpc) {
        Ok(Some(connection)) => Ok(Ok(connection)),
        // Boxed: connecting is rare and its future large, and most requests do not need it.
        Ok(None) => context.timer.limit(Box::pin(endpoint.connect(client, is_grpc))).await,
        Err(error) => Ok(Err(error)),
    }
}

/// Records whether the response to the attempt that begins states the cost.
fn set_awaits_cost(context: &RequestContext) {
    let awaits_cost = context.settlement.as_ref().is_some_and(|settlement| settlement.awaits_stated_cost());
    let awaited = &context.connection.worker.awaited;
    context.timer.set_awaits_cost(awaits_cost.then(|| awaited.client(context.client)));
}

/// Connects a tunnel to the endpoint (RFC 9110 section 9.3.6). The response is 200, with the connection as its body.
async fn open_tunnel(
    context: &RequestContext,
    endpoint: &Endpoint,
    unread: RequestBody,
) -> Result<UpstreamResponse, EndpointFailure> {
    match context.timer.limit(pin!(endpoint.open_tunnel(context.client))).await? {
        Ok(body) => Ok(Response { status: StatusCode::OK, headers: Headers::default(), body }),
        Err(error) => Err(EndpointFailure::new(error, Some(unread))),
    }
}

/// Checks that the endpoint supports upgrades; over HTTP/2 this needs SETTINGS_ENABLE_CONNECT_PROTOCOL. If it does not,
/// the request fails if the client requires the upgrade, and is otherwise sent without it.
async fn ensure_extended_connect(
    context: &RequestContext,
    head: &mut request::Parts,
    connection: &PooledConnection,
) -> Result<(), ForwardFailure> {
    if context.timer.limit(pin!(connection.allows_upgrade())).await? {
        return Ok(());
    }
    if context.requires_upgrade() {
        return Err(ForwardFailure::UpgradeUnavailable);
    }
    head.headers.remove(UPGRADE);
    head.headers.remove(CONNECTION);
    Ok(())
}

/// Whether the response means to the client what it means to Weir. A 101 ends HTTP on the connection, so the client
/// must have requested that protocol. A client that requires an upgrade would take any other success for its
/// acceptance.
fn is_expected_protocol(response: &UpstreamResponse, context: &RequestContext) -> bool {
    if response.status != StatusCode::SWITCHING_PROTOCOLS {
        return !(context.requires_upgrade() && response.status.is_success());
    }
    let is_only = |wanted: &HeaderValue, got| {
        let mut protocols = list_elements(got);
        let is_wanted =
            protocols.next().is_some_and(|protocol| wanted.as_bytes().eq_ignore_ascii_case(protocol));
        is_wanted && protocols.next().is_none()
    };
    let wanted = context.upgrade.protocol.as_ref().zip(response.headers.get(&UPGRADE));
    wanted.is_some_and(|(wanted, got)| is_only(wanted, got))
}
