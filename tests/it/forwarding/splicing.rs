//! Large bodies move between sockets through pipes, and are the same as if they were copied.

use std::fs;
use std::io;

use super::bodies::body_block;
use super::start_proxy;
use crate::support::wire::Body;
use crate::support::{AfterResponse, Client, LISTENER, Origin, Request, Weir, config, config_with, wait};

/// Pipes that a worker uses at once.
const MAX_PIPES: usize = 256;
/// More bytes than a pipe holds.
const LARGE: usize = 1 << 20;

/// Returns the number of pipes that the process has open.
fn open_pipes(weir: &Weir) -> usize {
    let files = fs::read_dir(format!("/proc/{}/fd", weir.pid())).unwrap();
    let targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("pipe:")).count() / 2
}

fn body(length: usize) -> Vec<u8> {
    body_block().into_iter().cycle().take(length).collect()
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut body = Body::default();
    body.push(bytes);
    body.checksum
}

/// Returns an upstream that sends bodies of the length in the path, and reads those of requests.
fn origin() -> Origin {
    Origin::start(|turn| {
        turn.body()?;
        let length: usize = turn.head.word(1).trim_start_matches('/').parse().map_err(io::Error::other)?;
        let headers = format!("content-type: application/json\r\ncontent-length: {length}");
        turn.send(format!("HTTP/1.1 200 OK\r\n{headers}\r\n\r\n"))?;
        let block = body_block();
        (0..length / block.len()).try_for_each(|_| turn.send(&block))?;
        turn.send(&block[..length % block.len()])?;
        Ok(AfterResponse::Keep)
    })
}

#[test]
fn bodies_of_all_lengths_are_the_same_on_one_connection() {
    const LENGTHS: [usize; 12] = [
        0,
        1,
        8 << 10,
        (16 << 10) - 1,
        16 << 10,
        24 << 10,
        32 << 10,
        64 << 10,
        (256 << 10) - 1,
        256 << 10,
        (256 << 10) + 1,
        LARGE + 1,
    ];
    let origin = origin();
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    for sent in LENGTHS {
        for received in LENGTHS {
            let answer = client.fetch(&Request::post(&format!("/{received}"), body(sent)));
            let expected = (200, received as u64, checksum(&body(received)));
            assert_eq!(
                (answer.status, answer.body.length, answer.body.checksum),
                expected,
                "{sent}, {received}"
            );
            let seen = origin.last_request().body;
            assert_eq!(
                (seen.length, seen.checksum),
                (sent as u64, checksum(&body(sent))),
                "{sent}, {received}"
            );
        }
    }
    assert_eq!(origin.connections(), 1, "connections are kept alive");
    assert_eq!(weir.metric("weir_requests_in_flight", &[]), 0.0);
}

#[test]
fn large_bodies_move_through_pipes_in_both_directions() {
    let origin = origin();
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    let before = open_pipes(&weir);
    client.fetch(&Request::post("/1000", body(1000)));
    assert_eq!(open_pipes(&weir), before, "small bodies need none");
    client.fetch(&Request::post("/0", body(LARGE)));
    assert!(open_pipes(&weir) > before, "an upload");
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    let before = open_pipes(&weir);
    client.fetch(&Request::get(&format!("/{LARGE}")));
    assert!(open_pipes(&weir) > before, "a download");
}

/// What is limited, read, stored or kept of a body passes through the process.
#[test]
fn bodies_that_the_proxy_looks_at_are_copied() {
    const LENGTH: usize = 60 << 10;
    let origin = origin();
    let address = origin.address();
    let rule = |rule: &str| config(address, &format!("rules: [{{ name: a, key: client_ip, {rule} }}]"));
    let retries = format!("{{ address: \"{address}\", retries: {{}} }}");
    for (what, config) in [
        ("bandwidth", rule("bandwidth: { request: 100MiB/s, response: 100MiB/s }")),
        ("cost stated in the response", rule("limit: 100/s, cost: { response_json: usage }")),
        ("cached fallback", rule("limit: 100/s, on_limit: { fallback: { cached: 1MiB } }")),
        ("retries", config_with(LISTENER, &retries, "")),
    ] {
        let weir = Weir::start(&config);
        let mut client = Client::connect(weir.address());
        let before = open_pipes(&weir);
        let (method, sent, received) = match what {
            "bandwidth" => ("PUT", LENGTH, LENGTH),
            "retries" => ("PUT", LENGTH, 0),
            _ => ("GET", 0, LENGTH),
        };
        let request = Request::post(&format!("/{received}"), body(sent)).with_method(method);
        let answer = client.fetch(&request);
        assert_eq!((answer.status, answer.body.checksum), (200, checksum(&body(received))), "{what}");
        let seen = origin.last_request().body;
        assert_eq!((seen.length, seen.checksum), (sent as u64, checksum(&body(sent))), "{what}");
        assert_eq!(open_pipes(&weir), before, "{what}");
    }
}

/// Clients that read nothing hold as many pipes as a worker may use. The responses of the others are copied.
#[test]
fn stalled_downloads_hold_a_bounded_number_of_pipes_and_are_complete_afterwards() {
    const LENGTH: usize = 24 << 20;
    const CLIENTS: usize = MAX_PIPES + 20;
    let origin = origin();
    let weir = start_proxy(&origin);
    let before = open_pipes(&weir);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| Client::connect(weir.address())).collect();
    clients.iter().for_each(|client| client.send(Request::get(&format!("/{LENGTH}")).to_bytes()));
    wait::until_true("all pipes to be in use", || open_pipes(&weir) - before == MAX_PIPES);
    let expected = checksum(&body(LENGTH));
    // The first requests have pipes. Which others have none depends on the order of events.
    for client in [0, CLIENTS - 2, CLIENTS - 1] {
        let answer = clients[client].read_response("GET");
        assert_eq!((answer.status, answer.body.length, answer.body.checksum), (200, LENGTH as u64, expected));
    }
    drop(clients);
    wait::until_true("the pipes to be closed", || open_pipes(&weir) - before <= 16);
}

#[test]
fn download_that_breaks_off_closes_the_connection_and_is_logged() {
    let origin = Origin::start(|turn| {
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE}\r\n\r\n"))?;
        turn.send(body(LARGE / 2))?;
        Ok(AfterResponse::Close)
    });
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let access_log = format!("access_log: {{ path: {}, format: json }}\n", log.display());
    let weir = Weir::start(&config(origin.address(), &access_log));
    let mut client = Client::connect(weir.address());
    client.send(Request::get("/").to_bytes());
    assert_eq!(client.try_read_response("GET").unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    wait::until_true("a line", || fs::read_to_string(&log).is_ok_and(|text| text.ends_with('\n')));
    let line: serde_json::Value = serde_json::from_str(&fs::read_to_string(&log).unwrap()).unwrap();
    assert_eq!((&line["bytes_sent"], &line["response_flags"]), (&(LARGE / 2).into(), &"UC".into()));
}

#[test]
fn upload_that_breaks_off_ends_the_upstream_request() {
    let origin = origin();
    let weir = start_proxy(&origin);
    let client = Client::connect(weir.address());
    client.send(format!("POST /0 HTTP/1.1\r\nhost: a.test\r\ncontent-length: {LARGE}\r\n\r\n"));
    client.send(body(LARGE / 2));
    origin.until_request("half of the body", |seen| seen.body.length == LARGE as u64 / 2);
    drop(client);
    wait::until_true("the request to end", || weir.metric("weir_requests_in_flight", &[]) == 0.0);
    let seen = origin.only_request();
    assert!(!seen.complete);
    assert_eq!(seen.body.length, LARGE as u64 / 2);
}

/// What a client has not taken is not for another one.
#[test]
fn client_that_leaves_gives_back_its_pipe() {
    let origin = origin();
    let weir = start_proxy(&origin);
    let before = open_pipes(&weir);
    let client = Client::connect(weir.address());
    // More than all buffers hold.
    client.send(Request::get(&format!("/{}", 1 << 30)).to_bytes());
    wait::until_true("a pipe to be in use", || open_pipes(&weir) == before + 1);
    drop(client);
    wait::until_true("the request to end", || weir.metric("weir_requests_in_flight", &[]) == 0.0);
    let mut client = Client::connect(weir.address());
    let answer = client.fetch(&Request::get(&format!("/{}", 64 << 10)));
    assert_eq!((answer.status, answer.body.length), (200, 64 << 10));
    assert_eq!(answer.body.checksum, checksum(&body(64 << 10)));
}
