//! Benchmark of Envoy's rate limit service: the cost of a decision by the number of rules. It also contains the bare
//! service that `rls.py` compares with Weir.
//!
//! `cargo bench --features jemalloc --bench rls` loads 10 domains with 10 descriptors each, then 1000 with 1000 each, and measures
//! decisions. `cargo bench --features jemalloc --bench rls -- echo` sends the same response to every request, with the same library, until
//! it is killed.
#![expect(clippy::print_stdout, reason = "prints its results")]

use std::env;
use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit as WireUnit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tonic::codegen::Service as _;
use tonic::{Request, Response, Status};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Limiter, LimiterSettings as SlotTable};
use weir_rls::decider::RlsDecider;
use weir_rls::options::{RulesDirectory, load_rules};
use weir_rls::request::{RlsDescriptor, RlsEntry, RlsRequest as Question};
use weir_rls::settings::RlsSettings;
use weir_rls::unit_limits::UnitLimits;

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// 2026-11-21T08:00:00Z.
const NOW: Timestamp = Timestamp::from_secs(1_795_248_000);
const CALLS: usize = 500_000;

fn main() {
    match env::args().nth(1).as_deref() {
        Some("echo") => echo(),
        _ => [10, 1000].into_iter().for_each(measure_decisions),
    }
}

/// Loads `count` domains with `count` descriptors each, and prints the time per decision.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn measure_decisions(count: usize) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut bytes = 0;
    for domain in 0..count {
        let text = document(domain, count);
        bytes += text.len();
        std::fs::write(directory.path().join(format!("{domain}.yaml")), text).expect("the file is written");
    }
    let began = Instant::now();
    let loaded = load_rules(&RulesDirectory::new(directory.path()));
    let took = began.elapsed();
    println!("{count} domains of {count} descriptors: {bytes} bytes loaded in {took:.2?}");
    let limiter = Limiter::new(SlotTable { max_keys: 4_000_000, secret: [7, 11] });
    let windows = UnitLimits::install(&limiter, NOW).expect("a limit for each unit");
    let rules = Some(loaded.expect("valid rules").rules);
    let service = RlsDecider {
        rules,
        settings: Arc::new(RlsSettings::default()),
        unit_limits: windows,
        shared_limits: None,
        native_policy: None,
    };
    // Only 100 distinct requests, since few are frequent in real traffic, and memory latency is not the subject.
    let questions: Vec<_> = (0..100).map(|n| rls_request(n * 7919 % count, n * 104_729 % count)).collect();
    for round in 0..3 {
        let began = Instant::now();
        for question in questions.iter().cycle().take(CALLS) {
            black_box(service.decide(black_box(question), &limiter, NOW).is_ok());
        }
        println!("  round {round}: {:.0} ns a call", began.elapsed().as_nanos() as f64 / CALLS as f64);
    }
}

fn document(domain: usize, descriptors: usize) -> String {
    let mut text = format!("domain: domain-{domain}\ndescriptors:\n");
    for descriptor in 0..descriptors {
        let limit = "{ unit: hour, requests_per_unit: 1000000 }";
        let _ = writeln!(text, "  - key: key\n    value: value-{descriptor}\n    rate_limit: {limit}");
    }
    text
}

fn rls_request(domain: usize, descriptor: usize) -> Question {
    let entry = RlsEntry { key: "key".to_owned(), value: format!("value-{descriptor}") };
    let descriptors = vec![RlsDescriptor { entries: vec![entry], ..RlsDescriptor::default() }];
    Question { domain: format!("domain-{domain}"), descriptors, hits_addend: 0 }
}

/// A rate limit service that sends a typical response and decides nothing.
#[derive(Clone, Debug)]
struct Echo;

#[tonic::async_trait]
impl RateLimitService for Echo {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let status = DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(RateLimit {
                name: String::new(),
                requests_per_unit: 1_000_000_000,
                unit: WireUnit::Second.into(),
            }),
            limit_remaining: 999_999_999,
            duration_until_reset: Some(protobuf::Duration { seconds: 1, nanos: 0 }),
            quota: None,
        };
        let statuses = vec![status; request.get_ref().descriptors.len()];
        let overall_code = Code::Ok.into();
        Ok(Response::new(RateLimitResponse { overall_code, statuses, ..RateLimitResponse::default() }))
    }
}

/// Serves [`Echo`] on one thread and prints its port.
fn echo() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("{}", listener.local_addr().expect("an address").port());
        let service = RateLimitServiceServer::new(Echo);
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let service = service.clone();
            let answer = service_fn(move |request| service.clone().call(request));
            let serving = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), answer);
            tokio::spawn(serving);
        }
    });
}
