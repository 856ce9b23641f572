//! Replayed requests of which a group of rules charges one, and those that another upstream receives.

use super::{Workplace, line};

#[test]
fn replay_charges_the_first_rule_of_a_group_with_room() {
    let place = Workplace::new();
    let config = place.write(
        "weir.yaml",
        "listeners: 127.0.0.1:0\nupstream: echo\nany_of: [[subscription, credits]]\nrules:\n  - { name: subscription, key: [], \
         limit: 2/d, algorithm: fixed_window }\n  - { name: credits, key: [], limit: 3/d, algorithm: fixed_window }\n",
    );
    let log: String = (0..7).map(|second| line(second, "192.0.2.1", "GET /", 200)).collect();
    let report = place.replay(&["-c", &config, &place.write("access.log", log)]);
    assert_eq!((&report["requests"], &report["rejected"]), (&7.into(), &2.into()));
    let outcome = |rule: usize, outcome: &str| report["rules"][rule]["outcomes"][outcome].clone();
    assert_eq!([outcome(0, "allowed"), outcome(1, "allowed")], [2, 3]);
    let limited = [0, 1].map(|rule| outcome(rule, "limited").as_u64().unwrap());
    assert_eq!(limited.iter().sum::<u64>(), 2, "each is reported by one rule: {limited:?}");
}

#[test]
fn replay_counts_diverted_requests() {
    let place = Workplace::new();
    let config = place.write(
        "weir.yaml",
        "listeners: 127.0.0.1:0\nupstreams: [{ name: main, address: echo }, { name: cheap, address: echo }]\nrules:\n  - { \
         name: models, key: [], limit: 2/d, burst: 2, on_limit: { upstream: cheap } }\n",
    );
    let log: String = (0..5).map(|second| line(second, "192.0.2.1", "GET /", 200)).collect();
    let report = place.replay(&["-c", &config, &place.write("access.log", log)]);
    assert_eq!((&report["requests"], &report["rejected"]), (&5.into(), &0.into()));
    let outcomes = &report["rules"][0]["outcomes"];
    assert_eq!((&outcomes["allowed"], &outcomes["diverted"]), (&2.into(), &3.into()));
}
