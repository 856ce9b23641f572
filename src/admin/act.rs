//! Endpoints that change the process.

use http::StatusCode;

use super::State;
use super::query::Query;
use super::reply::{self, FullResponse};
use crate::drain::Phase;
use crate::telemetry::logging::LoggingError;

/// `POST /healthcheck/fail`
pub(super) fn healthcheck_fail(state: &State, _: &Query<'_>) -> FullResponse {
    tracing::info!("readiness set to failing through the admin port");
    state.drain.set_healthy(false);
    reply::ok()
}

/// `POST /healthcheck/ok`
pub(super) fn healthcheck_ok(state: &State, _: &Query<'_>) -> FullResponse {
    tracing::info!("readiness restored through the admin port");
    state.drain.set_healthy(true);
    reply::ok()
}

/// `POST /drain_listeners[?graceful]`
pub(super) fn drain_listeners(state: &State, query: &Query<'_>) -> FullResponse {
    let phase = if query.get("graceful").is_some() { Phase::NotReady } else { Phase::Draining };
    tracing::info!(?phase, "draining requested through the admin port");
    state.drain.advance(phase);
    reply::ok()
}

/// `POST /quitquitquit`
pub(super) fn quit(state: &State, _: &Query<'_>) -> FullResponse {
    tracing::info!("shutdown requested through the admin port");
    state.drain.request_exit();
    reply::ok()
}

/// `POST /logging[?level=LEVEL][&paths=TARGET:LEVEL,...][&TARGET=LEVEL]`
pub(super) fn logging(state: &State, query: &Query<'_>) -> FullResponse {
    match query.pairs().try_for_each(|(name, value)| set(state, &name, &value)) {
        Ok(()) => reply::text(StatusCode::OK, active(&state.levels.describe())),
        Err(error) => reply::text(StatusCode::BAD_REQUEST, format!("{error}\n")),
    }
}

fn set(state: &State, name: &str, value: &str) -> Result<(), LoggingError> {
    match name {
        "level" => state.levels.set_level(value),
        "paths" => value.split(',').filter(|pair| !pair.is_empty()).try_for_each(|pair| {
            // The target contains colons itself; the level follows the last one.
            let (target, level) = pair.rsplit_once(':').ok_or_else(|| LoggingError::Pair(pair.to_owned()))?;
            state.levels.set_target(target, level)
        }),
        target => state.levels.set_target(target, value),
    }
}

fn active(levels: &str) -> String {
    let lines = levels.split(',').map(|level| match level.split_once('=') {
        Some((target, level)) => format!("  {target}: {level}\n"),
        None => format!("  default: {level}\n"),
    });
    std::iter::once("active loggers:\n".to_owned()).chain(lines).collect()
}
