//! Limits inside streams: messages and bytes over the limit wait, and none is lost.
//!
//! Limits of a few units a day hold the rest for longer than any test. A reload that raises them lets it pass.

use std::io::{Read, Write};
use std::net::TcpStream;

use bytes::Bytes;
use h2::SendStream;
use tungstenite::{Message, WebSocket};

use crate::support::h2::H2Client;
use crate::support::h2_origin::H2Origin;
use crate::support::{Client, LISTENER, Origin, Request, Weir, config, config_with, get, wait};
use crate::upgrades::{connect_websocket, echo_server};

const MESSAGES: &str =
    "rules: [{ name: chat, key: client_ip, limit: 100/year, burst: 3, cost: { messages: 1 } }]";

fn units(weir: &Weir, rule: &str, outcome: &str) -> f64 {
    weir.metric("weir_stream_units_total", &[("rule", rule), ("outcome", outcome)])
}

fn until_held(weir: &Weir, rule: &str) {
    wait::until_true("a part that waits", || units(weir, rule, "delayed") > 0.0);
}

fn send(socket: &mut WebSocket<TcpStream>, texts: impl IntoIterator<Item = &'static str>) {
    texts.into_iter().for_each(|text| socket.send(Message::text(text)).unwrap());
}

fn read(socket: &mut WebSocket<TcpStream>) -> String {
    socket.read().unwrap().into_text().unwrap().to_string()
}

#[test]
fn messages_of_a_websocket_over_the_limit_wait_and_pass_in_order() {
    let weir = Weir::start(&config(echo_server(), MESSAGES));
    let mut socket = connect_websocket(weir.address()).unwrap();
    send(&mut socket, ["1", "2", "3", "4", "5"]);
    assert_eq!([(); 3].map(|()| read(&mut socket)), ["1", "2", "3"]);
    until_held(&weir, "chat");
    assert_eq!((units(&weir, "chat", "allowed"), units(&weir, "chat", "delayed")), (3.0, 1.0));
    // What the client sends behind a message waits, too; what the upstream sends does not.
    weir.reload(&config(echo_server(), &MESSAGES.replace("100/year, burst: 3", "1000000/s")));
    assert_eq!([(); 2].map(|()| read(&mut socket)), ["4", "5"]);
}

#[test]
fn streams_of_one_key_share_its_limit() {
    let weir = Weir::start(&config(echo_server(), MESSAGES));
    let mut sockets = [(); 2].map(|()| connect_websocket(weir.address()).unwrap());
    for socket in &mut sockets {
        send(socket, ["a"]);
        assert_eq!(read(socket), "a");
    }
    send(&mut sockets[0], ["b", "c"]);
    assert_eq!(read(&mut sockets[0]), "b");
    until_held(&weir, "chat");
    assert_eq!(units(&weir, "chat", "allowed"), 3.0);
}

#[test]
fn each_stream_may_have_a_limit_of_its_own() {
    let rules = MESSAGES.replace("client_ip", "stream");
    let weir = Weir::start(&config(echo_server(), &rules));
    for _ in 0..3 {
        let mut socket = connect_websocket(weir.address()).unwrap();
        send(&mut socket, ["a", "b", "c"]);
        assert_eq!([(); 3].map(|()| read(&mut socket)), ["a", "b", "c"]);
    }
    let limits = weir.admin_json("/limits");
    assert_eq!(limits["rules"][0]["key"], "stream");
    assert_eq!(limits["rules"][0]["streams"][0]["units"]["allowed"], 9);
}

#[test]
fn control_frames_are_no_messages() {
    let weir = Weir::start(&config(echo_server(), MESSAGES));
    let mut socket = connect_websocket(weir.address()).unwrap();
    for _ in 0..10 {
        socket.send(Message::Ping("x".into())).unwrap();
        assert!(socket.read().unwrap().is_pong());
    }
    send(&mut socket, ["1"]);
    assert_eq!(read(&mut socket), "1");
    assert_eq!(units(&weir, "chat", "allowed"), 1.0);
}

#[test]
fn messages_of_the_upstream_may_be_limited() {
    let rules = MESSAGES.replace("messages", "response_messages");
    let weir = Weir::start(&config(echo_server(), &rules));
    let mut socket = connect_websocket(weir.address()).unwrap();
    send(&mut socket, ["1", "2", "3", "4"]);
    assert_eq!([(); 3].map(|()| read(&mut socket)), ["1", "2", "3"]);
    until_held(&weir, "chat");
    let measure = [("rule", "chat"), ("measure", "response_messages"), ("outcome", "allowed")];
    assert_eq!(weir.metric("weir_stream_units_total", &measure), 3.0);
}

#[test]
fn shadow_mode_holds_nothing() {
    let rules = MESSAGES.replace("cost:", "throttle: shadow, cost:");
    let weir = Weir::start(&config(echo_server(), &rules));
    let mut socket = connect_websocket(weir.address()).unwrap();
    send(&mut socket, ["1", "2", "3", "4", "5"]);
    assert_eq!([(); 5].map(|()| read(&mut socket)), ["1", "2", "3", "4", "5"]);
    let counts = ["allowed", "delayed", "shadow"].map(|outcome| units(&weir, "chat", outcome));
    assert_eq!(counts, [3.0, 0.0, 2.0]);
}

#[test]
fn removed_rule_holds_no_stream_any_longer() {
    let weir = Weir::start(&config(echo_server(), MESSAGES));
    let mut socket = connect_websocket(weir.address()).unwrap();
    send(&mut socket, ["1", "2", "3", "4", "5", "6"]);
    until_held(&weir, "chat");
    weir.reload(&config(echo_server(), "rules: []"));
    assert_eq!([(); 6].map(|()| read(&mut socket)), ["1", "2", "3", "4", "5", "6"]);
}

#[test]
fn id_of_a_removed_limit_limits_no_open_stream() {
    let weir = Weir::start(&config(echo_server(), MESSAGES));
    let mut socket = connect_websocket(weir.address()).unwrap();
    send(&mut socket, ["1"]);
    assert_eq!(read(&mut socket), "1");
    // Limits of rules that are gone are kept for one reload. Later ones get their ids.
    for name in ["a", "b", "c"] {
        let other =
            format!("rules: [{{ name: {name}, match: {{ path: /other }}, limit: 1/d, in_flight: 1 }}]");
        weir.reload(&config(echo_server(), &other));
    }
    send(&mut socket, ["2", "3", "4", "5", "6"]);
    assert_eq!([(); 5].map(|()| read(&mut socket)), ["2", "3", "4", "5", "6"]);
}

#[test]
fn changed_mode_applies_to_open_streams() {
    let weir = Weir::start(&config(echo_server(), MESSAGES));
    let mut socket = connect_websocket(weir.address()).unwrap();
    send(&mut socket, ["1", "2", "3"]);
    assert_eq!([(); 3].map(|()| read(&mut socket)), ["1", "2", "3"]);
    weir.reload(&config(echo_server(), &MESSAGES.replace("cost:", "throttle: shadow, cost:")));
    send(&mut socket, ["4", "5"]);
    assert_eq!([(); 2].map(|()| read(&mut socket)), ["4", "5"]);
    assert_eq!(units(&weir, "chat", "shadow"), 2.0);
}

#[test]
fn reset_of_a_key_frees_what_waits() {
    let weir = Weir::start(&config(echo_server(), MESSAGES));
    let mut socket = connect_websocket(weir.address()).unwrap();
    send(&mut socket, ["1", "2", "3", "4"]);
    until_held(&weir, "chat");
    assert_eq!(weir.admin_post("/limits/reset?rule=chat&key=client_ip%3D127.0.0.1").status, 200);
    assert_eq!([(); 4].map(|()| read(&mut socket)), ["1", "2", "3", "4"]);
}

#[test]
fn bandwidth_is_not_lost_beside_another_upstream() {
    let rules = "rules: [{ name: both, key: client_ip, limit: 1000/s, bandwidth: { request: 1MiB/year, burst: 4KiB }, on_limit: { upstream: spare } }]";
    let yaml = |rules: &str| {
        format!(
            "listeners: 127.0.0.1:0\nadmin: {{ address: 127.0.0.1:0 }}\nupstreams:\n- {{ name: main, address: '{}' }}\n\
             - {{ name: spare, address: echo }}\n{rules}",
            echo_server()
        )
    };
    let weir = Weir::start(&yaml(rules));
    let mut socket = connect_websocket(weir.address()).unwrap();
    send(&mut socket, ["1"]);
    assert_eq!(read(&mut socket), "1");
    assert_eq!(weir.admin_post("/limits/ban?rule=both&key=client_ip%3D127.0.0.1&for=1h").status, 200);
    // A smaller burst than a part has.
    weir.reload(&yaml(&rules.replace("4KiB", "100B")));
    socket.send(Message::text("x".repeat(200))).unwrap();
    wait::pause(std::time::Duration::from_millis(300));
    assert!(units(&weir, "both", "allowed") < 100.0, "a banned key sends nothing");
}

#[test]
fn call_that_ends_gives_back_what_waits() {
    let origin = grpc_echo();
    let upstream = format!("{{ address: {}, http2: true }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, &MESSAGES.replace("burst: 3", "burst: 1")));
    let used = || {
        let explained = weir.admin_json("/explain?method=GET&path=/&client_ip=127.0.0.1");
        explained["rules"][0]["limits"][0]["used"].as_u64()
    };
    let mut client = H2Client::connect(weir.address());
    let call = client.call();
    let (response, mut sending) = client.send_request(call, false);
    send_grpc(&mut sending, &["one", "two"], false);
    until_held(&weir, "chat");
    assert_eq!(used(), Some(2));
    drop((sending, response));
    wait::until_true("the unit of the message that has not passed", || used() == Some(1));
}

#[test]
fn second_content_type_hides_no_messages() {
    let origin = grpc_echo();
    let upstream = format!("{{ address: {}, http2: true }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, MESSAGES));
    let mut client = H2Client::connect(weir.address());
    let call = client.request("POST", "/package.Service/Method").header("content-type", "text/plain");
    let (response, mut sending) = client.send_request(call.header("content-type", "application/grpc"), false);
    send_grpc(&mut sending, &["one", "two", "three", "four"], true);
    until_held(&weir, "chat");
    drop(response);
}

/// Starts an upstream that sends back what each call sends.
fn grpc_echo() -> H2Origin {
    H2Origin::start(None, |request, mut respond| async move {
        let mut body = request.into_body();
        let mut sending = respond.send_response(http::Response::new(()), false)?;
        while let Some(data) = body.data().await {
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
            sending.send_data(data, false)?;
        }
        sending.send_data(Bytes::new(), true)
    })
}

fn grpc_message(content: &str) -> Vec<u8> {
    [&[0][..], &u32::try_from(content.len()).unwrap().to_be_bytes(), content.as_bytes()].concat()
}

fn send_grpc(sending: &mut SendStream<Bytes>, contents: &[&str], ends: bool) {
    let messages: Vec<u8> = contents.iter().flat_map(|content| grpc_message(content)).collect();
    sending.send_data(messages.into(), ends).unwrap();
}

#[test]
fn messages_of_a_grpc_call_over_the_limit_wait() {
    let origin = grpc_echo();
    let upstream = |rules: &str| {
        config_with(LISTENER, &format!("{{ address: {}, http2: true }}", origin.address()), rules)
    };
    let weir = Weir::start(&upstream(MESSAGES));
    let mut client = H2Client::connect(weir.address());
    let call = client.call();
    let (response, mut sending) = client.send_request(call, false);
    send_grpc(&mut sending, &["one", "two", "three", "four"], true);
    until_held(&weir, "chat");
    let mut body = client.block_on(response).unwrap().into_body();
    let expected: Vec<u8> = ["one", "two", "three"].into_iter().flat_map(grpc_message).collect();
    let mut heard = Vec::new();
    while heard.len() < expected.len() {
        heard.extend(client.block_on(body.data()).unwrap().unwrap());
    }
    assert_eq!(heard, expected);
    weir.reload(&upstream(&MESSAGES.replace("100/year, burst: 3", "1000000/s")));
    while let Some(data) = client.block_on(body.data()) {
        heard.extend(data.unwrap());
    }
    assert_eq!(heard.len(), expected.len() + grpc_message("four").len());
}

#[test]
fn requests_without_messages_are_not_counted() {
    let weir = Weir::start(&config("echo", MESSAGES));
    for _ in 0..5 {
        assert_eq!(Client::connect(weir.address()).fetch(&Request::post("/", "body")).status, 200);
    }
    assert_eq!(units(&weir, "chat", "allowed"), 0.0);
}

const BANDWIDTH: &str =
    "rules: [{ name: bytes, key: client_ip, bandwidth: { DIRECTION: 1MiB/year, burst: 4KiB } }]";

fn bandwidth(direction: &str) -> String {
    BANDWIDTH.replace("DIRECTION", direction)
}

#[test]
fn response_over_the_bandwidth_is_slowed_down_and_complete() {
    let content = "x".repeat(20_000);
    let origin = Origin::responding_with(format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{content}",
        content.len()
    ));
    let weir = Weir::start(&config(origin.address(), &bandwidth("response")));
    let mut client = TcpStream::connect(weir.address()).unwrap();
    client.set_read_timeout(Some(wait::DEADLINE)).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: a.test\r\nconnection: close\r\n\r\n").unwrap();
    until_held(&weir, "bytes");
    assert_eq!(units(&weir, "bytes", "allowed"), 4096.0);
    weir.reload(&config(origin.address(), &bandwidth("response").replace("1MiB/year", "100MiB/s")));
    let mut heard = String::new();
    client.read_to_string(&mut heard).unwrap();
    assert!(heard.ends_with(&content), "{} bytes", heard.len());
    // Requests have no limit.
    assert_eq!(weir.metric("weir_stream_units_total", &[("measure", "request_bytes")]), 0.0);
}

#[test]
fn upload_over_the_bandwidth_is_slowed_down_and_complete() {
    let weir = Weir::start(&config("echo", &bandwidth("request")));
    let content = "x".repeat(20_000);
    let mut client = Client::connect(weir.address());
    client.send(Request::post("/", content).to_bytes());
    until_held(&weir, "bytes");
    assert_eq!(units(&weir, "bytes", "allowed"), 4096.0);
    weir.reload(&config("echo", &bandwidth("request").replace("1MiB/year", "100MiB/s")));
    assert_eq!(client.read_response("POST").status, 200);
    assert_eq!(units(&weir, "bytes", "allowed") + units(&weir, "bytes", "delayed"), 20_000.0);
}

#[test]
fn upload_that_is_held_is_no_slow_response() {
    let rules = "rules: [{ name: bytes, key: [], bandwidth: { request: 8KiB/s, burst: 4KiB } }]";
    let upstream = "{ address: echo, timeout: 1s, idle_timeout: 1s }";
    let weir = Weir::start(&config_with(LISTENER, upstream, rules));
    let upload = Request::post("/", "x".repeat(24 << 10));
    assert_eq!(Client::connect(weir.address()).fetch(&upload).status, 200);
}

#[test]
fn stream_that_is_held_is_not_idle() {
    let rules = "rules: [{ name: chat, key: [], limit: 1/s, burst: 1, cost: { messages: 1 } }]";
    let upstream = format!("{{ address: {}, idle_timeout: 400ms }}", echo_server());
    let weir = Weir::start(&config_with(LISTENER, &upstream, rules));
    let mut socket = connect_websocket(weir.address()).unwrap();
    send(&mut socket, ["1", "2", "3"]);
    assert_eq!([(); 3].map(|()| read(&mut socket)), ["1", "2", "3"]);
}

#[test]
fn tunnel_over_the_bandwidth_is_slowed_down() {
    let weir = Weir::start(&config(echo_server(), &bandwidth("request")));
    let mut socket = connect_websocket(weir.address()).unwrap();
    let text = "x".repeat(6000);
    socket.send(Message::text(text.clone())).unwrap();
    until_held(&weir, "bytes");
    assert_eq!(units(&weir, "bytes", "allowed"), 4096.0);
    weir.reload(&config(echo_server(), &bandwidth("request").replace("1MiB/year", "100MiB/s")));
    assert_eq!(read(&mut socket), text);
}

#[test]
fn bandwidth_applies_beside_the_limit_of_requests() {
    let rules = "rules: [{ name: both, key: client_ip, limit: 2/d, bandwidth: 1MiB/s }]";
    let weir = Weir::start(&config("echo", rules));
    assert_eq!([(); 3].map(|()| get(weir.address(), "/").status), [200, 200, 429]);
}

#[test]
fn exempt_requests_are_not_limited() {
    let rules = format!(
        "rules:\n- {{ name: free, match: {{ path: /chat }}, action: allow }}\n- {}",
        &MESSAGES["rules: [".len()..MESSAGES.len() - 1]
    );
    let weir = Weir::start(&config(echo_server(), &rules));
    let mut socket = connect_websocket(weir.address()).unwrap();
    send(&mut socket, ["1", "2", "3", "4", "5"]);
    assert_eq!([(); 5].map(|()| read(&mut socket)), ["1", "2", "3", "4", "5"]);
    assert_eq!(units(&weir, "chat", "allowed"), 0.0);
}

#[test]
fn explain_shows_the_limits_inside_streams() {
    let weir = Weir::start(&config(echo_server(), MESSAGES));
    let mut socket = connect_websocket(weir.address()).unwrap();
    send(&mut socket, ["1"]);
    assert_eq!(read(&mut socket), "1");
    let explained = weir.admin_json("/explain?method=GET&path=/chat&client_ip=127.0.0.1");
    let limit = &explained["rules"][0]["limits"][0];
    assert_eq!(
        (&limit["role"], &limit["unit"], &limit["remaining"]),
        (&"stream".into(), &"messages".into(), &2.into())
    );
}
