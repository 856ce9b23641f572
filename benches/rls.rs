//! Envoy's rate limit service: what a decision costs by how many rules there are, and the bare service that `rls.py`
//! measures ours beside.
//!
//! `cargo bench --bench rls` loads ten domains of ten descriptors and a thousand of a thousand, and asks each;
//! `cargo bench --bench rls -- echo` answers every question with the same words, by the same library, until it is ended.
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
use weir::limiter::timestamp::Timestamp;
use weir::limiter::{Limiter, Settings as Table};
use weir::rls::options::{Directory, load};
use weir::rls::request::{Descriptor, Entry, Request as Question};
use weir::rls::service::Service;
use weir::rls::settings::Settings;
use weir::rls::windows::Windows;

/// The program's allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// 2026-11-21T08:00:00Z.
const NOW: Timestamp = Timestamp::from_secs(1_795_248_000);
const CALLS: usize = 500_000;

fn main() {
    match env::args().nth(1).as_deref() {
        Some("echo") => echo(),
        _ => [10, 1000].into_iter().for_each(rules),
    }
}

/// So many domains of as many descriptors, each asked in turn.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn rules(count: usize) {
    let directory = tempfile::tempdir().expect("a directory");
    let mut bytes = 0;
    for domain in 0..count {
        let text = document(domain, count);
        bytes += text.len();
        std::fs::write(directory.path().join(format!("{domain}.yaml")), text).expect("a file");
    }
    let began = Instant::now();
    let loaded = load(&Directory::new(directory.path()));
    let took = began.elapsed();
    println!("{count} domains of {count} descriptors: {bytes} bytes loaded in {took:.2?}");
    let limiter = Limiter::new(Table { max_keys: 4_000_000, secret: [7, 11] });
    let windows = Windows::install(&limiter, NOW).expect("a meter for each unit");
    let rules = Some(loaded.expect("rules that load").rules);
    let service =
        Service { rules, settings: Arc::new(Settings::default()), windows, sharing: None, native: None };
    // A hundred of them, as in any traffic: what is measured is not how fast memory is.
    let questions: Vec<_> = (0..100).map(|n| question(n * 7919 % count, n * 104_729 % count)).collect();
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

fn question(domain: usize, descriptor: usize) -> Question {
    let entry = Entry { key: "key".to_owned(), value: format!("value-{descriptor}") };
    let descriptors = vec![Descriptor { entries: vec![entry], ..Descriptor::default() }];
    Question { domain: format!("domain-{domain}"), descriptors, hits_addend: 0 }
}

/// Answers as the service would and decides nothing.
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

/// On one thread, at a port that it prints.
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
