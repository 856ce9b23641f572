//! `adaptive_throttle`: calls that an upstream would reject anyway are not sent.

use crate::support::{Client, Origin, Weir, config_with};

fn start(origin: &Origin, rest: &str) -> Weir {
    let upstream = format!("{{ address: '{}', adaptive_throttle: true }}", origin.address());
    Weir::start(&config_with(crate::support::LISTENER, &upstream, rest))
}

fn throttled(weir: &Weir) -> f64 {
    weir.metric("weir_upstream_overflows_total", &[("upstream", "upstream"), ("limit", "adaptive_throttle")])
}

#[test]
fn most_calls_to_an_upstream_that_rejects_all_of_them_are_not_sent() {
    let origin = Origin::responding_with("HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n");
    let weir = start(&origin, "rules: [{ name: a, key: [], limit: 1000/h }]\n");
    let mut client = Client::connect(weir.address());
    let responses: Vec<_> = (0..200).map(|_| client.get("/")).collect();
    let (sent, rejected): (Vec<_>, Vec<_>) = responses.iter().partition(|response| response.status == 429);
    assert_eq!(sent.len(), origin.requests().len());
    assert!((1..60).contains(&sent.len()), "{} were sent", sent.len());
    assert!(rejected.iter().all(|response| response.status == 503 && response.header("retry-after") == "1"));
    assert!(rejected.iter().all(|response| response.header("x-envoy-overloaded") == "true"));
    assert_eq!(throttled(&weir), rejected.len() as f64);
    assert!(weir.metric("weir_upstream_throttle_probability", &[("upstream", "upstream")]) > 0.9);
    // An attempt that was not sent is not charged.
    let remaining = responses.last().unwrap().numeric_header("x-ratelimit-remaining");
    assert!(remaining >= 1000 - sent.len() as u64 - 1, "{remaining}");
}

#[test]
fn all_calls_to_an_upstream_that_accepts_them_are_sent() {
    let origin = Origin::hello();
    let weir = start(&origin, "rules: []\n");
    let mut client = Client::connect(weir.address());
    assert!((0..100).all(|_| client.get("/").status == 200));
    assert_eq!(throttled(&weir), 0.0);
}
