//! Cache poisoning: data from one client must never appear in a stored response that another client gets.

use bytes::Bytes;

use super::browser_request;
use crate::support::h2::H2Client;
use crate::support::{AfterResponse, Client, Origin, Request, Weir, config};

/// Request headers that are known to poison caches.
const CORPUS: &str = include_str!("../../data/cache-poisoning-headers.txt");

/// Returns an upstream that includes the whole request in its response, and marks responses to some paths as public.
fn reflecting_upstream() -> Origin {
    Origin::start(|turn| {
        let body = turn.body()?.text();
        let public = if turn.head.word(1).contains("public") { "cache-control: public\r\n" } else { "" };
        let page = format!("{} {:?} {body}", turn.head.line, turn.head.fields);
        let length = page.len();
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n{public}\r\n{page}"))?;
        Ok(AfterResponse::Keep)
    })
}

fn start_proxy(origin: &Origin, limit: usize, trusted: &str) -> Weir {
    let rest = format!(
        "client_ip: {{ trusted_proxies: [{trusted}] }}\n\
         rules: [{{ name: pages, limit: {limit}/d, on_limit: {{ fallback: {{ cached: 8MiB }} }} }}]"
    );
    Weir::start(&config(origin.address(), &rest))
}

/// Returns the name and value of each header, and the marker that it contains.
fn poisoning_headers() -> Vec<(&'static str, String, String)> {
    let lines = CORPUS.lines().filter(|line| !line.starts_with('#')).enumerate();
    let with_marker = |(index, line): (usize, &'static str)| {
        let (name, value) = line.split_once(": ").unwrap();
        let marker = format!("mark{index}.evil");
        (name, value.replace("{marker}", &marker), marker)
    };
    lines.map(with_marker).collect()
}

/// Checks that no header of the corpus which an attacker sends appears in responses to others. `trusted` are the
/// trusted proxies.
fn assert_no_header_poisons_others(trusted: &str) {
    let origin = reflecting_upstream();
    let corpus = poisoning_headers();
    let paths = |index: usize| [format!("/{index}"), format!("/public/{index}")];
    let weir = start_proxy(&origin, corpus.len() * 4 + 1, trusted);
    let mut attacker = Client::connect(weir.address());
    for (index, (name, value, _)) in corpus.iter().enumerate() {
        for path in paths(index) {
            assert!(attacker.fetch(&Request::get(&path).header(name, value)).status < 500, "{name}");
            attacker = Client::connect(weir.address());
            assert!(attacker.fetch(&browser_request(&path).header(name, value)).status < 500, "{name}");
            attacker = Client::connect(weir.address());
        }
    }
    assert_eq!(attacker.get("/clean").status, 200);
    let mut victim = Client::connect(weir.address());
    while victim.get("/filler").status == 200 {}
    for (index, (name, _, marker)) in corpus.iter().enumerate() {
        for path in paths(index) {
            for request in [
                Request::get(&path),
                browser_request(&path),
                Request::get(&path).header("cookie", "session=1"),
                Request::get(&path).header(name, "1"),
            ] {
                let response = Client::connect(weir.address()).fetch(&request);
                assert!(!response.body.text().contains(marker), "{name}: {}", response.body.text());
            }
        }
    }
    assert_eq!(victim.get("/clean").status, 200, "responses without a poisoned header are stored");
}

#[test]
fn known_poisoning_headers_do_not_affect_others() {
    assert_no_header_poisons_others("192.0.2.0/24");
}

#[test]
fn known_poisoning_headers_from_a_trusted_proxy_do_not_affect_others() {
    assert_no_header_poisons_others("127.0.0.0/8");
}

#[test]
fn host_spellings_have_separate_cache_entries() {
    let origin = reflecting_upstream();
    let hosts = ["test.local:1337", "TEST.local", "test.local.", "test.local:"];
    let weir = start_proxy(&origin, hosts.len() + 1, "");
    let mut client = Client::connect(weir.address());
    for host in hosts {
        assert_eq!(client.fetch(&Request::get("/").host(host)).status, 200, "{host}");
    }
    let absolute = Request::get("http://test.local:1338/").host("test.local");
    assert_eq!(client.fetch(&absolute).status, 200);
    assert_eq!(client.get("/").status, 429, "a response is stored only under its own spelling of the host");
    assert_eq!(client.fetch(&Request::get("/").host("TEST.local")).status, 200);
}

#[test]
fn response_to_a_get_with_a_body_is_not_cached() {
    let origin = reflecting_upstream();
    let weir = start_proxy(&origin, 3, "");
    let mut client = Client::connect(weir.address());
    let fat = |field: &str, body: &str| {
        let head = format!("GET /{field} HTTP/1.1\r\nhost: test.local\r\n{field}\r\n\r\n{body}");
        let mut wire = Client::connect(weir.address()).wire;
        wire.send(head).unwrap();
        assert_eq!(wire.read_head().unwrap().unwrap().word(1), "200");
    };
    fat("content-length:4", "evil");
    fat("transfer-encoding:chunked", "4\r\nevil\r\n0\r\n\r\n");
    let mut h2 = H2Client::connect(weir.address());
    let host = weir.address().to_string();
    let (response, mut body) = h2.send_request(h2.request("GET", "/h2"), false);
    body.send_data(Bytes::from_static(b"evil"), true).unwrap();
    let whole = h2.read_response(response).unwrap();
    assert!(whole.status == 200 && String::from_utf8(whole.body).unwrap().contains("evil"));
    for path in ["/content-length:4", "/transfer-encoding:chunked"] {
        assert_eq!(client.get(path).status, 429, "{path}");
    }
    assert_eq!(client.fetch(&Request::get("/h2").host(&host)).status, 429);
}

#[test]
fn headers_removed_by_connection_do_not_poison_the_cache() {
    let origin = reflecting_upstream();
    let weir = start_proxy(&origin, 1, "");
    let mut client = Client::connect(weir.address());
    let stripped = browser_request("/").header("connection", "accept-language, user-agent");
    assert_eq!(client.fetch(&stripped).status, 200);
    assert_eq!(client.fetch(&browser_request("/")).status, 429);
}

#[test]
fn scheme_is_part_of_the_cache_key() {
    let origin = reflecting_upstream();
    let weir = start_proxy(&origin, 1, "127.0.0.0/8");
    let mut client = Client::connect(weir.address());
    let by = |scheme| Request::get("/").header("x-forwarded-proto", scheme);
    assert_eq!(client.fetch(&by("http")).status, 200);
    assert_eq!([client.fetch(&by("https")).status, client.fetch(&by("http")).status], [429, 200]);
}

#[test]
fn upstream_is_part_of_the_cache_key() {
    let (inside, outside) = (Origin::hello(), reflecting_upstream());
    let yaml = format!(
        "listeners: [{{ address: 127.0.0.1:0 }}]\nadmin: {{ address: 127.0.0.1:0 }}\nworkers: 1\n\
         upstreams:\n  - {{ name: inside, address: \"{}\", match: {{ client_ip: 127.0.0.9 }} }}\n  \
         - {{ name: outside, address: \"{}\" }}\n\
         rules: [{{ name: pages, limit: 1/d, on_limit: {{ fallback: {{ cached: 1MiB }} }} }}]\n",
        inside.address(),
        outside.address()
    );
    let weir = Weir::start(&yaml);
    assert_eq!(Client::connect_from("127.0.0.9", weir.address()).get("/").body.text(), "hello");
    assert_eq!(Client::connect(weir.address()).get("/").status, 429);
    assert_eq!(Client::connect_from("127.0.0.9", weir.address()).get("/").status, 200);
}

#[test]
fn response_to_a_request_over_a_soft_limit_is_not_cached() {
    let origin = reflecting_upstream();
    let rules = "rules:\n  - { name: soft, limit: 1/d, throttle: soft 900% }\n  \
                 - { name: pages, limit: 2/d, on_limit: { fallback: { cached: 1MiB } } }";
    let weir = Weir::start(&config(origin.address(), rules));
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/within").status, 200);
    assert!(client.get("/over").body.text().contains("x-weir-over-limit"));
    assert_eq!([client.get("/within").status, client.get("/over").status], [200, 429]);
}
