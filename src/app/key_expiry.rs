//! The heaviest keys as time passes: their demand is kept for suggestions, and the memory of windows that have passed
//! is freed.

use std::sync::Arc;
use std::time::Duration;

use crate::proxy::ProxyState;
use weir_limiter::timestamp::Timestamp;
use weir_telemetry::observe::demand::MAX_SAMPLED_KEYS;
use weir_telemetry::observe::key_writer::key_of;
use weir_telemetry::observe::top_keys::window_number;

/// Interval at which the end of a window is looked for: a fraction of one, so that none is missed.
const INTERVAL: Duration = Duration::from_secs(15);

/// Runs for as long as it is polled.
pub(super) async fn run(shared: &Arc<ProxyState>) {
    let mut interval = tokio::time::interval(INTERVAL);
    let mut current = window_number(shared.clock.now());
    loop {
        interval.tick().await;
        let now = shared.clock.now();
        if window_number(now) != current {
            current = window_number(now);
            record_demand(shared, now);
            shared.top_keys.expire(now);
        }
    }
}

/// Records the demand of the window that has ended before `now`.
fn record_demand(shared: &ProxyState, now: Timestamp) {
    let policy = Arc::clone(&shared.generation.load().policy);
    let rules = policy.rules.rules();
    shared.demand.retain(|name| rules.iter().any(|rule| *rule.name == *name));
    for rule in rules {
        let Some(key) = key_of(rule) else { continue };
        let top = shared.top_keys.top_of_last_window(&rule.name, MAX_SAMPLED_KEYS, now);
        if !top.keys.is_empty() {
            shared.demand.record(&rule.name, &key.to_string(), &top, now);
        }
    }
}
