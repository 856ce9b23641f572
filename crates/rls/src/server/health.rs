//! `grpc.health.v1.Health`, for the process as a whole (the empty name) and for `ratelimit`, the reference's name. Both
//! have the same status; Envoy queries the empty name by default.

use std::sync::Arc;

use tokio::sync::mpsc::{Sender, channel};
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health as HealthService;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::handler::RlsHandler;

const SERVICE_NAMES: [&str; 2] = ["", "ratelimit"];

/// The health service.
#[derive(Clone, Debug)]
pub(super) struct GrpcHealth(pub(super) Arc<RlsHandler>);

impl GrpcHealth {
    fn status(&self) -> i32 {
        if self.0.is_healthy() { ServingStatus::Serving } else { ServingStatus::NotServing }.into()
    }

    /// Sends the status to `sender` at once and after each change.
    async fn send_updates(self, sender: Sender<Result<HealthCheckResponse, Status>>) {
        // Created before the first check, so that no change is missed.
        let mut watch = self.0.watch_health();
        let mut last_sent = None;
        loop {
            let status = self.status();
            if last_sent.replace(status) != Some(status)
                && sender.send(Ok(HealthCheckResponse { status })).await.is_err()
            {
                return;
            }
            tokio::select! {
                () = watch.changed() => {}
                () = sender.closed() => return,
            }
        }
    }
}

#[tonic::async_trait]
impl HealthService for GrpcHealth {
    type WatchStream = ReceiverStream<Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match SERVICE_NAMES.contains(&request.get_ref().service.as_str()) {
            true => Ok(Response::new(HealthCheckResponse { status: self.status() })),
            false => Err(Status::not_found("unknown service")),
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (sender, receiver) = channel(1);
        if SERVICE_NAMES.contains(&request.get_ref().service.as_str()) {
            tokio::task::spawn(self.clone().send_updates(sender));
        } else {
            // For an unknown service the stream stays open (grpc.health.v1, "Watch").
            let unknown = HealthCheckResponse { status: ServingStatus::ServiceUnknown.into() };
            tokio::task::spawn(async move {
                if sender.send(Ok(unknown)).await.is_ok() {
                    sender.closed().await;
                }
            });
        }
        Ok(Response::new(receiver.into()))
    }
}
