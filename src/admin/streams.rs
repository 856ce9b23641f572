//! Limits inside streams: what they are, and what they did.

use serde_json::Value;

use super::AdminState;
use weir_policy::rules::rule::Rule;
use weir_policy::rules::stream_limit::{StreamLimit, StreamMeasure};
use weir_telemetry::metrics::{StreamCounts, StreamOutcome};

/// Returns the limits of a rule, each as `describe` does it, and their counts since the start; `None` if it has none.
pub(super) fn list(
    state: &AdminState,
    rule: &Rule,
    describe: impl Fn(&StreamLimit) -> Value,
) -> Option<Value> {
    let streams = rule.action.limiting()?.streams.as_deref()?;
    let counts = state.metrics.stream_counts(&rule.name);
    let one = |limit: &StreamLimit| {
        let mut described = describe(limit);
        described["measure"] = limit.measure.as_str().into();
        described["units"] = units(&counts, limit.measure);
        described
    };
    Some(streams.limits.iter().map(one).collect())
}

fn units(counts: &[StreamCounts], measure: StreamMeasure) -> Value {
    let of_measure = counts.iter().find(|counts| counts.measure.index() == measure.index());
    let units = of_measure.map_or([0; 3], |counts| counts.units);
    StreamOutcome::ALL
        .into_iter()
        .zip(units)
        .map(|(outcome, units)| (outcome.as_str().to_owned(), Value::from(units)))
        .collect()
}
