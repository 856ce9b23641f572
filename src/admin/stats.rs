//! Numbers, under Weir's names and Envoy's.

use http::StatusCode;
use regex::RegexBuilder;

use super::State;
use super::query::Query;
use super::reply::{self, Reply};
use super::scrape::scrape;
use crate::telemetry::metrics::StatsFilter;

/// A filter that a person types needs a fraction of this.
const REGEX_SIZE_LIMIT: usize = 1 << 20;

/// `GET /metrics`
pub(super) fn metrics(state: &State, _: &Query<'_>) -> Reply {
    reply::prometheus(state.metrics.render(&scrape(state)))
}

/// `GET /stats[?filter=REGEX][&usedonly][&format=text|json|prometheus]`
pub(super) fn stats(state: &State, query: &Query<'_>) -> Reply {
    let filter = match filter(query) {
        Ok(filter) => filter,
        Err(error) => return reply::text(StatusCode::BAD_REQUEST, format!("Invalid regex: \"{error}\"\n")),
    };
    let stats = state.metrics.stats(&scrape(state), &filter);
    match query.get("format").as_deref() {
        None | Some("text") => reply::text(StatusCode::OK, stats.text()),
        Some("json") => reply::json(&stats.json()),
        Some("prometheus") => reply::prometheus(stats.prometheus()),
        Some(_) => reply::text(StatusCode::BAD_REQUEST, "usage: /stats?format=text|json|prometheus\n"),
    }
}

/// `GET /stats/prometheus[?filter=REGEX][&usedonly]`
pub(super) fn prometheus(state: &State, query: &Query<'_>) -> Reply {
    match filter(query) {
        Ok(filter) => reply::prometheus(state.metrics.stats(&scrape(state), &filter).prometheus()),
        Err(error) => reply::text(StatusCode::BAD_REQUEST, format!("Invalid regex: \"{error}\"\n")),
    }
}

fn filter(query: &Query<'_>) -> Result<StatsFilter, regex::Error> {
    let compile = |regex: &str| RegexBuilder::new(regex).size_limit(REGEX_SIZE_LIMIT).build();
    let name = query.get("filter").map(|regex| compile(&regex)).transpose()?;
    Ok(StatsFilter { name, used_only: query.get("usedonly").is_some() })
}
