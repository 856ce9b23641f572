//! Plans: the plan of each client, the limits of each plan, and members that change while the proxy runs.

use std::fs;

use tempfile::TempDir;

use crate::support::{Client, Request, Weir, config, wait};

/// A complete configuration: free users 100 per hour, pro users 10,000.
const FREE_AND_PRO: &str = "\
plans:
  of: { header: x-api-key }
  members: { file: keys.yaml }
  default: free
rules:
  - { name: free, match: { plan: free }, key: { header: x-api-key }, limit: 100/h }
  - { name: pro, match: { plan: pro }, key: { header: x-api-key }, limit: 10000/h }
";

/// A proxy and the directory with its file of members.
struct PlanProxy {
    weir: Weir,
    directory: TempDir,
}

impl PlanProxy {
    fn start(members: &str, rest: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("keys.yaml"), members).unwrap();
        let file = directory.path().join("weir.yaml");
        fs::write(&file, config("echo", rest)).unwrap();
        Self { weir: Weir::start_file(&file), directory }
    }

    fn replace_members(&self, members: &str) {
        let next = self.directory.path().join("next");
        fs::write(&next, members).unwrap();
        fs::rename(&next, self.directory.path().join("keys.yaml")).unwrap();
    }

    /// Sends requests with these keys, or without a key for an empty one, and returns the status codes.
    fn statuses(&self, keys: &[&str]) -> Vec<u16> {
        statuses(&self.weir, keys)
    }

    fn count_admitted(&self, key: &str, requests: usize) -> usize {
        self.statuses(&vec![key; requests]).iter().filter(|status| **status == 200).count()
    }
}

fn request_with_key(key: &str) -> Request {
    if key.is_empty() { Request::get("/") } else { Request::get("/").header("x-api-key", key) }
}

fn statuses(weir: &Weir, keys: &[&str]) -> Vec<u16> {
    let mut client = Client::connect(weir.address());
    keys.iter().map(|key| client.fetch(&request_with_key(key)).status).collect()
}

/// A rule that rejects every client that is not on the plan `pro`.
const ONLY_PRO: &str = "\
plans: { of: { header: x-api-key }, members: { file: keys.yaml }, default: free }
rules: [{ name: only-pro, except: { plan: pro }, action: deny }]
";

#[test]
fn each_plan_has_its_own_limit() {
    let place = PlanProxy::start("alice: pro\nbob: free\n", FREE_AND_PRO);
    let mut client = Client::connect(place.weir.address());
    assert_eq!(
        client.fetch(&request_with_key("alice")).head.get("x-ratelimit-limit"),
        Some("10000, 10000;w=3600;name=\"pro\"")
    );
    assert_eq!(
        client.fetch(&request_with_key("carol")).head.get("x-ratelimit-limit"),
        Some("100, 100;w=3600;name=\"free\"")
    );
    assert_eq!(place.count_admitted("bob", 110), 100);
    // Unknown keys are free users too, each with its own limit of 100.
    assert_eq!(place.count_admitted("dave", 110), 100);
    assert_eq!(place.count_admitted("alice", 150), 150);
}

#[test]
fn pro_plan_is_limited_to_10000_per_hour() {
    let place = PlanProxy::start("alice: pro\n", FREE_AND_PRO);
    let started = wait::now();
    let passed = place.count_admitted("alice", 10_500);
    // Units that are replenished while the requests are sent are admitted too: three per second.
    let replenished = 3 * (started.elapsed().as_secs() as usize + 1);
    assert!((10_000..=10_000 + replenished).contains(&passed), "{passed}");
}

#[test]
fn plan_is_a_key_and_missing_without_a_default() {
    let rest = "\
plans: { of: { cookie: session }, members: { a: pro, b: pro, c: gold } }
rules: [{ name: per-plan, key: plan, limit: 1/d, on_missing: deny }]
";
    let weir = Weir::start(&config("echo", rest));
    let mut client = Client::connect(weir.address());
    let mut ask = |cookie: &str| client.fetch(&Request::get("/").header("cookie", cookie)).status;
    assert_eq!([ask("session=a"), ask("session=b"), ask("session=c")], [200, 429, 200]);
    assert_eq!([ask("session=d"), ask("other=a")], [403, 403]);
    for spelling in ["session=%61", "session=\"\\141\"", "%73ession=a"] {
        assert_eq!(ask(spelling), 429, "{spelling}");
    }
}

#[test]
fn second_api_key_cannot_gain_a_plan() {
    let place = PlanProxy::start("alice: pro\n", ONLY_PRO);
    let mut client = Client::connect(place.weir.address());
    assert_eq!(client.fetch(&request_with_key("alice")).status, 200);
    for (other, status) in [("mallory", 400), ("alice", 200)] {
        assert_eq!(client.fetch(&request_with_key("alice").header("x-api-key", other)).status, status);
    }
    assert_eq!(place.statuses(&["", "Alice", "alice ", "alic"]), [403, 403, 200, 403]);
}

#[test]
fn changed_members_are_reloaded_and_counters_retained() {
    let rest = "\
plans: { of: { header: x-api-key }, members: { file: keys.yaml }, default: free }
rules:
  - { name: free, match: { plan: free }, key: { header: x-api-key }, limit: 2/d }
  - { name: pro, match: { plan: pro }, key: { header: x-api-key }, limit: 3/d }
";
    let place = PlanProxy::start("alice: pro\n", rest);
    assert_eq!(place.statuses(&["alice", "bob", "bob", "bob"]), [200, 200, 200, 429]);
    let before = place.weir.generation();
    place.replace_members("alice: pro\nbob: pro\n");
    place.weir.until_reloaded(before);
    assert_eq!(place.statuses(&["bob", "bob", "bob", "bob"]), [200, 200, 200, 429]);
    assert_eq!(place.statuses(&["alice", "alice", "alice"]), [200, 200, 429], "the counter is kept");
    // Back on the free plan, the units used under it are still counted.
    let before = place.weir.generation();
    place.replace_members("{}\n");
    place.weir.until_reloaded(before);
    assert_eq!(place.statuses(&["bob", "alice"]), [429, 200]);
}

#[test]
fn damaged_members_file_is_rejected_without_revealing_keys() {
    let place = PlanProxy::start("sk_live_alice: pro\n", ONLY_PRO);
    let spoil = |members: &str| {
        let before = place.weir.rejected_reloads();
        place.replace_members(members);
        wait::until_true("the rejection", || place.weir.rejected_reloads() > before);
        assert_eq!(place.statuses(&["sk_live_alice", "sk_live_bob"]), [200, 403]);
    };
    spoil("");
    spoil("sk_live_alice: [pro\n");
    spoil("sk_live_bob: pro\nsk_live_carol: two words\n");
    spoil("sk_live_bob: pro\nsk_live_bob: free\n");
    let info = place.weir.admin_json("/server_info");
    let shown = info["config"]["last_reload"]["problems"][0].as_str().unwrap();
    assert!(shown.ends_with("keys.yaml:2:1: duplicate key (first in line 1)"), "{shown}");
    place.replace_members("sk_live_bob: pro\n");
    wait::until_true("the new members", || place.statuses(&["sk_live_alice", "sk_live_bob"]) == [403, 200]);
    assert_no_key_is_shown(&place.weir, "sk_live");
}

#[test]
fn inline_members_are_never_shown() {
    let rest = "\
plans: { of: { header: x-api-key }, members: { sk_live_alice: pro } }
rules: [{ name: only-pro, except: { plan: pro }, action: deny }]
";
    let weir = Weir::start(&config("echo", rest));
    assert_eq!(statuses(&weir, &["sk_live_alice", "sk_live_bob"]), [200, 403]);
    weir.assert_reload_rejected(&config("echo", &rest.replace("sk_live_alice: pro", "sk_live_alice: [1]")));
    weir.assert_reload_rejected(&config(
        "echo",
        &rest.replace("sk_live_alice: pro", "sk_live_a: x, sk_live_a: x"),
    ));
    assert_no_key_is_shown(&weir, "sk_live");
}

fn assert_no_key_is_shown(weir: &Weir, key: &str) {
    for path in ["/config_dump", "/server_info", "/limits", "/metrics"] {
        assert!(!weir.admin_get(path).body.text().contains(key), "{path}");
    }
    assert!(!weir.log().iter().any(|line| line.contains(key)), "a key is in the log");
}

#[test]
fn one_hundred_thousand_members_are_supported() {
    let members: String = (0..100_000).map(|n| format!("key-{n:06}: {}\n", ["free", "pro"][n % 2])).collect();
    let place = PlanProxy::start(&members, ONLY_PRO);
    assert_eq!(
        place.statuses(&["key-000000", "key-000001", "key-099998", "key-099999", "key-100001"]),
        [403, 200, 403, 200, 403]
    );
}

#[test]
fn second_api_key_cannot_escape_a_plan() {
    let place = PlanProxy::start(
        "{ a: slow, b: fast }",
        "plans: { of: { header: x-api-key }, members: { file: keys.yaml } }\n\
         rules: [{ name: slow, match: { plan: slow }, limit: 1/d }]\n",
    );
    assert_eq!(place.statuses(&["a", "a", "b", ""]), [200, 429, 200, 200]);
    for other in ["b", "unknown"] {
        for lines in [["a", other], [other, "a"]] {
            let request = request_with_key(lines[0]).header("x-api-key", lines[1]);
            assert_eq!(Client::connect(place.weir.address()).fetch(&request).status, 400, "{lines:?}");
        }
    }
}
