//! Instances that share a limit and follow one provider, with a real Redis.

use std::fmt::Display;

use super::{LIMITED, origin_with_first, rejections, response, share, status_of};
use crate::servers::Server;
use crate::support::{Origin, Weir, config, wait};

const RULE: &str = "{ name: provider, key: { header: x-key }, limit: 100000/s, feedback: true, \
                    scope: { shared: lease, wait: 1s, on_store_loss: local } }";

fn start(origin: &Origin, store: impl Display) -> Weir {
    let rest = format!("store: {{ redis: {store}, timeout: 2s }}\nrules:\n  - {RULE}\n");
    let weir = Weir::start(&config(origin.address(), &rest));
    wait::until_true("the store", || weir.metric("weir_store_up", &[]) == 1.0);
    weir
}

#[test]
fn decrease_applies_to_every_instance_and_once() {
    let store = Server::start();
    let origin = origin_with_first(LIMITED, 1);
    let fleet: Vec<_> = (0..3).map(|_| start(&origin, store.url())).collect();
    assert_eq!(status_of(&fleet[0], "one"), 429);
    for weir in &fleet {
        wait::until_true("the decrease", || share(weir) == 0.7);
    }
    assert_eq!((rejections(&fleet[0]), rejections(&fleet[1])), (1.0, 0.0));
    assert_eq!(status_of(&fleet[1], "one"), 200);
    let keys = |weir: &Weir| weir.metric("weir_feedback_keys", &[("rule", "provider")]);
    assert!(fleet.iter().all(|weir| keys(weir) == 1.0));
    // A new instance learns of it.
    let late = start(&origin, store.url());
    wait::until_true("the decrease", || share(&late) == 0.7);
}

#[test]
fn pause_applies_to_every_instance() {
    let store = Server::start();
    let origin = origin_with_first(response("429 Too Many Requests", "retry-after: 60\r\n"), 1);
    let fleet: Vec<_> = (0..2).map(|_| start(&origin, store.url())).collect();
    assert_eq!(status_of(&fleet[0], "one"), 429);
    let paused = |weir: &Weir| weir.metric("weir_feedback_paused_seconds", &[("rule", "provider")]);
    wait::until_true("the pause", || paused(&fleet[1]) > 50.0);
    assert_eq!(status_of(&fleet[1], "one"), 429);
    assert_eq!(origin.requests().len(), 1, "a paused limit forwards nothing");
    assert_eq!(status_of(&fleet[1], "two"), 200, "another key is not paused");
}

#[test]
fn reduced_limit_still_admits_if_a_request_costs_a_whole_burst() {
    let store = Server::start();
    let origin = origin_with_first(LIMITED, 1);
    let rule =
        RULE.replace("100000/s", "10/s").replace("feedback: true", "feedback: { decrease: 90%, min: 1% }");
    let rest = format!("store: {{ redis: {}, timeout: 2s }}\nrules:\n  - {rule}\n", store.url());
    let weir = Weir::start(&config(origin.address(), &rest));
    wait::until_true("the store", || weir.metric("weir_store_up", &[]) == 1.0);
    assert_eq!(status_of(&weir, "one"), 429);
    assert_eq!(share(&weir), 0.1);
    (0..2).for_each(|_| wait::until_true("room", || status_of(&weir, "one") == 200));
}

#[test]
fn local_state_applies_while_the_store_is_away() {
    let mut store = Server::start();
    let origin = origin_with_first(response("429 Too Many Requests", "retry-after: 60\r\n"), 1);
    let weir = start(&origin, store.url());
    assert_eq!(status_of(&weir, "one"), 429);
    store.kill();
    wait::until_true("the loss of the store", || weir.metric("weir_store_up", &[]) == 0.0);
    assert_eq!(status_of(&weir, "one"), 429);
    assert_eq!(origin.requests().len(), 1, "the limit that applies meanwhile is paused, too");
    assert_eq!(share(&weir), 0.7);
}
