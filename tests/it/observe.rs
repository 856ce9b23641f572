//! Heaviest keys and the stream of events.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use serde_json::Value;

use crate::support::origin::refusing_address;
use crate::support::wait::{self, DEADLINE};
use crate::support::{AfterResponse, Client, Origin, Request, Weir, config, fetch, run_concurrently};

const RULES: &str = "client_ip: { trusted_proxies: 127.0.0.1 }
rules:
- { name: per-ip, key: [client_ip], limit: 3/d, on_limit: { ban: 10m } }
- { name: try, key: [client_ip, path], limit: 2/d, throttle: shadow }
- { name: in-all, key: [], limit: 1000/d }
";

/// Sends `count` requests on behalf of `client`.
fn send_as(weir: &Weir, client: &str, count: usize) {
    let mut connection = Client::connect(weir.address());
    (0..count).for_each(|_| drop(connection.fetch(&Request::get("/a").forwarded_for(client))));
}

/// Opens a stream of events, and returns the reader of its lines.
fn open_events(weir: &Weir) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(weir.admin_address("full")).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    BufReader::new(stream)
}

/// Reads lines up to the data of the next snapshot.
fn next_event(events: &mut BufReader<TcpStream>) -> Value {
    next_event_named(events, "snapshot")
}

fn next_event_named(events: &mut BufReader<TcpStream>, name: &str) -> Value {
    let mut line = String::new();
    while line.trim_end() != format!("event: {name}") {
        line.clear();
        assert!(events.read_line(&mut line).unwrap() > 0, "the stream has ended");
    }
    while !line.starts_with("data: ") {
        line.clear();
        assert!(events.read_line(&mut line).unwrap() > 0, "the stream has ended");
    }
    serde_json::from_str(line.trim_start_matches("data: ")).unwrap()
}

#[test]
fn heaviest_keys_are_listed_by_rule() {
    let weir = Weir::start(&config("echo", RULES));
    send_as(&weir, "203.0.113.7", 5);
    send_as(&weir, "203.0.113.8", 1);
    let top = weir.admin_json("/limits/top");
    assert!(top["window_seconds"].as_u64().is_some_and(|seconds| seconds <= 120), "{top}");
    let rules = top["rules"].as_array().unwrap();
    assert_eq!(rules.iter().map(|rule| &rule["rule"]).collect::<Vec<_>>(), ["per-ip", "try"]);
    let per_ip = &rules[0];
    assert_eq!((&per_ip["tracked"], &per_ip["max_overcount"]), (&2.into(), &0.into()));
    assert_eq!((&per_ip["capacity"], &per_ip["incomplete"]), (&256.into(), &false.into()));
    let first = &per_ip["keys"][0];
    for (name, expected) in [
        ("key", Value::from("client_ip=203.0.113.7")),
        ("admitted", 3.into()),
        ("rejected", 2.into()),
        ("shadow", 0.into()),
        ("delayed", 0.into()),
        ("banned", true.into()),
    ] {
        assert_eq!(first[name], expected, "{name} in {first}");
    }
    assert_eq!(first["fingerprint"].as_str().map(str::len), Some(32));
    assert_eq!((&per_ip["keys"][1]["admitted"], &per_ip["keys"][1]["banned"]), (&1.into(), &false.into()));
    let shadow = &rules[1]["keys"][0];
    assert_eq!((&shadow["key"], &shadow["shadow"]), (&"client_ip=203.0.113.7, path=/a".into(), &3.into()));
}

#[test]
fn rejections_for_an_incomplete_key_are_listed() {
    let rules = "rules:
- { name: required, key: { header: x-key }, limit: 9/d, on_missing: deny }
- { name: tried, key: { header: x-other }, limit: 9/d, on_missing: deny, throttle: shadow }
";
    let weir = Weir::start(&config("echo", rules));
    let mut client = Client::connect(weir.address());
    for _ in 0..2 {
        assert_eq!(client.get("/").status, 403);
    }
    let request = Request::get("/").header("x-key", "a");
    assert_eq!(client.fetch(&request).status, 200);
    assert_eq!(client.fetch(&request.header("x-key", "b")).status, 400, "two values are no key either");
    let top = weir.admin_json("/limits/top");
    let incomplete = |rule: usize| {
        let keys = top["rules"][rule]["keys"].as_array().unwrap();
        keys.iter().find(|key| key["key"] == "incomplete key").unwrap_or_else(|| panic!("{top}")).clone()
    };
    assert_eq!((&incomplete(0)["rejected"], &incomplete(0)["admitted"]), (&3.into(), &0.into()));
    assert_eq!(incomplete(1)["shadow"], 1);
}

#[test]
fn heaviest_keys_of_all_workers_add_up() {
    let weir = Weir::start(&config("echo", &format!("workers: 4\n{RULES}")));
    let sent: BTreeMap<String, u64> = (1..=8_u64).map(|it| (format!("203.0.113.{it}"), it * 3)).collect();
    run_concurrently(8, |index| {
        let client = format!("203.0.113.{}", index + 1);
        // Many connections, which the kernel distributes over the workers.
        (0..sent[&client]).for_each(|_| send_as(&weir, &client, 1));
    });
    let top = weir.admin_json("/limits/top?rule=per-ip&n=3");
    let keys = top["rules"][0]["keys"].as_array().unwrap();
    let totals: Vec<_> = keys
        .iter()
        .map(|key| key["admitted"].as_u64().unwrap() + key["rejected"].as_u64().unwrap())
        .collect();
    assert_eq!(totals, [24, 21, 18], "{top}");
    assert_eq!(top["rules"][0]["tracked"], 8);
}

#[test]
fn invalid_queries_of_the_heaviest_keys_are_rejected() {
    let weir = Weir::start(&config("echo", RULES));
    let unknown = weir.admin_get("/limits/top?rule=per-op");
    assert!(unknown.status == 404 && unknown.body.text().contains("did you mean `per-ip`?"), "{unknown:?}");
    for n in ["0", "-1", "x", "", "1001", "99999999999999999999"] {
        assert_eq!(weir.admin_get(&format!("/limits/top?n={n}")).status, 400, "{n}");
    }
}

#[test]
fn snapshot_has_what_live_views_need() {
    let weir = Weir::start(&config("echo", RULES));
    send_as(&weir, "203.0.113.7", 5);
    let shown = wait::until("the end of all requests", || {
        let shown = weir.admin_json("/events?once");
        (shown["in_flight"] == 0).then_some(shown)
    });
    assert_eq!((&shown["requests"]["total"], &shown["requests"]["by_class"]["2xx"]), (&5.into(), &3.into()));
    assert_eq!((&shown["generation"], &shown["draining"]), (&1.into(), &false.into()));
    assert_eq!(shown["config"]["status"], "started");
    let rule = &shown["rules"][0];
    assert_eq!(
        (&rule["name"], &rule["limits"][0], &rule["throttle"]),
        (&"per-ip".into(), &"3/d".into(), &"hard".into())
    );
    assert_eq!((&rule["decisions"]["allowed"], &rule["decisions"]["limited"]), (&3.into(), &1.into()));
    assert_eq!(
        (&rule["decisions"]["banned"], &rule["factor"], &rule["shared"]),
        (&1.into(), &Value::Null, &Value::Null)
    );
    assert!(shown["upstreams"][0]["name"].is_string(), "{shown}");
    assert_eq!(shown["top"][0]["keys"][0]["key"], "client_ip=203.0.113.7");
    for key in ["time", "uptime_seconds", "version", "elastic"] {
        assert!(shown.get(key).is_some(), "{key}");
    }
}

#[test]
fn events_are_sent_every_second_until_the_process_ends() {
    let mut weir = Weir::start(&config("echo", RULES));
    let mut events = open_events(&weir);
    assert_eq!(next_event(&mut events)["requests"]["total"], 0);
    send_as(&weir, "203.0.113.7", 2);
    let mut total = 0;
    while total < 2 {
        total = next_event(&mut events)["requests"]["total"].as_u64().unwrap();
    }
    weir.terminate();
    assert_eq!(weir.wait_exit().code(), Some(0));
    let mut rest = String::new();
    while events.read_line(&mut rest).is_ok_and(|read| read > 0) {}
}

#[test]
fn pages_of_another_origin_open_no_event_stream() {
    let weir = Weir::start(&config("echo", ""));
    let status_from = |site: &str| {
        let request = Request::get("/events?once").host("localhost").header("sec-fetch-site", site);
        fetch(weir.admin_address("full"), &request).status
    };
    assert_eq!(["cross-site", "same-site", "x"].map(status_from), [403; 3]);
    assert_eq!(["same-origin", "none"].map(status_from), [200; 2]);
}

#[test]
fn number_of_event_streams_is_bounded() {
    let weir = Weir::start(&config("echo", ""));
    let mut streams: Vec<_> = (0..16).map(|_| open_events(&weir)).collect();
    streams.iter_mut().for_each(|stream| drop(next_event(stream)));
    assert_eq!(weir.admin_get("/events").status, 503);
    streams.pop();
    // The end of a stream is noticed at its next event.
    wait::until_true("room for a stream", || {
        let mut line = String::new();
        open_events(&weir).read_line(&mut line).unwrap();
        line.starts_with("HTTP/1.1 200")
    });
}

#[test]
fn events_are_not_for_other_hosts_and_probes() {
    let weir = Weir::start(&config("echo", ""));
    for path in ["/events", "/events?once", "/limits/top"] {
        let foreign = fetch(weir.admin_address("full"), &Request::get(path).host("evil.example"));
        assert_eq!(foreign.status, 403, "{path}");
        assert_eq!(weir.admin_post(path).status, 405, "{path}");
    }
}

/// Returns the notices of the instance now.
pub(crate) fn notices(weir: &Weir) -> Vec<String> {
    let snapshot = weir.admin_json("/events?once");
    let notices = snapshot["notices"].as_array().unwrap().iter();
    notices.map(|notice| notice.as_str().unwrap().to_owned()).collect()
}

fn until_notice(weir: &Weir, parts: &[&str]) {
    wait::until_true("the notice", || {
        notices(weir).iter().any(|notice| parts.iter().all(|part| notice.contains(part)))
    });
}

#[test]
fn stream_begins_with_what_happened_before_it_was_opened() {
    let weir = Weir::start(&config("echo", RULES));
    send_as(&weir, "203.0.113.7", 5);
    wait::until_true("a sample of the requests", || {
        let history = next_event_named(&mut open_events(&weir), "history");
        let points = history["points"].as_array().unwrap().clone();
        let sum = |pick: fn(&Value) -> &Value| -> u64 {
            points.iter().filter_map(|point| pick(point).as_u64()).sum()
        };
        let requests = sum(|point| &point["requests"]);
        let limited = sum(|point| &point["outcomes"]["limited"]) + sum(|point| &point["outcomes"]["banned"]);
        let by_rule = sum(|point| &point["rules"]["per-ip"][3]);
        assert!(points.len() <= 120 && requests <= 5, "{history}");
        (requests, limited, by_rule) == (5, 2, 2)
    });
}

#[test]
fn upstream_that_refuses_every_connection_has_a_notice_without_health_checks() {
    let (_held, address) = refusing_address();
    let weir = Weir::start(&config(address.to_string(), "rules: []"));
    assert_eq!(notices(&weir), [""; 0]);
    wait::until_true("a sample from before", || {
        let history = next_event_named(&mut open_events(&weir), "history");
        history["points"].as_array().is_some_and(|points| !points.is_empty())
    });
    assert_eq!(fetch(weir.address(), &Request::get("/")).status, 503);
    until_notice(&weir, &["Upstream upstream: 1 of its last 1 request got no response", "connect failed"]);
}

#[test]
fn full_table_shedding_and_a_state_file_that_cannot_be_written_have_notices() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gone").join("state");
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    let settings = format!(
        "limiter: {{ max_keys: 64 }}
overload: {{ requests: 1 }}
state: {{ file: {}, interval: 1s }}
rules: [{{ name: a, key: {{ header: x-id }}, limit: 9/d }}]
",
        file.display()
    );
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let origin = Origin::start(move |turn| {
        if turn.head.word(1) == "/slow" {
            let _ = released.lock().unwrap().recv();
        }
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    let weir = Weir::start(&config(origin.address(), &settings));
    std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
    let mut client = Client::connect(weir.address());
    for id in 0..400 {
        client.fetch(&Request::get("/").header("x-id", &id.to_string()));
    }
    until_notice(&weir, &["The counter table is full", "`limiter.max_keys`"]);
    client.send(Request::get("/slow").to_bytes());
    wait::until_true("the request in flight", || weir.metric("weir_requests_in_flight", &[]) == 1.0);
    assert_eq!(fetch(weir.address(), &Request::get("/")).status, 503);
    until_notice(&weir, &["Overload protection has rejected 1 requests", "`overload.requests`"]);
    assert_eq!(weir.metric("weir_request_outcomes_total", &[("outcome", "shed")]), 1.0);
    until_notice(&weir, &["The state file", "cannot be written"]);
    drop(release);
}
