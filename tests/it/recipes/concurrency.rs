//! Recipes for limits on concurrent requests.

use super::{RecipeProxy, repeated_status};
use crate::support::{AfterResponse, Client, Origin, Request, wait};

/// Returns an upstream whose response for `path` stays incomplete until the client disconnects.
fn holding_upstream(path: &'static str) -> Origin {
    Origin::start(move |turn| {
        if turn.head.word(1) == path {
            turn.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no")?;
            turn.wire.is_closed();
            return Ok(AfterResponse::Close);
        }
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?;
        Ok(AfterResponse::Keep)
    })
}

#[test]
fn concurrent_reports_are_limited_per_customer() {
    let origin = holding_upstream("/reports/slow");
    let weir = RecipeProxy::start("Four concurrent reports per customer", &origin, &[]);
    let with = |path: &str, customer: &str| Request::get(path).header("x-customer", customer);
    let mut in_flight: Vec<_> = (0..4)
        .map(|_| {
            let mut client = Client::connect(weir.address());
            client.send(with("/reports/slow", "7").to_bytes());
            assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "200");
            client
        })
        .collect();
    assert_eq!(weir.statuses(3, &with("/reports/quick", "7")), repeated_status(429, 3));
    assert_eq!(weir.statuses(1, &with("/reports/quick", "8")), repeated_status(200, 1));
    drop(in_flight.pop());
    wait::until_true("a free permit", || {
        weir.statuses(1, &with("/reports/quick", "7")) == repeated_status(200, 1)
    });
    assert_eq!(weir.statuses(5, &with("/reports/quick", "7")), repeated_status(200, 5));
}

#[test]
fn service_is_protected_by_an_adaptive_limit() {
    let origin = holding_upstream("/api/slow");
    let weir = RecipeProxy::start("Protect a service from overload without a number", &origin, &[]);
    let mut in_flight = Vec::new();
    let rejected = wait::until("a rejection", || {
        let mut client = Client::connect(weir.address());
        client.send(Request::get("/api/slow").to_bytes());
        let head = client.wire.read_head().unwrap().unwrap();
        in_flight.push(client);
        (head.word(1) != "200").then(|| head.word(1).to_owned())
    });
    assert_eq!(rejected, "503");
    assert!(in_flight.len() > 4, "the minimum is always admitted");
    assert_eq!(weir.statuses(1, &Request::get("/other")), repeated_status(200, 1));
}
