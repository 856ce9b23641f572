//! Costs that exceed the units which an instance holds: the other instances admit that much less.

use super::{Server, count_admitted, sharing_state, start_sharing_with_upstream};
use crate::support::{AfterResponse, Origin, Request, Weir, fetch, wait};

/// Units of the limit. The period is so long that no unit is replenished during a test.
const LIMIT: u64 = 100;
/// Units that the expensive request turns out to cost.
const COST: u64 = 90;

/// Whether the only rule has reported its debt to the store: little is left, or the idle counter was removed since.
fn has_reported_debt(weir: &Weir) -> bool {
    let limit = &sharing_state(weir, 0)["limits"][0];
    let remaining = limit["busiest"][0]["remaining"].as_u64();
    limit["counters"] == 0 || remaining.is_some_and(|units| units <= LIMIT - COST)
}

#[test]
fn cost_known_from_the_response_reduces_the_units_of_other_instances() {
    let store = Server::start();
    let origin = Origin::start(|turn| {
        let tokens = turn.head.get("x-answer").unwrap_or("1").to_owned();
        turn.send(format!("HTTP/1.1 200 OK\r\nx-tokens: {tokens}\r\ncontent-length: 0\r\n\r\n"))?;
        Ok(AfterResponse::Keep)
    });
    let rule = format!(
        "  - {{ name: tokens, key: [{{ header: x-key }}], limit: {LIMIT}/d, cost: {{ response_header: x-tokens, max: {COST} }}, \
         scope: {{ shared: lease, wait: 1s }} }}\n"
    );
    let start = || start_sharing_with_upstream(origin.address(), &store.url(), &rule);
    let fleet = [start(), start()];
    let expensive = Request::get("/").header("x-key", "a").header("x-answer", &COST.to_string());
    // On a busy machine, the response of the store may come too late for a request.
    wait::until_true("an admitted request", || fetch(fleet[0].address(), &expensive).status == 200);
    wait::until_true("the debt in the store", || has_reported_debt(&fleet[0]));
    let admitted = count_admitted(&fleet[1..], "a", 60);
    assert!(admitted as u64 <= LIMIT - COST, "{admitted} of the units that are left");
    let other = count_admitted(&fleet[1..], "b", 60);
    assert!(other as u64 > LIMIT - COST, "{other} of a key without that cost");
}
