//! Frees the memory of the heaviest keys once their windows have passed.

use std::sync::Arc;

use crate::proxy::ProxyState;
use weir_telemetry::observe::top_keys::WINDOW;

/// Runs for as long as it is polled.
pub(super) async fn run(shared: &Arc<ProxyState>) {
    let mut interval = tokio::time::interval(WINDOW);
    loop {
        interval.tick().await;
        shared.top_keys.expire(shared.clock.now());
    }
}
