//! The request path, read top to bottom.

use std::convert::Infallible;
use std::rc::Rc;

use http::header::CONNECTION;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;

use super::answers::{self, Unread};
use super::body::{RequestBody, ResponseBody};
use super::connection::Connection;
use super::exchange::Exchange;
use super::forward::forward;
use super::headers::{self, Hop, Unacceptable};
use super::limits::Limits;
use crate::identify::identify;
use crate::rules::selection::Selection;
use crate::telemetry::metrics::DecisionOutcome;
use crate::throttle::{self, Action};

/// Answers one request: identifies it, asks the rules and the limiter, and forwards or refuses it.
pub(super) async fn handle(
    connection: Rc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let draining = connection.worker.slow_clock.is_draining();
    let mut response = respond(&connection, request).await;
    if draining || connection.worker.slow_clock.is_draining() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

async fn respond(connection: &Rc<Connection>, request: Request<Incoming>) -> Response<ResponseBody> {
    let worker = &connection.worker;
    let view = worker.view();
    let policy = &view.policy;
    let now = worker.shared.clock.now();
    let (mut head, body) = request.into_parts();
    let mut exchange = Exchange::begin(connection, &head, now, view.upstream.settings().idle_timeout);

    if let Err(unacceptable) = headers::validate(&head) {
        return answers::malformed(exchange, unacceptable);
    }
    let identified = identify(&head.method, &head.uri, &head.headers, connection.peer, &policy.identify);
    let Ok(attributes) = identified else {
        return answers::malformed(exchange, Unacceptable::Malformed);
    };
    let hop = Hop { peer: connection.peer, client: attributes.client, random: worker.random() };
    worker.warn_of_untrusted_proxy(&hop, &head.headers);

    let limits = match policy.rules.select(&attributes) {
        Selection::Exempt(rule) => {
            view.record(rule, DecisionOutcome::Exempt);
            Limits::none(now)
        }
        Selection::Denied(rule) => {
            view.record(rule, DecisionOutcome::Denied);
            exchange.note_refused(view.rule_name(rule), &mut head, &hop);
            return answers::denied(exchange, &view, Unread::new(&head, body));
        }
        Selection::Limited(selected) => Limits::check(&worker.shared.limiter, selected, now),
    };
    limits.record(&view);
    if let Action::Refuse { by, retry_after } = throttle::resolve(limits.decision()) {
        exchange.note_refused(view.rule_name(limits.rule(by)), &mut head, &hop);
        return answers::limited(exchange, &view, (&limits, by), retry_after, Unread::new(&head, body));
    }

    headers::prepare_request(&mut head, &hop);
    exchange.note_headers(&head.headers);
    let body = RequestBody::new(body, &mut exchange, view.upstream.settings().timeout);
    let answered = forward(&view, &exchange, Request::from_parts(head, body)).await;
    let mut response = answers::upstream(exchange, &view, answered);
    limits.write_headers(response.headers_mut(), &view);
    response
}
