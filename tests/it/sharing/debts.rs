//! Costs that exceed the units which an instance holds: the other instances admit that much less.

use super::{Server, count_admitted, sharing_state, start_sharing_with_upstream};
use crate::support::{AfterResponse, Origin, Request, Weir, fetch, wait};

/// Units of the limit. The period is so long that no unit is replenished during a test.
const LIMIT: u64 = 100;

/// Returns the units that the store has left for the only counter of the only rule, as of its last response.
fn remaining(weir: &Weir) -> Option<u64> {
    sharing_state(weir, 0)["limits"][0]["busiest"][0]["remaining"].as_u64()
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
        "  - {{ name: tokens, key: [{{ header: x-key }}], limit: {LIMIT}/d, cost: {{ response_header: x-tokens, max: 90 }}, \
         scope: {{ shared: lease, wait: 1s }} }}\n"
    );
    let start = || start_sharing_with_upstream(origin.address(), &store.url(), &rule);
    let fleet = [start(), start()];
    let expensive = Request::get("/").header("x-key", "a").header("x-answer", "90");
    assert_eq!(fetch(fleet[0].address(), &expensive).status, 200);
    wait::until_true("the debt in the store", || {
        remaining(&fleet[0]).is_some_and(|units| units <= LIMIT - 90)
    });
    let admitted = count_admitted(&fleet[1..], "a", 60);
    assert!(admitted <= 10, "{admitted} of the 10 units that are left");
    let other = count_admitted(&fleet[1..], "b", 60);
    assert!(other > 10, "{other} of a key without that cost");
}
