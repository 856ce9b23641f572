//! `envoy.service.rate_limit_quota.v3.RateLimitQuotaService`: a stream per Envoy, on which reports come in and
//! assignments go out, at any time.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::BucketAction as Action;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::bucket_action::{
    AbandonAction, BucketAction, QuotaAssignmentAction,
};
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_service_server::RateLimitQuotaService;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::{
    BucketId as WireBucket, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
};
use envoy_types::pb::envoy::r#type::v3::rate_limit_strategy::{BlanketRule, Strategy as WireStrategy};
use envoy_types::pb::envoy::r#type::v3::{RateLimitStrategy, TokenBucket};
use envoy_types::pb::google::protobuf::UInt32Value;
use parking_lot::Mutex;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::wire;
use crate::rls::desk::Desk;
use crate::rls::quota::{Assignment, BucketId, Quotas, Strategy, StreamId, TIME_TO_LIVE, Usage};

/// Answers that a client has not taken yet. Beyond this it is told nothing new until its next report, which is
/// answered by what holds then.
const MOST_WAITING: usize = 64;

/// Streams in all; an Envoy has one.
const MOST_STREAMS: usize = 10_000;

type Outgoing = Result<RateLimitQuotaResponse, Status>;

/// What all streams share.
#[derive(Debug, Default)]
pub(super) struct Streams {
    quotas: Quotas,
    open: HashMap<StreamId, Sender<Outgoing>>,
    last: StreamId,
}

/// The service.
#[derive(Clone, Debug)]
pub(super) struct Quota {
    pub(super) desk: Arc<Desk>,
    pub(super) streams: Arc<Mutex<Streams>>,
}

#[tonic::async_trait]
impl RateLimitQuotaService for Quota {
    type StreamRateLimitQuotasStream = Answers;

    async fn stream_rate_limit_quotas(
        &self,
        request: Request<Streaming<RateLimitQuotaUsageReports>>,
    ) -> Result<Response<Answers>, Status> {
        let (sender, receiver) = channel(MOST_WAITING);
        let opened = Open::new(self.clone(), sender)?;
        tokio::task::spawn(opened.follow(request.into_inner()));
        Ok(Response::new(Answers(receiver)))
    }
}

/// What goes out on a stream.
#[derive(Debug)]
pub(super) struct Answers(Receiver<Outgoing>);

impl Stream for Answers {
    type Item = Outgoing;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Outgoing>> {
        self.0.poll_recv(cx)
    }
}

/// A stream that is open; gone when dropped.
struct Open {
    service: Quota,
    id: StreamId,
    /// Ends when nobody takes answers any more.
    sender: Sender<Outgoing>,
}

impl Open {
    fn new(service: Quota, sender: Sender<Outgoing>) -> Result<Self, Status> {
        let mut streams = service.streams.lock();
        if streams.open.len() >= MOST_STREAMS {
            return Err(Status::resource_exhausted("too many streams"));
        }
        streams.last += 1;
        let id = streams.last;
        streams.open.insert(id, sender.clone());
        drop(streams);
        Ok(Self { service, id, sender })
    }

    /// Takes reports until the client, or the connection, has gone.
    async fn follow(self, mut reports: Streaming<RateLimitQuotaUsageReports>) {
        // Named in the first report; later ones may leave it out.
        let mut domain = String::new();
        loop {
            let report = tokio::select! {
                report = reports.message() => report,
                () = self.sender.closed() => return,
            };
            let Ok(Some(report)) = report else { return };
            if !report.domain.is_empty() {
                domain = report.domain;
            }
            if domain.is_empty() {
                let _ = self.sender.try_send(Err(Status::invalid_argument("a report without a domain")));
                return;
            }
            let usages = report.bucket_quota_usages.into_iter().map(usage).collect();
            self.report(&domain, usages);
        }
    }

    fn report(&self, domain: &str, usages: Vec<Usage>) {
        let (rules, now) = self.service.desk.rules_now();
        let mut streams = self.service.streams.lock();
        let assignments = streams.quotas.report(&rules, (self.id, domain), usages, now);
        let mut by_stream: HashMap<StreamId, Vec<Action>> = HashMap::new();
        // In their order: who loses is told before who gets it.
        let mut order: Vec<StreamId> = Vec::new();
        for assignment in assignments {
            let to = assignment.to;
            by_stream.entry(to).or_insert_with(|| {
                order.push(to);
                Vec::new()
            });
            by_stream.entry(to).or_default().push(action(assignment));
        }
        for stream in order {
            let actions = by_stream.remove(&stream).unwrap_or_default();
            let answer = RateLimitQuotaResponse { bucket_action: actions };
            if let Some(sender) = streams.open.get(&stream) {
                // One that takes nothing learns of it when it reports next.
                let _ = sender.try_send(Ok(answer));
            }
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut streams = self.service.streams.lock();
        streams.open.remove(&self.id);
        streams.quotas.leave(self.id);
    }
}

fn usage(wire: BucketQuotaUsage) -> Usage {
    Usage {
        bucket: wire.bucket_id.map(|id| BucketId::from_iter(id.bucket)).unwrap_or_default(),
        elapsed: wire.time_elapsed.map(wire::elapsed).unwrap_or_default(),
        allowed: wire.num_requests_allowed,
        denied: wire.num_requests_denied,
    }
}

fn action(assignment: Assignment) -> Action {
    let action = match assignment.strategy {
        None => BucketAction::AbandonAction(AbandonAction {}),
        Some(strategy) => BucketAction::QuotaAssignmentAction(QuotaAssignmentAction {
            assignment_time_to_live: Some(wire::duration(TIME_TO_LIVE)),
            rate_limit_strategy: Some(RateLimitStrategy { strategy: Some(wire_strategy(strategy)) }),
        }),
    };
    let bucket = WireBucket { bucket: assignment.bucket.into_iter().collect() };
    Action { bucket_id: Some(bucket), bucket_action: Some(action) }
}

/// A token bucket, since Envoy refuses requests per unit of time.
fn wire_strategy(strategy: Strategy) -> WireStrategy {
    match strategy {
        Strategy::AllowAll => WireStrategy::BlanketRule(BlanketRule::AllowAll.into()),
        Strategy::DenyAll => WireStrategy::BlanketRule(BlanketRule::DenyAll.into()),
        Strategy::Tokens { count, per } => WireStrategy::TokenBucket(TokenBucket {
            max_tokens: count,
            tokens_per_fill: Some(UInt32Value { value: count }),
            fill_interval: Some(wire::duration(per)),
        }),
    }
}
