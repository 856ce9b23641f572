//! `envoy.service.rate_limit_quota.v3.RateLimitQuotaService`: one stream per Envoy, with reports in one direction and
//! assignments in the other, at any time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
use tonic::{Request, Response, Status, Streaming};

use super::outbox::{Outbox, Responses, outbox};
use super::reports::{Handover, Reports};
use super::wire;
use crate::rls::desk::Desk;
use crate::rls::quota::{Assignment, BucketId, Quotas, Strategy, StreamId, TIME_TO_LIVE, Usage};

/// Maximum bytes in the queues of all streams. Above it, the streams with the longest queues are ended.
const MAX_WAITING_IN_ALL: usize = 64 << 20;

/// Maximum number of streams; an Envoy has one.
const MAX_STREAMS: usize = 10_000;

/// Maximum buckets in one report. An Envoy reports on all that it has used.
const MAX_USAGES: usize = 10_000;

/// Number of buckets that are processed before yielding to other tasks of the thread.
const BATCH: usize = 128;

/// State that all streams share.
#[derive(Debug, Default)]
pub(super) struct Streams {
    quotas: Quotas,
    open: HashMap<StreamId, Outbox>,
    last: StreamId,
    /// Total bytes in the queues of all streams.
    waiting: Arc<AtomicUsize>,
}

/// The quota service.
#[derive(Clone, Debug)]
pub(super) struct Quota {
    pub(super) desk: Arc<Desk>,
    pub(super) streams: Arc<Mutex<Streams>>,
}

#[tonic::async_trait]
impl RateLimitQuotaService for Quota {
    type StreamRateLimitQuotasStream = Responses;

    async fn stream_rate_limit_quotas(
        &self,
        request: Request<Streaming<RateLimitQuotaUsageReports>>,
    ) -> Result<Response<Responses>, Status> {
        let reports = request.extensions().get().and_then(Handover::take);
        let reports = reports.ok_or_else(|| Status::internal("the call has no body"))?;
        let (opened, responses) = Open::new(self.clone())?;
        tokio::task::spawn(opened.follow(reports));
        Ok(Response::new(responses))
    }
}

/// An open stream, removed on drop.
struct Open {
    service: Quota,
    id: StreamId,
    outbox: Outbox,
}

impl Open {
    fn new(service: Quota) -> Result<(Self, Responses), Status> {
        let mut streams = service.streams.lock();
        if streams.open.len() >= MAX_STREAMS {
            return Err(Status::resource_exhausted("too many streams"));
        }
        streams.last += 1;
        let id = streams.last;
        let (outbox, responses) = outbox(Arc::clone(&streams.waiting));
        streams.open.insert(id, outbox.clone());
        drop(streams);
        Ok((Self { service, id, outbox }, responses))
    }

    /// Processes reports until they end, then waits until the queue has been sent or dropped.
    async fn follow(self, reports: Reports) {
        let how = tokio::select! {
            how = self.take_all(reports) => how,
            () = self.outbox.ended() => Ok(()),
        };
        self.service.streams.lock().quotas.leave(self.id);
        self.outbox.end(how);
        self.outbox.gone().await;
    }

    async fn take_all(&self, mut reports: Reports) -> Result<(), Status> {
        // The first report names the domain; later ones may omit it.
        let mut domain = String::new();
        while let Some(report) = reports.next().await? {
            self.take(report, &mut domain).await?;
        }
        Ok(())
    }

    async fn take(&self, report: RateLimitQuotaUsageReports, domain: &mut String) -> Result<(), Status> {
        if !report.domain.is_empty() {
            *domain = report.domain;
        }
        if domain.is_empty() {
            return Err(Status::invalid_argument("the report has no domain"));
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
        // Preserves the order, in which lower assignments precede higher ones.
        let mut order: Vec<StreamId> = Vec::new();
        for assignment in assignments {
            let to = assignment.to;
            by_stream.entry(to).or_insert_with(|| {
                order.push(to);
                Vec::new()
            });
            by_stream.entry(to).or_default().push(action(assignment));
        }
        // Under the same lock as the decision, so that a client receives assignments in order.
        for stream in order {
            let actions = by_stream.remove(&stream).unwrap_or_default();
            streams.send(stream, RateLimitQuotaResponse { bucket_action: actions });
        }
    }
}

impl Streams {
    fn send(&mut self, to: StreamId, response: RateLimitQuotaResponse) {
        let Some(outbox) = self.open.get(&to) else { return };
        if !outbox.push(response) {
            self.overflow(to);
        }
        while self.waiting.load(Ordering::Relaxed) > MAX_WAITING_IN_ALL {
            let fullest = self.open.iter().max_by_key(|(_, outbox)| outbox.waiting());
            let Some(fullest) = fullest.map(|(id, _)| *id) else { return };
            self.overflow(fullest);
        }
    }

    /// Ends a stream whose client receives too slowly. Its assignments may be in force until they expire.
    fn overflow(&mut self, stream: StreamId) {
        self.open.remove(&stream).into_iter().for_each(|outbox| outbox.overflow());
        self.quotas.leave(stream);
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

/// Converts a strategy. Limits become token buckets, because Envoy does not support requests per unit of time.
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
