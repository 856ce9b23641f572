//! Tests of the files in `config/`: each does what its comments say, for requests that it admits and that it rejects.

mod bodies;
mod core;
mod providers;

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::servers::Server;
use crate::support::h2::H2Client;
use crate::support::h2_origin::H2Origin;
use crate::support::{AfterResponse, Client, Origin, Request, Weir, fetch, run_concurrently, wait};

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config");

/// Returns the text of an example.
fn example(name: &str) -> String {
    fs::read_to_string(Path::new(DIRECTORY).join(name)).unwrap()
}

/// A running example.
struct Example {
    weir: Weir,
    _directory: TempDir,
}

impl Example {
    /// Starts an example on ports of the system's choice, with these replacements in its text.
    fn start(name: &str, replacements: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let networks = example("cloudflare-networks.txt") + "127.0.0.0/8\n";
        fs::write(directory.path().join("cloudflare-networks.txt"), networks).unwrap();
        let mut text = example(name);
        for (given, replacement) in replacements {
            assert!(text.contains(given), "{name} has no {given}");
            text = text.replace(given, replacement);
        }
        for address in [
            "127.0.0.1:8080",
            "0.0.0.0:8080",
            "127.0.0.1:8081",
            "127.0.0.1:8082",
            "127.0.0.1:9901",
            "0.0.0.0:9902",
        ] {
            text = text.replace(&format!("address: {address}"), "address: 127.0.0.1:0");
            text = text.replace(&format!("http: {address}"), "http: 127.0.0.1:0");
            text = text.replace(&format!("probes: {address}"), "probes: 127.0.0.1:0");
        }
        if !text.contains("\nadmin:") {
            text += "admin: { address: 127.0.0.1:0 }\n";
        }
        let file = directory.path().join("weir.yaml");
        fs::write(&file, text).unwrap();
        Self { weir: Weir::start_file(&file), _directory: directory }
    }

    /// Starts an example with a test's upstream in place of the service on port 3000.
    fn start_with_upstream(name: &str, origin: &Origin) -> Self {
        Self::start(name, &[("127.0.0.1:3000", &origin.address().to_string())])
    }

    /// Sends a request `times` times on one connection, and returns the status codes.
    fn statuses(&self, times: usize, request: &Request) -> Vec<u16> {
        self.statuses_from("127.0.0.1", times, request)
    }

    fn statuses_from(&self, client: &str, times: usize, request: &Request) -> Vec<u16> {
        let mut client = Client::connect_from(client, self.weir.address());
        (0..times).map(|_| client.fetch(request).status).collect()
    }

    /// Sends requests until one is rejected.
    fn until_rejected(&self, request: &Request) {
        let mut client = Client::connect(self.weir.address());
        assert_eq!(client.fetch(request).status, 200);
        wait::until_true("a rejection", || client.fetch(request).status == 429);
    }
}

/// Returns an upstream that responds as the request header `x-respond` says: a status code, or header lines.
fn scripted_upstream() -> Origin {
    Origin::start(|turn| {
        turn.body()?;
        let said = turn.head.get("x-respond").unwrap_or("200").to_owned();
        let (status, header) = match said.split_once(':') {
            Some(_) => ("200".to_owned(), format!("{said}\r\n")),
            None => (said, String::new()),
        };
        turn.send(format!("HTTP/1.1 {status} Said\r\n{header}content-length: 2\r\n\r\nok"))?;
        Ok(AfterResponse::Keep)
    })
}

fn times(status: u16, count: usize) -> Vec<u16> {
    vec![status; count]
}

#[test]
fn general_examples_limit_each_client() {
    let origin = scripted_upstream();
    let upstream = origin.address().to_string();
    // A slow machine may send fewer than a hundred requests a second.
    let slower = ("limit: 100/s", "limit: 1/h");
    let container = Example::start("container.yaml", &[("127.0.0.1:3000", &upstream), slower]);
    container.until_rejected(&Request::get("/"));
    let sidecar = Example::start(
        "sidecar.yaml",
        &[("${UPSTREAM:-127.0.0.1:3000}", &upstream), ("${LISTEN:-0.0.0.0:8080}", "127.0.0.1:0"), slower],
    );
    sidecar.until_rejected(&Request::get("/"));
    assert_eq!(sidecar.statuses(1, &Request::get("/healthz")), [200]);
    let quickstart = Example::start("quickstart.yaml", &[]);
    assert_eq!(quickstart.statuses(6, &Request::get("/")), [times(200, 5), times(429, 1)].concat());
    let limits = Example::start("limits.yaml", &[]);
    assert_eq!(limits.statuses(6, &Request::get("/gcra")), [times(200, 5), times(429, 1)].concat());
}

#[test]
fn gateway_example_limits_by_key_and_denies() {
    let origin = scripted_upstream();
    let weir = Example::start_with_upstream("gateway.yaml", &origin);
    assert_eq!(weir.statuses(1, &Request::get("/wp-admin/x")), [403]);
    assert_eq!(weir.statuses(1, &Request::get("/healthz")), [200]);
    let export = Request::get("/export/a").header("x-api-key", "7");
    assert_eq!(weir.statuses(3, &export), [200, 200, 429]);
    assert_eq!(weir.statuses(1, &Request::get("/").header("x-api-key", "7")), [429], "the budget is shared");
    assert_eq!(weir.statuses(1, &Request::get("/").header("x-api-key", "8")), [200]);
}

#[test]
fn tiers_example_limits_by_plan() {
    let weir = Example::start("tiers.yaml", &[]);
    let with = |key: &str| Request::get("/").header("x-api-key", key);
    assert_eq!(weir.statuses(6, &with("unknown")), [times(200, 5), times(429, 1)].concat());
    assert_eq!(weir.statuses(6, &Request::get("/")), [times(200, 5), times(429, 1)].concat());
    assert_eq!(weir.statuses(50, &with("8c1f-example")), times(200, 50));
    assert_eq!(weir.statuses(50, &with("77c2-example")), times(200, 50));
}

/// Returns an upstream whose responses state this number of tokens, as OpenAI's do.
fn language_model(tokens: u32) -> Origin {
    let body = format!("{{\"usage\":{{\"total_tokens\":{tokens}}}}}");
    let head = format!("content-type: application/json\r\ncontent-length: {}", body.len());
    Origin::responding_with(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}"))
}

/// Returns a request for a chat completion with this key.
fn chat(key: &str) -> Request {
    Request::post("/v1/chat/completions", r#"{"messages":[],"max_tokens":100}"#)
        .header("content-type", "application/json")
        .header("authorization", &format!("Bearer {key}"))
}

#[test]
fn llm_tokens_example_charges_the_tokens_of_the_response() {
    let origin = language_model(20_000);
    let weir = Example::start_with_upstream("llm-tokens.yaml", &origin);
    assert_eq!(weir.statuses(4, &chat("me")), [200, 200, 200, 429]);
    assert_eq!(weir.statuses(1, &chat("you")), [200]);
    let scripted = scripted_upstream();
    let failing = Example::start_with_upstream("llm-tokens.yaml", &scripted);
    let answer = chat("they").header("x-respond", "503");
    assert_eq!(failing.statuses(60, &answer), times(503, 60), "failures cost nothing");
    let anonymous = Request::post("/v1/chat/completions", "{}").header("content-type", "application/json");
    assert_eq!(weir.statuses(1, &anonymous), [403]);
}

#[test]
fn websocket_example_limits_open_sockets() {
    let upstream = crate::upgrades::echo_server().to_string();
    let weir = Example::start("websocket.yaml", &[("127.0.0.1:3000", &upstream)]);
    let handshake = Request::get("/ws")
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "MDEyMzQ1Njc4OTAxMjM0NQ==");
    let open = || {
        let mut client = Client::connect(weir.weir.address());
        client.send(handshake.to_bytes());
        let status = client.wire.read_head().unwrap().unwrap().word(1).to_owned();
        (status == "101").then_some(client).ok_or(status)
    };
    let mut sockets: Vec<_> = (0..10).map(|_| open().unwrap()).collect();
    assert_eq!(open().unwrap_err(), "429");
    drop(sockets.pop());
    wait::until("a free permit", || open().ok());
}

#[test]
fn grpc_example_limits_methods_and_customers() {
    let origin = H2Origin::start(None, |_, mut respond| async move {
        let response = http::Response::builder().header("content-type", "application/grpc");
        let mut stream = respond.send_response(response.body(()).unwrap(), false)?;
        stream.send_trailers(http::HeaderMap::from_iter([(
            "grpc-status".parse().unwrap(),
            "0".parse().unwrap(),
        )]))
    });
    let weir = Example::start("grpc.yaml", &[("127.0.0.1:50051", &origin.address().to_string())]);
    let mut client = H2Client::connect(weir.weir.address());
    let mut status = |method: &str, customer: Option<&str>| {
        let mut request = client
            .request("POST", &format!("/shop.v1.Orders/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some(customer) = customer {
            request = request.header("x-customer", customer);
        }
        let whole = client.fetch(request);
        let fields = whole.trailers.as_ref().unwrap_or(&whole.headers);
        fields["grpc-status"].to_str().unwrap().to_owned()
    };
    let created: Vec<_> = (0..6).map(|_| status("Create", Some("7"))).collect();
    assert_eq!(created[0], "0");
    wait::until_true("RESOURCE_EXHAUSTED", || status("Create", Some("7")) == "8");
    assert_eq!(status("List", None), "0");
    assert_eq!(status("Create", None), "7", "PERMISSION_DENIED without a customer");
}

#[test]
fn egress_example_delays_calls_and_denies_other_hosts() {
    let origin = scripted_upstream();
    let weir = Example::start("egress.yaml", &[("https://api.example.com", &origin.address().to_string())]);
    assert_eq!(weir.statuses(1, &Request::get("/v1").host("other.example.com")), [403]);
    let begun = wait::now();
    let call = Request::get("/v1").host("api.example.com");
    let statuses = run_concurrently(40, |_| weir.statuses(1, &call)).concat();
    let passed = statuses.iter().filter(|status| **status == 200).count();
    assert!(passed > 5 && statuses.contains(&429), "{statuses:?}");
    assert!(begun.elapsed().as_millis() >= (passed as u128 - 1) * 100, "{passed} calls too soon");
}

#[test]
fn forward_proxy_example_forwards_listed_hosts_only() {
    let origin = scripted_upstream();
    let upstream = origin.address().to_string();
    let weir = Example::start("forward-proxy.yaml", &[("https://api.example.com", &upstream)]);
    let call = |url: &str| weir.statuses(1, &Request::get(url))[0];
    assert_eq!(call("http://api.example.com/v1"), 200);
    assert_eq!(call("http://other.example.com/v1"), 403);
    let connect = |authority: &str| weir.statuses(1, &Request::new("CONNECT", authority))[0];
    assert_eq!(connect("other.example.com:443"), 403);
    assert_eq!(connect("api.example.com:22"), 403);
    let statuses =
        run_concurrently(40, |_| weir.statuses(1, &Request::get("http://api.example.com/v1"))).concat();
    assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
}

#[test]
fn webhooks_example_accepts_calls_at_once_and_sends_them_at_the_limit() {
    let (store, origin) = (Server::start(), scripted_upstream());
    let upstream = origin.address().to_string();
    let weir = Example::start(
        "webhooks.yaml",
        &[("https://hooks.example.com", &upstream), ("redis://127.0.0.1:6379", &store.url())],
    );
    let call = Request::post("/hooks/order-1", "{}");
    let mut begun = wait::now();
    wait::until_true("the store", || {
        begun = wait::now();
        weir.statuses(1, &call) == [202]
    });
    assert_eq!(weir.statuses(5, &call), times(202, 5));
    wait::until_true("all calls", || origin.requests().len() >= 6);
    assert!(begun.elapsed().as_millis() >= 400, "six calls in {:?}", begun.elapsed());
    assert_eq!(weir.statuses(1, &Request::get("/other")), [403]);
}

#[test]
fn envoy_rls_example_limits_descriptors() {
    let weir = Example::start("envoy-rls.yaml", &[]);
    let http = weir.weir.rls_address("http");
    let call = |entries: &[(&str, &str)]| {
        let entry = |(key, value): &(&str, &str)| format!(r#"{{"key":"{key}","value":"{value}"}}"#);
        let entries = entries.iter().map(entry).collect::<Vec<_>>().join(",");
        let body = format!(r#"{{"domain":"edge","descriptors":[{{"entries":[{entries}]}}]}}"#);
        fetch(http, &Request::post("/json", body)).status
    };
    let client = ("remote_address", "192.0.2.7");
    let of_login: Vec<u16> = (0..11).map(|_| call(&[("generic_key", "login"), client])).collect();
    assert_eq!(of_login, [times(200, 10), times(429, 1)].concat());
    assert_eq!(call(&[client]), 200);
    wait::until_true("a rejection", || call(&[client]) == 429);
}

#[test]
fn shared_example_limits_all_instances_together() {
    let store = Server::start();
    let url = store.url();
    let start = || {
        let weir = Example::start(
            "shared.yaml",
            &[
                ("${REDIS_URL:-redis://127.0.0.1:6379}", &url),
                ("scope: shared\n", "scope: { shared: lease, wait: 1s }\n"),
                ("wait: 20ms", "wait: 1s"),
                // A late reply of the store would be a loss, and decided locally.
                ("prefix: example", "prefix: example\n  timeout: 1s"),
            ],
        );
        wait::until_true("the store", || weir.weir.metric("weir_store_up", &[]) == 1.0);
        weir
    };
    let (one, other) = (start(), start());
    let checkout = Request::post("/checkout", "x").header("x-api-key", "me");
    let statuses: Vec<u16> =
        (0..12).map(|turn| if turn % 2 == 0 { &one } else { &other }.statuses(1, &checkout)[0]).collect();
    assert_eq!(statuses, [times(200, 10), times(429, 2)].concat());
    assert_eq!(one.statuses(1, &Request::post("/checkout", "x")), [403], "without a key");
}

#[test]
fn aws_alb_example_limits_the_clients_behind_the_load_balancer() {
    let origin = scripted_upstream();
    let upstream = origin.address().to_string();
    let weir = Example::start(
        "aws-alb.yaml",
        &[("127.0.0.1:3000", &upstream), ("${ALB_SUBNETS:-10.0.0.0/16}", "127.0.0.0/8")],
    );
    weir.until_rejected(&Request::get("/").forwarded_for("203.0.113.9"));
    assert_eq!(weir.statuses(1, &Request::get("/").forwarded_for("203.0.113.10")), [200]);
    let spoofed = Request::get("/").forwarded_for("198.51.100.1, 203.0.113.9");
    assert!(weir.statuses(3, &spoofed).contains(&429), "entries to the left come from the client");
    let probe = Request::get("/healthz").header("user-agent", "ELB-HealthChecker/2.0");
    assert_eq!(weir.statuses(100, &probe), times(200, 100));
}

#[test]
fn cloudflare_example_limits_clients_and_denies_all_other_ways() {
    let origin = scripted_upstream();
    let weir = Example::start_with_upstream("cloudflare.yaml", &origin);
    let through = |client: &str| Request::get("/").forwarded_for(client).header("cf-ray", "1");
    weir.until_rejected(&through("203.0.113.9"));
    assert_eq!(weir.statuses(1, &through("203.0.113.10")), [200]);
    assert_eq!(weir.statuses(1, &Request::get("/")), [403]);
    weir.until_rejected(&through("203.0.113.11").header("cf-ipcountry", "T1"));
}

#[test]
fn every_example_is_tested() {
    let tests = [
        include_str!("examples.rs"),
        include_str!("examples/bodies.rs"),
        include_str!("examples/core.rs"),
        include_str!("examples/providers.rs"),
    ]
    .concat();
    for entry in fs::read_dir(DIRECTORY).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_tested = !name.ends_with(".yaml") || tests.contains(&format!("\"{name}\""));
        assert!(is_tested, "{name} has no test");
    }
}

#[test]
fn examples_begin_with_the_schema_and_an_introduction() {
    for entry in fs::read_dir(DIRECTORY).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".yaml") {
            let text = example(&name);
            assert!(text.starts_with("# yaml-language-server: $schema=weir.schema.json\n# "), "{name}");
        }
    }
}
