//! Headers that pause a limit.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{origin_with_first, response, share, start, status_of};
use crate::support::{Client, Weir, wait, weir};

const RULE: &str = "{ name: provider, limit: 1000/s, feedback: true }";

fn paused_seconds(weir: &Weir) -> f64 {
    weir.metric("weir_feedback_paused_seconds", &[("rule", "provider")])
}

/// Sends a request to which the provider responds with `status` and `headers`, and returns for how long the limit is
/// paused then.
fn pause_after(status: &str, headers: &str, rule: &str) -> f64 {
    let origin = origin_with_first(response(status, headers), 1);
    let weir = start(&origin, rule);
    let first = Client::connect(weir.address()).get("/").status;
    assert_eq!(first.to_string(), status[..3], "the response is forwarded");
    let paused = paused_seconds(&weir);
    if paused > 2.0 {
        let rejected = Client::connect(weir.address()).get("/");
        assert_eq!(rejected.status, 429, "{headers}");
        let retry_after = rejected.numeric_header("retry-after") as f64;
        assert!(retry_after >= paused - 1.0 && retry_after <= paused + 1.0, "{retry_after} and {paused}");
        assert_eq!(rejected.header("x-ratelimit-remaining"), "0");
        assert_eq!(origin.requests().len(), 1, "a paused limit forwards nothing");
    }
    paused
}

#[expect(clippy::disallowed_methods, reason = "HTTP dates are times of the wall clock")]
fn unix_seconds(later: u64) -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + later
}

#[test]
fn limit_is_paused_for_the_time_that_the_provider_states() {
    let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(unix_seconds(120)));
    let epoch = unix_seconds(300);
    let rejected = "429 Too Many Requests";
    for (status, headers, at_least, at_most) in [
        (rejected, "retry-after: 30\r\n".to_owned(), 28.0, 30.0),
        (rejected, format!("retry-after: {date}\r\n"), 110.0, 120.0),
        (rejected, "retry-after: 1\r\nretry-after-ms: 45500\r\n".to_owned(), 43.0, 45.5),
        ("503 Service Unavailable", "retry-after: 30\r\n".to_owned(), 28.0, 30.0),
        ("200 OK", "x-ratelimit-remaining: 0\r\nx-ratelimit-reset: 40\r\n".to_owned(), 38.0, 40.0),
        ("200 OK", format!("x-ratelimit-remaining: 0\r\nx-ratelimit-reset: {epoch}\r\n"), 290.0, 301.0),
        (
            "200 OK",
            "x-ratelimit-remaining-tokens: 0\r\nx-ratelimit-reset-tokens: 6m0s\r\n".to_owned(),
            358.0,
            360.0,
        ),
        ("200 OK", "ratelimit: limit=100, remaining=0, reset=50\r\n".to_owned(), 48.0, 50.0),
        ("200 OK", "ratelimit: \"default\";r=0;t=30\r\n".to_owned(), 28.0, 30.0),
        (rejected, "retry-after: 99999999999999999999\r\n".to_owned(), 3590.0, 3600.0),
    ] {
        let paused = pause_after(status, &headers, RULE);
        assert!((at_least..=at_most).contains(&paused), "{headers}: {paused}");
    }
}

#[test]
fn headers_that_signal_nothing_do_not_pause() {
    for (status, headers) in [
        ("200 OK", "x-ratelimit-remaining: 1\r\nx-ratelimit-reset: 40\r\n"),
        ("200 OK", "ratelimit: \"default\";r=7;t=30\r\n"),
        ("200 OK", "retry-after: 30\r\n"),
        ("500 Oops", "retry-after: 30\r\n"),
        ("429 Too Many Requests", "retry-after: soon\r\n"),
        // Less than the period of the limit, or a second that is rounded up.
        ("429 Too Many Requests", "retry-after: 1\r\n"),
        ("200 OK", "x-ratelimit-remaining: 0\r\nx-ratelimit-reset: 1\r\n"),
        ("429 Too Many Requests", "x-ratelimit-remaining: 0\r\nx-ratelimit-reset: 1\r\n"),
    ] {
        assert_eq!(pause_after(status, headers, RULE), 0.0, "{headers}");
    }
    let without_headers = "{ name: provider, limit: 1000/s, feedback: { headers: false } }";
    assert_eq!(pause_after("429 Too Many Requests", "retry-after: 30\r\n", without_headers), 0.0);
}

#[test]
fn requests_pass_again_after_the_pause() {
    let origin = origin_with_first(response("429 Too Many Requests", "retry-after: 2\r\n"), 1);
    let weir = start(&origin, RULE);
    let before = wait::now();
    assert_eq!(status_of(&weir, "one"), 429);
    wait::until_true("the end of the pause", || status_of(&weir, "one") == 200);
    assert!(before.elapsed() >= Duration::from_secs(2), "not before the provider accepts it");
    assert_eq!(origin.requests().len(), 2);
}

#[test]
fn limit_that_delays_holds_requests_until_the_pause_ends() {
    let origin = origin_with_first(response("429 Too Many Requests", "retry-after: 2\r\n"), 1);
    let weir = start(&origin, "{ name: provider, limit: 1000/s, feedback: true, throttle: delay 5s }");
    let before = wait::now();
    assert_eq!(status_of(&weir, "one"), 429);
    assert_eq!(status_of(&weir, "one"), 200);
    assert!(before.elapsed() >= Duration::from_secs(2), "not before the provider accepts it");
    let origin = origin_with_first(response("429 Too Many Requests", "retry-after: 60\r\n"), 1);
    let weir = start(&origin, "{ name: provider, limit: 1000/s, feedback: true, throttle: delay 5s }");
    assert_eq!((status_of(&weir, "one"), status_of(&weir, "one")), (429, 429));
    assert_eq!(origin.requests().len(), 1, "a pause longer than the maximum delay rejects at once");
}

#[test]
fn explain_shows_the_share_and_the_pause() {
    let origin = origin_with_first(response("429 Too Many Requests", "retry-after: 60\r\n"), 1);
    let weir = start(&origin, RULE);
    assert_eq!(status_of(&weir, "one"), 429);
    assert_eq!(share(&weir), 0.7);
    let limit = weir.admin_json("/explain?path=/")["rules"][0]["limits"][0].clone();
    assert!((0.69..=0.7).contains(&limit["share"].as_f64().unwrap()), "{limit}");
    assert!(limit["paused_until"].is_string() && limit["conforms"] == false, "{limit}");
    let admin = weir.admin_address("full").to_string();
    let file = weir.file().display().to_string();
    let output = weir::run(["explain", "-c", &file, "--admin", &admin, "GET", "/"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("paused by the provider until"), "{text}");
}
