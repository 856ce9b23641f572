//! `envoy.service.rate_limit_quota.v3.RateLimitQuotaService`: one stream per Envoy, with reports in one direction and
//! assignments in the other, at any time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::BucketAction as Action;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::bucket_action::{
    AbandonAction, BucketAction, QuotaAssignmentAction,
};
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::{
    BucketId as WireBucket, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
};
use envoy_types::pb::envoy::r#type::v3::rate_limit_strategy::{BlanketRule, Strategy as WireStrategy};
use envoy_types::pb::envoy::r#type::v3::{RateLimitStrategy, TokenBucket};
use envoy_types::pb::google::protobuf::UInt32Value;
use parking_lot::Mutex;
use tonic::Status;

use super::report_reader::ReportReader;
use super::response_queue::{ResponseReceiver, ResponseSender, response_channel};
use super::wire;
use crate::handler::RlsHandler;
use crate::quota::{
    ASSIGNMENT_TIME_TO_LIVE, AssignedStrategy, Assignment, BucketId, BucketUsage, QuotaBuckets, StreamId,
};

/// Maximum bytes in the queues of all streams. Above it, the streams with the longest queues are ended.
const MAX_TOTAL_QUEUED_BYTES: usize = 64 << 20;

/// Maximum number of streams; an Envoy has one.
const MAX_STREAMS: usize = 10_000;

/// Maximum buckets in one report. An Envoy reports on all that it has used.
const MAX_BUCKETS_PER_REPORT: usize = 10_000;

/// Number of buckets that are processed before yielding to other tasks of the thread.
const BATCH_SIZE: usize = 128;

/// State that all streams share.
#[derive(Debug, Default)]
pub(super) struct QuotaStreams {
    buckets: QuotaBuckets,
    senders: HashMap<StreamId, ResponseSender>,
    last_id: StreamId,
    /// Total bytes in the queues of all streams.
    total_queued_bytes: Arc<AtomicUsize>,
}

/// An open stream, removed on drop.
pub(super) struct QuotaStream<'a> {
    handler: &'a RlsHandler,
    all: &'a Mutex<QuotaStreams>,
    id: StreamId,
    sender: ResponseSender,
}

impl<'a> QuotaStream<'a> {
    /// Opens a stream with a queue of responses.
    pub(super) fn open(
        handler: &'a RlsHandler,
        all: &'a Mutex<QuotaStreams>,
    ) -> Result<(Self, ResponseReceiver), Status> {
        let mut streams = all.lock();
        if streams.senders.len() >= MAX_STREAMS {
            return Err(Status::resource_exhausted("too many streams"));
        }
        streams.last_id += 1;
        let id = streams.last_id;
        let (sender, responses) = response_channel(Arc::clone(&streams.total_queued_bytes));
        streams.senders.insert(id, sender.clone());
        drop(streams);
        Ok((Self { handler, all, id, sender }, responses))
    }

    /// Processes reports until they end, or the queue does. Returns the status with which the stream ends.
    pub(super) async fn run(&self, reports: ReportReader) -> Result<(), Status> {
        let result = tokio::select! {
            result = self.read_reports(reports) => result,
            result = self.sender.ended() => result,
        };
        self.all.lock().buckets.close_stream(self.id);
        self.sender.end_stream(result.clone());
        result
    }

    async fn read_reports(&self, mut reports: ReportReader) -> Result<(), Status> {
        // The first report names the domain; later ones may omit it.
        let mut domain = String::new();
        while let Some(report) = reports.next().await? {
            self.handle_report(report, &mut domain).await?;
        }
        Ok(())
    }

    async fn handle_report(
        &self,
        report: RateLimitQuotaUsageReports,
        domain: &mut String,
    ) -> Result<(), Status> {
        if !report.domain.is_empty() {
            *domain = report.domain;
        }
        if domain.is_empty() {
            return Err(Status::invalid_argument("the report has no domain"));
        }
        let count = report.bucket_quota_usages.len();
        if count > MAX_BUCKETS_PER_REPORT {
            let message =
                format!("too many buckets in one report, at most {MAX_BUCKETS_PER_REPORT}: {count}");
            return Err(Status::invalid_argument(message));
        }
        let mut usages = report.bucket_quota_usages.into_iter().map(usage_from_proto).peekable();
        while usages.peek().is_some() {
            self.apply_usages(domain, usages.by_ref().take(BATCH_SIZE).collect());
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn apply_usages(&self, domain: &str, usages: Vec<BucketUsage>) {
        let (rules, now) = self.handler.rules_and_time();
        let mut streams = self.all.lock();
        let assignments = streams.buckets.process_report(&rules, self.id, domain, usages, now);
        let mut by_stream: HashMap<StreamId, Vec<Action>> = HashMap::new();
        // Preserves the order, in which lower assignments precede higher ones.
        let mut order: Vec<StreamId> = Vec::new();
        for assignment in assignments {
            let to = assignment.client;
            by_stream.entry(to).or_insert_with(|| {
                order.push(to);
                Vec::new()
            });
            by_stream.entry(to).or_default().push(assignment_to_proto(assignment));
        }
        // Under the same lock as the decision, so that a client receives assignments in order.
        for stream in order {
            let actions = by_stream.remove(&stream).unwrap_or_default();
            streams.send(stream, RateLimitQuotaResponse { bucket_action: actions });
        }
    }
}

impl QuotaStreams {
    fn send(&mut self, to: StreamId, response: RateLimitQuotaResponse) {
        let Some(sender) = self.senders.get(&to) else { return };
        if !sender.push(response) {
            self.end_overflowed(to);
        }
        while self.total_queued_bytes.load(Ordering::Relaxed) > MAX_TOTAL_QUEUED_BYTES {
            let fullest = self.senders.iter().max_by_key(|(_, sender)| sender.queued_bytes());
            let Some(fullest) = fullest.map(|(id, _)| *id) else { return };
            self.end_overflowed(fullest);
        }
    }

    /// Ends a stream whose client receives too slowly. Its assignments may be in force until they expire.
    fn end_overflowed(&mut self, stream: StreamId) {
        self.senders.remove(&stream).into_iter().for_each(|sender| sender.end_overflowed());
        self.buckets.close_stream(stream);
    }
}

impl Drop for QuotaStream<'_> {
    fn drop(&mut self) {
        let mut streams = self.all.lock();
        streams.senders.remove(&self.id);
        streams.buckets.close_stream(self.id);
    }
}

fn usage_from_proto(wire: BucketQuotaUsage) -> BucketUsage {
    BucketUsage {
        bucket: wire.bucket_id.map(|id| BucketId::from_iter(id.bucket)).unwrap_or_default(),
        elapsed: wire.time_elapsed.map(wire::duration_from_proto).unwrap_or_default(),
        allowed: wire.num_requests_allowed,
        denied: wire.num_requests_denied,
    }
}

fn assignment_to_proto(assignment: Assignment) -> Action {
    let action = match assignment.strategy {
        None => BucketAction::AbandonAction(AbandonAction {}),
        Some(strategy) => BucketAction::QuotaAssignmentAction(QuotaAssignmentAction {
            assignment_time_to_live: Some(wire::duration_to_proto(ASSIGNMENT_TIME_TO_LIVE)),
            rate_limit_strategy: Some(RateLimitStrategy { strategy: Some(strategy_to_proto(strategy)) }),
        }),
    };
    let bucket = WireBucket { bucket: assignment.bucket.into_iter().collect() };
    Action { bucket_id: Some(bucket), bucket_action: Some(action) }
}

/// Converts a strategy. Limits become token buckets, because Envoy does not support requests per unit of time.
fn strategy_to_proto(strategy: AssignedStrategy) -> WireStrategy {
    match strategy {
        AssignedStrategy::AllowAll => WireStrategy::BlanketRule(BlanketRule::AllowAll.into()),
        AssignedStrategy::DenyAll => WireStrategy::BlanketRule(BlanketRule::DenyAll.into()),
        AssignedStrategy::TokenBucket { tokens: count, period: per } => {
            WireStrategy::TokenBucket(TokenBucket {
                max_tokens: count,
                tokens_per_fill: Some(UInt32Value { value: count }),
                fill_interval: Some(wire::duration_to_proto(per)),
            })
        }
    }
}
