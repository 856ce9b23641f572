//! Tests of every recipe in docs/guides, taken from the pages: each does what its heading says.

mod concurrency;
pub(crate) mod core;
mod providers;

use std::fs;
use std::ops::Deref;

use http::HeaderMap;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use tempfile::TempDir;

use crate::support::h2::H2Client;
use crate::support::h2_origin::H2Origin;
use crate::support::{AfterResponse, Client, Origin, Request, Weir, config, run_concurrently, wait};

/// Pages with recipes, one per heading.
const GUIDES: [&str; 14] = [
    include_str!("../../docs/guides/allow-and-block-lists.md"),
    include_str!("../../docs/guides/bans.md"),
    include_str!("../../docs/guides/call-providers.md"),
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
struct RecipeProxy {
    weir: Weir,
    directory: TempDir,
}

impl Deref for RecipeProxy {
    type Target = Weir;

    fn deref(&self) -> &Weir {
        &self.weir
    }
}

impl RecipeProxy {
    fn start(heading: &str, origin: &Origin, files: &[(&str, &str)]) -> Self {
        Self::start_with("", heading, origin, files)
    }

    /// Starts a recipe with an additional line of YAML.
    fn start_with(line: &str, heading: &str, origin: &Origin, files: &[(&str, &str)]) -> Self {
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
    fn statuses(&self, times: usize, request: &Request) -> Vec<u16> {
        let mut client = Client::connect(self.address());
        (0..times).map(|_| client.fetch(request).status).collect()
    }

    fn decisions(&self, rule: &str, outcome: &str) -> f64 {
        self.metric("weir_decisions_total", &[("rule", rule), ("outcome", outcome)])
    }
}

fn repeated_status(status: u16, count: usize) -> Vec<u16> {
    vec![status; count]
}

/// Returns an upstream that responds with the status code in the request header `x-status`.
fn scripted_upstream() -> Origin {
    Origin::start(|turn| {
        turn.body()?;
        let status = turn.head.get("x-status").unwrap_or("200").to_owned();
        turn.send(format!("HTTP/1.1 {status} As Told\r\ncontent-length: 2\r\n\r\nok"))?;
        Ok(AfterResponse::Keep)
    })
}

#[test]
fn failed_logins_are_limited_per_ip() {
    let origin = scripted_upstream();
    let weir = RecipeProxy::start("Limit failed logins per IP address", &origin, &[]);
    let (right, wrong) =
        (Request::post("/login", "x"), Request::post("/login", "x").header("x-status", "401"));
    assert_eq!(weir.statuses(20, &right), repeated_status(200, 20));
    assert_eq!(weir.statuses(10, &wrong), repeated_status(401, 10));
    assert_eq!(weir.statuses(2, &wrong), repeated_status(429, 2));
    assert_eq!(weir.statuses(1, &right), repeated_status(429, 1));
    assert_eq!(Client::connect_from("127.0.0.9", weir.address()).fetch(&right).status, 200);
    assert_eq!(weir.statuses(1, &Request::get("/login")), repeated_status(200, 1));
}

#[test]
fn failed_logins_are_limited_under_concurrency() {
    let origin = scripted_upstream();
    let weir = RecipeProxy::start("Limit failed logins per IP address", &origin, &[]);
    let wrong = Request::post("/login", "x").header("x-status", "403");
    let statuses = run_concurrently(8, |_| weir.statuses(125, &wrong)).concat();
    assert_eq!(statuses.iter().filter(|status| **status == 403).count(), 10);
}

#[test]
fn failed_logins_are_counted_by_response_header_or_redirect() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        let told = turn.head.get("x-told").unwrap_or_default().to_owned();
        let status = if told.starts_with("location") { 303 } else { 200 };
        turn.send(format!("HTTP/1.1 {status} Told\r\n{told}\r\ncontent-length: 0\r\n\r\n"))?;
        Ok(AfterResponse::Keep)
    });
    let weir = RecipeProxy::start("Count failed logins by response header or redirect", &origin, &[]);
    let login = |told: &str| Request::post("/login", "x").header("x-told", told);
    assert_eq!(weir.statuses(20, &login("x-login: ok")), repeated_status(200, 20));
    assert_eq!(
        weir.statuses(11, &login("x-login: failed")),
        [repeated_status(200, 10), repeated_status(429, 1)].concat()
    );
    let form = |told: &str| Request::post("/form", "x").header("x-told", told);
    assert_eq!(weir.statuses(20, &form("location: /home")), repeated_status(303, 20));
    assert_eq!(
        weir.statuses(11, &form("location: /form?again")),
        [repeated_status(303, 10), repeated_status(429, 1)].concat()
    );
}

#[test]
fn rejected_grpc_calls_are_limited() {
    let upstream = H2Origin::start(None, |request, mut respond| async move {
        let status = request.headers()["x-status"].clone();
        let response = http::Response::builder().header("content-type", "application/grpc");
        let mut stream = respond.send_response(response.body(()).unwrap(), false)?;
        stream.send_trailers(HeaderMap::from_iter([("grpc-status".parse().unwrap(), status)]))
    });
    let weir = Weir::start(&config(upstream.address(), recipe("Limit rejected gRPC calls")));
    let mut client = H2Client::connect(weir.address());
    let mut call = |status: &str| {
        let request = client.call().header("x-status", status);
        let whole = client.fetch(request);
        let fields = whole.trailers.as_ref().unwrap_or(&whole.headers);
        fields["grpc-status"].to_str().unwrap().to_owned()
    };
    assert!((0..20).all(|_| call("0") == "0"));
    assert!((0..10).all(|_| call("16") == "16"));
    assert_eq!(call("0"), "8");
}

#[test]
fn cheap_and_expensive_requests_share_a_budget() {
    let origin = scripted_upstream();
    let heading = "One budget for cheap and expensive requests";
    // All requests must be in one window of a minute.
    wait::until_true("all requests to be in one minute", || {
        let weir = RecipeProxy::start(heading, &origin, &[]);
        let of = |path: &str| Request::get(path).header("x-api-key", "7");
        let found = [
            weir.statuses(1, &of("/export/a")),
            weir.statuses(50, &of("/")),
            weir.statuses(1, &of("/")),
            weir.statuses(1, &of("/export/a")),
            weir.statuses(1, &Request::get("/export/a").header("x-api-key", "8")),
        ];
        found
            == [
                repeated_status(200, 1),
                repeated_status(200, 50),
                repeated_status(429, 1),
                repeated_status(429, 1),
                repeated_status(200, 1),
            ]
    });
}

#[test]
fn free_and_paid_api_keys_have_different_limits() {
    let origin = scripted_upstream();
    let weir = RecipeProxy::start("Free and paid API keys", &origin, &[("members.yaml", "rich: pro\n")]);
    let with = |key: &str| Request::get("/").header("x-api-key", key);
    assert_eq!(
        weir.statuses(101, &with("poor")),
        [repeated_status(200, 100), repeated_status(429, 1)].concat()
    );
    assert_eq!(
        weir.statuses(101, &with("other")),
        [repeated_status(200, 100), repeated_status(429, 1)].concat()
    );
    assert_eq!(
        weir.statuses(101, &Request::get("/")),
        [repeated_status(200, 100), repeated_status(429, 1)].concat()
    );
    assert_eq!(weir.statuses(150, &with("rich")), repeated_status(200, 150));
    assert_eq!(
        Client::connect(weir.address()).fetch(&with("rich")).head.get("x-ratelimit-limit").unwrap(),
        "10000, 10000;w=3600;name=\"pro\""
    );
    weir.replace("members.yaml", "rich: pro\npoor: pro\n");
    wait::until_true("the customer to get the plan `pro`", || {
        weir.statuses(1, &with("poor")) == repeated_status(200, 1)
    });
}

#[test]
fn amount_of_money_per_day_is_limited() {
    let origin = scripted_upstream();
    let weir = RecipeProxy::start("Limit an amount of money per day", &origin, &[]);
    let of = |customer: &str| Request::post("/purchases", "x").header("x-customer", customer);
    let buy = |cents: &str, status: &str| {
        weir.statuses(1, &of("7").header("x-amount-cents", cents).header("x-status", status))[0]
    };
    assert_eq!(buy("20000", "402"), 402, "declined, and refunded");
    assert_eq!(buy("20000", "503"), 503, "failed, and refunded");
    assert_eq!(buy("15000", "200"), 200);
    assert_eq!(buy("5001", "200"), 429, "one cent too much, and not charged");
    assert_eq!(buy("4999.5", "201"), 201, "rounded up");
    assert_eq!(buy("1", "200"), 429);
    // A missing amount uses the whole limit, an invalid or repeated one is rejected, and so is a missing customer.
    assert_eq!([1, 2].map(|_| weir.statuses(1, &of("8"))[0]), [200, 429], "the whole limit");
    assert_eq!(weir.statuses(1, &of("9").header("x-amount-cents", "1e1"))[0], 429);
    assert_eq!(
        weir.statuses(1, &of("9").header("x-amount-cents", "1").header("x-amount-cents", "20001"))[0],
        429
    );
    assert_eq!(weir.statuses(1, &Request::post("/purchases", "x").header("x-amount-cents", "1"))[0], 403);
}

#[test]
fn soft_limit_marks_requests_before_rejecting() {
    let origin = scripted_upstream();
    let weir = RecipeProxy::start("Soft limit: mark requests before rejecting them", &origin, &[]);
    let mut client = Client::connect(weir.address());
    let request = Request::get("/").header("x-api-key", "7");
    let answers: Vec<_> = (0..111).map(|_| client.fetch(&request)).collect();
    let (passed, refused) = answers.split_at(110);
    assert!(passed.iter().all(|answer| answer.status == 200));
    assert_eq!(refused[0].status, 429);
    let mark =
        |answer: &crate::support::Response| answer.head.get("x-weir-over-limit").map(ToOwned::to_owned);
    assert!(passed[..100].iter().all(|answer| mark(answer).is_none()));
    assert!(passed[100..].iter().all(|answer| mark(answer).as_deref() == Some("per-key")));
    let marked =
        origin.requests().iter().filter(|seen| seen.head.get("x-weir-over-limit") == Some("per-key")).count();
    assert_eq!(marked, 10);
    let outcomes = ["allowed", "soft", "limited"].map(|outcome| weir.decisions("per-key", outcome));
    assert_eq!(outcomes, [100.0, 10.0, 1.0]);
}

#[test]
fn elastic_limit_admits_more_with_upstream_capacity() {
    let origin = scripted_upstream();
    // Does not use the signal `cpu`: other tests keep the CPU busy.
    let signals = "elastic: { signals: in_flight }";
    let weir = RecipeProxy::start_with(
        signals,
        "Elastic limit: admit more while the upstream has capacity",
        &origin,
        &[],
    );
    wait::until_true("growth", || weir.admin_json("/limits")["rules"][0]["factor"].as_f64() > Some(2.0));
    let begun = wait::now();
    let statuses = weir.statuses(400, &Request::get("/").header("x-api-key", "7"));
    let passed = statuses.iter().filter(|status| **status == 200).count();
    // Admissions under the base limit: a burst of 100, and 100 per second.
    let base = 101.0 + begun.elapsed().as_secs_f64() * 100.0;
    assert!(passed as f64 > base * 1.5, "{passed} admitted; the base limit admits {base}");
}

#[test]
fn requests_are_delayed_instead_of_rejected() {
    let origin = scripted_upstream();
    let weir = RecipeProxy::start("Delay requests instead of rejecting them", &origin, &[]);
    let begun = wait::now();
    let statuses = run_concurrently(40, |_| weir.statuses(1, &Request::get("/import"))).concat();
    let passed = statuses.iter().filter(|status| **status == 200).count();
    assert!(passed >= 16, "{statuses:?}");
    assert!(statuses.contains(&429), "{statuses:?}");
    assert!(begun.elapsed().as_millis() >= (passed as u128 - 1) * 100, "{passed} admitted too soon");
    assert!(weir.decisions("imports", "delayed") >= 15.0);
}

#[test]
fn client_over_its_limit_is_banned() {
    let origin = scripted_upstream();
    let weir = RecipeProxy::start("Ban a client that exceeds its limit", &origin, &[]);
    let mut client = Client::connect(weir.address());
    wait::until_true("a rejection", || client.get("/").status == 429);
    for _ in 0..5 {
        let answer = client.get("/");
        assert_eq!(answer.status, 429);
        assert!((540..=600).contains(&answer.numeric_header("retry-after")), "{:?}", answer.head);
    }
    assert_eq!((weir.decisions("scrapers", "limited"), weir.decisions("scrapers", "banned")), (1.0, 5.0));
    assert_eq!(Client::connect_from("127.0.0.9", weir.address()).get("/").status, 200);
}

#[test]
fn canary_limits_a_share_of_clients() {
    let origin = scripted_upstream();
    let weir = RecipeProxy::start("Enforce a limit for a share of clients (canary)", &origin, &[]);
    let limited = |client: usize| {
        let mut client = Client::connect_from(&format!("127.0.1.{}", 1 + client), weir.address());
        (0..60).any(|_| client.get("/").status == 429)
    };
    let first: Vec<bool> = (0..100).map(limited).collect();
    let share = first.iter().filter(|limited| **limited).count();
    assert!((2..=25).contains(&share), "{share} of 100 clients limited");
    assert!(weir.decisions("try-it", "shadow") > 0.0);
    let again: Vec<bool> = (0..100).map(limited).collect();
    assert_eq!(first, again);
}

#[test]
fn canary_seed_selects_the_same_or_another_share() {
    let origin = scripted_upstream();
    let heading = "Select the same or another share of clients";
    let instances = [(), ()].map(|()| RecipeProxy::start(heading, &origin, &[]));
    let canary = |instance: &RecipeProxy, method: &str| -> Vec<u32> {
        let is_limited = |customer: &u32| {
            let request = Request::new(method, "/").header("x-customer", &customer.to_string());
            instance.statuses(4, &request)[3] == 429
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
fn users_are_limited_by_jwt_claim() {
    let origin = scripted_upstream();
    let public = include_str!("../data/jwt/ec.pub.pem");
    let weir = RecipeProxy::start("Limit each user by JWT claim", &origin, &[("issuer.pem", public)]);
    let sign = |secret: &str, user: &str| {
        let key = EncodingKey::from_ec_pem(secret.as_bytes()).unwrap();
        // 2100-01-01
        let claims = serde_json::json!({ "sub": user, "exp": 4_102_444_800_u64 });
        let token = encode(&Header::new(Algorithm::ES256), &claims, &key).unwrap();
        Request::get("/").header("authorization", &format!("Bearer {token}"))
    };
    let ours = include_str!("../data/jwt/ec.pem");
    let ask = |from: &str, request: &Request| Client::connect_from(from, weir.address()).fetch(request);
    assert_eq!(ask("127.0.0.1", &sign(ours, "ann")).numeric_header("x-ratelimit-remaining"), 999);
    assert_eq!(ask("127.0.0.2", &sign(ours, "ann")).numeric_header("x-ratelimit-remaining"), 998);
    assert_eq!(ask("127.0.0.2", &sign(ours, "bob")).numeric_header("x-ratelimit-remaining"), 999);
    assert_eq!(ask("127.0.0.1", &sign(include_str!("../data/jwt/other.pem"), "ann")).status, 403);
    assert_eq!(ask("127.0.0.1", &Request::get("/")).status, 403);
}

#[test]
fn last_good_response_is_served_when_rate_limited() {
    let origin = scripted_upstream();
    let heading = "Serve the last good response when rate limited";
    let weir = RecipeProxy::start(heading, &origin, &[("busy.html", "<p>busy")]);
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/catalogue/1").body.text(), "ok");
    // Sends faster than the limit. Responses to rejected requests have a Warning header.
    let mut refused = |request: fn(usize) -> Request| {
        let mut answers = (0..5000).map(|n| client.fetch(&request(n)));
        answers.find(|answer| answer.head.get("warning").is_some()).unwrap()
    };
    let kept = refused(|_| Request::get("/catalogue/1"));
    assert_eq!((kept.status, &*kept.body.text()), (200, "ok"));
    // Nothing is stored for a page that was never requested.
    let busy = refused(|n| Request::get(&format!("/catalogue/new-{n}")));
    assert_eq!((busy.status, &*busy.body.text()), (200, "<p>busy"));
    let mut posts = (0..5000).map(|_| client.fetch(&Request::post("/catalogue/1", "x")).status);
    assert!(posts.any(|status| status == 429), "a rejected POST gets 429");
}

#[test]
fn rules_for_envoys_rate_limit_filter_are_applied() {
    let origin = scripted_upstream();
    let service = "rls: { address: 127.0.0.1:0, http: 127.0.0.1:0 }";
    let heading = "Rules for Envoy's rate limit filter";
    let kitchen = RecipeProxy::start_with(service, heading, &origin, &[]);
    let question = |client: &str| {
        let entry = |key: &str, value: &str| format!(r#"{{"key":"{key}","value":"{value}"}}"#);
        let entries = [entry("route", "login"), entry("remote_address", client)].join(",");
        Request::post("/json", format!(r#"{{"domain":"edge","descriptors":[{{"entries":[{entries}]}}]}}"#))
    };
    let http = kitchen.rls_address("http");
    let asked = |times: usize, client: &str| -> Vec<u16> {
        (0..times).map(|_| crate::support::fetch(http, &question(client)).status).collect()
    };
    // At most one minute ends meanwhile.
    let passed = asked(25, "192.0.2.1").into_iter().filter(|status| *status == 200).count();
    assert!(matches!(passed, 10 | 20), "{passed}");
    assert_eq!(asked(1, "192.0.2.2"), [200]);
    assert!(kitchen.decisions("per-client", "allowed") >= 11.0);
}

/// Recipes that are tested elsewhere: tests/it/config_over_http.rs starts a configuration server, crates/telemetry/src/alerts and
/// tests/monitoring cause a spike.
const TESTED_ELSEWHERE: [&str; 2] =
    ["Fetch the configuration from a web server", "Alert on a spike from one country"];

#[test]
fn every_recipe_is_tested() {
    let tests = [
        include_str!("recipes.rs"),
        include_str!("recipes/concurrency.rs"),
        include_str!("recipes/core.rs"),
        include_str!("recipes/providers.rs"),
    ]
    .concat();
    let headings = GUIDES.iter().flat_map(|page| page.lines());
    let untried = headings.filter_map(|line| line.strip_prefix("## "));
    let untried: Vec<_> = untried
        .filter(|heading| !TESTED_ELSEWHERE.contains(heading) && !tests.contains(&format!("\"{heading}\"")))
        .collect();
    assert!(untried.is_empty(), "recipes without a test: {untried:?}");
}

#[test]
fn networks_from_files_are_allowed_or_denied() {
    let origin = scripted_upstream();
    let files = [("partners.txt", "127.0.0.5\n"), ("unwanted.txt", "127.0.0.6/32 # known\n")];
    let weir = RecipeProxy::start("Allow and block networks from files", &origin, &files);
    let from = |address: &str, path: &str| Client::connect_from(address, weir.address()).get(path);
    assert_eq!(from("127.0.0.5", "/").head.get("x-ratelimit-limit"), None);
    assert_eq!(from("127.0.0.6", "/").status, 403);
    assert_eq!(from("127.0.0.6", "/healthz").status, 200);
    assert!(from("127.0.0.7", "/").head.get("x-ratelimit-limit").is_some());
    weir.replace("unwanted.txt", "127.0.0.7\n");
    wait::until_true("the new list", || from("127.0.0.7", "/").status == 403);
    assert_eq!(from("127.0.0.6", "/").status, 200);
}
