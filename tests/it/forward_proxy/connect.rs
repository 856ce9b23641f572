//! Tunnels by CONNECT.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::proxy_config;
use crate::support::wire::Head;
use crate::support::{Client, Request, Weir, fetch, wait};

/// Starts a server that sends back what it receives, and ends when its client does.
fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut back = stream.try_clone().unwrap();
                let _ = std::io::copy(&mut stream, &mut back);
                let _ = back.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

/// Starts a forward proxy whose clients may CONNECT to this port.
fn start(port: u16, rest: &str) -> Weir {
    Weir::start(&proxy_config(&format!("{{ connect_ports: {port} }}"), rest))
}

/// Sends a CONNECT and reads the head of the response.
fn connect(weir: &Weir, authority: &str) -> (Client, Head) {
    let mut client = Client::connect(weir.address());
    client.send(format!("CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n\r\n"));
    let head = client.wire.read_head().unwrap().unwrap();
    (client, head)
}

/// Returns an established tunnel as a stream.
fn tunnel(weir: &Weir, authority: &str) -> TcpStream {
    let (client, head) = connect(weir, authority);
    assert_eq!(head.line, "HTTP/1.1 200 OK");
    client.wire.stream().try_clone().unwrap()
}

fn assert_echoed(stream: &mut TcpStream, text: &[u8]) {
    stream.write_all(text).unwrap();
    let mut heard = vec![0; text.len()];
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(heard, text);
}

#[test]
fn connect_opens_a_tunnel() {
    let echo = echo_server();
    let weir = start(echo.port(), "");
    let (client, head) = connect(&weir, &echo.to_string());
    assert_eq!(head.line, "HTTP/1.1 200 OK");
    for name in ["content-length", "transfer-encoding", "connection"] {
        assert_eq!(head.get(name), None, "{head:?}");
    }
    let mut stream = client.wire.stream().try_clone().unwrap();
    for length in [1, 1000, 300_000] {
        assert_echoed(&mut stream, &vec![b'x'; length]);
    }
    // Half-close: the other direction continues until it has ended, too.
    stream.write_all(b"last").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"last");
    assert_eq!(weir.metric("weir_upstream_requests_total", &[]), 1.0);
    let durations = weir.metric("weir_upstream_request_duration_seconds_count", &[]);
    assert_eq!(durations, 0.0, "a tunnel has no response of its destination");
}

#[test]
fn bytes_after_the_head_belong_to_the_tunnel() {
    let echo = echo_server();
    let weir = start(echo.port(), "");
    let mut client = Client::connect(weir.address());
    let early = "GET http://127.0.0.1:1/smuggled HTTP/1.1\r\nhost: a.test\r\n\r\n";
    client.send(format!("CONNECT {echo} HTTP/1.1\r\nhost: {echo}\r\n\r\n{early}"));
    assert_eq!(client.wire.read_head().unwrap().unwrap().line, "HTTP/1.1 200 OK");
    assert_eq!(client.wire.read_head().unwrap().unwrap().line, "GET http://127.0.0.1:1/smuggled HTTP/1.1");
}

#[test]
fn bytes_after_a_rejected_connect_are_not_a_request() {
    let echo = echo_server();
    let weir = start(echo.port(), "rules:\n- { name: none, match: { method: CONNECT }, action: deny }");
    let mut client = Client::connect(weir.address());
    let early = "GET / HTTP/1.1\r\nhost: a.test\r\n\r\n";
    client.send(format!("CONNECT {echo} HTTP/1.1\r\nhost: {echo}\r\n\r\n{early}"));
    let response = client.read_response("CONNECT");
    assert_eq!((response.status, response.header("connection")), (403, "close"));
    assert!(client.is_closed());
}

#[test]
fn connect_with_content_is_malformed() {
    let echo = echo_server();
    let weir = start(echo.port(), "");
    for field in ["content-length: 5", "transfer-encoding: chunked"] {
        let mut client = Client::connect(weir.address());
        client.send(format!(
            "CONNECT {echo} HTTP/1.1\r\nhost: {echo}\r\n{field}\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
        ));
        let response = client.read_response("CONNECT");
        assert_eq!((response.status, response.header("connection")), (400, "close"), "{field}");
    }
    let (_, head) = connect(&weir, &echo.to_string());
    assert_eq!(head.word(1), "200");
}

#[test]
fn hostile_targets_of_connect_are_rejected() {
    let weir = start(443, "");
    for target in [
        "a.test",
        "a.test:0",
        "a.test:",
        "a.test:99999",
        "user@a.test:443",
        "127.1:443",
        "0x7f000001:443",
        "[::1:443",
        "http://a.test:443",
        "/",
        "a.test:443/x",
        "*",
    ] {
        let mut client = Client::connect(weir.address());
        client.send(format!("CONNECT {target} HTTP/1.1\r\nhost: a.test\r\n\r\n"));
        let response = client.read_response("CONNECT");
        assert_eq!(response.status, 400, "{target}");
        assert!(client.is_closed(), "{target}");
    }
}

#[test]
fn only_configured_ports_are_reachable_by_connect() {
    let echo = echo_server();
    let weir = start(443, "");
    let (_, head) = connect(&weir, &echo.to_string());
    assert_eq!(head.word(1), "403");
    assert_eq!(head.get("proxy-status"), Some("weir; error=http_request_denied"));
    let named =
        Weir::start(&proxy_config(&format!("{{ destinations: [\"127.0.0.0/8:{}\"] }}", echo.port()), ""));
    assert_echoed(&mut tunnel(&named, &echo.to_string()), b"a destination with its port");
}

#[test]
fn tunnels_are_counted_by_rules() {
    let echo = echo_server();
    let rules = "rules:\n- { name: few, match: { method: CONNECT, host: localhost }, key: [host], limit: 100/d, in_flight: 1 }";
    let weir = start(echo.port(), rules);
    let authority = format!("localhost:{}", echo.port());
    let first = tunnel(&weir, &authority);
    assert_eq!(connect(&weir, &authority).1.word(1), "429", "the tunnel holds its permit");
    assert_echoed(&mut tunnel(&weir, &echo.to_string()), b"another host");
    drop(first);
    wait::until_true("the permit", || connect(&weir, &authority).1.word(1) == "200");
}

#[test]
fn bytes_are_charged_while_the_tunnel_runs() {
    let echo = echo_server();
    let rules =
        "rules:\n- { name: octets, limit: 400/d, algorithm: fixed_window, cost: { response_bytes: 1KiB } }";
    let weir = start(echo.port(), rules);
    let mut stream = tunnel(&weir, &echo.to_string());
    assert_eq!(fetch(weir.address(), &Request::get("/")).status, 404);
    assert_echoed(&mut stream, &vec![b'x'; 600 << 10]);
    wait::until_true("the charge", || fetch(weir.address(), &Request::get("/")).status == 429);
    assert_echoed(&mut stream, b"the tunnel goes on");
}

#[test]
fn idle_tunnel_is_closed() {
    let echo = echo_server();
    let weir =
        Weir::start(&proxy_config(&format!("{{ connect_ports: {}, idle_timeout: 500ms }}", echo.port()), ""));
    let mut stream = tunnel(&weir, &echo.to_string());
    for _ in 0..4 {
        wait::pause(Duration::from_millis(250));
        assert_echoed(&mut stream, b"still here");
    }
    assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)), "the idle tunnel is not closed");
}

#[test]
fn drain_keeps_tunnels_until_its_timeout() {
    let echo = echo_server();
    let mut weir = start(echo.port(), "drain: { timeout: 1500ms }");
    let mut stream = tunnel(&weir, &echo.to_string());
    weir.terminate();
    wait::until_true("the listener to be closed", || TcpStream::connect(weir.address()).is_err());
    assert_echoed(&mut stream, b"goodbye");
    assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)), "the tunnel is open after the shutdown timeout");
    assert_eq!(weir.wait_exit().code(), Some(0));
}

#[test]
fn http2_connect_opens_a_tunnel() {
    let echo = echo_server();
    let weir = start(echo.port(), "");
    let mut client = crate::support::h2::H2Client::connect(weir.address());
    let request = http::Request::builder().method("CONNECT").uri(echo.to_string());
    let (response, mut sending) = client.send_request(request, false);
    let mut response = client.block_on(response).unwrap();
    assert_eq!(response.status(), 200);
    for text in ["one", "two"] {
        sending.send_data(text.into(), false).unwrap();
        let heard = client.block_on(response.body_mut().data()).unwrap().unwrap();
        let _ = response.body_mut().flow_control().release_capacity(heard.len());
        assert_eq!(heard, text);
    }
    sending.send_data(bytes::Bytes::new(), true).unwrap();
    while let Some(data) = client.block_on(response.body_mut().data()) {
        assert!(data.unwrap().is_empty());
    }
    // Other streams of the connection go on.
    let request = http::Request::builder().method("CONNECT").uri("127.0.0.1:1");
    let (response, _sending) = client.send_request(request, false);
    assert_eq!(client.block_on(response).unwrap().status(), 403);
}

/// Starts a forward proxy with a limit of 64 KiB a second on the bytes that tunnels send to clients.
fn start_slow(port: u16, limit: &str, throttle: &str) -> Weir {
    let cost = "cost: { response_bytes: 1KiB }";
    start(port, &format!("rules:\n- {{ name: octets, key: [], {limit}, {cost}, throttle: {throttle} }}"))
}

#[test]
fn tunnel_is_slowed_to_the_limit_of_a_rule_that_waits() {
    let echo = echo_server();
    for throttle in ["{ wait: { max: 30s } }", "{ delay: 30s }"] {
        let weir = start_slow(echo.port(), "limit: 64/s, burst: 64", throttle);
        let mut stream = tunnel(&weir, &echo.to_string());
        let begun = wait::now();
        let sending = stream.try_clone().unwrap();
        let writer = thread::spawn(move || {
            let mut sending = sending;
            sending.write_all(&vec![b'x'; 256 << 10]).unwrap();
        });
        let mut heard = vec![0; 256 << 10];
        stream.read_exact(&mut heard).unwrap();
        writer.join().unwrap();
        // 64 KiB at once, at most 24 in advance, and the rest at 64 a second.
        assert!(begun.elapsed().as_millis() >= 2600, "{throttle}: {:?}", begun.elapsed());
    }
}

#[test]
fn slow_tunnel_does_not_keep_another_client_from_connecting_for_long() {
    let echo = echo_server();
    let weir = start_slow(echo.port(), "limit: 64/s, burst: 64", "{ wait: { max: 30s } }");
    let mut streams = [(); 3].map(|()| tunnel(&weir, &echo.to_string()));
    for stream in &mut streams {
        stream.write_all(&vec![b'x'; 48 << 10]).unwrap();
    }
    for stream in &mut streams {
        stream.read_exact(&mut vec![0; 48 << 10]).unwrap();
    }
    // A request waits for room like any other.
    assert_eq!(fetch(weir.address(), &Request::get("/")).status, 404);
}

#[test]
fn tunnel_is_closed_if_its_limit_has_no_room_in_time() {
    let echo = echo_server();
    let limit = "limit: 64/h, algorithm: fixed_window";
    let weir = start_slow(echo.port(), limit, "{ wait: { max: 100ms } }");
    let mut stream = tunnel(&weir, &echo.to_string());
    let mut sending = stream.try_clone().unwrap();
    let writer = thread::spawn(move || sending.write_all(&vec![b'x'; 1 << 20]));
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    let _ = writer.join().unwrap();
    assert!((64 << 10..=88 << 10).contains(&heard.len()), "{} bytes", heard.len());
}

#[test]
fn tunnels_that_exceed_their_limit_together_are_slowed_and_not_closed() {
    let echo = echo_server();
    let weir = start_slow(echo.port(), "limit: 64/s, burst: 64", "{ delay: 50ms }");
    let streams = [(); 4].map(|()| tunnel(&weir, &echo.to_string()));
    let readers = streams.map(|mut stream| {
        thread::spawn(move || {
            let mut sending = stream.try_clone().unwrap();
            let writer = thread::spawn(move || sending.write_all(&vec![b'x'; 48 << 10]));
            stream.read_exact(&mut vec![0; 48 << 10]).unwrap();
            writer.join().unwrap().unwrap();
        })
    });
    for reader in readers {
        reader.join().unwrap();
    }
}

#[test]
fn tunnel_without_bytes_for_its_client_outlasts_a_limit_that_others_have_used_up() {
    let echo = echo_server();
    let limit = "limit: 64/2s, algorithm: fixed_window";
    let weir = start_slow(echo.port(), limit, "{ wait: { max: 1ms } }");
    let mut idle = tunnel(&weir, &echo.to_string());
    // Half of what it may transfer before it looks for room again, and the limit is used up by another tunnel.
    assert_echoed(&mut idle, &[b'x'; 4 << 10]);
    let mut busy = tunnel(&weir, &echo.to_string());
    let mut sending = busy.try_clone().unwrap();
    let writer = thread::spawn(move || sending.write_all(&vec![b'x'; 256 << 10]));
    let _ = busy.read_exact(&mut vec![0; 256 << 10]);
    let _ = writer.join().unwrap();
    // The other half, after which it stops with nothing to transfer. It continues in the next window.
    assert_echoed(&mut idle, &[b'x'; 4 << 10]);
    assert_echoed(&mut idle, b"more");
}

#[test]
fn tunnel_that_stands_still_for_too_long_is_idle() {
    let echo = echo_server();
    let forward_proxy = format!("{{ connect_ports: {}, idle_timeout: 500ms }}", echo.port());
    let rule = "rules:\n- { name: octets, key: [], limit: 64/h, burst: 64, cost: { response_bytes: 1KiB }, \
                throttle: { wait: { max: 1h } } }";
    let weir = Weir::start(&proxy_config(&forward_proxy, rule));
    let mut stream = tunnel(&weir, &echo.to_string());
    stream.write_all(&vec![b'x'; 128 << 10]).unwrap();
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    assert!((64 << 10..=88 << 10).contains(&heard.len()), "{} bytes", heard.len());
}
