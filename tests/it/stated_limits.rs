//! Limits that requests state in a header, or by their member of the plans, and what applies if they do not.

use std::fs;

use tempfile::TempDir;

use crate::support::weir::run;
use crate::support::{Client, Request, Weir, config};

/// Proxies may state the limit of a user.
const FROM_HEADER: &str = "\
client_ip: { trusted_proxies: [127.0.0.1] }
rules:
  - name: quota
    key: { header: x-user }
    on_missing: skip
    limit: { from: { header: x-quota }, default: 2/d, max: 10/d }
    algorithm: fixed_window
";

/// The limit of a member.
const FROM_MEMBER: &str = "\
plans: { of: { header: x-api-key }, members: { file: keys.yaml }, default: free }
rules:
  - name: quota
    key: { header: x-api-key }
    on_missing: skip
    limit: { from: member, default: 2/d }
    burst: 20
";

fn request(user: &str, quota: &str) -> Request {
    let request = Request::get("/").header("x-user", user);
    if quota.is_empty() { request } else { request.header("x-quota", quota) }
}

/// Sends requests until one is rejected; returns how many passed.
fn passing(client: &mut Client, request: &Request) -> usize {
    (0..50).take_while(|_| client.fetch(request).status == 200).count()
}

fn unreadable(weir: &Weir) -> f64 {
    weir.metric("weir_limit_values_unreadable_total", &[("rule", "quota")])
}

#[test]
fn trusted_peer_states_the_limit_of_a_key_and_units_used_stay_used() {
    let weir = Weir::start(&config("echo", FROM_HEADER));
    let mut proxy = Client::connect(weir.address());
    assert_eq!(passing(&mut proxy, &request("ada", "5")), 5);
    assert_eq!(passing(&mut proxy, &request("ada", "7/d")), 2, "the later value decides");
    assert_eq!(passing(&mut proxy, &request("ada", "")), 0, "the default");
    assert_eq!(passing(&mut proxy, &request("ada", "99999999999")), 3, "the maximum");
    assert_eq!(passing(&mut proxy, &request("bob", "")), 2);
    assert_eq!(unreadable(&weir), 0.0);
}

#[test]
fn headers_show_the_limit_that_applied() {
    let weir = Weir::start(&config("echo", &format!("ietf_headers: true\n{FROM_HEADER}")));
    let mut proxy = Client::connect(weir.address());
    let response = proxy.fetch(&request("ada", "5"));
    assert!(response.header("x-ratelimit-limit").starts_with("5, 5;w=86400"), "{response:?}");
    assert!(response.header("ratelimit-policy").contains("q=5"), "{response:?}");
    let response = proxy.fetch(&request("ada", ""));
    assert!(response.header("x-ratelimit-limit").starts_with("2, 2;w=86400"), "{response:?}");
    let rejected = proxy.fetch(&request("ada", "1"));
    assert_eq!(rejected.status, 429);
    assert!(rejected.header("x-ratelimit-limit").starts_with("1, 1;w=86400"), "{rejected:?}");
}

#[test]
fn untrusted_peer_states_nothing() {
    let weir = Weir::start(&config("echo", FROM_HEADER));
    let mut client = Client::connect_from("127.0.0.2", weir.address());
    assert_eq!(passing(&mut client, &request("ada", "9")), 2);
    assert_eq!(passing(&mut client, &request("eve", "many")), 2);
    assert_eq!(unreadable(&weir), 0.0, "it is not even read");
}

#[test]
fn unreadable_values_leave_the_default_and_are_counted() {
    let weir = Weir::start(&config("echo", FROM_HEADER));
    let mut proxy = Client::connect(weir.address());
    for (user, value) in ["0", "-5", "fast", "5/h", "5/fortnight"].into_iter().enumerate() {
        assert_eq!(passing(&mut proxy, &request(&user.to_string(), value)), 2, "{value}");
    }
    let both = request("ada", "5").header("x-quota", "6");
    assert_eq!(passing(&mut proxy, &both), 2, "two different values");
    assert_eq!(unreadable(&weir), 18.0);
}

#[test]
fn operators_see_the_limit_that_applied() {
    let weir = Weir::start(&config("echo", FROM_HEADER));
    let mut proxy = Client::connect(weir.address());
    assert_eq!(proxy.fetch(&request("ada", "5")).status, 200);
    assert_eq!(proxy.fetch(&request("bob", "")).status, 200);
    let explained =
        weir.admin_json("/explain?path=/&host=a&header.x-user=ada&header.x-quota=9&client_ip=127.0.0.1");
    let limit = &explained["rules"][0]["limits"][0];
    assert_eq!((&limit["limit"], &limit["used"]), (&"9/d".into(), &1.into()), "{explained:#}");
    assert_eq!(
        weir.admin_json("/limits")["rules"][0]["limits"][0]["stated"],
        "from header x-quota, at most 10/d"
    );
    let top = weir.admin_json("/limits/top?rule=quota");
    let keys = top["rules"][0]["keys"].as_array().unwrap();
    let mut limits: Vec<String> =
        keys.iter().map(|key| key["limits"][0].as_str().unwrap().to_owned()).collect();
    limits.sort();
    assert_eq!(limits, ["2/d", "5/d"], "explaining changes nothing: {top:#}");
}

#[test]
fn members_have_limits_which_a_reload_changes() {
    let directory = tempfile::tempdir().unwrap();
    let replace = |name: &str, text: &str| replace(&directory, name, text);
    replace("keys.yaml", "alice: { plan: gold, limit: 5/d }\nbob: gold\n");
    replace("weir.yaml", &config("echo", FROM_MEMBER.replace("    burst: 20\n", "").as_str()));
    let weir = Weir::start_file(&directory.path().join("weir.yaml"));
    let mut client = Client::connect(weir.address());
    let key = |key: &str| Request::get("/").header("x-api-key", key);
    assert_eq!(["alice", "bob", "eve"].map(|name| passing(&mut client, &key(name))), [5, 2, 2]);
    let before = weir.generation();
    replace("keys.yaml", "alice: { plan: gold, limit: 8/d }\nbob: gold\neve: { limit: 3/d, plan: free }\n");
    weir.until_reloaded(before);
    assert_eq!(["alice", "bob", "eve"].map(|name| passing(&mut client, &key(name))), [3, 0, 1]);
    let before = weir.generation();
    replace("keys.yaml", "{}\n");
    weir.until_reloaded(before);
    assert_eq!(passing(&mut client, &key("alice")), 0, "units used stay used");
}

#[test]
fn stated_burst_stays_whatever_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    replace(&directory, "keys.yaml", "alice: { plan: gold, limit: 500/d }\n");
    replace(&directory, "weir.yaml", &config("echo", FROM_MEMBER));
    let weir = Weir::start_file(&directory.path().join("weir.yaml"));
    let mut client = Client::connect(weir.address());
    assert_eq!(passing(&mut client, &Request::get("/").header("x-api-key", "alice")), 20);
}

#[test]
fn replay_reads_limits_from_logs_and_reports_their_absence() {
    let directory = tempfile::tempdir().unwrap();
    replace(&directory, "weir.yaml", &config("echo", FROM_HEADER));
    let line = |quota: &str| format!("{{\"time\":1800000000,\"path\":\"/a\",\"user\":\"ada\"{quota}}}\n");
    replace(&directory, "with.json", &line(",\"quota\":\"5\"").repeat(8));
    replace(&directory, "without.json", &line("").repeat(8));
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let report = |fields: &[&str], log: &str| -> serde_json::Value {
        let (rules, json, log) = (path("weir.yaml"), path("report"), path(log));
        let arguments = ["replay", "-c", &rules, "--json", &json, "--field", "header:x-user=user"];
        let output = run(arguments.iter().chain(fields).copied().chain([log.as_str()]));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&fs::read(json).unwrap()).unwrap()
    };
    let with = report(&["--field", "header:x-quota=quota"], "with.json");
    assert_eq!(with["rules"][0]["outcomes"]["limited"], 3, "{with:#}");
    let without = report(&[], "without.json");
    assert_eq!(without["rules"][0]["outcomes"]["limited"], 6);
    let missing = &without["rules"][0]["undecidable"][0];
    assert_eq!(missing["attribute"], "header x-quota", "{without:#}");
    assert_eq!(missing["consequence"], "the default limit was applied");
}

/// Replaces a file atomically.
fn replace(directory: &TempDir, name: &str, text: &str) {
    let next = directory.path().join("next");
    fs::write(&next, text).unwrap();
    fs::rename(&next, directory.path().join(name)).unwrap();
}
