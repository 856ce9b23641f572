//! Limits that follow a provider: a server that enforces a limit of its own, and what Weir makes of its responses.

mod calls;
mod retries;
mod sharing;
mod signals;

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support::{AfterResponse, Client, Origin, Request, Weir, config, wait};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const LIMITED: &str = "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n";

/// A provider that admits a number of requests in each second.
struct Provider {
    origin: Origin,
    limit: Arc<AtomicU32>,
    rejected: Arc<AtomicU32>,
}

impl Provider {
    fn start(limit: u32) -> Self {
        let (limit, rejected) = (Arc::new(AtomicU32::new(limit)), Arc::new(AtomicU32::new(0)));
        let (in_force, count) = (Arc::clone(&limit), Arc::clone(&rejected));
        let window = Mutex::new((wait::now(), 0));
        let origin = Origin::start(move |turn| {
            turn.body()?;
            let is_admitted = admits(&mut window.lock().unwrap(), in_force.load(Ordering::SeqCst));
            if !is_admitted {
                count.fetch_add(1, Ordering::SeqCst);
            }
            turn.send(if is_admitted { OK } else { LIMITED })?;
            Ok(AfterResponse::Keep)
        });
        Self { origin, limit, rejected }
    }

    fn take_rejected(&self) -> u32 {
        self.rejected.swap(0, Ordering::SeqCst)
    }
}

fn admits((since, used): &mut (Instant, u32), limit: u32) -> bool {
    if since.elapsed() >= Duration::from_secs(1) {
        (*since, *used) = (wait::now(), 0);
    }
    *used += 1;
    *used <= limit
}

/// Returns an upstream that sends `first` to its first `times` requests, and then 200.
fn origin_with_first(first: impl Into<String>, times: u32) -> Origin {
    let (first, seen) = (first.into(), AtomicU32::new(0));
    Origin::start(move |turn| {
        turn.body()?;
        turn.send(if seen.fetch_add(1, Ordering::SeqCst) < times { &first } else { OK })?;
        Ok(AfterResponse::Keep)
    })
}

/// Returns a response without a body, with these header lines.
fn response(status: &str, headers: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: 0\r\n\r\n")
}

fn start(origin: &Origin, rule: &str) -> Weir {
    Weir::start(&config(origin.address(), &format!("rules:\n  - {rule}\n")))
}

fn share(weir: &Weir) -> f64 {
    weir.metric("weir_feedback_share", &[("rule", "provider")])
}

fn rejections(weir: &Weir) -> f64 {
    weir.metric("weir_feedback_rejections_total", &[("rule", "provider")])
}

fn status_of(weir: &Weir, key: &str) -> u16 {
    Client::connect(weir.address()).fetch(&Request::get("/").header("x-key", key)).status
}

#[test]
fn limit_falls_when_the_provider_rejects_and_rises_while_it_does_not() {
    let provider = Provider::start(20);
    let weir =
        start(&provider.origin, "{ name: provider, limit: 200/s, burst: 1, feedback: { decrease: 50% } }");
    let mut client = Client::connect(weir.address());
    wait::until_true("the limit to fall to that of the provider", || {
        client.get("/");
        share(&weir) <= 0.15
    });
    let shown = client.get("/");
    let in_force: u32 = shown.header("x-ratelimit-limit").split(',').next().unwrap().parse().unwrap();
    assert!((1..200).contains(&in_force), "clients see the limit in force: {shown:?}");
    let rule = weir.admin_json("/limits")["rules"][0]["feedback"].clone();
    assert!(rule["share"].as_f64().unwrap() <= 0.2 && rule["decreases"].as_u64().unwrap() >= 3, "{rule}");
    provider.limit.store(1000, Ordering::SeqCst);
    wait::until_true("the limit to rise again", || {
        client.get("/");
        share(&weir) > 0.2
    });
}

#[test]
fn provider_rarely_rejects_once_the_limit_follows_it() {
    let provider = Provider::start(50);
    let weir = start(
        &provider.origin,
        "{ name: provider, limit: 200/s, burst: 1, feedback: { decrease: 50% }, throttle: delay 2s }",
    );
    let mut client = Client::connect(weir.address());
    wait::until_true("the limit to fall to that of the provider", || {
        // Many for each look at the metrics, so that a slow client exceeds the provider's limit, too.
        for _ in 0..50 {
            client.get("/");
        }
        share(&weir) <= 0.25
    });
    // The share stays below the known ceiling for 20 seconds.
    wait::until_true("a second without rejections", || {
        provider.take_rejected();
        let end = wait::now() + Duration::from_secs(1);
        while wait::now() < end {
            client.get("/");
        }
        provider.take_rejected() == 0
    });
}

#[test]
fn keys_are_followed_separately() {
    let origin = origin_with_first(LIMITED, 1);
    let weir = start(&origin, "{ name: provider, key: { header: x-key }, limit: 10/d, feedback: true }");
    assert_eq!(status_of(&weir, "one"), 429, "the provider's response is forwarded");
    assert_eq!(rejections(&weir), 1.0);
    let limit_of = |key: &str| {
        let request = Request::get("/").header("x-key", key);
        let response = Client::connect(weir.address()).fetch(&request);
        response.header("x-ratelimit-limit").split(',').next().unwrap().to_owned()
    };
    assert_eq!((limit_of("one"), limit_of("two")), ("6".to_owned(), "10".to_owned()));
    assert_eq!(weir.metric("weir_feedback_keys", &[("rule", "provider")]), 1.0);
}

#[test]
fn burst_of_rejections_lowers_the_limit_once_and_never_below_the_minimum() {
    let origin = Origin::responding_with(LIMITED);
    let weir = start(&origin, "{ name: provider, limit: 1000/s, feedback: { decrease: 90%, min: 20% } }");
    let mut client = Client::connect(weir.address());
    (0..20).for_each(|_| assert_eq!(client.get("/").status, 429));
    assert_eq!(share(&weir), 0.2);
    assert_eq!(weir.metric("weir_feedback_decreases_total", &[("rule", "provider")]), 1.0);
    assert_eq!(rejections(&weir), 20.0);
}

#[test]
fn local_replies_are_no_rejections_by_the_provider() {
    let origin = Origin::hello();
    let weir = start(&origin, "{ name: provider, limit: 2/d, feedback: { rejections: [429, 5xx] } }");
    let statuses: Vec<_> = (0..5).map(|_| status_of(&weir, "one")).collect();
    assert_eq!(statuses, [200, 200, 429, 429, 429]);
    drop(origin);
    let weir =
        start(&refusing_origin(), "{ name: provider, limit: 200/d, feedback: { rejections: [429, 5xx] } }");
    assert_eq!(status_of(&weir, "one"), 503);
    assert_eq!((rejections(&weir), share(&weir)), (0.0, 1.0));
}

/// Returns an upstream that closes each connection without a response.
fn refusing_origin() -> Origin {
    Origin::start(|turn| {
        turn.body()?;
        Ok(AfterResponse::Close)
    })
}

#[test]
fn share_and_pause_survive_a_reload() {
    let headers = "retry-after: 60\r\n";
    let origin = origin_with_first(response("429 Too Many Requests", headers), 1);
    let rule = "{ name: provider, limit: 10/d, feedback: true }";
    let weir = start(&origin, rule);
    assert_eq!(status_of(&weir, "one"), 429);
    weir.reload(&config(origin.address(), &format!("rules:\n  - {}\n", rule.replace("10/d", "100/d"))));
    assert_eq!(share(&weir), 0.7);
    let rejected = Client::connect(weir.address()).get("/");
    assert_eq!(rejected.status, 429, "{rejected:?}");
    assert!((50..=60).contains(&rejected.numeric_header("retry-after")), "{rejected:?}");
    assert_eq!(origin.requests().len(), 1);
    weir.reload(&config(origin.address(), "rules:\n  - { name: provider, limit: 100/d }\n"));
    weir.reload(&config(origin.address(), &format!("rules:\n  - {rule}\n")));
    assert_eq!(share(&weir), 1.0, "a rule that did not follow meanwhile starts anew");
}
