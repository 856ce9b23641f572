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
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::wire;
use crate::rls::desk::Desk;
use crate::rls::quota::{Assignment, BucketId, Quotas, Strategy, StreamId, TIME_TO_LIVE, Usage};

/// Responses that a client has not taken yet; one more ends its stream, for nobody knows what such a client goes by.
const MAX_WAITING: usize = 256;

/// Streams in all; an Envoy has one.
const MAX_STREAMS: usize = 10_000;

/// Buckets of one report: an Envoy reports on all that it has used.
const MAX_USAGES: usize = 10_000;

/// Buckets that are divided without a pause for what else there is to do on this thread.
const BATCH: usize = 128;

type Outgoing = Result<RateLimitQuotaResponse, Status>;

/// What all streams share.
#[derive(Debug, Default)]
pub(super) struct Streams {
    quotas: Quotas,
    open: HashMap<StreamId, Outbox>,
    last: StreamId,
}

/// Where responses of one stream go.
#[derive(Debug)]
struct Outbox {
    responses: Sender<Outgoing>,
    /// Too many have not been taken.
    overflowed: Arc<Notify>,
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
        let (sender, receiver) = channel(MAX_WAITING);
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
    /// Ends when nobody takes responses any more.
    sender: Sender<Outgoing>,
    overflowed: Arc<Notify>,
}

impl Open {
    fn new(service: Quota, sender: Sender<Outgoing>) -> Result<Self, Status> {
        let overflowed = Arc::<Notify>::default();
        let mut streams = service.streams.lock();
        if streams.open.len() >= MAX_STREAMS {
            return Err(Status::resource_exhausted("too many streams"));
        }
        streams.last += 1;
        let id = streams.last;
        let outbox = Outbox { responses: sender.clone(), overflowed: Arc::clone(&overflowed) };
        streams.open.insert(id, outbox);
        drop(streams);
        Ok(Self { service, id, sender, overflowed })
    }

    /// Takes reports until the client, or the connection, has gone.
    async fn follow(self, mut reports: Streaming<RateLimitQuotaUsageReports>) {
        // Named in the first report; later ones may leave it out.
        let mut domain = String::new();
        loop {
            let report = tokio::select! {
                report = reports.message() => report,
                () = self.sender.closed() => return,
                () = self.overflowed.notified() => return,
            };
            match report {
                Ok(Some(report)) => {
                    if let Err(status) = self.take(report, &mut domain).await {
                        return self.end(status);
                    }
                }
                Ok(None) => return,
                Err(status) => return self.end(status),
            }
        }
    }

    fn end(&self, status: Status) {
        // One that takes nothing learns nothing.
        let _ = self.sender.try_send(Err(status));
    }

    async fn take(&self, report: RateLimitQuotaUsageReports, domain: &mut String) -> Result<(), Status> {
        if !report.domain.is_empty() {
            *domain = report.domain;
        }
        if domain.is_empty() {
            return Err(Status::invalid_argument("a report without a domain"));
        }
        let count = report.bucket_quota_usages.len();
        if count > MAX_USAGES {
            let message = format!("too many buckets in one report, at most {MAX_USAGES}: {count}");
            return Err(Status::invalid_argument(message));
        }
        let mut usages = report.bucket_quota_usages.into_iter().map(usage).peekable();
        while usages.peek().is_some() {
            self.report(domain, usages.by_ref().take(BATCH).collect());
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn report(&self, domain: &str, usages: Vec<Usage>) {
        let (rules, now) = self.service.desk.rules_now();
        let mut streams = self.service.streams.lock();
        let assignments = streams.quotas.report(&rules, (self.id, domain), usages, now);
        let mut by_stream: HashMap<StreamId, Vec<Action>> = HashMap::new();
        // In their order: lower assignments are sent before higher ones.
        let mut order: Vec<StreamId> = Vec::new();
        for assignment in assignments {
            let to = assignment.to;
            by_stream.entry(to).or_insert_with(|| {
                order.push(to);
                Vec::new()
            });
            by_stream.entry(to).or_default().push(action(assignment));
        }
        // Under the lock in which they were decided, so that a client gets them in that order.
        for stream in order {
            let actions = by_stream.remove(&stream).unwrap_or_default();
            streams.send(stream, RateLimitQuotaResponse { bucket_action: actions });
        }
    }
}

impl Streams {
    fn send(&mut self, to: StreamId, response: RateLimitQuotaResponse) {
        let Some(outbox) = self.open.get(&to) else { return };
        if outbox.responses.try_send(Ok(response)).is_err() {
            // What it was assigned before may be in force until it has run out.
            outbox.overflowed.notify_one();
            self.open.remove(&to);
            self.quotas.leave(to);
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
