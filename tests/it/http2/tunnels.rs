//! WebSocket over an HTTP/2 stream (RFC 8441), together with other requests on the same connection.

mod upstream;

use std::io::{self, Read, Write};
use std::time::Duration;

use bytes::Bytes;
use h2::ext::Protocol;
use h2::{Reason, RecvStream, SendStream};
use http::StatusCode;
use http::request::Builder;
use tungstenite::protocol::{Role, WebSocket};

use crate::support::h2::H2Client;
use crate::support::wire::Framing;
use crate::support::{AfterResponse, Client, LISTENER, Origin, Request, Weir, config, config_with, wait};
use crate::upgrades::{assert_echoed, echo_server};

/// A stream after the upgrade, for reading and writing.
struct TunnelStream<'a> {
    client: &'a H2Client,
    received: RecvStream,
    sending: SendStream<Bytes>,
    read: Bytes,
}

impl Read for TunnelStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read.is_empty() {
            let Some(data) = self.client.block_on(self.received.data()) else { return Ok(0) };
            self.read = data.map_err(io::Error::other)?;
            self.received.flow_control().release_capacity(self.read.len()).map_err(io::Error::other)?;
        }
        let read = self.read.split_to(self.read.len().min(buffer.len()));
        buffer[..read.len()].copy_from_slice(&read);
        Ok(read.len())
    }
}

impl Write for TunnelStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sending.send_data(Bytes::copy_from_slice(bytes), false).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn connect_request(client: &H2Client, protocol: &'static str) -> Builder {
    client
        .request("CONNECT", "/chat")
        .header("sec-websocket-version", "13")
        .extension(Protocol::from_static(protocol))
}

/// Opens a tunnel. Returns the status code if it is rejected.
fn open_tunnel<'a>(client: &'a mut H2Client, protocol: &'static str) -> Result<TunnelStream<'a>, StatusCode> {
    client.until_extended_connect_enabled();
    let request = connect_request(client, protocol);
    let (response, sending) = client.send_request(request, false);
    let client = &*client;
    let (head, received) = client.response_head(response).unwrap().into_parts();
    match head.status {
        StatusCode::OK => {
            for name in ["connection", "upgrade", "sec-websocket-accept", "content-length"] {
                assert!(!head.headers.contains_key(name), "HTTP/2 response with {name}");
            }
            Ok(TunnelStream { client, received, sending, read: Bytes::new() })
        }
        status => Err(status),
    }
}

#[test]
fn websocket_messages_pass_both_ways_over_extended_connect() {
    let weir = Weir::start(&config(echo_server(), ""));
    let mut client = H2Client::connect(weir.address());
    let stream = open_tunnel(&mut client, "websocket").unwrap();
    let mut socket = WebSocket::from_raw_socket(stream, Role::Client, None);
    for text in ["one", "two", &"three".repeat(100_000)] {
        assert_echoed(&mut socket, text);
    }
    socket.close(None).unwrap();
    while socket.read().is_ok() {}
    drop(socket);
    let open = || weir.metric("weir_upstream_connections", &[]);
    wait::until_true("the tunnel to end on both sides", || open() == 0.0);
    let requests = weir.metric("weir_requests_total", &[("code_class", "2xx")]);
    assert_eq!(requests, 1.0, "a tunnel is one request");
    let second = open_tunnel(&mut client, "websocket").unwrap();
    assert_echoed(
        &mut WebSocket::from_raw_socket(second, Role::Client, None),
        "again on the same connection",
    );
}

#[test]
fn extended_connect_becomes_an_http1_upgrade() {
    let origin = Origin::start(|turn| {
        turn.send(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: x\r\nx-own: 1\r\n\r\nfrom afar",
        )?;
        turn.wire.read_body(Framing::Length(8), |_| {})?;
        Ok(AfterResponse::Close)
    });
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = H2Client::connect(weir.address());
    let mut stream = open_tunnel(&mut client, "websocket").unwrap();
    stream.write_all(b"and back").unwrap();
    let mut heard = String::new();
    stream.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "from afar");
    let head = origin.only_request().head;
    assert_eq!(head.line, "GET /chat HTTP/1.1");
    assert_eq!(head.get("upgrade"), Some("websocket"));
    assert_eq!(head.get("connection"), Some("upgrade"));
    assert_eq!(head.get("sec-websocket-version"), Some("13"));
    assert_eq!(head.get("sec-websocket-key").map(str::len), Some(24));
}

#[test]
fn invalid_tunnels_are_rejected_without_closing_the_connection() {
    let origin = Origin::start(|turn| {
        let status = if turn.head.word(1) == "/chat" { "403 Forbidden" } else { "200 OK" };
        turn.send(format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\nno"))?;
        Ok(AfterResponse::Keep)
    });
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = H2Client::connect(weir.address());
    assert_eq!(open_tunnel(&mut client, "h2c").err(), Some(StatusCode::NOT_IMPLEMENTED));
    assert_eq!(open_tunnel(&mut client, "connect-udp").err(), Some(StatusCode::NOT_IMPLEMENTED));
    let plain = http::Request::builder().method("CONNECT").uri("a.test:443");
    assert_eq!(client.fetch(plain).status, StatusCode::METHOD_NOT_ALLOWED);
    assert!(origin.requests().is_empty(), "none of these requests is forwarded");
    assert_eq!(open_tunnel(&mut client, "websocket").err(), Some(StatusCode::FORBIDDEN));
    // A success status without an upgrade would be an open tunnel to this client.
    let stays = connect_request(&client, "websocket").uri(format!("http://{}/other", weir.address()));
    assert_eq!(client.fetch(stays).status, StatusCode::BAD_GATEWAY);
    assert_eq!(client.fetch(client.request("GET", "/")).status, StatusCode::OK);
}

#[test]
fn tunnel_holds_its_permit_until_the_client_resets_it() {
    let rules = "rules: [{ name: few, key: [], in_flight: 1 }]";
    let weir = Weir::start(&config(echo_server(), rules));
    let mut client = H2Client::connect(weir.address());
    let mut other = H2Client::connect(weir.address());
    let stream = open_tunnel(&mut client, "websocket").unwrap();
    assert_eq!(open_tunnel(&mut other, "websocket").err(), Some(StatusCode::TOO_MANY_REQUESTS));
    let TunnelStream { mut sending, .. } = stream;
    sending.send_reset(Reason::CANCEL);
    wait::until_true("the permit to be returned", || open_tunnel(&mut other, "websocket").is_ok());
}

#[test]
fn idle_tunnel_is_closed_without_affecting_other_streams() {
    let upstream = format!("{{ address: \"{}\", idle_timeout: 500ms }}", echo_server());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let mut client = H2Client::connect(weir.address());
    let mut socket =
        WebSocket::from_raw_socket(open_tunnel(&mut client, "websocket").unwrap(), Role::Client, None);
    for _ in 0..4 {
        wait::pause(Duration::from_millis(250));
        assert_echoed(&mut socket, "still here");
    }
    assert!(socket.read().is_err(), "the idle tunnel is not closed");
    drop(socket);
    assert!(open_tunnel(&mut client, "websocket").is_ok());
}

#[test]
fn upgrades_setting_selects_the_forwarded_protocols() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        let Some(protocol) = turn.head.get("upgrade").map(str::to_owned) else {
            turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
            return Ok(AfterResponse::Keep);
        };
        turn.send(format!("HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: {protocol}\r\n\r\nhello"))?;
        turn.wire.drain();
        Ok(AfterResponse::Close)
    });
    for (upgrades, passed) in
        [("false", &[][..]), ("spdy/3.1", &["SPDY/3.1"]), ("[websocket, tcp]", &["websocket", "tcp"])]
    {
        let upstream = format!("{{ address: \"{}\", upgrades: {upgrades} }}", origin.address());
        let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
        for protocol in ["websocket", "SPDY/3.1", "tcp", "h2c"] {
            let is_passed = passed.contains(&protocol);
            let request = Request::get("/").header("connection", "upgrade").header("upgrade", protocol);
            let status = Client::connect(weir.address()).fetch(&request).status;
            assert_eq!(status, if is_passed { 101 } else { 200 }, "{upgrades} {protocol}");
            let mut client = H2Client::connect(weir.address());
            let tunnel = open_tunnel(&mut client, protocol).map(|mut stream| {
                let mut heard = [0; 5];
                stream.read_exact(&mut heard).unwrap();
                heard
            });
            assert_eq!(tunnel.ok().as_ref(), is_passed.then_some(b"hello"), "{upgrades} {protocol}");
        }
        // Clients of Docker and Kubernetes attach with POST.
        let post = Request::post("/", "").header("connection", "upgrade").header("upgrade", "tcp");
        let status = Client::connect(weir.address()).fetch(&post).status;
        assert_eq!(status, if passed.contains(&"tcp") { 101 } else { 200 }, "{upgrades}");
    }
}
