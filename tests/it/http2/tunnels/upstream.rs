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

use super::{Stream, tunnel};
use crate::support::h2::H2;
use crate::support::h2_origin::H2Origin;
use crate::support::wire::{Framing, Head, Wire};
use crate::support::{Client, LISTENER, Weir, config, config_with, get, wait};
use crate::upgrades::{echo_server, says};

/// An upstream that records the request of each tunnel, and behaves as its path says.
struct Far {
    origin: H2Origin,
    asked: Arc<Mutex<Vec<String>>>,
    /// Number of bytes received in tunnels.
    received: Arc<AtomicUsize>,
}

impl Far {
    fn start() -> Self {
        let (asked, received) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<AtomicUsize>::default());
        let (noting, counting) = (Arc::clone(&asked), Arc::clone(&received));
        let origin = H2Origin::offering(move |request, respond| {
            noting.lock().unwrap().push(described(&request));
            serve(request, respond, Arc::clone(&counting))
        });
        Self { origin, asked, received }
    }

    fn weir(&self, rest: &str) -> Weir {
        through(&self.origin, "", rest)
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn through(origin: &H2Origin, settings: &str, rest: &str) -> Weir {
    let upstream = format!("{{ address: \"{}\", http2: true{settings} }}", origin.address());
    Weir::start(&config_with(LISTENER, &upstream, rest))
}

fn described(request: &Request<RecvStream>) -> String {
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

fn hears(wire: &mut Wire, text: &str) {
    let heard = wire.read_body(Framing::Length(text.len() as u64), |_| {}).unwrap();
    assert_eq!(heard.text(), text);
}

/// Opens a tunnel to `path` over HTTP/2.
fn stream<'a>(client: &'a mut H2, path: &str) -> Stream<'a> {
    client.until_tunnels_are_offered();
    let request = client.request("CONNECT", path).extension(Protocol::from_static("websocket"));
    let (response, sending) = client.begin(request, false);
    let client = &*client;
    let (head, received) = client.head(response).unwrap().into_parts();
    assert_eq!(head.status, StatusCode::OK);
    Stream { client, received, sending, read: Bytes::new() }
}

#[test]
fn an_upgrade_by_http_1_becomes_an_extended_connect_and_its_answer_a_switch() {
    let far = Far::start();
    let weir = far.weir("");
    let (head, mut wire) = upgrade(&weir, "/chat?a=b", "at once");
    assert_eq!(head.line, "HTTP/1.1 101 Switching Protocols");
    assert_eq!((head.get("connection"), head.get("upgrade")), (Some("upgrade"), Some("websocket")));
    assert_eq!(head.get("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    hears(&mut wire, "at once");
    wire.send(" and later").unwrap();
    hears(&mut wire, " and later");
    assert_eq!(far.asked(), ["CONNECT http://a.test/chat?a=b Some(\"websocket\") Some(\"13\") []"]);
}

#[test]
fn an_extended_connect_stays_one() {
    let far = Far::start();
    let weir = far.weir("");
    let mut client = H2::connect(weir.address());
    let mut tunnelled = tunnel(&mut client, "websocket").unwrap();
    tunnelled.write_all(b"both ways").unwrap();
    let mut heard = [0; 9];
    tunnelled.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"both ways");
    let uri = format!("http://{}/chat", weir.address());
    assert_eq!(far.asked(), [format!("CONNECT {uri} Some(\"websocket\") Some(\"13\") []")]);
}

#[test]
fn web_sockets_pass_through_two_of_us_by_http_2() {
    let inner = Weir::start(&config(echo_server(), ""));
    let upstream = format!("{{ address: \"{}\", http2: true }}", inner.address());
    let outer = Weir::start(&config_with(LISTENER, &upstream, ""));
    let url = format!("ws://{}/chat", outer.address());
    let (mut socket, _) =
        tungstenite::client(url, Client::connect(outer.address()).wire.stream().try_clone().unwrap())
            .unwrap();
    let mut client = H2::connect(outer.address());
    let mut other = WebSocket::from_raw_socket(tunnel(&mut client, "websocket").unwrap(), Role::Client, None);
    for text in ["one", "two", &"three".repeat(100_000)] {
        says(&mut socket, text);
        says(&mut other, text);
    }
    socket.close(None).unwrap();
    while socket.read().is_ok() {}
    says(&mut other, "the other goes on");
    assert_eq!(outer.metric("weir_upstream_connections", &[]), 1.0, "one shared connection");
}

#[test]
fn a_side_that_has_ended_is_passed_on_and_the_other_goes_on() {
    let far = Far::start();
    let weir = far.weir("");
    // The client ends its direction first, and receives what is sent after that.
    let (_, mut wire) = upgrade(&weir, "/bye", "12345");
    wire.finish().unwrap();
    hears(&mut wire, "bye");
    assert!(wire.ends());
    let mut client = H2::connect(weir.address());
    let mut tunnelled = stream(&mut client, "/bye");
    tunnelled.sending.send_data(Bytes::from_static(b"12345"), true).unwrap();
    let mut heard = String::new();
    tunnelled.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "bye");
    assert_eq!(far.received.load(Ordering::SeqCst), 10);
    // The upstream ends its direction first, and receives what is sent after that.
    let (_, mut wire) = upgrade(&weir, "/first", "");
    hears(&mut wire, "done");
    assert!(wire.ends());
    wire.send("123").unwrap();
    wire.finish().unwrap();
    let mut tunnelled = stream(&mut client, "/first");
    tunnelled.read_to_string(&mut heard).unwrap();
    tunnelled.sending.send_data(Bytes::from_static(b"45"), true).unwrap();
    wait::until_true("the remaining bytes", || far.received.load(Ordering::SeqCst) == 15);
    assert_eq!(far.origin.resets(), 0);
}

#[test]
fn what_is_large_passes_whole_both_ways() {
    let far = Far::start();
    let weir = far.weir("");
    let text = "0123456789abcdef".repeat(200_000);
    let (_, mut wire) = upgrade(&weir, "/chat", "");
    let sending = wire.stream().try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (&sending).write_all(text.as_bytes()).unwrap());
        let heard = wire.read_body(Framing::Length(text.len() as u64), |_| {}).unwrap();
        assert_eq!(heard.length, text.len() as u64);
    });
    wire.finish().unwrap();
    assert!(wire.ends());
}

#[test]
fn a_tunnel_that_is_reset_on_either_side_ends_on_the_other_and_no_other_stream() {
    let far = Far::start();
    let weir = far.weir("");
    let mut beside = H2::connect(weir.address());
    let mut other = stream(&mut beside, "/chat");
    let (_, mut wire) = upgrade(&weir, "/break", "now");
    assert!(wire.ends(), "over HTTP/1.1 the connection is closed");
    let mut client = H2::connect(weir.address());
    let mut broken = stream(&mut client, "/break");
    broken.write_all(b"now").unwrap();
    assert!(broken.read(&mut [0]).is_err(), "over HTTP/2 the stream is reset");
    // The other direction: the client resets the tunnel.
    let (_, wire) = upgrade(&weir, "/wait", "");
    socket2::SockRef::from(wire.stream()).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(wire);
    wait::until_true("a reset", || far.origin.resets() == 1);
    stream(&mut client, "/wait").sending.send_reset(Reason::CANCEL);
    wait::until_true("another reset", || far.origin.resets() == 2);
    other.write_all(b"still here").unwrap();
    let mut heard = [0; 10];
    other.read_exact(&mut heard).unwrap();
    assert_eq!((&heard, far.origin.connections()), (b"still here", 1));
}

#[test]
fn where_the_upstream_does_not_offer_it_an_upgrade_is_left_out_and_an_extended_connect_refused() {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let noting = Arc::clone(&asked);
    let origin = H2Origin::start(None, move |request, mut respond| {
        noting.lock().unwrap().push(described(&request));
        async move { respond.send_response(Response::new(()), true).map(drop) }
    });
    let weir = through(&origin, "", "");
    let mut client = H2::connect(weir.address());
    // More attempts than the number of times that a connection may fail to announce support.
    for _ in 0..10 {
        assert_eq!(tunnel(&mut client, "websocket").err(), Some(StatusCode::NOT_IMPLEMENTED));
    }
    assert!(asked.lock().unwrap().is_empty(), "extended CONNECT without announcement");
    let (head, _) = upgrade(&weir, "/chat", "");
    assert_eq!((head.word(1), head.get("upgrade")), ("200", None));
    assert_eq!(get(weir.address(), "/").status, 200);
    assert_eq!(asked.lock().unwrap()[0], "GET http://a.test/chat None Some(\"13\") [\"sec-websocket-key\"]");
    assert_eq!(origin.connections(), 1);
}

#[test]
fn what_the_upstream_says_in_place_of_a_tunnel_is_passed_on() {
    let far = Far::start();
    let weir = far.weir("");
    let (head, mut wire) = upgrade(&weir, "/no", "");
    assert_eq!(head.word(1), "403");
    let body = wire.read_body(Framing::of_answer(&head, "GET"), |_| {}).unwrap();
    assert_eq!(body.text(), "no");
    let mut client = H2::connect(weir.address());
    client.until_tunnels_are_offered();
    let request = client.request("CONNECT", "/no").extension(Protocol::from_static("websocket"));
    let answer = client.ask(request);
    assert_eq!((answer.status, &*answer.body), (StatusCode::FORBIDDEN, &b"no"[..]));
    assert_eq!(far.origin.resets(), 0);
}

#[test]
fn a_tunnel_is_one_request_that_is_counted_and_logged_when_it_ends() {
    let far = Far::start();
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let rest = format!(
        "access_log: {{ path: {}, format: json }}\nrules: [{{ name: few, key: [], in_flight: 1 }}]",
        log.display()
    );
    let weir = far.weir(&rest);
    let (_, mut wire) = upgrade(&weir, "/chat", "12345");
    hears(&mut wire, "12345");
    assert_eq!(weir.metric("weir_requests_total", &[]), 0.0, "the tunnel is still open");
    let (head, _) = upgrade(&weir, "/chat", "");
    assert_eq!(head.word(1), "429", "the tunnel holds its permit");
    wire.finish().unwrap();
    assert!(wire.ends());
    let line = wait::until("the line", || {
        let text = std::fs::read_to_string(&log).ok()?;
        text.lines().find(|line| line.contains("\"response_code\":101")).map(str::to_owned)
    });
    assert!(line.contains("\"bytes_received\":5") && line.contains("\"bytes_sent\":5"), "{line}");
    assert_eq!(weir.metric("weir_requests_total", &[("code_class", "1xx")]), 1.0);
    wait::until_true("the permit", || upgrade(&weir, "/chat", "").0.word(1) == "101");
}

#[test]
fn a_tunnel_in_which_nothing_moves_is_reset_and_its_connection_kept() {
    let far = Far::start();
    let weir = through(&far.origin, ", idle_timeout: 500ms", "");
    let (_, mut wire) = upgrade(&weir, "/wait", "");
    assert!(wire.ends(), "the idle tunnel is not closed");
    wait::until_true("the reset", || far.origin.resets() == 1);
}
