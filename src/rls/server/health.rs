//! `grpc.health.v1.Health`, for the process as a whole (the empty name) and for `ratelimit`, as the reference calls
//! itself. Both say the same, and the truth: Envoy asks for the empty name unless told otherwise.

use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use crate::rls::desk::Desk;

const NAMES: [&str; 2] = ["", "ratelimit"];

/// What is said of health; the same for all workers.
#[derive(Clone, Debug, Default)]
pub struct Health(HealthReporter);

impl Health {
    pub(super) fn server(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.0.clone()))
    }

    /// Says what is true of `desk`, and goes on saying it for as long as it is polled.
    pub async fn follow(&self, desk: &Desk) {
        // From before the first look on: what changes in between is not missed.
        let mut watch = desk.watch_health();
        let mut said = None;
        loop {
            let is_healthy = desk.is_healthy();
            if said.replace(is_healthy) != Some(is_healthy) {
                self.say(is_healthy).await;
            }
            watch.changed().await;
        }
    }

    async fn say(&self, is_healthy: bool) {
        let status = if is_healthy { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in NAMES {
            self.0.set_service_status(name, status).await;
        }
    }
}
