//! Sends stored calls: each is an internal request that runs through the pipeline of its worker.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::{StatusCode, Version, request};
use hyper::body::Body as _;
use tokio::sync::mpsc;

use super::OVERLOAD_PAUSE;
use crate::proxy::body::DownstreamBody;
use crate::proxy::connection::{ConnectionSettings, DownstreamConnection};
use crate::proxy::headers::PeerTls;
use crate::proxy::local_reply::DownstreamResponse;
use crate::proxy::pipeline;
use crate::proxy::response_future::RequestOutcome;
use crate::proxy::stored_request::StoredRequest;
use crate::proxy::timeouts::{ConnectionTimeouts, TimeoutKind};
use crate::proxy::worker::Worker;
use weir_http::headers::empty_head;
use weir_http::http1::head::ReceivedHead;
use weir_limits::ProviderSignals;
use weir_net::listener::{ListenerLimits, ProxyProtocol};
use weir_policy::rules::deferral::DeferredRequest;
use weir_store::deferred::SendOutcome;
use weir_store::deferred::call::StoredCall;
use weir_store::deferred::handle::{Dispatch, Reporter};

/// Timeouts of an internal connection, on which nothing is waited for between requests.
const INTERNAL_TIMEOUT: Duration = Duration::from_secs(60);
/// Limits of internal requests, which were checked when they arrived.
const INTERNAL_LIMITS: ListenerLimits =
    ListenerLimits { header_size: u32::MAX, headers: u32::MAX, streams: 1 };
/// Maximum bytes of a response that are read, so that its connection can be used again.
const MAX_DISCARDED_RESPONSE: usize = 64 * 1024;

/// Sends the calls that arrive on `calls`, each in a task of its own.
pub(in crate::proxy) async fn run(worker: Rc<Worker>, mut calls: mpsc::Receiver<Dispatch>) {
    while let Some(Dispatch { rule, call, reporter }) = calls.recv().await {
        match open_connection(&worker, &rule, &call, reporter) {
            Ok(connection) => drop(tokio::task::spawn_local(send(connection, call))),
            Err((reporter, outcome)) => reporter.finish(outcome),
        }
    }
    // Without a thread for deferred calls there is nothing to do, but the worker continues.
    std::future::pending().await
}

/// Creates the internal connection of a call. Fails with the outcome if the rule or the call's listener is gone, or the
/// process has no room.
fn open_connection(
    worker: &Rc<Worker>,
    rule: &str,
    call: &StoredCall,
    reporter: Reporter,
) -> Result<Rc<DownstreamConnection>, (Reporter, SendOutcome)> {
    let view = worker.view();
    let found = view.policy.rules.deferrals().find(|(_, name, _)| *name == rule);
    let (Some((rule, ..)), Ok(permit)) = (found, worker.shared.overload.acquire_connection()) else {
        return Err((reporter, SendOutcome::NoRoom(OVERLOAD_PAUSE)));
    };
    let Some(listener) = view.listener_position(&call.listener) else {
        return Err((reporter, SendOutcome::NoListener));
    };
    let timer =
        worker.coarse_clock.add_connection(ConnectionTimeouts::new(INTERNAL_TIMEOUT, INTERNAL_TIMEOUT), None);
    let settings =
        ConnectionSettings { listener, proxy_protocol: ProxyProtocol::Disabled, limits: INTERNAL_LIMITS };
    let stored = StoredRequest {
        view,
        deferred: DeferredRequest { rule, key: call.key.clone() },
        id: call.id,
        reporter: RefCell::new(Some(reporter)),
        outcome: Cell::new(None),
    };
    let tls = call.is_tls.then(|| PeerTls { forwarded: call.certificate.clone(), ..PeerTls::default() });
    let mut connection =
        DownstreamConnection::internal(Rc::clone(worker), settings, timer, permit, call.peer, stored);
    connection.tls = tls.map(Box::new);
    Ok(Rc::new(connection))
}

async fn send(connection: Rc<DownstreamConnection>, call: Arc<StoredCall>) {
    let body = match call.body.is_empty() {
        true => DownstreamBody::None,
        false => DownstreamBody::Stored(Some(call.body.clone())),
    };
    {
        let mut sending = pin!(respond(&connection, head_of(&call), body));
        let timer = connection.timer();
        poll_fn(|cx| {
            timer.register_waker(cx.waker());
            match timer.expired() {
                Some(TimeoutKind::StreamIdle) if !timer.awaits_response() => Poll::Ready(()),
                _ => sending.as_mut().poll(cx),
            }
        })
        .await;
    }
    if let Some(stored) = &connection.stored
        && let Some(reporter) = stored.reporter.take()
    {
        reporter.finish(stored.outcome.get().unwrap_or(SendOutcome::Aborted));
    }
}

/// Runs the request through the pipeline and reads its response. The status alone decides what happens to the call, so
/// a response that breaks off later does not matter.
async fn respond(connection: &Rc<DownstreamConnection>, mut head: request::Parts, body: DownstreamBody) {
    let mut response = match pipeline::handle(connection, &mut head, body, ReceivedHead::default()) {
        RequestOutcome::Response(response) => response,
        RequestOutcome::Pending(handling) => handling.await,
    };
    let Some(stored) = &connection.stored else { return };
    if stored.outcome.get().is_none() {
        let clock = &connection.worker.shared.clock;
        let signals = ProviderSignals::from_headers(&response.headers, clock.civil_time_at(clock.now()));
        // A route that is missing, for example, is a mistake of the configuration, which the next reload may mend.
        let is_own_fault = response.body.is_local() && response.status.is_client_error();
        let status = if is_own_fault { StatusCode::SERVICE_UNAVAILABLE } else { response.status };
        let retry_after = signals.retry_after;
        stored.outcome.set(Some(SendOutcome::Responded { status, retry_after }));
    }
    discard(&mut response).await;
}

/// Reads the body of a response, up to a maximum.
async fn discard(response: &mut DownstreamResponse) {
    let mut discarded = 0_usize;
    while !response.body.is_end_stream() && discarded < MAX_DISCARDED_RESPONSE {
        match poll_fn(|cx| Pin::new(&mut response.body).poll_frame(cx)).await {
            Some(Ok(frame)) => {
                discarded = discarded.saturating_add(frame.data_ref().map_or(0, |data| data.len().max(1)));
            }
            Some(Err(_)) | None => return,
        }
    }
}

fn head_of(call: &StoredCall) -> request::Parts {
    let mut head = empty_head();
    head.method = call.method.clone();
    head.uri = call.target.clone();
    head.headers = call.headers.clone();
    head.version = Version::HTTP_11;
    head
}
