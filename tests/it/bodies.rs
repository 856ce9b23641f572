//! Rules that read fields of bodies: what they count, what they hold, and what no spelling evades.

mod compressed;
mod evasions;
mod held;

use bytes::Bytes;
use h2::ext::Protocol;

use crate::support::h2::H2Client;
use crate::support::wire::Framing;
use crate::support::{AfterResponse, Client, LISTENER, Origin, Request, Weir, config, config_with, wait};

/// Each user may send two chats with a model of one family. Tools, logins and costs have rules as well.
const RULES: &str = "\
bodies: { max: 4KiB }
rules:
  - { name: chat, match: { path: /chat, json: { model: \"~^gpt-\" } }, key: [{ json: user }], on_missing: shared, limit: 2/d, algorithm: fixed_window }
  - { name: login, match: { path: /login }, key: [client_ip, { form: username }], limit: 2/d, algorithm: fixed_window }
  - { name: tools, match: { path: /mcp, json: { method: tools/call } }, key: [{ json: params.name }], limit: 3/d, algorithm: fixed_window }
  - { name: tokens, match: { path: /cost }, limit: 100/d, algorithm: fixed_window, cost: { json: max_tokens, default: 10, max: 60 } }
  - { name: no-admin, match: { path: /roles, json: { role: admin } }, action: deny }
";

fn json(target: &str, body: impl Into<Vec<u8>>) -> Request {
    Request::post(target, body).header("content-type", "application/json")
}

fn form(target: &str, body: &str) -> Request {
    Request::post(target, body).header("content-type", "application/x-www-form-urlencoded")
}

fn statuses<'r>(weir: &Weir, requests: impl IntoIterator<Item = &'r Request>) -> Vec<u16> {
    let status = |request: &Request| Client::connect(weir.address()).fetch(request).status;
    requests.into_iter().map(status).collect()
}

fn start(rules: &str) -> Weir {
    Weir::start(&config("echo", rules))
}

#[test]
fn json_fields_select_and_separate_requests() {
    let weir = start(RULES);
    let chat =
        |user: &str, model: &str| json("/chat", format!("{{\"model\":\"{model}\",\"user\":\"{user}\"}}"));
    let alice = chat("alice", "gpt-4");
    assert_eq!(statuses(&weir, [&alice, &alice, &alice]), [200, 200, 429]);
    assert_eq!(statuses(&weir, [&chat("bob", "gpt-4")]), [200], "another key");
    assert_eq!(statuses(&weir, [&chat("alice", "claude"); 3]), [200; 3], "no rule matches");
    assert_eq!(
        statuses(&weir, [&json("/roles", r#"{"role":"admin"}"#), &json("/roles", r#"{"role":"user"}"#)]),
        [403, 200]
    );
}

#[test]
fn form_fields_separate_requests() {
    let weir = start(RULES);
    let joe = form("/login", "password=x&username=joe+doe");
    assert_eq!(statuses(&weir, [&joe, &form("/login", "username=joe%20doe"), &joe]), [200, 200, 429]);
    assert_eq!(statuses(&weir, [&form("/login", "username=jane")]), [200]);
}

#[test]
fn fields_state_the_cost() {
    let weir = start(RULES);
    let cost = |tokens: &str| json("/cost", format!("{{\"max_tokens\":{tokens}}}"));
    let remaining = |request: &Request| {
        Client::connect(weir.address()).fetch(request).header("x-ratelimit-remaining").to_owned()
    };
    assert_eq!(remaining(&cost("20")), "80");
    assert_eq!(remaining(&json("/cost", "{}")), "70", "the default");
    assert_eq!(remaining(&cost("2.5")), "67", "rounded up");
    assert_eq!(remaining(&cost("\"many\"")), "7", "the maximum");
    assert_eq!(statuses(&weir, [&cost("8"), &cost("7")]), [429, 200]);
}

#[test]
fn each_element_of_a_batch_is_charged() {
    let weir = start(RULES);
    let call = r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"search"}}"#;
    let other = r#"{"jsonrpc":"2.0","method":"tools/list"}"#;
    let batch = |calls: &[&str]| json("/mcp", format!("[{}]", calls.join(",")));
    assert_eq!(statuses(&weir, [&batch(&[call, other, call]), &batch(&[call, call])]), [200, 429]);
    assert_eq!(statuses(&weir, [&json("/mcp", call), &json("/mcp", call)]), [200, 429]);
    assert_eq!(statuses(&weir, [&batch(&[other, other, other, other])]), [200]);
    assert_eq!(statuses(&weir, [&batch(&vec!["{}"; 101])]), [400]);
    let roles = json("/roles", r#"[{"role":"user"},{"role":"admin"}]"#);
    assert_eq!(statuses(&weir, [&roles]), [403], "one element is enough for `deny`");
}

#[test]
fn unreadable_bodies_may_count_as_without_fields() {
    let weir = start(&RULES.replace("max: 4KiB", "max: 4KiB, on_unreadable: missing"));
    // No rule matches without a model, and a rule without a match for a field skips requests without a key.
    assert_eq!(statuses(&weir, [&json("/chat", "nonsense"); 3]), [200; 3]);
    assert_eq!(statuses(&weir, [&json("/login", "{}"); 3]), [200; 3]);
    // The default cost is charged.
    assert_eq!(statuses(&weir, [&json("/cost", "nonsense"); 11])[9..], [200, 429]);
}

#[test]
fn reasons_are_counted_and_logged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let log = format!("access_log: {{ path: {}, format: \"%RESPONSE_FLAGS%\" }}\n", path.display());
    let weir = start(&(log + RULES));
    let twice = r#"{"model":"x","user":"eve","model":"gpt-4"}"#;
    assert_eq!(statuses(&weir, [&json("/chat", twice), &Request::post("/chat", "x")]), [400, 400]);
    let lines = wait::until("two lines", || {
        let lines = std::fs::read_to_string(&path).ok()?;
        (lines.lines().count() == 2).then_some(lines)
    });
    assert_eq!(lines, "UAEX,UB_DUPLICATE\nUAEX,UB_CONTENT_TYPE\n");
    let count = |reason| weir.metric("weir_unreadable_bodies_total", &[("reason", reason)]);
    assert_eq!(["duplicate", "content_type", "invalid"].map(count), [1.0, 1.0, 0.0]);
    weir.reload(&config("echo", &RULES.replace("max: 4KiB", "max: 4KiB, on_unreadable: missing")));
    assert_eq!(statuses(&weir, [&json("/chat", "nonsense")]), [200]);
    assert_eq!(count("invalid"), 1.0);
}

#[test]
fn values_are_hashed_wherever_keys_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let log = format!("access_log: {{ path: {}, format: json }}\n", path.display());
    let weir = start(&(log + RULES));
    let login = form("/login", "username=joe.doe&password=secret-word");
    let chat = json("/chat", r#"{"model":"gpt-4","user":"joe.doe"}"#);
    assert_eq!(statuses(&weir, [&login, &login, &login, &chat]), [200, 200, 429, 200]);
    let logged = wait::until("four lines", || {
        let lines = std::fs::read_to_string(&path).ok()?;
        (lines.lines().count() == 4).then_some(lines)
    });
    let top = |rule: &str| weir.admin_json(&format!("/limits/top?rule={rule}")).to_string();
    let shown = [logged, top("login"), top("chat"), weir.admin_json("/events?once").to_string()];
    for (place, shown) in ["the log", "the top of logins", "the top of chats", "the feed"].iter().zip(shown) {
        assert!(shown.contains("form.username=#") || shown.contains("json.user=#"), "{place}: {shown}");
        for value in ["joe.doe", "secret-word"] {
            assert!(!shown.contains(value), "{place} shows {value}: {shown}");
        }
    }
}

#[test]
fn upstream_receives_the_bytes_as_they_came() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), RULES));
    let body = " {\"model\" : \"gpt-\\u0034\",\n \"user\":\"a\"}\n";
    let mut client = Client::connect(weir.address());
    // In chunks of one byte each.
    client.send("POST /chat HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n");
    for byte in body.bytes() {
        client.send([b"1\r\n".as_slice(), &[byte], b"\r\n"].concat());
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.read_response("POST").status, 200);
    let received = origin.only_request();
    assert_eq!((received.body.text().as_str(), received.complete), (body, true));
    let long = format!("{{\"model\":\"gpt-4\",\"user\":\"b\",\"x\":\"{}\"}}", "x".repeat(100_000));
    assert_eq!(
        statuses(&weir, [&json("/chat", long.as_str())]),
        [200],
        "the fields are known before the maximum"
    );
    assert_eq!(origin.last_request().body.length, long.len() as u64);
}

#[test]
fn body_without_a_rule_that_reads_it_is_not_held() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        turn.body()?;
        Ok(AfterResponse::Close)
    });
    let weir = Weir::start(&config(origin.address(), RULES));
    for target in ["/other", "/chat/x"] {
        let mut client = Client::connect(weir.address());
        client.send(format!(
            "POST {target} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{"
        ));
        assert_eq!(client.read_response("POST").status, 200, "{target}");
    }
}

#[test]
fn rest_of_a_body_may_not_state_a_field_again() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    let weir = Weir::start(&config(origin.address(), RULES));
    let padding = "x".repeat(200_000);
    let twice = format!("{{\"model\":\"gpt-4\",\"user\":\"a\",\"x\":\"{padding}\",\"model\":\"x\"}}");
    assert_eq!(statuses(&weir, [&json("/chat", twice)]), [400]);
    wait::until_true("the upload to end", || origin.requests().iter().all(|request| request.body.length > 0));
    assert!(origin.requests().iter().all(|request| !request.complete), "{:#?}", origin.requests());
}

#[test]
fn streams_of_http2_are_held_as_well() {
    let weir = start(RULES);
    let mut client = H2Client::connect(weir.address());
    let statuses: Vec<u16> = (0..3)
        .map(|_| {
            let request = client.request("POST", "/chat").header("content-type", "application/json");
            let (response, mut body) = client.send_request(request, false);
            body.send_data(Bytes::from_static(br#"{"model":"gpt-4","#), false).unwrap();
            body.send_data(Bytes::from_static(br#""user":"a"}"#), true).unwrap();
            client.read_response(response).unwrap().status.as_u16()
        })
        .collect();
    assert_eq!(statuses, [200, 200, 429]);
}

#[test]
fn tunnels_have_no_body() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")?;
        turn.wire.read_body(Framing::Length(4), |_| {})?;
        Ok(AfterResponse::Close)
    });
    let weir = Weir::start(&config(origin.address(), RULES));
    let mut client = H2Client::connect(weir.address());
    client.until_extended_connect_enabled();
    let request = client.request("CONNECT", "/chat").extension(Protocol::from_static("websocket"));
    let (response, mut tunnel) = client.send_request(request, false);
    assert_eq!(client.response_head(response).unwrap().status(), 200);
    tunnel.send_data(Bytes::from_static(b"{\"m\""), true).unwrap();
    // Over HTTP/1.1, an upgrade may have a body before the tunnel, and a service may ignore the upgrade.
    let upgrade = json("/chat", "nonsense").header("connection", "upgrade").header("upgrade", "websocket");
    assert_eq!(statuses(&weir, [&upgrade]), [400]);
}

#[test]
fn grpc_calls_have_no_fields() {
    let rules = "\
bodies: { max: 4KiB }
rules:
  - { name: by-field, match: { path: /package.Service/Method, json: { user: \"*\" } }, action: deny }
  - { name: missing, match: { path: /package.Service/Method }, key: [{ form: user }], on_missing: shared, limit: 2/d, algorithm: fixed_window }
";
    let weir = start(rules);
    let mut client = H2Client::connect(weir.address());
    let mut call = |message: &'static [u8]| {
        let (response, mut body) = client.send_request(client.call(), false);
        // The stream of a call that is rejected may be closed already.
        let _ = body.send_data(Bytes::from_static(message), true);
        client.read_response(response)
    };
    for _ in 0..2 {
        let response = call(b"\0\0\0\0\x02{}").unwrap();
        assert_eq!((response.status.as_u16(), response.header("grpc-status")), (200, ""), "{response:?}");
    }
    assert_eq!(call(b"").unwrap().header("grpc-status"), "8", "all of them share a counter");
}

#[test]
fn json_in_a_grpc_call_does_not_reach_the_upstream() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    let weir = Weir::start(&config(origin.address(), RULES));
    let disguised = Request::post("/chat", r#"{"model":"gpt-4","user":"eve"}"#);
    assert_eq!(statuses(&weir, [&disguised.header("content-type", "application/grpc")]), [400]);
    assert!(origin.requests().iter().all(|request| request.body.length == 0), "{:#?}", origin.requests());
}

#[test]
fn reload_may_add_fields() {
    let weir = start(
        "rules: [{ name: all, match: { path: /a }, key: [{ json: user }], limit: 1/d, algorithm: fixed_window }]",
    );
    let request = |user: &str, team: &str| json("/a", format!("{{\"user\":\"{user}\",\"team\":\"{team}\"}}"));
    assert_eq!(statuses(&weir, [&request("a", "x"), &request("a", "x")]), [200, 429]);
    weir.reload(&config(
        "echo",
        "rules: [{ name: team, match: { path: /a }, key: [{ json: team }], limit: 1/d, algorithm: fixed_window }]",
    ));
    assert_eq!(
        statuses(&weir, [&request("a", "x"), &request("b", "x"), &request("b", "y")]),
        [200, 429, 200]
    );
}

#[test]
fn client_that_never_sends_its_body_gets_a_timeout() {
    let weir = Weir::start(&config_with(LISTENER, "{ address: echo, idle_timeout: 200ms }", RULES));
    let mut client = Client::connect(weir.address());
    client.send(
        "POST /chat HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{",
    );
    assert_eq!(client.read_response("POST").status, 408);
}
