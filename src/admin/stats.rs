//! Metrics under Weir's and Envoy's names.

use http::StatusCode;
use regex::RegexBuilder;

use super::AdminState;
use super::query::Query;
use super::response::{self, FullResponse};
use super::scrape::scrape;
use weir_telemetry::metrics::StatsFilter;

/// Maximum size of a compiled filter expression, in bytes; far more than a hand-written filter needs.
const REGEX_SIZE_LIMIT: usize = 1 << 20;

/// `GET /metrics`
pub(super) fn metrics(state: &AdminState, _: &Query<'_>) -> FullResponse {
    response::prometheus(state.metrics.render(&scrape(state)))
}

/// `GET /stats[?filter=REGEX][&usedonly][&format=text|json|prometheus]`
pub(super) fn stats(state: &AdminState, query: &Query<'_>) -> FullResponse {
    let filter = match filter(query) {
        Ok(filter) => filter,
        Err(error) => {
            return response::text(StatusCode::BAD_REQUEST, format!("Invalid regex: \"{error}\"\n"));
        }
    };
    let stats = state.metrics.envoy_stats(&scrape(state), &filter);
    match query.get("format").as_deref() {
        None | Some("text") => response::text(StatusCode::OK, stats.to_text()),
        Some("json") => response::json(&stats.to_json()),
        Some("prometheus") => response::prometheus(stats.to_prometheus()),
        Some(_) => response::text(StatusCode::BAD_REQUEST, "usage: /stats?format=text|json|prometheus\n"),
    }
}

/// `GET /stats/prometheus[?filter=REGEX][&usedonly]`
pub(super) fn prometheus(state: &AdminState, query: &Query<'_>) -> FullResponse {
    match filter(query) {
        Ok(filter) => {
            response::prometheus(state.metrics.envoy_stats(&scrape(state), &filter).to_prometheus())
        }
        Err(error) => response::text(StatusCode::BAD_REQUEST, format!("Invalid regex: \"{error}\"\n")),
    }
}

fn filter(query: &Query<'_>) -> Result<StatsFilter, regex::Error> {
    let compile = |regex: &str| RegexBuilder::new(regex).size_limit(REGEX_SIZE_LIMIT).build();
    let name = query.get_with_plus("filter").map(|regex| compile(&regex)).transpose()?;
    Ok(StatsFilter { name, used_only: query.get("usedonly").is_some() })
}
