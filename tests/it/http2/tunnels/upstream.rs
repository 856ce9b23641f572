//! WebSocket to an HTTP/2 upstream that supports extended CONNECT, from clients of either HTTP version.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::ext::Protocol;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response, StatusCode};
use tungstenite::protocol::{Role, WebSocket};

use super::{TunnelStream, open_tunnel};
use crate::support::h2::H2Client;
use crate::support::h2_origin::H2Origin;
use crate::support::wire::{Framing, Head, Wire};
use crate::support::{Client, LISTENER, Weir, config, config_with, get, wait};
use crate::upgrades::{assert_echoed, echo_server};

/// An upstream that records the request of each tunnel, and behaves as its path says.
struct TunnelUpstream {
    origin: H2Origin,
    requests: Arc<Mutex<Vec<String>>>,
    /// Number of bytes received in tunnels.
    received: Arc<AtomicUsize>,
}

impl TunnelUpstream {
    fn start() -> Self {
        let (asked, received) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<AtomicUsize>::default());
        let (noting, counting) = (Arc::clone(&asked), Arc::clone(&received));
        let origin = H2Origin::with_extended_connect(move |request, respond| {
            noting.lock().unwrap().push(describe(&request));
            serve(request, respond, Arc::clone(&counting))
        });
        Self { origin, requests: asked, received }
    }

    fn start_proxy(&self, rest: &str) -> Weir {
        start_with_upstream(&self.origin, "", rest)
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn start_with_upstream(origin: &H2Origin, settings: &str, rest: &str) -> Weir {
    let upstream = format!("{{ address: \"{}\", http2: true{settings} }}", origin.address());
    Weir::start(&config_with(LISTENER, &upstream, rest))
}

fn describe(request: &Request<RecvStream>) -> String {
    let protocol = request.extensions().get::<Protocol>().map(Protocol::as_str);
    let of_the_hop = ["connection", "upgrade", "sec-websocket-key", "host"];
    let left =
        of_the_hop.into_iter().filter(|name| request.headers().contains_key(*name)).collect::<Vec<_>>();
    let version = request.headers().get("sec-websocket-version").map(|value| value.to_str().unwrap());
    format!("{} {} {protocol:?} {version:?} {left:?}", request.method(), request.uri())
}

async fn serve(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    received: Arc<AtomicUsize>,
) -> Result<(), h2::Error> {
    let (path, mut body) = (request.uri().path().to_owned(), request.into_body());
    if path == "/no" {
        let response = Response::builder().status(403).body(()).unwrap();
        return respond.send_response(response, false)?.send_data(Bytes::from_static(b"no"), true);
    }
    let mut sending = respond.send_response(Response::new(()), false)?;
    match path.as_str() {
        "/first" => sending.send_data(Bytes::from_static(b"done"), true)?,
        "/break" => {
            body.data().await.transpose()?;
            sending.send_reset(Reason::INTERNAL_ERROR);
            return Ok(());
        }
        _ => {}
    }
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        received.fetch_add(data.len(), Ordering::SeqCst);
        if path == "/chat" {
            send(&mut sending, data).await?;
        }
    }
    match path.as_str() {
        "/first" => Ok(()),
        "/chat" => sending.send_data(Bytes::new(), true),
        _ => sending.send_data(Bytes::from_static(b"bye"), true),
    }
}

/// Sends data as the flow-control window allows.
async fn send(sending: &mut SendStream<Bytes>, mut data: Bytes) -> Result<(), h2::Error> {
    while !data.is_empty() {
        sending.reserve_capacity(data.len());
        let room = std::future::poll_fn(|cx| sending.poll_capacity(cx)).await.transpose()?;
        let room = room.ok_or(Reason::CANCEL)?;
        sending.send_data(data.split_to(room.min(data.len())), false)?;
    }
    Ok(())
}

/// Sends an upgrade request over HTTP/1.1, with `behind` right after the header section.
fn upgrade(weir: &Weir, path: &str, behind: &str) -> (Head, Wire) {
    let mut wire = Client::connect(weir.address()).wire;
    // The key is the example of RFC 6455 section 1.3.
    wire.send(format!(
        "GET {path} HTTP/1.1\r\nhost: a.test\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n{behind}"
    ))
    .unwrap();
    (wire.read_head().unwrap().unwrap(), wire)
}

fn assert_reads(wire: &mut Wire, text: &str) {
    let heard = wire.read_body(Framing::Length(text.len() as u64), |_| {}).unwrap();
    assert_eq!(heard.text(), text);
}

/// Opens a tunnel to `path` over HTTP/2.
fn open_stream<'a>(client: &'a mut H2Client, path: &str) -> TunnelStream<'a> {
    client.until_extended_connect_enabled();
    let request = client.request("CONNECT", path).extension(Protocol::from_static("websocket"));
    let (response, sending) = client.send_request(request, false);
    let client = &*client;
    let (head, received) = client.response_head(response).unwrap().into_parts();
    assert_eq!(head.status, StatusCode::OK);
    TunnelStream { client, received, sending, read: Bytes::new() }
}

#[test]
fn http1_upgrade_becomes_an_extended_connect() {
    let far = TunnelUpstream::start();
    let weir = far.start_proxy("");
    let (head, mut wire) = upgrade(&weir, "/chat?a=b", "at once");
    assert_eq!(head.line, "HTTP/1.1 101 Switching Protocols");
    assert_eq!((head.get("connection"), head.get("upgrade")), (Some("upgrade"), Some("websocket")));
    assert_eq!(head.get("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    assert_reads(&mut wire, "at once");
    wire.send(" and later").unwrap();
    assert_reads(&mut wire, " and later");
    assert_eq!(far.requests(), ["CONNECT http://a.test/chat?a=b Some(\"websocket\") Some(\"13\") []"]);
}

#[test]
fn extended_connect_is_forwarded_as_extended_connect() {
    let far = TunnelUpstream::start();
    let weir = far.start_proxy("");
    let mut client = H2Client::connect(weir.address());
    let mut tunnelled = open_tunnel(&mut client, "websocket").unwrap();
    tunnelled.write_all(b"both ways").unwrap();
    let mut heard = [0; 9];
    tunnelled.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"both ways");
    let uri = format!("http://{}/chat", weir.address());
    assert_eq!(far.requests(), [format!("CONNECT {uri} Some(\"websocket\") Some(\"13\") []")]);
}

#[test]
fn websockets_pass_through_two_proxies_over_http2() {
    let inner = Weir::start(&config(echo_server(), ""));
    let upstream = format!("{{ address: \"{}\", http2: true }}", inner.address());
    let outer = Weir::start(&config_with(LISTENER, &upstream, ""));
    let url = format!("ws://{}/chat", outer.address());
    let (mut socket, _) =
        tungstenite::client(url, Client::connect(outer.address()).wire.stream().try_clone().unwrap())
            .unwrap();
    let mut client = H2Client::connect(outer.address());
    let mut other =
        WebSocket::from_raw_socket(open_tunnel(&mut client, "websocket").unwrap(), Role::Client, None);
    for text in ["one", "two", &"three".repeat(100_000)] {
        assert_echoed(&mut socket, text);
        assert_echoed(&mut other, text);
    }
    socket.close(None).unwrap();
    while socket.read().is_ok() {}
    assert_echoed(&mut other, "the other goes on");
    assert_eq!(outer.metric("weir_upstream_connections", &[]), 1.0, "one shared connection");
}

#[test]
fn half_close_is_forwarded() {
    let far = TunnelUpstream::start();
    let weir = far.start_proxy("");
    // The client ends its direction first, and receives what is sent after that.
    let (_, mut wire) = upgrade(&weir, "/bye", "12345");
    wire.shutdown_write().unwrap();
    assert_reads(&mut wire, "bye");
    assert!(wire.is_closed());
    let mut client = H2Client::connect(weir.address());
    let mut tunnelled = open_stream(&mut client, "/bye");
    tunnelled.sending.send_data(Bytes::from_static(b"12345"), true).unwrap();
    let mut heard = String::new();
    tunnelled.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "bye");
    assert_eq!(far.received.load(Ordering::SeqCst), 10);
    // The upstream ends its direction first, and receives what is sent after that.
    let (_, mut wire) = upgrade(&weir, "/first", "");
    assert_reads(&mut wire, "done");
    assert!(wire.is_closed());
    wire.send("123").unwrap();
    wire.shutdown_write().unwrap();
    let mut tunnelled = open_stream(&mut client, "/first");
    tunnelled.read_to_string(&mut heard).unwrap();
    tunnelled.sending.send_data(Bytes::from_static(b"45"), true).unwrap();
    wait::until_true("the remaining bytes", || far.received.load(Ordering::SeqCst) == 15);
    assert_eq!(far.origin.resets(), 0);
}

#[test]
fn large_messages_pass_both_ways() {
    let far = TunnelUpstream::start();
    let weir = far.start_proxy("");
    let text = "0123456789abcdef".repeat(200_000);
    let (_, mut wire) = upgrade(&weir, "/chat", "");
    let sending = wire.stream().try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (&sending).write_all(text.as_bytes()).unwrap());
        let heard = wire.read_body(Framing::Length(text.len() as u64), |_| {}).unwrap();
        assert_eq!(heard.length, text.len() as u64);
    });
    wire.shutdown_write().unwrap();
    assert!(wire.is_closed());
}

#[test]
fn reset_tunnel_ends_on_both_sides_without_affecting_other_streams() {
    let far = TunnelUpstream::start();
    let weir = far.start_proxy("");
    let mut beside = H2Client::connect(weir.address());
    let mut other = open_stream(&mut beside, "/chat");
    let (_, mut wire) = upgrade(&weir, "/break", "now");
    assert!(wire.is_closed(), "over HTTP/1.1 the connection is closed");
    let mut client = H2Client::connect(weir.address());
    let mut broken = open_stream(&mut client, "/break");
    broken.write_all(b"now").unwrap();
    assert!(broken.read(&mut [0]).is_err(), "over HTTP/2 the stream is reset");
    // The other direction: the client resets the tunnel.
    let (_, wire) = upgrade(&weir, "/wait", "");
    socket2::SockRef::from(wire.stream()).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(wire);
    wait::until_true("a reset", || far.origin.resets() == 1);
    open_stream(&mut client, "/wait").sending.send_reset(Reason::CANCEL);
    wait::until_true("another reset", || far.origin.resets() == 2);
    other.write_all(b"still here").unwrap();
    let mut heard = [0; 10];
    other.read_exact(&mut heard).unwrap();
    assert_eq!((&heard, far.origin.connections()), (b"still here", 1));
}

#[test]
fn upstream_without_extended_connect_gets_no_upgrade_and_tunnels_are_rejected() {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let noting = Arc::clone(&asked);
    let origin = H2Origin::start(None, move |request, mut respond| {
        noting.lock().unwrap().push(describe(&request));
        async move { respond.send_response(Response::new(()), true).map(drop) }
    });
    let weir = start_with_upstream(&origin, "", "");
    let mut client = H2Client::connect(weir.address());
    // More attempts than the number of times that a connection may fail to announce support.
    for _ in 0..10 {
        assert_eq!(open_tunnel(&mut client, "websocket").err(), Some(StatusCode::NOT_IMPLEMENTED));
    }
    assert!(asked.lock().unwrap().is_empty(), "extended CONNECT without announcement");
    let (head, _) = upgrade(&weir, "/chat", "");
    assert_eq!((head.word(1), head.get("upgrade")), ("200", None));
    assert_eq!(get(weir.address(), "/").status, 200);
    assert_eq!(asked.lock().unwrap()[0], "GET http://a.test/chat None Some(\"13\") [\"sec-websocket-key\"]");
    assert_eq!(origin.connections(), 1);
}

#[test]
fn upstream_rejection_of_a_tunnel_is_forwarded() {
    let far = TunnelUpstream::start();
    let weir = far.start_proxy("");
    let (head, mut wire) = upgrade(&weir, "/no", "");
    assert_eq!(head.word(1), "403");
    let body = wire.read_body(Framing::from_response(&head, "GET"), |_| {}).unwrap();
    assert_eq!(body.text(), "no");
    let mut client = H2Client::connect(weir.address());
    client.until_extended_connect_enabled();
    let request = client.request("CONNECT", "/no").extension(Protocol::from_static("websocket"));
    let answer = client.fetch(request);
    assert_eq!((answer.status, &*answer.body), (StatusCode::FORBIDDEN, &b"no"[..]));
    assert_eq!(far.origin.resets(), 0);
}

#[test]
fn tunnel_is_counted_and_logged_as_one_request_when_it_ends() {
    let far = TunnelUpstream::start();
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let rest = format!(
        "access_log: {{ path: {}, format: json }}\nrules: [{{ name: few, key: [], in_flight: 1 }}]",
        log.display()
    );
    let weir = far.start_proxy(&rest);
    let (_, mut wire) = upgrade(&weir, "/chat", "12345");
    assert_reads(&mut wire, "12345");
    assert_eq!(weir.metric("weir_requests_total", &[]), 0.0, "the tunnel is still open");
    let (head, _) = upgrade(&weir, "/chat", "");
    assert_eq!(head.word(1), "429", "the tunnel holds its permit");
    wire.shutdown_write().unwrap();
    assert!(wire.is_closed());
    let line = wait::until("the line", || {
        let text = std::fs::read_to_string(&log).ok()?;
        text.lines().find(|line| line.contains("\"response_code\":101")).map(str::to_owned)
    });
    assert!(line.contains("\"bytes_received\":5") && line.contains("\"bytes_sent\":5"), "{line}");
    assert_eq!(weir.metric("weir_requests_total", &[("code_class", "1xx")]), 1.0);
    wait::until_true("the permit", || upgrade(&weir, "/chat", "").0.word(1) == "101");
}

#[test]
fn idle_tunnel_is_reset() {
    let far = TunnelUpstream::start();
    let weir = start_with_upstream(&far.origin, ", idle_timeout: 500ms", "");
    let (_, mut wire) = upgrade(&weir, "/wait", "");
    assert!(wire.is_closed(), "the idle tunnel is not closed");
    wait::until_true("the reset", || far.origin.resets() == 1);
}
