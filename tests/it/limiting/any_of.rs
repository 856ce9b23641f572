//! Groups of rules of which a request needs room in one (`any_of`).

use crate::support::wait::until;
use crate::support::{Client, Origin, Request, Response, Weir, config, fetch, get, run_concurrently};

const CHARGED: &str = "x-weir-charged";

const SUBSCRIPTION_AND_CREDITS: &str = "\
any_of: [[subscription, credits]]
rules:
  - { name: credits, key: [{ header: x-team }], on_missing: skip, limit: 3/d, algorithm: fixed_window }
  - { name: subscription, key: [], limit: 2/year, algorithm: fixed_window }
";

fn team(name: &str) -> Request {
    Request::get("/").header("x-team", name).header("X-Weir-Charged", "forged")
}

/// Returns the status of a response and the rule that the upstream was told, if it received the request.
fn charge(origin: &Origin, response: &Response) -> (u16, Option<String>) {
    let told = || origin.last_request().head.get(CHARGED).map(str::to_owned);
    (response.status, (response.status == 200).then(told).flatten())
}

fn decisions(weir: &Weir, rule: &str, outcome: &str) -> f64 {
    weir.metric("weir_decisions_total", &[("rule", rule), ("outcome", outcome)])
}

#[test]
fn request_is_charged_to_the_first_rule_with_room_and_rejected_without_any() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), SUBSCRIPTION_AND_CREDITS));
    let mut client = Client::connect(weir.address());
    let mut remaining = Vec::new();
    let charged: Vec<_> = (0..6)
        .map(|_| {
            let response = client.fetch(&team("a"));
            remaining.push(response.header("x-ratelimit-limit").to_owned());
            assert_eq!(response.head.get(CHARGED), None, "only the upstream is told");
            charge(&origin, &response)
        })
        .collect();
    let to = |rule: &str| (200, Some(rule.to_owned()));
    let expected =
        [to("subscription"), to("subscription"), to("credits"), to("credits"), to("credits"), (429, None)];
    assert_eq!(charged, expected);
    assert!(remaining[..2].iter().all(|limit| limit.contains("subscription") && !limit.contains("credits")));
    assert!(remaining[2..].iter().all(|limit| limit.contains("credits") && !limit.contains("subscription")));
    let outcomes = ["allowed", "limited"];
    assert_eq!(outcomes.map(|outcome| decisions(&weir, "subscription", outcome)), [2.0, 0.0]);
    assert_eq!(outcomes.map(|outcome| decisions(&weir, "credits", outcome)), [3.0, 1.0]);
    assert_eq!(charge(&origin, &client.fetch(&team("b"))), to("credits"), "another key has room");
}

#[test]
fn retry_after_is_that_of_the_rule_that_has_room_first() {
    let weir = Weir::start(&config("echo", SUBSCRIPTION_AND_CREDITS));
    let [.., rejected] = [(); 6].map(|()| fetch(weir.address(), &team("a")));
    assert_eq!(rejected.status, 429);
    assert!(rejected.numeric_header("retry-after") <= 86_400, "credits return within a day");
    let without_team = get(weir.address(), "/");
    assert_eq!(without_team.status, 429);
    assert!(without_team.header("x-ratelimit-limit").contains("subscription"), "the only rule that applies");
}

#[test]
fn rule_that_does_not_apply_is_no_alternative() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), SUBSCRIPTION_AND_CREDITS));
    let without_team: Vec<_> = (0..3).map(|_| charge(&origin, &get(weir.address(), "/"))).collect();
    let to_subscription = (200, Some("subscription".to_owned()));
    assert_eq!(without_team, [to_subscription.clone(), to_subscription, (429, None)]);
}

#[test]
fn rules_outside_the_group_apply_as_usual() {
    let origin = Origin::hello();
    let rules = format!(
        "{SUBSCRIPTION_AND_CREDITS}  - {{ name: all, key: [], limit: 4/d, algorithm: fixed_window }}\n  - {{ name: posts, \
         match: {{ method: POST }}, key: [], limit: 1/d, algorithm: fixed_window }}\n"
    );
    let weir = Weir::start(&config(origin.address(), &rules));
    let posts = [0, 1].map(|_| fetch(weir.address(), &team("a").with_method("POST")).status);
    assert_eq!(posts, [200, 429]);
    let gets = [0; 4].map(|_| fetch(weir.address(), &team("a")).status);
    assert_eq!(gets, [200, 200, 200, 429], "the rejected POST was charged nowhere");
    let used = |rule: usize| {
        weir.admin_json("/explain?path=/&header.x-team=a")["rules"][rule]["limits"][0]["used"].clone()
    };
    assert_eq!([0, 1, 2].map(used), [2, 2, 4]);
}

#[test]
fn header_is_never_sent_for_requests_without_a_group() {
    let origin = Origin::hello();
    let rules = "rules:\n  - { name: all, key: [], limit: 4/d, algorithm: fixed_window }\n";
    let weir = Weir::start(&config(origin.address(), rules));
    assert_eq!(fetch(weir.address(), &team("a")).status, 200);
    assert_eq!(origin.last_request().head.get(CHARGED), None);
}

#[test]
fn preferred_rule_is_charged_again_when_it_has_room() {
    let origin = Origin::hello();
    let rules = "\
any_of: [[subscription, credits]]
rules:
  - { name: subscription, key: [], limit: 1/2s, burst: 1 }
  - { name: credits, key: [], limit: 2/year, algorithm: fixed_window }
";
    let weir = Weir::start(&config(origin.address(), rules));
    let next = || charge(&origin, &get(weir.address(), "/"));
    assert_eq!(next(), (200, Some("subscription".to_owned())));
    until("a rejection", || (next().0 == 429).then_some(()));
    until("the subscription", || (next() == (200, Some("subscription".to_owned()))).then_some(()));
    assert_eq!(decisions(&weir, "credits", "allowed"), 2.0);
}

#[test]
fn concurrent_requests_take_exactly_the_units_of_the_group() {
    let origin = Origin::hello();
    let rules = "\
any_of: [[subscription, credits, free]]
rules:
  - { name: subscription, key: [], limit: 300/d, algorithm: fixed_window }
  - { name: credits, key: [], limit: 200/d, algorithm: sliding_log }
  - { name: free, key: [], limit: 100/year, burst: 100 }
  - { name: all, key: [], limit: 5000/d, algorithm: fixed_window }
";
    let weir = Weir::start(&config(origin.address(), rules).replace("workers: 1", "workers: 2"));
    let statuses = run_concurrently(20, |_| {
        let mut client = Client::connect(weir.address());
        (0..50).map(|_| client.get("/").status).collect::<Vec<_>>()
    });
    assert_eq!(statuses.iter().flatten().filter(|status| **status == 200).count(), 600);
    let told =
        |rule: &str| origin.requests().iter().filter(|seen| seen.head.get(CHARGED) == Some(rule)).count();
    assert_eq!(["subscription", "credits", "free"].map(told), [300, 200, 100]);
    assert_eq!(decisions(&weir, "all", "allowed"), 600.0);
}

#[test]
fn reload_that_adds_or_removes_a_group_keeps_the_counters() {
    let origin = Origin::hello();
    let rules = SUBSCRIPTION_AND_CREDITS.split_once('\n').unwrap().1;
    let weir = Weir::start(&config(origin.address(), rules));
    assert_eq!(fetch(weir.address(), &team("a")).status, 200);
    weir.reload(&config(origin.address(), SUBSCRIPTION_AND_CREDITS));
    let charged: Vec<_> = (0..4).map(|_| charge(&origin, &fetch(weir.address(), &team("a")))).collect();
    let to = |rule: &str| (200, Some(rule.to_owned()));
    assert_eq!(charged, [to("subscription"), to("credits"), to("credits"), (429, None)]);
    weir.reload(&config(origin.address(), rules));
    assert_eq!(fetch(weir.address(), &team("b")).status, 429, "the subscription is still used up");
}

#[test]
fn cost_of_the_response_is_settled_on_the_charged_rule_only() {
    let origin = Origin::responding_with("HTTP/1.1 200 OK\r\nx-tokens: 8\r\ncontent-length: 0\r\n\r\n");
    let rules = "\
any_of: [[subscription, credits]]
rules:
  - { name: subscription, key: [], limit: 10/year, algorithm: fixed_window, cost: { response_header: x-tokens } }
  - { name: credits, key: [], limit: 20/year, algorithm: fixed_window, cost: { response_header: x-tokens } }
";
    let weir = Weir::start(&config(origin.address(), rules));
    let used = |rule: usize| weir.admin_json("/explain?path=/")["rules"][rule]["limits"][0]["used"].clone();
    let mut client = Client::connect(weir.address());
    for expected in [[8, 0], [16, 0], [16, 8], [16, 16]] {
        assert_eq!(client.get("/").status, 200);
        until("the settlement", || ([0, 1].map(used) == expected).then_some(()));
    }
}

#[test]
fn batch_needs_room_in_one_rule_for_all_its_elements() {
    let rules = "\
bodies: { max: 4KiB }
any_of: [[subscription, credits]]
rules:
  - { name: subscription, match: { json: { method: call } }, key: [], limit: 3/year, algorithm: fixed_window }
  - { name: credits, match: { json: { method: [call, list] } }, key: [], limit: 5/year, algorithm: fixed_window }
";
    let weir = Weir::start(&config("echo", rules));
    let send = |methods: &[&str]| {
        let calls: Vec<_> = methods.iter().map(|method| format!("{{\"method\":\"{method}\"}}")).collect();
        let body = format!("[{}]", calls.join(","));
        fetch(weir.address(), &Request::post("/", body).header("content-type", "application/json")).status
    };
    let allowed = || ["subscription", "credits"].map(|rule| decisions(&weir, rule, "allowed"));
    assert_eq!((send(&["call", "call"]), allowed()), (200, [1.0, 0.0]));
    assert_eq!((send(&["call", "call"]), allowed()), (200, [1.0, 1.0]), "one unit is left of the first");
    assert_eq!((send(&["call", "list"]), allowed()), (200, [2.0, 2.0]), "each element by its own rules");
    assert_eq!(send(&["list", "list", "list"]), 429);
    assert_eq!((send(&["call", "list"]), allowed()), (200, [2.0, 3.0]));
}

#[test]
fn explanation_names_the_rule_that_would_be_charged() {
    let weir = Weir::start(&config("echo", SUBSCRIPTION_AND_CREDITS));
    let explain = || weir.admin_json("/explain?path=/&header.x-team=a");
    let before = explain();
    assert_eq!(
        (&before["outcome"], &before["reason"]),
        (&"allowed".into(), &"forwarded; charged to `subscription`".into())
    );
    assert_eq!(
        before["rules"][0]["note"],
        "passed over: the request is charged to `subscription` (`any_of`)"
    );
    assert_eq!(
        (&before["rules"][0]["outcome"], &before["rules"][1]["outcome"]),
        (&().into(), &"allowed".into())
    );
    for expected in ["`subscription`", "`subscription`", "`credits`", "`credits`", "`credits`"] {
        assert_eq!(explain()["reason"], format!("forwarded; charged to {expected}"));
        assert_eq!(fetch(weir.address(), &team("a")).status, 200);
    }
    let after = explain();
    assert_eq!((&after["outcome"], &after["rule"]), (&"limited".into(), &"credits".into()));
    let limits = weir.admin_json("/limits");
    for rule in 0..2 {
        assert_eq!(limits["rules"][rule]["any_of"], serde_json::json!(["subscription", "credits"]));
    }
}
