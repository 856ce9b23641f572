//! Heaviest keys and the stream of events.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use serde_json::Value;

use crate::support::wait::{self, DEADLINE};
use crate::support::{Client, Request, Weir, config, fetch, run_concurrently};

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

/// Reads lines up to the data of the next event.
fn next_event(events: &mut BufReader<TcpStream>) -> Value {
    let mut line = String::new();
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
    assert!(unknown.status == 404 && unknown.body.text().contains("\"per-ip\""), "{unknown:?}");
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
