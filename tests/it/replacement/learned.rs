//! What a process has learned beside its counters.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::config;
use crate::support::{AfterResponse, Client, Origin, Weir, run_concurrently, wait};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

#[test]
fn stored_responses_replace_rejections_in_the_new_process() {
    let requests = AtomicUsize::new(0);
    let origin = Origin::start(move |turn| {
        let number = requests.fetch_add(1, Ordering::SeqCst);
        turn.send(format!("HTTP/1.1 200 OK\r\nx-origin: yes\r\ncontent-length: 2\r\n\r\n{number:02}"))?;
        Ok(AfterResponse::Keep)
    });
    let rule = |cached: &str| {
        let fallback = format!("on_limit: {{ fallback: {{ cached: {cached} }} }}");
        config(origin.address(), &format!("rules: [{{ name: pages, limit: 1/d, {fallback} }}]"))
    };
    let weir = Weir::start(&rule("1MiB"));
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/page").body.text(), "00");
    assert_eq!(client.get("/other").status, 429);
    weir.replace();
    let is_served = || {
        let response = client.get("/page");
        let is_stored = response.status == 200 && response.head.get("warning").is_some();
        (is_stored && response.body.text() == "00" && response.head.get("x-origin") == Some("yes"))
            .then_some(())
    };
    wait::until("the stored response", is_served);
    assert_eq!(client.get("/other").status, 429);
}

#[test]
fn learned_concurrency_and_shares_are_continued() {
    let requests = AtomicUsize::new(0);
    let origin = Origin::start(move |turn| {
        let is_first = turn.head.word(1) == "/provider" && requests.fetch_add(1, Ordering::SeqCst) == 0;
        turn.send(if is_first { "HTTP/1.1 429 No\r\ncontent-length: 0\r\n\r\n" } else { OK })?;
        Ok(AfterResponse::Keep)
    });
    let weir = Weir::start(&config(
        origin.address(),
        "rules:\n  - { name: adaptive, match: { path: /page }, in_flight: auto }\n  \
         - { name: provider, match: { path: /provider }, limit: 100/s, feedback: { decrease: 50% } }\n",
    ));
    let state = || {
        let limits = weir.admin_json("/limits");
        let [adaptive, provider] = [0, 1].map(|index| limits["rules"][index].clone());
        (adaptive["concurrency"].clone(), provider["feedback"]["share"].clone())
    };
    wait::until_true("a limit that was learned", || {
        run_concurrently(8, |_| {
            let mut client = Client::connect(weir.address());
            (0..20).for_each(|_| assert!(matches!(client.get("/page").status, 200 | 429)));
        });
        // It begins with 4. How far it grows depends on the machine.
        state().0["limit"].as_u64() > Some(4)
    });
    assert_eq!(Client::connect(weir.address()).get("/provider").status, 429);
    wait::until_true("a share that has fallen", || state().1.as_f64() < Some(0.6));
    weir.replace();
    let (concurrency, share) = state();
    assert!(concurrency["limit"].as_u64() > Some(4), "{concurrency}");
    assert_eq!(share.as_f64(), Some(0.5));
}
