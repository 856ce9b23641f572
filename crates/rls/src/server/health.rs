//! `grpc.health.v1.Health`, for the process as a whole (the empty name) and for `ratelimit`, the reference's name. Both
//! have the same status; Envoy queries the empty name by default.

use std::future::poll_fn;

use tonic::Status;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::grpc::{self, GrpcError};
use crate::handler::RlsHandler;
use weir_http::http2::SendStream;

const SERVICE_NAMES: [&str; 2] = ["", "ratelimit"];

/// Returns the status of a service; `None` if it is unknown.
fn status(handler: &RlsHandler, request: &HealthCheckRequest) -> Option<ServingStatus> {
    let status = || if handler.is_healthy() { ServingStatus::Serving } else { ServingStatus::NotServing };
    SERVICE_NAMES.contains(&request.service.as_str()).then(status)
}

pub(super) fn check(
    handler: &RlsHandler,
    request: &HealthCheckRequest,
) -> Result<HealthCheckResponse, Status> {
    let status = status(handler, request).ok_or_else(|| Status::not_found("unknown service"))?;
    Ok(HealthCheckResponse { status: status.into() })
}

/// Sends the status to `stream` at once and after each change. The stream stays open for an unknown service, too
/// (grpc.health.v1, "Watch").
pub(super) async fn watch(
    handler: &RlsHandler,
    request: &HealthCheckRequest,
    mut stream: SendStream,
) -> Result<(), GrpcError> {
    // Created before the first check, so that no change is missed.
    let mut watch = handler.watch_health();
    let mut last_sent = None;
    loop {
        let status = status(handler, request).unwrap_or(ServingStatus::ServiceUnknown);
        if last_sent.replace(status) != Some(status) {
            let mut message = grpc::encode_message(&HealthCheckResponse { status: status.into() })?;
            poll_fn(|cx| stream.poll_send(&mut message, false, cx)).await?;
        }
        tokio::select! {
            () = watch.changed() => {}
            error = poll_fn(|cx| stream.poll_reset(cx)) => return Err(error.into()),
        }
    }
}
