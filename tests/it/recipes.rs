//! Tests of every recipe in docs/guides, taken from the pages: each does what its heading says.

mod core;

use std::fs;
use std::ops::Deref;

use http::HeaderMap;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use tempfile::TempDir;

use crate::support::h2::H2;
use crate::support::h2_origin::H2Origin;
use crate::support::{Client, Origin, Request, Then, Weir, at_once, config, wait};

/// Pages with recipes, one per heading.
const GUIDES: [&str; 13] = [
    include_str!("../../docs/guides/allow-and-block-lists.md"),
    include_str!("../../docs/guides/bans.md"),
    include_str!("../../docs/guides/central-configuration.md"),
    include_str!("../../docs/guides/concurrency.md"),
    include_str!("../../docs/guides/cost-based-limits.md"),
    include_str!("../../docs/guides/envoy.md"),
    include_str!("../../docs/guides/geography-and-schedules.md"),
    include_str!("../../docs/guides/jwt-and-keys.md"),
    include_str!("../../docs/guides/login-protection.md"),
    include_str!("../../docs/guides/serve-stale.md"),
    include_str!("../../docs/guides/shadow-mode.md"),
    include_str!("../../docs/guides/soft-limits-and-delays.md"),
    include_str!("../../docs/guides/tiers-and-plans.md"),
];

/// Returns the YAML of the recipe under a heading.
fn recipe(heading: &str) -> &'static str {
    let mut sections = GUIDES.iter().flat_map(|page| page.split("\n## "));
    let section = sections.find(|section| section.lines().next() == Some(heading));
    let section = section.unwrap_or_else(|| panic!("no recipe {heading:?}"));
    section.split("```yaml recipe\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap()
}

/// A proxy with the configuration of a recipe, and the files that it names.
struct Kitchen {
    weir: Weir,
    directory: TempDir,
}

impl Deref for Kitchen {
    type Target = Weir;

    fn deref(&self) -> &Weir {
        &self.weir
    }
}

impl Kitchen {
    fn start(heading: &str, origin: &Origin, files: &[(&str, &str)]) -> Self {
        Self::start_beside("", heading, origin, files)
    }

    /// Starts a recipe with an additional line of YAML.
    fn start_beside(line: &str, heading: &str, origin: &Origin, files: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(directory.path().join(name), content).unwrap();
        }
        let file = directory.path().join("weir.yaml");
        fs::write(&file, config(origin.address(), &format!("{line}\n{}", recipe(heading)))).unwrap();
        Self { weir: Weir::start_file(&file), directory }
    }

    /// Replaces a file atomically.
    fn replace(&self, name: &str, content: &str) {
        let (next, file) = (self.directory.path().join("next"), self.directory.path().join(name));
        fs::write(&next, content).unwrap();
        fs::rename(next, file).unwrap();
    }

    /// Sends a request `times` times on one connection, and returns the status codes.
    fn ask(&self, times: usize, request: &Request) -> Vec<u16> {
        let mut client = Client::connect(self.address());
        (0..times).map(|_| client.ask(request).status).collect()
    }

    fn decisions(&self, rule: &str, outcome: &str) -> f64 {
        self.metric("weir_decisions_total", &[("rule", rule), ("outcome", outcome)])
    }
}

fn times(status: u16, count: usize) -> Vec<u16> {
    vec![status; count]
}

/// Returns an upstream that responds with the status code in the request header `x-status`.
fn obedient() -> Origin {
    Origin::start(|turn| {
        turn.body()?;
        let status = turn.head.get("x-status").unwrap_or("200").to_owned();
        turn.send(format!("HTTP/1.1 {status} As Told\r\ncontent-length: 2\r\n\r\nok"))?;
        Ok(Then::Keep)
    })
}

#[test]
fn ten_failed_logins_an_hour() {
    let origin = obedient();
    let weir = Kitchen::start("Limit failed logins per IP address", &origin, &[]);
    let (right, wrong) =
        (Request::post("/login", "x"), Request::post("/login", "x").header("x-status", "401"));
    assert_eq!(weir.ask(20, &right), times(200, 20));
    assert_eq!(weir.ask(10, &wrong), times(401, 10));
    assert_eq!(weir.ask(2, &wrong), times(429, 2));
    assert_eq!(weir.ask(1, &right), times(429, 1));
    assert_eq!(Client::connect_from("127.0.0.9", weir.address()).ask(&right).status, 200);
    assert_eq!(weir.ask(1, &Request::get("/login")), times(200, 1));
}

#[test]
fn a_thousand_guesses_at_once_are_ten() {
    let origin = obedient();
    let weir = Kitchen::start("Limit failed logins per IP address", &origin, &[]);
    let wrong = Request::post("/login", "x").header("x-status", "403");
    let statuses = at_once(8, |_| weir.ask(125, &wrong)).concat();
    assert_eq!(statuses.iter().filter(|status| **status == 403).count(), 10);
}

#[test]
fn ten_failed_logins_answered_200() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        let told = turn.head.get("x-told").unwrap_or_default().to_owned();
        let status = if told.starts_with("location") { 303 } else { 200 };
        turn.send(format!("HTTP/1.1 {status} Told\r\n{told}\r\ncontent-length: 0\r\n\r\n"))?;
        Ok(Then::Keep)
    });
    let weir = Kitchen::start("Count failed logins by response header or redirect", &origin, &[]);
    let login = |told: &str| Request::post("/login", "x").header("x-told", told);
    assert_eq!(weir.ask(20, &login("x-login: ok")), times(200, 20));
    assert_eq!(weir.ask(11, &login("x-login: failed")), [times(200, 10), times(429, 1)].concat());
    let form = |told: &str| Request::post("/form", "x").header("x-told", told);
    assert_eq!(weir.ask(20, &form("location: /home")), times(303, 20));
    assert_eq!(weir.ask(11, &form("location: /form?again")), [times(303, 10), times(429, 1)].concat());
}

#[test]
fn ten_rejected_calls() {
    let upstream = H2Origin::start(None, |request, mut respond| async move {
        let status = request.headers()["x-status"].clone();
        let response = http::Response::builder().header("content-type", "application/grpc");
        let mut stream = respond.send_response(response.body(()).unwrap(), false)?;
        stream.send_trailers(HeaderMap::from_iter([("grpc-status".parse().unwrap(), status)]))
    });
    let weir = Weir::start(&config(upstream.address(), recipe("Limit rejected gRPC calls")));
    let mut client = H2::connect(weir.address());
    let mut call = |status: &str| {
        let request = client.call().header("x-status", status);
        let whole = client.ask(request);
        let fields = whole.trailers.as_ref().unwrap_or(&whole.headers);
        fields["grpc-status"].to_str().unwrap().to_owned()
    };
    assert!((0..20).all(|_| call("0") == "0"));
    assert!((0..10).all(|_| call("16") == "16"));
    assert_eq!(call("0"), "8");
}

#[test]
fn one_budget_for_exports_and_others() {
    let origin = obedient();
    let heading = "One budget for cheap and expensive requests";
    // All requests must be in one window of a minute.
    wait::until_true("all requests to be in one minute", || {
        let weir = Kitchen::start(heading, &origin, &[]);
        let of = |path: &str| Request::get(path).header("x-api-key", "7");
        let found = [
            weir.ask(1, &of("/export/a")),
            weir.ask(50, &of("/")),
            weir.ask(1, &of("/")),
            weir.ask(1, &of("/export/a")),
            weir.ask(1, &Request::get("/export/a").header("x-api-key", "8")),
        ];
        found == [times(200, 1), times(200, 50), times(429, 1), times(429, 1), times(200, 1)]
    });
}

#[test]
fn free_users_and_pro() {
    let origin = obedient();
    let weir = Kitchen::start("Free and paid API keys", &origin, &[("members.yaml", "rich: pro\n")]);
    let with = |key: &str| Request::get("/").header("x-api-key", key);
    assert_eq!(weir.ask(101, &with("poor")), [times(200, 100), times(429, 1)].concat());
    assert_eq!(weir.ask(101, &with("other")), [times(200, 100), times(429, 1)].concat());
    assert_eq!(weir.ask(101, &Request::get("/")), [times(200, 100), times(429, 1)].concat());
    assert_eq!(weir.ask(150, &with("rich")), times(200, 150));
    assert_eq!(
        Client::connect(weir.address()).ask(&with("rich")).head.get("x-ratelimit-limit").unwrap(),
        "10000, 10000;w=3600;name=\"pro\""
    );
    weir.replace("members.yaml", "rich: pro\npoor: pro\n");
    wait::until_true("the customer to get the plan `pro`", || weir.ask(1, &with("poor")) == times(200, 1));
}

#[test]
fn two_hundred_dollars_a_day() {
    let origin = obedient();
    let weir = Kitchen::start("Limit an amount of money per day", &origin, &[]);
    let of = |customer: &str| Request::post("/purchases", "x").header("x-customer", customer);
    let buy = |cents: &str, status: &str| {
        weir.ask(1, &of("7").header("x-amount-cents", cents).header("x-status", status))[0]
    };
    assert_eq!(buy("20000", "402"), 402, "declined, and refunded");
    assert_eq!(buy("20000", "503"), 503, "failed, and refunded");
    assert_eq!(buy("15000", "200"), 200);
    assert_eq!(buy("5001", "200"), 429, "one cent too much, and not charged");
    assert_eq!(buy("4999.5", "201"), 201, "rounded up");
    assert_eq!(buy("1", "200"), 429);
    // A missing amount uses the whole limit, an invalid or repeated one is rejected, and so is a missing customer.
    assert_eq!([1, 2].map(|_| weir.ask(1, &of("8"))[0]), [200, 429], "the whole limit");
    assert_eq!(weir.ask(1, &of("9").header("x-amount-cents", "1e1"))[0], 429);
    assert_eq!(weir.ask(1, &of("9").header("x-amount-cents", "1").header("x-amount-cents", "20001"))[0], 429);
    assert_eq!(weir.ask(1, &Request::post("/purchases", "x").header("x-amount-cents", "1"))[0], 403);
}

#[test]
fn ten_per_cent_over() {
    let origin = obedient();
    let weir = Kitchen::start("Soft limit: mark requests before rejecting them", &origin, &[]);
    let mut client = Client::connect(weir.address());
    let request = Request::get("/").header("x-api-key", "7");
    let answers: Vec<_> = (0..111).map(|_| client.ask(&request)).collect();
    let (passed, refused) = answers.split_at(110);
    assert!(passed.iter().all(|answer| answer.status == 200));
    assert_eq!(refused[0].status, 429);
    let mark =
        |answer: &crate::support::Response| answer.head.get("x-weir-over-limit").map(ToOwned::to_owned);
    assert!(passed[..100].iter().all(|answer| mark(answer).is_none()));
    assert!(passed[100..].iter().all(|answer| mark(answer).as_deref() == Some("per-key")));
    let marked =
        origin.seen().iter().filter(|seen| seen.head.get("x-weir-over-limit") == Some("per-key")).count();
    assert_eq!(marked, 10);
    let outcomes = ["allowed", "soft", "limited"].map(|outcome| weir.decisions("per-key", outcome));
    assert_eq!(outcomes, [100.0, 10.0, 1.0]);
}

#[test]
fn more_while_there_is_room() {
    let origin = obedient();
    // Does not use the signal `cpu`: other tests keep the CPU busy.
    let signals = "elastic: { signals: in_flight }";
    let weir = Kitchen::start_beside(
        signals,
        "Elastic limit: admit more while the upstream has capacity",
        &origin,
        &[],
    );
    wait::until_true("growth", || weir.admin_json("/limits")["rules"][0]["factor"].as_f64() > Some(2.0));
    let begun = wait::now();
    let statuses = weir.ask(400, &Request::get("/").header("x-api-key", "7"));
    let passed = statuses.iter().filter(|status| **status == 200).count();
    // Admissions under the base limit: a burst of 100, and 100 per second.
    let base = 101.0 + begun.elapsed().as_secs_f64() * 100.0;
    assert!(passed as f64 > base * 1.5, "{passed} admitted; the base limit admits {base}");
}

#[test]
fn slower_instead_of_refused() {
    let origin = obedient();
    let weir = Kitchen::start("Delay requests instead of rejecting them", &origin, &[]);
    let begun = wait::now();
    let statuses = at_once(40, |_| weir.ask(1, &Request::get("/import"))).concat();
    let passed = statuses.iter().filter(|status| **status == 200).count();
    assert!(passed >= 16, "{statuses:?}");
    assert!(statuses.contains(&429), "{statuses:?}");
    assert!(begun.elapsed().as_millis() >= (passed as u128 - 1) * 100, "{passed} admitted too soon");
    assert!(weir.decisions("imports", "delayed") >= 15.0);
}

#[test]
fn four_reports_at_a_time() {
    let origin = Origin::start(|turn| {
        if turn.head.word(1) == "/reports/slow" {
            // The response stays incomplete until the client disconnects.
            turn.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no")?;
            turn.wire.ends();
            return Ok(Then::Close);
        }
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?;
        Ok(Then::Keep)
    });
    let weir = Kitchen::start("Four concurrent reports per customer", &origin, &[]);
    let with = |path: &str, customer: &str| Request::get(path).header("x-customer", customer);
    let mut under_way: Vec<_> = (0..4)
        .map(|_| {
            let mut client = Client::connect(weir.address());
            client.send(with("/reports/slow", "7").bytes());
            assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "200");
            client
        })
        .collect();
    assert_eq!(weir.ask(3, &with("/reports/quick", "7")), times(429, 3));
    assert_eq!(weir.ask(1, &with("/reports/quick", "8")), times(200, 1));
    drop(under_way.pop());
    wait::until_true("a free permit", || weir.ask(1, &with("/reports/quick", "7")) == times(200, 1));
    assert_eq!(weir.ask(5, &with("/reports/quick", "7")), times(200, 5));
}

#[test]
fn who_does_not_listen_is_shut_out() {
    let origin = obedient();
    let weir = Kitchen::start("Ban a client that exceeds its limit", &origin, &[]);
    let mut client = Client::connect(weir.address());
    wait::until_true("a rejection", || client.get("/").status == 429);
    for _ in 0..5 {
        let answer = client.get("/");
        assert_eq!(answer.status, 429);
        assert!((540..=600).contains(&answer.number("retry-after")), "{:?}", answer.head);
    }
    assert_eq!((weir.decisions("scrapers", "limited"), weir.decisions("scrapers", "banned")), (1.0, 5.0));
    assert_eq!(Client::connect_from("127.0.0.9", weir.address()).get("/").status, 200);
}

#[test]
fn a_tenth_of_the_clients_is_limited() {
    let origin = obedient();
    let weir = Kitchen::start("Enforce a limit for a share of clients (canary)", &origin, &[]);
    let limited = |client: usize| {
        let from = format!("127.0.{}.{}", 1 + client / 200, 1 + client % 200);
        let mut client = Client::connect_from(&from, weir.address());
        (0..60).any(|_| client.get("/").status == 429)
    };
    let first: Vec<bool> = (0..200).map(limited).collect();
    let share = first.iter().filter(|limited| **limited).count();
    assert!((3..=50).contains(&share), "{share} of 200 clients limited");
    assert!(weir.decisions("try-it", "shadow") > 0.0);
    let again: Vec<bool> = (0..200).map(limited).collect();
    assert_eq!(first, again);
}

#[test]
fn one_canary_on_every_instance_and_a_second_one() {
    let origin = obedient();
    let heading = "Select the same or another share of clients";
    let instances = [(), ()].map(|()| Kitchen::start(heading, &origin, &[]));
    let canary = |instance: &Kitchen, method: &str| -> Vec<u32> {
        let is_limited = |customer: &u32| {
            let request = Request::new(method, "/").header("x-customer", &customer.to_string());
            instance.ask(4, &request)[3] == 429
        };
        (0..100).filter(is_limited).collect()
    };
    let reads = canary(&instances[0], "GET");
    assert!((1..=30).contains(&reads.len()), "{reads:?}");
    assert_eq!(canary(&instances[1], "GET"), reads);
    assert_eq!(canary(&instances[1], "POST"), reads);
    assert_ne!(canary(&instances[1], "DELETE"), reads);
}

#[test]
fn each_user_of_a_token() {
    let origin = obedient();
    let public = include_str!("../data/jwt/ec.pub.pem");
    let weir = Kitchen::start("Limit each user by JWT claim", &origin, &[("issuer.pem", public)]);
    let sign = |secret: &str, user: &str| {
        let key = EncodingKey::from_ec_pem(secret.as_bytes()).unwrap();
        // 2100-01-01
        let claims = serde_json::json!({ "sub": user, "exp": 4_102_444_800_u64 });
        let token = encode(&Header::new(Algorithm::ES256), &claims, &key).unwrap();
        Request::get("/").header("authorization", &format!("Bearer {token}"))
    };
    let ours = include_str!("../data/jwt/ec.pem");
    let ask = |from: &str, request: &Request| Client::connect_from(from, weir.address()).ask(request);
    assert_eq!(ask("127.0.0.1", &sign(ours, "ann")).number("x-ratelimit-remaining"), 999);
    assert_eq!(ask("127.0.0.2", &sign(ours, "ann")).number("x-ratelimit-remaining"), 998);
    assert_eq!(ask("127.0.0.2", &sign(ours, "bob")).number("x-ratelimit-remaining"), 999);
    assert_eq!(ask("127.0.0.1", &sign(include_str!("../data/jwt/other.pem"), "ann")).status, 403);
    assert_eq!(ask("127.0.0.1", &Request::get("/")).status, 403);
}

#[test]
fn an_old_page_rather_than_none() {
    let origin = obedient();
    let heading = "Serve the last good response when rate limited";
    let weir = Kitchen::start(heading, &origin, &[("busy.html", "<p>busy")]);
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/catalogue/1").body.text(), "ok");
    // Sends faster than the limit. Responses to rejected requests have a Warning header.
    let mut refused = |request: fn(usize) -> Request| {
        let mut answers = (0..5000).map(|n| client.ask(&request(n)));
        answers.find(|answer| answer.head.get("warning").is_some()).unwrap()
    };
    let kept = refused(|_| Request::get("/catalogue/1"));
    assert_eq!((kept.status, &*kept.body.text()), (200, "ok"));
    // Nothing is stored for a page that was never requested.
    let busy = refused(|n| Request::get(&format!("/catalogue/new-{n}")));
    assert_eq!((busy.status, &*busy.body.text()), (200, "<p>busy"));
    let mut posts = (0..5000).map(|_| client.ask(&Request::post("/catalogue/1", "x")).status);
    assert!(posts.any(|status| status == 429), "a rejected POST gets 429");
}

#[test]
fn envoy_asks_us() {
    let origin = obedient();
    let service = "rls: { address: 127.0.0.1:0, http: 127.0.0.1:0 }";
    let heading = "Rules for Envoy's rate limit filter";
    let kitchen = Kitchen::start_beside(service, heading, &origin, &[]);
    let question = |client: &str| {
        let entry = |key: &str, value: &str| format!(r#"{{"key":"{key}","value":"{value}"}}"#);
        let entries = [entry("route", "login"), entry("remote_address", client)].join(",");
        Request::post("/json", format!(r#"{{"domain":"edge","descriptors":[{{"entries":[{entries}]}}]}}"#))
    };
    let http = kitchen.door("http");
    let asked = |times: usize, client: &str| -> Vec<u16> {
        (0..times).map(|_| crate::support::ask(http, &question(client)).status).collect()
    };
    // At most one minute ends meanwhile.
    let passed = asked(25, "192.0.2.1").into_iter().filter(|status| *status == 200).count();
    assert!(matches!(passed, 10 | 20), "{passed}");
    assert_eq!(asked(1, "192.0.2.2"), [200]);
    assert!(kitchen.decisions("per-client", "allowed") >= 11.0);
}

/// Recipes that are tested elsewhere: this one needs a configuration server, as in tests/it/config_over_http.rs.
const TRIED_ELSEWHERE: [&str; 1] = ["Fetch the configuration from a web server"];

#[test]
fn every_recipe_is_tried() {
    let tests = [include_str!("recipes.rs"), include_str!("recipes/core.rs")].concat();
    let headings = GUIDES.iter().flat_map(|page| page.lines());
    let untried = headings.filter_map(|line| line.strip_prefix("## "));
    let untried: Vec<_> = untried
        .filter(|heading| !TRIED_ELSEWHERE.contains(heading) && !tests.contains(&format!("\"{heading}\"")))
        .collect();
    assert!(untried.is_empty(), "recipes without a test: {untried:?}");
}

#[test]
fn lists_of_who_may_and_who_may_not() {
    let origin = obedient();
    let files = [("partners.txt", "127.0.0.5\n"), ("unwanted.txt", "127.0.0.6/32 # known\n")];
    let weir = Kitchen::start("Allow and block networks from files", &origin, &files);
    let from = |address: &str, path: &str| Client::connect_from(address, weir.address()).get(path);
    assert_eq!(from("127.0.0.5", "/").head.get("x-ratelimit-limit"), None);
    assert_eq!(from("127.0.0.6", "/").status, 403);
    assert_eq!(from("127.0.0.6", "/healthz").status, 200);
    assert!(from("127.0.0.7", "/").head.get("x-ratelimit-limit").is_some());
    weir.replace("unwanted.txt", "127.0.0.7\n");
    wait::until_true("the new list", || from("127.0.0.7", "/").status == 403);
    assert_eq!(from("127.0.0.6", "/").status, 200);
}
