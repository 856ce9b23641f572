//! The quota service, with streams of the test's own and with a real Envoy.

use std::time::Duration;

use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::bucket_action::BucketAction;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_service_client::RateLimitQuotaServiceClient;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::{
    BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
};
use envoy_types::pb::envoy::r#type::v3::rate_limit_strategy::Strategy;
use envoy_types::pb::google::protobuf;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;

use super::{RlsClient, RlsService};
use crate::support::envoy::{Envoy, grpc_cluster};
use crate::support::{Origin, wait};

const RULES: &str = "\
domain: quotas
descriptors:
  - key: plan
    value: free
    descriptors:
      - key: name
        rate_limit: { unit: minute, requests_per_unit: 100 }
  - key: plan
    value: none
    rate_limit: { unit: minute, requests_per_unit: 0 }
  - key: plan
    value: all
    rate_limit: { unlimited: true }
";

/// A stream of reports, as Envoy opens it.
struct QuotaReporter<'a> {
    client: &'a RlsClient,
    reports: mpsc::Sender<RateLimitQuotaUsageReports>,
    responses: tonic::Streaming<RateLimitQuotaResponse>,
}

impl<'a> QuotaReporter<'a> {
    fn open(client: &'a RlsClient) -> Self {
        let (reports, receiver) = mpsc::channel(8);
        let mut service = RateLimitQuotaServiceClient::new(client.channel.clone());
        let opened = service.stream_rate_limit_quotas(ReceiverStream::new(receiver));
        let answers = client.runtime.block_on(opened).unwrap().into_inner();
        Self { client, reports, responses: answers }
    }

    /// Reports `requests` within five seconds. With 0, sends the first report of a bucket, for one request.
    fn report(&self, bucket: &[(&str, &str)], requests: u64) {
        let bucket = bucket.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let seconds = if requests == 0 { 0 } else { 5 };
        let usage = BucketQuotaUsage {
            bucket_id: Some(BucketId { bucket }),
            time_elapsed: Some(protobuf::Duration { seconds, nanos: 0 }),
            num_requests_allowed: requests.max(1),
            num_requests_denied: 0,
        };
        let report =
            RateLimitQuotaUsageReports { domain: "quotas".to_owned(), bucket_quota_usages: vec![usage] };
        self.client.runtime.block_on(self.reports.send(report)).unwrap();
    }

    /// Waits for the next assignment and returns its strategy. There must be only one bucket.
    fn next_assignment(&mut self) -> Strategy {
        self.next_assignment_within(Duration::from_secs(10)).expect("an assignment")
    }

    fn next_assignment_within(&mut self, limit: Duration) -> Option<Strategy> {
        let message = async { tokio::time::timeout(limit, self.responses.message()).await };
        let actions = self.client.runtime.block_on(message).ok()?.unwrap().unwrap().bucket_action;
        assert_eq!(actions.len(), 1);
        match actions.into_iter().next().unwrap().bucket_action.unwrap() {
            BucketAction::QuotaAssignmentAction(assignment) => {
                let holds = assignment.assignment_time_to_live.unwrap().seconds;
                assert!(holds > 5, "an assignment outlives the interval of reports");
                Some(assignment.rate_limit_strategy.unwrap().strategy.unwrap())
            }
            BucketAction::AbandonAction(_) => panic!("unexpected abandon action"),
        }
    }

    /// Waits until no assignment arrives for 300 ms, shorter than Envoy's interval of reports, and returns the tokens.
    fn settled_tokens(&mut self, mut tokens: u32) -> u32 {
        while let Some(strategy) = self.next_assignment_within(Duration::from_millis(300)) {
            tokens = match strategy {
                Strategy::TokenBucket(bucket) => bucket.max_tokens,
                _ => 0,
            };
        }
        tokens
    }

    fn assigned_tokens(&mut self) -> u32 {
        match self.next_assignment() {
            Strategy::TokenBucket(bucket) => {
                assert_eq!(bucket.fill_interval.unwrap().seconds, 60);
                assert_eq!(bucket.tokens_per_fill.unwrap().value, bucket.max_tokens);
                bucket.max_tokens
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn limit_is_divided_among_reporters_and_never_exceeded() {
    let service = RlsService::start(&[("quotas.yaml", RULES)]);
    let bucket = [("name", "x"), ("plan", "free")];
    let other_client = RlsClient::connect(service.weir.rls_address("grpc"));
    let mut one = QuotaReporter::open(&service.client);
    one.report(&bucket, 0);
    assert_eq!(one.assigned_tokens(), 100, "the only client gets the whole limit");
    let mut other = QuotaReporter::open(&other_client);
    other.report(&bucket, 0);
    assert_eq!(one.assigned_tokens(), 50, "the share of the first client is halved");
    assert_eq!(other.next_assignment(), Strategy::BlanketRule(1), "no tokens are free yet");
    // The first client has little demand: 12 per minute.
    let mut shares = (50, 0);
    for _ in 0..6 {
        shares = (one.settled_tokens(shares.0), other.settled_tokens(shares.1));
        assert!(shares.0 + shares.1 <= 100, "{shares:?}");
        one.report(&bucket, 1);
        other.report(&bucket, 500);
    }
    shares = (one.settled_tokens(shares.0), other.settled_tokens(shares.1));
    assert!(shares.0 <= 20 && shares.1 >= 80, "{shares:?}");
}

#[test]
fn unlimited_and_zero_limits_are_blanket_rules() {
    let service = RlsService::start(&[("quotas.yaml", RULES)]);
    let mut stream = QuotaReporter::open(&service.client);
    stream.report(&[("plan", "none")], 0);
    assert_eq!(stream.next_assignment(), Strategy::BlanketRule(1));
    stream.report(&[("plan", "all")], 0);
    assert_eq!(stream.next_assignment(), Strategy::BlanketRule(0));
}

#[test]
fn envoy_enforces_its_assignment() {
    let rules =
        "domain: quotas\ndescriptors:\n  - key: name\n    rate_limit: { unit: hour, requests_per_unit: 3 }\n";
    let service = RlsService::start(&[("quotas.yaml", rules)]);
    let origin = Origin::hello();
    let host = json!({
        "name": "all",
        "domains": ["*"],
        "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "upstream" } }],
    });
    let clusters = [grpc_cluster("ratelimit", service.weir.rls_address("grpc"))];
    let envoy = Envoy::start(&[quota_filter()], &host, origin.address(), &clusters);
    // The first request of a bucket is admitted before there is an assignment. After that, at the latest the fourth
    // further request is rejected.
    assert_eq!(envoy.get("/").status, 200);
    wait::until_true("a rejection", || envoy.get("/").status == 429);
    let passed = origin.requests().len();
    assert!((2..=8).contains(&passed), "{passed} of 3 per hour and those before the assignment");
    assert_eq!(envoy.get("/").status, 429);
}

fn quota_filter() -> Value {
    let settings = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.\
                  RateLimitQuotaBucketSettings",
        "bucket_id_builder": { "bucket_id_builder": { "name": { "string_value": "only" } } },
        "reporting_interval": "1s",
        "no_assignment_behavior": {
            "fallback_rate_limit": { "blanket_rule": "ALLOW_ALL" },
        },
    });
    json!({
        "name": "envoy.filters.http.rate_limit_quota",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.\
                      RateLimitQuotaFilterConfig",
            "domain": "quotas",
            "rlqs_server": { "envoy_grpc": { "cluster_name": "ratelimit" } },
            "bucket_matchers": { "on_no_match": { "action": {
                "name": "settings",
                "typed_config": settings,
            } } },
        },
    })
}
