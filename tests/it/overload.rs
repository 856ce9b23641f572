//! Overload protection for connections, requests, memory and file descriptors: admitted work is completed, excess work
//! is rejected at once, and released capacity is available again.

use std::net::Shutdown;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use crate::support::wait::{DEADLINE, until, until_true, within};
use crate::support::{
    AfterResponse, Client, Origin, Request, Weir, config, config_with, fetch, get, run_concurrently,
};

#[test]
fn connections_over_the_limit_are_closed_and_permits_returned() {
    let weir = Weir::start(&config("echo", "overload: { connections: 2 }"));
    let mut clients = [Client::connect(weir.address()), Client::connect(weir.address())];
    assert!(clients.iter_mut().all(|client| client.get("/").status == 200));
    assert!(Client::connect(weir.address()).is_closed());
    assert!(clients.iter_mut().all(|client| client.get("/").status == 200));
    let [one, _other] = clients;
    drop(one);
    until_true("a free permit", || Client::connect(weir.address()).try_fetch(&Request::get("/")).is_ok());
    let turned_away = weir.metric("weir_overload_turned_away_total", &[("limit", "connections")]);
    assert!(turned_away >= 1.0, "{turned_away}");
}

#[test]
fn connections_per_client_are_limited() {
    let weir = Weir::start(&config("echo", "workers: 2\noverload: { connections_per_client: 3 }"));
    let served = Mutex::new(Vec::new());
    let admitted = run_concurrently(20, |_| {
        let mut client = Client::connect_from("127.0.0.1", weir.address());
        let is_served = client.try_fetch(&Request::get("/")).is_ok();
        served.lock().unwrap().push(client);
        is_served
    });
    assert_eq!(admitted.iter().filter(|is_served| **is_served).count(), 3);
    assert_eq!(Client::connect_from("127.0.0.2", weir.address()).get("/").status, 200);
    drop(served);
    until_true("a free permit", || is_first_client_served(&weir));
    let turned_away = weir.metric("weir_overload_turned_away_total", &[("limit", "connections_per_client")]);
    assert!(turned_away >= 17.0, "{turned_away}");
}

fn is_first_client_served(weir: &Weir) -> bool {
    Client::connect_from("127.0.0.1", weir.address()).try_fetch(&Request::get("/")).is_ok()
}

#[test]
fn requests_over_the_limit_get_503_and_are_not_charged() {
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let origin = Origin::start(move |turn| {
        if turn.head.word(1) == "/slow" {
            released.lock().unwrap().recv().unwrap();
        }
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let rules = "rules: [{ name: all, key: [], limit: 2/d }]";
    let rest = format!(
        "overload: {{ requests: 1 }}\naccess_log: {{ path: {}, format: json }}\n{rules}",
        log.display()
    );
    let weir = Weir::start(&config(origin.address(), &rest));
    let slow = Client::connect(weir.address());
    slow.send(Request::get("/slow").to_bytes());
    origin.until_request("the slow request", |seen| seen.head.word(1) == "/slow");
    for _ in 0..3 {
        let answer = get(weir.address(), "/");
        assert_eq!((answer.status, answer.header("x-envoy-overloaded")), (503, "true"));
        assert_eq!(answer.head.get("x-ratelimit-limit"), None, "rules were evaluated");
    }
    release.send(()).unwrap();
    let mut slow = slow;
    assert_eq!(slow.read_response("GET").status, 200);
    until_true("a free request permit, and one unit left", || get(weir.address(), "/").status == 200);
    assert_eq!(get(weir.address(), "/").status, 429);
    let is_flagged =
        || std::fs::read_to_string(&log).unwrap_or_default().contains(r#""response_flags":"OM""#);
    until_true("the flag in the access log", is_flagged);
    assert!(weir.metric("weir_overload_turned_away_total", &[("limit", "requests")]) >= 3.0);
}

#[test]
fn requests_are_shed_and_connections_closed_over_the_memory_limit() {
    // Every Weir process uses more than 2 MiB.
    let weir = Weir::start(&config("echo", "overload: { memory: 2MiB }"));
    let answer = until("a measurement of memory", || {
        let mut client = Client::connect(weir.address());
        let answer = client.get("/");
        (answer.status == 503).then(|| (answer, client.is_closed()))
    });
    assert_eq!(answer.0.header("x-envoy-overloaded"), "true");
    assert!(answer.1);
    assert_eq!(weir.admin_get("/ready").status, 503, "every request is shed");
}

#[test]
fn requests_are_admitted_again_once_the_clients_that_took_the_memory_have_left() {
    let rules = "rules: [{ name: q, key: [], limit: 1/s, throttle: { wait: { max: 10m } } }]";
    let start = |overload: &str| Weir::start(&config("echo", &format!("{overload}\n{rules}")));
    let large = Request::get("/").header("x-filler", &"f".repeat(50_000));
    let usual = {
        // Code that requests use is in memory too, once they have used it.
        let weir = start("");
        (0..2).for_each(|_| assert_eq!(get(weir.address(), "/").status, 200));
        weir.admin_get("/ready");
        weir.metric("process_resident_memory_bytes", &[]) as u64 / (1 << 20)
    };
    let weir = start(&format!("overload: {{ memory: {}MiB }}", usual + 16));
    let mut clients = Vec::new();
    until_true("memory to be short", || {
        for _ in 0..50 {
            let client = Client::connect(weir.address());
            client.send(large.to_bytes());
            clients.push(client);
        }
        weir.admin_get("/ready").status == 503
    });
    assert_eq!(fetch(weir.address(), &Request::get("/")).status, 503);
    drop(clients);
    // The allocator returns memory that has been free for ten seconds (`jemalloc(3)`, `opt.dirty_decay_ms`).
    let returned = within(4 * DEADLINE, || (weir.admin_get("/ready").status == 200).then_some(()));
    assert!(returned.is_some(), "the memory is not returned");
    until_true("a request to be admitted", || get(weir.address(), "/").status == 200);
}

#[test]
fn waiting_requests_of_all_keys_share_one_bound() {
    let rules =
        "rules: [{ name: q, key: [{ header: x-key }], limit: 1/min, throttle: { wait: { max: 10m } } }]";
    let weir = Weir::start(&config("echo", &format!("overload: {{ waiting: 1MiB }}\n{rules}")));
    let refused = || weir.metric("weir_wait_rejections_total", &[("rule", "q"), ("reason", "no_memory")]);
    let fill = || {
        let requests = (0..40).flat_map(|key| std::iter::repeat_n(format!("{key}"), 9));
        let send = |key: String| {
            let client = Client::connect(weir.address());
            client.send(Request::get("/").header("x-key", &key).to_bytes());
            client
        };
        requests.map(send).collect::<Vec<_>>()
    };
    let clients = fill();
    until_true("the bound", || refused() > 0.0);
    // Each takes at least 4 KiB of it.
    let waiting = weir.metric("weir_wait_queue_requests", &[("rule", "q")]);
    assert!((100.0..=256.0).contains(&waiting), "{waiting} wait");
    drop(clients);
    until_true("an empty queue", || weir.metric("weir_wait_queue_requests", &[("rule", "q")]) == 0.0);
    let _clients = fill();
    until_true("room", || weir.metric("weir_wait_queue_requests", &[("rule", "q")]) > 100.0);
}

#[test]
fn delayed_requests_share_the_bound_of_waiting_ones() {
    let rules = "rules: [{ name: d, key: [{ header: x-key }], limit: 1/min, throttle: { delay: 10m } }]";
    let weir = Weir::start(&config("echo", &format!("overload: {{ waiting: 1MiB }}\n{rules}")));
    let clients: Vec<_> = (0..360)
        .map(|number| {
            let client = Client::connect(weir.address());
            client.send(Request::get("/").header("x-key", &(number % 40).to_string()).to_bytes());
            client
        })
        .collect();
    until_true("the bound", || weir.metric("weir_overload_turned_away_total", &[("limit", "waiting")]) > 0.0);
    drop(clients);
    until_true("an admitted request", || {
        let mut client = Client::connect(weir.address());
        client.fetch(&Request::get("/").header("x-key", "new")).status == 200
    });
}

/// Sends `count` requests for `path`, each of which takes 50 kB of the memory for waiting requests.
fn send_large(weir: &Weir, path: &str, count: usize) -> Vec<Client> {
    let send = |_| {
        let client = Client::connect(weir.address());
        client.send(Request::get(path).header("x-filler", &"f".repeat(50_000)).to_bytes());
        client
    };
    (0..count).map(send).collect()
}

fn shed_for_memory(weir: &Weir) -> f64 {
    weir.metric("weir_overload_turned_away_total", &[("limit", "waiting")])
}

#[test]
fn delayed_request_without_memory_is_charged_nothing() {
    let rules = "rules:\n  \
                 - { name: d, match: { path: /d }, key: [], limit: 1/min, burst: 1, throttle: { delay: 50m } }\n  \
                 - { name: all, key: [], limit: 100/year, algorithm: fixed_window }\n  \
                 - { name: ok, key: [], limit: 100/year, algorithm: fixed_window, count: { response_status: 200 } }\n";
    let weir = Weir::start(&config("echo", &format!("overload: {{ waiting: 1MiB }}\n{rules}")));
    assert_eq!(get(weir.address(), "/d").status, 200);
    let _clients = send_large(&weir, "/d", 39);
    let delayed = || weir.metric("weir_requests_delayed", &[]);
    until_true("all requests", || delayed() + shed_for_memory(&weir) == 39.0);
    assert!(shed_for_memory(&weir) > 0.0);
    let used = 1 + delayed() as u64;
    let explained = weir.admin_json("/explain?path=/d");
    let delay = explained["rules"][0]["limits"][0]["delay_seconds"].as_f64().unwrap();
    assert!(delay <= 60.0 * used as f64, "behind the {used} requests that are not shed: {delay} s");
    let response = get(weir.address(), "/");
    assert_eq!(response.numeric_header("x-ratelimit-remaining"), 100 - used - 1);
}

#[test]
fn delayed_request_without_memory_owes_a_followed_limit_nothing() {
    let rejects = AtomicBool::new(true);
    let origin = Origin::start(move |turn| {
        let status = if rejects.swap(false, Ordering::Relaxed) { "429 Too Many Requests" } else { "200 OK" };
        turn.send(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n"))?;
        Ok(AfterResponse::Keep)
    });
    // At a tenth of its limit, a request costs more than the window has.
    let rules = "rules:\n  \
                 - { name: d, match: { path: '/d/*' }, key: [], limit: 1/min, burst: 1, throttle: { delay: 50m } }\n  \
                 - name: provider\n    match: { path: ['/p', '/d/p'] }\n    key: []\n    limit: 2/year\n    \
                 algorithm: fixed_window\n    feedback: { decrease: 90%, min: 1% }\n";
    let weir = Weir::start(&config(origin.address(), &format!("overload: {{ waiting: 1MiB }}\n{rules}")));
    assert_eq!(get(weir.address(), "/p").status, 429, "the limit falls");
    assert_eq!(weir.admin_post("/limits/reset?rule=provider").status, 200);
    assert_eq!(get(weir.address(), "/d/first").status, 200);
    let _clients = send_large(&weir, "/d/other", 39);
    until_true("the bound", || shed_for_memory(&weir) > 0.0);
    let large = Request::get("/d/p").header("x-filler", &"f".repeat(50_000));
    assert_eq!(fetch(weir.address(), &large).status, 503);
    assert_eq!(get(weir.address(), "/p").status, 200, "the whole window is free");
}

#[test]
fn requests_that_are_delayed_after_they_have_waited_share_the_bound() {
    let rules = "rules:\n  \
                 - { name: w, key: [], limit: 1000/s, burst: 1, throttle: { wait: { max: 10m } } }\n  \
                 - { name: d, key: [], limit: 1/min, burst: 1, throttle: { delay: 50m } }\n";
    let weir = Weir::start(&config("echo", &format!("overload: {{ waiting: 1MiB }}\n{rules}")));
    let mut clients = Vec::new();
    until_true("the bound", || {
        // Few at a time, so that most of them have left the queue when the next ones join it.
        clients.extend(send_large(&weir, "/", 5));
        until_true("an empty queue", || weir.metric("weir_wait_queue_requests", &[("rule", "w")]) == 0.0);
        let refused = weir.metric("weir_wait_rejections_total", &[("rule", "w"), ("reason", "no_memory")]);
        assert!(clients.len() < 200, "{} requests wait", clients.len());
        refused + shed_for_memory(&weir) > 0.0
    });
}

#[test]
fn file_descriptor_exhaustion_does_not_affect_open_connections() {
    let weir = Weir::start(&config("echo", "overload: { connections: 100000 }"));
    let mut early = Client::connect(weir.address());
    assert_eq!(early.get("/").status, 200);
    let open = weir.metric("process_open_fds", &[]);
    weir.limit_file_descriptors(open as u64 + 5);
    // The kernel completes these connections, but Weir cannot accept most of them.
    let mut crowd: Vec<_> = (0..50).map(|_| Client::connect(weir.address())).collect();
    crowd.iter().for_each(|client| client.send(Request::get("/").to_bytes()));
    until_true("a line in the log", || weir.log().iter().any(|line| line.contains("cannot accept")));
    assert_eq!(early.get("/").status, 200, "open connections are served");
    // Each closed connection makes room for another one, so that all are served in the end.
    for client in &mut crowd {
        assert_eq!(client.read_response("GET").status, 200);
        client.wire.stream().shutdown(Shutdown::Both).unwrap();
    }
    assert_eq!(get(weir.address(), "/").status, 200);
    let failures = weir.metric("weir_accept_failures_total", &[]);
    // With a pause after each failure there are about 50 per second; a loop without one would produce as many in 1 ms.
    assert!((1.0..2000.0).contains(&failures), "{failures}");
    let lines = weir.log().iter().filter(|line| line.contains("cannot accept")).count();
    assert!(lines < 20, "{lines} log lines");
}

#[test]
fn slow_header_sections_time_out_without_blocking_others() {
    let origin = Origin::hello();
    let listener = "{ address: 127.0.0.1:0, header_timeout: 2s }";
    let weir = Weir::start(&config_with(listener, &format!("{{ address: \"{}\" }}", origin.address()), ""));
    let mut slow: Vec<_> = (0..300).map(|_| Client::connect(weir.address())).collect();
    for client in &slow {
        client.send("GET / HTTP/1.1\r\nhost: a.test\r\nx-slow: ");
    }
    let mut client = Client::connect(weir.address());
    for _ in 0..100 {
        assert_eq!(client.get("/").status, 200);
        assert_eq!(get(weir.address(), "/").status, 200);
    }
    for client in &mut slow {
        let status = client.wire.read_head().unwrap().map(|head| head.word(1).to_owned());
        assert_eq!(status.as_deref(), Some("408"));
        client.wire.drain();
        assert!(client.is_closed());
    }
    assert_eq!(weir.metric("weir_requests_malformed_total", &[]), 300.0);
}

#[test]
fn stalled_uploads_time_out_without_blocking_others() {
    let origin = Origin::hello();
    let upstream = format!("{{ address: \"{}\", idle_timeout: 2s }}", origin.address());
    let weir = Weir::start(&config_with("{ address: 127.0.0.1:0 }", &upstream, ""));
    let mut slow: Vec<_> = (0..100).map(|_| Client::connect(weir.address())).collect();
    for client in &slow {
        client.send("POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 10\r\n\r\nhalf ");
    }
    for _ in 0..100 {
        assert_eq!(get(weir.address(), "/").status, 200);
    }
    for client in &mut slow {
        assert_eq!(client.try_read_response("POST").unwrap().status, 408);
        assert!(client.is_closed());
    }
    let whole = origin.requests().iter().filter(|seen| seen.complete && seen.head.word(0) == "POST").count();
    assert_eq!(whole, 0);
}

#[test]
fn idle_connections_use_little_memory_and_block_no_requests() {
    const IDLE: usize = 400;
    let weir = Weir::start(&config("echo", ""));
    let resident = || weir.metric("process_resident_memory_bytes", &[]);
    // One-time costs, such as allocations for the first requests.
    (0..20).for_each(|_| assert_eq!(get(weir.address(), "/").status, 200));
    let before = resident();
    let mut idle: Vec<_> = (0..IDLE).map(|_| Client::connect(weir.address())).collect();
    assert!(idle.iter_mut().all(|client| client.get("/").status == 200));
    for _ in 0..100 {
        assert_eq!(get(weir.address(), "/").status, 200);
    }
    let each = (resident() - before) / IDLE as f64;
    assert!(each < 20.0 * 1024.0, "{each} bytes per idle connection");
    assert!(idle.iter_mut().all(|client| client.get("/").status == 200));
    assert_eq!(fetch(weir.address(), &Request::get("/")).status, 200);
}

#[test]
fn allocator_returns_memory_in_a_background_thread() {
    let weir = Weir::start(&config(Origin::hello().address(), ""));
    // The threads of the allocator have names.
    until_true("the thread", || weir.threads().iter().any(|name| name == "jemalloc_bg_thd"));
}

#[test]
fn panics_metric_exists_and_is_zero() {
    let weir = Weir::start(&config("echo", ""));
    assert_eq!(get(weir.address(), "/").status, 200);
    assert_eq!(weir.metric("weir_panics_total", &[]), 0.0);
}
