//! Examples of calls to providers.

use super::{Example, chat, language_model, scripted_upstream, times};
use crate::support::{AfterResponse, Client, Origin, Request};

const UPSTREAM: &str = "https://api.example.com";

#[test]
fn provider_llm_example_keeps_the_limits_on_requests_and_tokens() {
    let origin = language_model(20_000);
    let weir = Example::start("provider-llm.yaml", &[(UPSTREAM, &origin.address().to_string())]);
    assert_eq!(weir.statuses(11, &chat("me")), [times(200, 10), times(429, 1)].concat());
    let anonymous = Request::post("/v1/completions", "{}").header("content-type", "application/json");
    assert_eq!(weir.statuses(1, &anonymous), [403]);
    let used_up = "x-ratelimit-remaining-tokens: 0\r\nx-ratelimit-reset-tokens: 6m0s";
    let used_up =
        Origin::responding_with(format!("HTTP/1.1 200 OK\r\n{used_up}\r\ncontent-length: 0\r\n\r\n"));
    let weir = Example::start("provider-llm.yaml", &[(UPSTREAM, &used_up.address().to_string())]);
    assert_eq!(weir.statuses(1, &chat("me")), [200]);
    let rejected = Client::connect(weir.weir.address()).fetch(&chat("me"));
    assert_eq!(rejected.status, 429);
    assert!((350..=360).contains(&rejected.numeric_header("retry-after")), "{rejected:?}");
}

#[test]
fn provider_payments_example_repeats_only_what_has_a_key() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        turn.send("HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\nretry-after: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    let weir = Example::start("provider-payments.yaml", &[(UPSTREAM, &origin.address().to_string())]);
    let payment = Request::post("/v1/charges", "amount=100").host("api.example.com");
    assert_eq!(weir.statuses(1, &payment), [429]);
    assert_eq!(origin.requests().len(), 1);
    assert_eq!(weir.statuses(1, &payment.header("idempotency-key", "8e03978e")), [429]);
    assert_eq!(origin.requests().len(), 5, "the first attempt and three retries");
    // Retries that are late by more than a second count separately.
    assert!(weir.weir.metric("weir_feedback_share", &[("rule", "payments")]) <= 0.5);
}

#[test]
fn webhooks_example_slows_down_for_a_receiver_that_fails() {
    let (good, bad) =
        (scripted_upstream(), Origin::responding_with("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"));
    let weir = Example::start(
        "webhook-receivers.yaml",
        &[
            ("https://one.example.com", &good.address().to_string()),
            ("https://two.example.com", &bad.address().to_string()),
        ],
    );
    let deliver = |host: &str| Request::post("/hook", "{}").host(host);
    assert_eq!(weir.statuses(2, &deliver("one.example.com")), [200, 200]);
    assert_eq!(weir.statuses(1, &deliver("two.example.com")), [500]);
    assert_eq!(weir.weir.metric("weir_feedback_share", &[("rule", "receiver")]), 0.7);
    let limit = |host: &str| {
        let response = Client::connect(weir.weir.address()).fetch(&deliver(host));
        response.header("x-ratelimit-limit").to_owned()
    };
    assert!(limit("one.example.com").contains("20;w=1") && limit("two.example.com").contains("13;w=1"));
}
