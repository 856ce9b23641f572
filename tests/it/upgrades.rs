//! WebSocket and other upgrades: forwarded if that is safe, and subject to the limits of all requests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use socket2::SockRef;
use tungstenite::{Message, WebSocket};

use crate::support::wire::Framing;
use crate::support::{
    AfterResponse, Client, LISTENER, Origin, Request, Weir, config, config_with, get, wait,
};

/// Starts a WebSocket server that echoes messages, and closes when the client does.
pub(crate) fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let Ok(mut socket) = tungstenite::accept(stream) else { return };
                while let Ok(message) = socket.read() {
                    if (message.is_text() || message.is_binary()) && socket.send(message).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

pub(crate) fn connect_websocket(address: SocketAddr) -> Result<WebSocket<TcpStream>, u16> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(wait::DEADLINE)).unwrap();
    match tungstenite::client(format!("ws://{address}/chat"), stream) {
        Ok((socket, response)) => {
            assert_eq!(response.status(), 101);
            Ok(socket)
        }
        Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(response))) => {
            Err(response.status().as_u16())
        }
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn assert_echoed(socket: &mut WebSocket<impl Read + Write>, text: &str) {
    socket.send(Message::text(text)).unwrap();
    assert_eq!(socket.read().unwrap(), Message::text(text));
}

#[test]
fn websocket_messages_are_forwarded_both_ways() {
    let weir = Weir::start(&config(echo_server(), ""));
    let mut socket = connect_websocket(weir.address()).unwrap();
    for text in ["one", "two", &"three".repeat(100_000)] {
        assert_echoed(&mut socket, text);
    }
    socket.close(None).unwrap();
    while socket.read().is_ok() {}
    drop(socket);
    wait::until_true("the connections to be closed", || weir.metric("weir_upstream_connections", &[]) == 0.0);
}

#[test]
fn tunnel_counts_as_a_request_and_holds_its_permit() {
    let rules = "rules:\n- { name: few, key: [client_ip], limit: 100/d, in_flight: 1 }\n";
    let weir = Weir::start(&config(echo_server(), rules));
    let mut socket = connect_websocket(weir.address()).unwrap();
    assert_echoed(&mut socket, "hello");
    assert_eq!(connect_websocket(weir.address()).unwrap_err(), 429, "the tunnel holds its permit");
    drop(socket);
    wait::until("the permit", || connect_websocket(weir.address()).ok());
}

#[test]
fn bytes_of_an_aborted_tunnel_are_charged() {
    let rules = "rules:\n- { name: octets, limit: 100000/d, cost: { response_bytes: 1B } }\n";
    let weir = Weir::start(&config(echo_server(), rules));
    let mut socket = connect_websocket(weir.address()).unwrap();
    assert_echoed(&mut socket, &"x".repeat(200 << 10));
    // The connection is reset, not closed.
    SockRef::from(socket.get_ref()).set_linger(Some(Duration::ZERO)).unwrap();
    drop(socket);
    // The responses to these requests are far too short to use up the limit.
    wait::until_true("the charge", || get(weir.address(), "/").status == 429);
}

#[test]
fn denied_upgrade_is_403() {
    let weir = Weir::start(&config(echo_server(), "rules: [{ name: no, action: deny }]"));
    assert_eq!(connect_websocket(weir.address()).unwrap_err(), 403);
}

#[test]
fn bytes_right_after_the_upgrade_are_forwarded() {
    let origin = Origin::start(|turn| {
        assert_eq!(turn.head.get("upgrade"), Some("WebSocket"));
        assert!(turn.head.has_token("connection", "upgrade"));
        assert_eq!(turn.head.get("x-hop"), None);
        turn.send(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nfrom afar",
        )?;
        let heard = turn.wire.read_body(Framing::Length(8), |_| {})?;
        assert_eq!(heard.text(), "at once!");
        turn.send(" and back")?;
        Ok(AfterResponse::Close)
    });
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = TcpStream::connect(weir.address()).unwrap();
    let head = "GET /chat HTTP/1.1\r\nhost: a.test\r\nconnection: x-hop, Upgrade\r\nx-hop: 1\r\nupgrade: WebSocket\r\n\r\n";
    client.write_all(format!("{head}at once!").as_bytes()).unwrap();
    let mut heard = String::new();
    client.set_read_timeout(Some(wait::DEADLINE)).unwrap();
    client.read_to_string(&mut heard).unwrap();
    assert!(heard.starts_with("HTTP/1.1 101 "), "{heard}");
    assert!(
        heard.contains("\r\nconnection: upgrade\r\n") && heard.contains("\r\nupgrade: websocket\r\n"),
        "{heard}"
    );
    assert!(heard.ends_with("\r\n\r\nfrom afar and back"), "{heard}");
}

#[test]
fn only_websocket_upgrades_are_forwarded() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    for protocol in ["h2c", "TLS/1.0", "h2c, foo", "foo"] {
        let request =
            Request::get("/").header("connection", "upgrade, http2-settings").header("upgrade", protocol);
        let mut client = Client::connect(weir.address());
        assert_eq!(client.fetch(&request.header("http2-settings", "AAMAAABk")).status, 200, "{protocol}");
        let seen = origin.last_request().head;
        assert_eq!(
            (seen.get("upgrade"), seen.get("connection"), seen.get("http2-settings")),
            (None, None, None)
        );
    }
    let bodied = Request::post("/", "x").header("connection", "upgrade").header("upgrade", "websocket");
    assert_eq!(crate::support::fetch(weir.address(), &bodied).status, 200);
    assert_eq!(origin.last_request().head.get("upgrade"), None);
}

#[test]
fn unsolicited_101_is_502() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")?;
        Ok(AfterResponse::Close)
    });
    let weir = Weir::start(&config(origin.address(), ""));
    assert_eq!(get(weir.address(), "/").status, 502);
}

#[test]
fn upstream_may_decline_the_upgrade() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    assert_eq!(connect_websocket(weir.address()).unwrap_err(), 200);
}

#[test]
fn idle_tunnel_is_closed() {
    let upstream = format!("{{ address: \"{}\", idle_timeout: 500ms }}", echo_server());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let mut socket = connect_websocket(weir.address()).unwrap();
    for _ in 0..4 {
        wait::pause(Duration::from_millis(250));
        assert_echoed(&mut socket, "still here");
    }
    assert!(socket.read().is_err(), "the idle tunnel is not closed");
}

#[test]
fn drain_keeps_tunnels_until_its_timeout() {
    let mut weir = Weir::start(&config(echo_server(), "drain: { timeout: 1500ms }"));
    let mut socket = connect_websocket(weir.address()).unwrap();
    weir.terminate();
    wait::until_true("the listener to be closed", || TcpStream::connect(weir.address()).is_err());
    assert_echoed(&mut socket, "goodbye");
    assert!(socket.read().is_err(), "the tunnel is open after the shutdown timeout");
    assert_eq!(weir.wait_exit().code(), Some(0));
}
