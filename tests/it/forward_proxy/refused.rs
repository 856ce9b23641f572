//! What a forward proxy does not serve, and failures of destinations.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use super::{get, open_proxy, proxy_config};
use crate::support::origin::refusing_address;
use crate::support::{AfterResponse, Client, LISTENER, Origin, Request, Weir, config_with, fetch, wait};

#[test]
fn only_listed_destinations_are_reached() {
    let origin = Origin::hello();
    let port = origin.address().port();
    let allowed = format!("{{ destinations: [\"127.0.0.1:{port}\", \"*.allowed.test\"] }}");
    let weir = Weir::start(&proxy_config(&allowed, ""));
    let status = |url: &str| fetch(weir.address(), &get(url)).status;
    assert_eq!(status(&format!("http://127.0.0.1:{port}/")), 200);
    assert_eq!(status(&format!("http://[::ffff:127.0.0.1]:{port}/")), 200, "the same address");
    for url in ["http://127.0.0.1:1/", "http://127.0.0.2/", "http://other.test/", "http://allowed.test/"] {
        let response = fetch(weir.address(), &get(url));
        assert_eq!(response.status, 403, "{url}");
        assert_eq!(response.header("proxy-status"), "weir; error=http_request_denied");
        assert_eq!(response.body.text(), "this destination is not allowed\n");
    }
}

#[test]
fn name_that_resolves_to_a_local_address_is_prohibited() {
    let origin = Origin::hello();
    let url = format!("http://localhost:{}/", origin.address().port());
    let by_name = Weir::start(&proxy_config("{ destinations: [localhost] }", ""));
    let response = fetch(by_name.address(), &get(&url));
    assert_eq!(response.status, 403);
    assert_eq!(response.header("proxy-status"), "weir; error=destination_ip_prohibited");
    let by_network = Weir::start(&proxy_config("{ destinations: [127.0.0.0/8, \"::1\"] }", ""));
    assert_eq!(fetch(by_network.address(), &get(&url)).status, 200);
    let elsewhere = Weir::start(&proxy_config("{ destinations: [10.0.0.0/8] }", ""));
    assert_eq!(fetch(elsewhere.address(), &get(&url)).status, 403, "no address is in the network");
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn network_of_all_addresses_does_not_permit_local_ones() {
    let origin = Origin::hello();
    let url = format!("http://{}/", origin.address());
    let all = Weir::start(&proxy_config("{ destinations: [0.0.0.0/0, \"::/0\"] }", ""));
    assert_eq!(fetch(all.address(), &get(&url)).status, 403);
    let with_loopback = Weir::start(&proxy_config("{ destinations: [0.0.0.0/0, 127.0.0.1] }", ""));
    assert_eq!(fetch(with_loopback.address(), &get(&url)).status, 200);
}

#[test]
fn admin_port_is_not_reached() {
    let weir = open_proxy();
    let response = fetch(weir.address(), &get(&format!("http://{}/ready", weir.admin_address("full"))));
    assert_eq!((response.status, response.header("proxy-status")), (508, "weir; error=proxy_loop_detected"));
}

#[test]
fn only_listed_clients_are_served() {
    let origin = Origin::hello();
    let weir = Weir::start(&proxy_config("{ clients: 127.0.0.2 }", ""));
    let request = get(&format!("http://{}/", origin.address()));
    let request = request.header("x-forwarded-for", "127.0.0.2");
    let response = fetch(weir.address(), &request);
    assert_eq!(
        (response.status, &*response.body.text()),
        (403, "this client is not allowed to use the proxy\n")
    );
    assert_eq!(Client::connect_from("127.0.0.2", weir.address()).fetch(&request).status, 200);
}

#[test]
fn client_behind_a_proxy_protocol_header_counts() {
    let origin = Origin::hello();
    let settings = "{ name: egress, address: 127.0.0.1:0, proxy_protocol: required, forward_proxy: true }";
    let rest = "rules: []\nclient_ip: { trusted_proxies: 127.0.0.1 }";
    let weir = Weir::start(&config_with(settings, "echo", rest));
    let mut client = Client::connect(weir.address());
    client.send("PROXY TCP4 203.0.113.1 127.0.0.1 1000 80\r\n");
    assert_eq!(client.fetch(&get(&format!("http://{}/", origin.address()))).status, 403);
    assert_eq!(origin.requests().len(), 0);
}

#[test]
fn request_without_a_destination_is_explained() {
    let response = fetch(open_proxy().address(), &Request::get("/path"));
    assert_eq!(response.status, 404);
    assert_eq!(response.header("proxy-status"), "weir; error=destination_not_found");
    assert!(
        response.body.text().contains("an absolute URL or the method CONNECT"),
        "{}",
        response.body.text()
    );
}

#[test]
fn loops_are_detected() {
    let weir = open_proxy();
    let port = weir.address().port();
    for host in ["127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]"] {
        let response = fetch(weir.address(), &get(&format!("http://{host}:{port}/")));
        assert_eq!(response.status, 508, "{host}");
        assert_eq!(response.header("proxy-status"), "weir; error=proxy_loop_detected");
    }
    // Through another proxy, which leads back: the origin sends on what it receives, with its `Via`.
    let again = weir.address();
    let origin = Origin::start(move |turn| {
        let via = turn.head.get("via").unwrap().to_owned();
        let inner = fetch(again, &get("http://127.0.0.1:1/").header("via", &format!("1.1 other, {via}")));
        turn.send(format!("HTTP/1.1 {} Inner\r\ncontent-length: 0\r\n\r\n", inner.status))?;
        Ok(AfterResponse::Close)
    });
    assert_eq!(fetch(weir.address(), &get(&format!("http://{}/", origin.address()))).status, 508);
}

#[test]
fn name_that_does_not_exist_is_502() {
    let weir = open_proxy();
    let response = fetch(weir.address(), &get("http://does-not-exist.invalid/"));
    assert!(matches!(response.status, 502 | 504), "{}", response.status);
    assert!(response.header("proxy-status").starts_with("weir; error=dns_"), "{:?}", response.head);
}

#[test]
fn destination_that_refuses_or_does_not_respond_is_reported() {
    let (_socket, refusing) = refusing_address();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_address = silent.local_addr().unwrap();
    let weir = Weir::start(&proxy_config("{ timeout: 300ms }", ""));
    let response = fetch(weir.address(), &get(&format!("http://{refusing}/")));
    assert_eq!((response.status, response.header("proxy-status")), (502, "weir; error=connection_refused"));
    let response = fetch(weir.address(), &get(&format!("http://{silent_address}/")));
    assert_eq!(
        (response.status, response.header("proxy-status")),
        (504, "weir; error=http_response_timeout")
    );
}

#[test]
fn connect_failure_is_reported() {
    let (_socket, refusing) = refusing_address();
    let weir = Weir::start(&proxy_config(&format!("{{ connect_ports: [{}] }}", refusing.port()), ""));
    let mut client = Client::connect(weir.address());
    client.send(format!("CONNECT {refusing} HTTP/1.1\r\nhost: {refusing}\r\n\r\n"));
    let response = client.read_response("CONNECT");
    assert_eq!((response.status, response.header("proxy-status")), (502, "weir; error=connection_refused"));
    assert!(client.is_closed());
}

#[test]
fn hostile_absolute_targets_are_rejected() {
    let weir = open_proxy();
    for url in [
        "http://user:pw@a.test/",
        "http://a.test:0/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://[fe80::1%25eth0]/",
        "http://a..test/",
        "ftp://a.test/",
        "http://a%00.test/",
    ] {
        assert_eq!(fetch(weir.address(), &get(url)).status, 400, "{url}");
    }
}

#[test]
fn reverse_proxy_rejects_connect_and_ignores_absolute_targets() {
    let (origin, other) = (Origin::hello(), Origin::hello());
    let weir = Weir::start(&config_with(LISTENER, &format!("\"{}\"", origin.address()), ""));
    let mut client = Client::connect(weir.address());
    client.send(format!("CONNECT {0} HTTP/1.1\r\nhost: {0}\r\n\r\n", other.address()));
    assert_eq!(client.read_response("CONNECT").status, 405);
    assert!(client.is_closed());
    assert_eq!(fetch(weir.address(), &get(&format!("http://{}/", other.address()))).status, 200);
    assert_eq!((origin.requests().len(), other.requests().len()), (1, 0));
}

#[test]
fn destinations_are_bounded_and_counted_as_one_upstream() {
    let origin = Origin::hello();
    let weir = open_proxy();
    let url =
        |host: usize| format!("http://127.0.{}.{}:{}/", host / 250, host % 250 + 1, origin.address().port());
    let mut client = Client::connect(weir.address());
    // The origin listens on 127.0.0.1 only; the others refuse.
    for host in 1..1100 {
        assert_eq!(client.fetch(&get(&url(host))).status, 502);
    }
    assert_eq!(client.fetch(&get(&url(0))).status, 200);
    let series = weir.admin_get("/metrics").body.text();
    let names: Vec<_> =
        series.lines().filter(|line| line.starts_with("weir_upstream_connections{")).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(names[0].contains("forward_proxy:egress"), "{names:?}");
    wait::pause(Duration::ZERO);
}

/// Starts a server at every loopback address, which responds once to each connection and keeps it open.
fn start_everywhere() -> u16 {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            open.push(stream);
        }
    });
    port
}

#[test]
fn idle_connections_to_all_destinations_have_a_maximum() {
    const MAX_IDLE_PER_WORKER: f64 = 256.0;
    let port = start_everywhere();
    let weir = open_proxy();
    let mut client = Client::connect(weir.address());
    for host in 0..300 {
        let url = format!("http://127.1.{}.{}:{port}/", host / 250, host % 250 + 1);
        assert_eq!(client.fetch(&get(&url)).status, 200);
    }
    let open = || weir.metric("weir_upstream_connections", &[]);
    wait::until_true("idle connections to be closed", || open() <= MAX_IDLE_PER_WORKER);
    assert_eq!(open(), MAX_IDLE_PER_WORKER, "no more than needed");
}
