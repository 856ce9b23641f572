//! The socket of the admin port: a side door, so that a flood of traffic or a stuck worker leaves operators and
//! probes an entrance.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use tokio::net::TcpListener;

use super::reply::{self, Reply};
use super::{State, Surface, handle};
use crate::side_door;

/// Serves `surface` on `listener` until the drain has reached its last phase.
pub async fn serve(listener: TcpListener, state: Arc<State>, surface: Surface) {
    let drain = Arc::clone(&state.drain);
    let answer = move |request: Request<Incoming>| std::future::ready(answer(&request, &state, surface));
    side_door::serve(listener, drain, answer).await;
}

/// A mistake in one endpoint must not take the entrance away from the others.
fn answer(request: &Request<Incoming>, state: &State, surface: Surface) -> Reply {
    catch_unwind(AssertUnwindSafe(|| handle(request, state, surface))).unwrap_or_else(|_| {
        tracing::error!(path = request.uri().path(), "an admin endpoint panicked");
        reply::text(StatusCode::INTERNAL_SERVER_ERROR, "internal error\n")
    })
}
