//! `auth_request` of a real nginx, with the configuration of the guide.

use std::net::SocketAddr;

use super::{LIMITS, guide_block, start};
use crate::support::peers::Peer;
use crate::support::{Client, Origin, Request};

fn start_nginx(weir: SocketAddr, origin: &Origin) -> Peer {
    let config = guide_block("nginx", "nginx");
    let replaced = [("127.0.0.1:9001", weir.to_string()), ("127.0.0.1:3000", origin.address().to_string())];
    let config = replaced.iter().fold(config.to_owned(), |config, (from, to)| {
        assert!(config.contains(from), "no {from}");
        config.replace(from, to)
    });
    Peer::nginx(&config)
}

#[test]
fn client_of_nginx_gets_429_with_retry_after() {
    let (weir, origin) = (start("auth_request", LIMITS), Origin::hello());
    let nginx = start_nginx(weir.address(), &origin);
    let before = origin.requests().len();
    // Headers that a client sends for Weir have no effect.
    let post = Request::post("/api/orders?a=b", "body")
        .host("shop.test")
        .forwarded_for("6.6.6.6")
        .header("x-original-uri", "/other")
        .header("x-original-method", "GET");
    let mut client = Client::connect_from("127.0.0.9", nginx.address());
    let first = client.fetch(&post);
    assert_eq!((first.status, first.numeric_header("x-ratelimit-remaining")), (200, 1));
    assert_eq!(client.fetch(&post).status, 200);
    let rejected = client.fetch(&post);
    assert_eq!(rejected.status, 429);
    assert!((1..=3600).contains(&rejected.numeric_header("retry-after")));
    assert_eq!(Client::connect_from("127.0.0.8", nginx.address()).fetch(&post).status, 200, "another client");
    assert_eq!(client.fetch(&post.with_method("PUT")).status, 200, "another method");
    assert_eq!(client.fetch(&Request::get("/closed").host("shop.test")).status, 503);
    assert_eq!(origin.requests().len() - before, 4);
    assert_eq!(origin.last_request().body.text(), "body");
}
