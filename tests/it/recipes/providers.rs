//! Recipes for calls to providers.

use super::{RecipeProxy, repeated_status, scripted_upstream};
use crate::support::{Client, Origin, Request};

#[test]
fn requests_and_tokens_of_a_language_model_are_limited() {
    let heading = "Requests and tokens of a language model";
    let body = r#"{"usage":{"total_tokens":20000}}"#;
    let headers = format!("content-type: application/json\r\ncontent-length: {}", body.len());
    let origin = Origin::responding_with(format!("HTTP/1.1 200 OK\r\n{headers}\r\n\r\n{body}"));
    let weir = RecipeProxy::start(heading, &origin, &[]);
    let ask = Request::post("/v1", "{}")
        .header("authorization", "Bearer me")
        .header("content-type", "application/json");
    assert_eq!(weir.statuses(11, &ask), [repeated_status(200, 10), repeated_status(429, 1)].concat());
    let headers = "x-ratelimit-remaining-tokens: 0\r\nx-ratelimit-reset-tokens: 6m0s\r\n";
    let origin = Origin::responding_with(format!("HTTP/1.1 200 OK\r\n{headers}content-length: 0\r\n\r\n"));
    let weir = RecipeProxy::start(heading, &origin, &[]);
    assert_eq!(weir.statuses(2, &ask), [200, 429]);
    for rule in ["requests-per-minute", "tokens-per-minute"] {
        assert!(weir.metric("weir_feedback_paused_seconds", &[("rule", rule)]) > 300.0, "{rule}");
    }
}

#[test]
fn payments_are_limited_and_follow_the_provider() {
    let origin = scripted_upstream();
    let weir = RecipeProxy::start("Payments that must not be made twice", &origin, &[]);
    assert_eq!(weir.statuses(5, &Request::post("/", "x")), repeated_status(200, 5));
    assert_eq!(weir.statuses(1, &Request::post("/", "x").header("x-status", "429")), [429]);
    assert_eq!(weir.metric("weir_feedback_share", &[("rule", "payments")]), 0.5);
}

#[test]
fn webhooks_are_delivered_at_the_pace_of_each_receiver() {
    let origin = scripted_upstream();
    let weir = RecipeProxy::start("Deliver webhooks", &origin, &[]);
    let deliver = |host: &str| Request::post("/", "{}").host(host);
    assert_eq!(weir.statuses(1, &deliver("two").header("x-status", "500")), [500]);
    let limit = |host: &str| {
        Client::connect(weir.address()).fetch(&deliver(host)).header("x-ratelimit-limit").to_owned()
    };
    assert!(limit("one").contains("20;w=1") && limit("two").contains("13;w=1"));
}
