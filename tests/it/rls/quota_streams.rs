//! Memory held by quota streams whose clients are slow, idle or hostile.

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::{BucketId, RateLimitQuotaUsageReports};
use h2::SendStream;
use h2::client::ResponseFuture;
use prost::Message as _;

use super::RlsService;
use crate::support::h2::H2Client;
use crate::support::wait::{throughout, until_true};

const RULES: &str =
    "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: hour, requests_per_unit: 1000000 }\n";

const QUOTAS: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

fn open_quota_stream(h2: &mut H2Client) -> (ResponseFuture, SendStream<Bytes>) {
    let call = h2.request("POST", QUOTAS).header("content-type", "application/grpc").header("te", "trailers");
    h2.send_request(call, false)
}

/// Returns an encoded report on `count` buckets whose values have `bytes` bytes each.
fn encode_report(count: usize, bytes: usize) -> Bytes {
    let usage = |index: usize| BucketQuotaUsage {
        bucket_id: Some(BucketId {
            bucket: [("k".to_owned(), format!("{index}{}", "x".repeat(bytes)))].into_iter().collect(),
        }),
        num_requests_allowed: 1,
        ..BucketQuotaUsage::default()
    };
    let usages = (0..count).map(usage).collect();
    let reports = RateLimitQuotaUsageReports { domain: "d".to_owned(), bucket_quota_usages: usages };
    let mut sent = BytesMut::new();
    sent.put_u8(0);
    sent.put_u32(u32::try_from(reports.encoded_len()).unwrap());
    reports.encode(&mut sent).unwrap();
    sent.freeze()
}

/// Returns the resident memory of the process in bytes.
fn resident_memory(service: &RlsService) -> f64 {
    service.weir.metric("process_resident_memory_bytes", &[])
}

#[test]
fn unread_assignments_end_the_stream_with_bounded_memory() {
    let service = RlsService::start(&[("rules.yaml", RULES)]);
    let mut h2 = H2Client::connect(service.weir.rls_address("grpc"));
    let before = resident_memory(&service);
    let large = encode_report(900, 1000);
    let mut streams: Vec<_> = (0..8).map(|_| open_quota_stream(&mut h2)).collect();
    for (_, sending) in &mut streams {
        (0..30).for_each(|_| sending.send_data(large.clone(), false).unwrap());
    }
    let mut most: f64 = 0.0;
    throughout(Duration::from_secs(6), || most = most.max(resident_memory(&service)));
    assert!(most - before < 150e6, "{} MB", (most - before) / 1e6);
    for (response, _sending) in streams {
        let ended = h2.read_response(response).unwrap();
        assert_eq!(ended.trailers.unwrap()["grpc-status"], "8");
    }
}

#[test]
fn idle_stream_releases_the_memory_of_a_large_report() {
    let service = RlsService::start(&[("rules.yaml", RULES)]);
    let mut h2 = H2Client::connect(service.weir.rls_address("grpc"));
    let before = resident_memory(&service);
    // Larger than the maximum size of a bucket, so that nothing of the bucket itself is stored.
    let large = encode_report(1, 1_000_000);
    let small = encode_report(1, 1);
    let streams: Vec<_> = (0..100)
        .map(|_| {
            let (response, mut sending) = open_quota_stream(&mut h2);
            sending.send_data(large.clone(), false).unwrap();
            sending.send_data(small.clone(), false).unwrap();
            let mut body = h2.response_head(response).unwrap().into_body();
            // The response shows that the second report was processed.
            assert!(h2.block_on(body.data()).unwrap().is_ok());
            (sending, body)
        })
        .collect();
    until_true("the memory to be released", || resident_memory(&service) - before < 40e6);
    drop(streams);
}
