//! Endpoints that change the process.

use http::StatusCode;

use super::query::Query;
use super::response::{self, FullResponse};
use super::{AdminState, audit};
use weir_net::drain::DrainPhase;
use weir_telemetry::logging::LoggingError;

/// `POST /healthcheck/fail`
pub(super) fn healthcheck_fail(state: &AdminState, query: &Query<'_>) -> FullResponse {
    audit::record_command(query, "readiness fails");
    state.drain.set_healthy(false);
    response::ok()
}

/// `POST /healthcheck/ok`
pub(super) fn healthcheck_ok(state: &AdminState, query: &Query<'_>) -> FullResponse {
    audit::record_command(query, "readiness restored");
    state.drain.set_healthy(true);
    response::ok()
}

/// `POST /drain_listeners[?graceful]`
pub(super) fn drain_listeners(state: &AdminState, query: &Query<'_>) -> FullResponse {
    let (phase, detail) = match query.get("graceful") {
        Some(_) => (DrainPhase::NotReady, "readiness fails, permanently"),
        None => (DrainPhase::Draining, "the listeners drain"),
    };
    audit::record_command(query, detail);
    state.drain.advance(phase);
    response::ok()
}

/// `POST /quitquitquit`
pub(super) fn quit(state: &AdminState, query: &Query<'_>) -> FullResponse {
    audit::record_command(query, "the process ends");
    state.drain.request_exit();
    response::ok()
}

/// `POST /logging[?level=LEVEL][&paths=TARGET:LEVEL,...][&TARGET=LEVEL]`
pub(super) fn logging(state: &AdminState, query: &Query<'_>) -> FullResponse {
    let before = state.log_levels.describe();
    let result = query.pairs().try_for_each(|(name, value)| set_levels(state, &name, &value));
    let levels = state.log_levels.describe();
    // Levels before an invalid one have been set.
    if levels != before {
        audit::record_command(query, &levels);
    }
    match result {
        Ok(()) => response::text(StatusCode::OK, format_levels(&levels)),
        Err(error) => response::text(StatusCode::BAD_REQUEST, format!("{error}\n")),
    }
}

fn set_levels(state: &AdminState, name: &str, value: &str) -> Result<(), LoggingError> {
    match name {
        "level" => state.log_levels.set_level(value),
        "paths" => value.split(',').filter(|pair| !pair.is_empty()).try_for_each(|pair| {
            // The target contains colons itself; the level follows the last one.
            let (target, level) =
                pair.rsplit_once(':').ok_or_else(|| LoggingError::InvalidTarget(pair.to_owned()))?;
            state.log_levels.set_target(target, level)
        }),
        target => state.log_levels.set_target(target, value),
    }
}

fn format_levels(levels: &str) -> String {
    let lines = levels.split(',').map(|level| match level.split_once('=') {
        Some((target, level)) => format!("  {target}: {level}\n"),
        None => format!("  default: {level}\n"),
    });
    std::iter::once("active loggers:\n".to_owned()).chain(lines).collect()
}
