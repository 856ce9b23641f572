//! SIGUSR2: another process takes over sockets, counters and connections.

mod failures;
mod learned;
mod load;
mod reload;
mod tls;

use std::time::Duration;

use crate::support::h2::H2Client;
use crate::support::replacement::signal;
use crate::support::{Client, Origin, Weir, get, wait};

/// A configuration with this upstream and these further lines.
pub(super) fn config(upstream: impl std::fmt::Display, rest: &str) -> String {
    format!(
        "listeners: [{{ address: 127.0.0.1:0, name: main }}]\nadmin: {{ address: 127.0.0.1:0 }}\nworkers: 2\n\
         upstream: {{ address: \"{upstream}\" }}\n{rest}\n"
    )
}

fn statuses(client: &mut Client, count: usize) -> Vec<u16> {
    (0..count).map(|_| client.get("/").status).collect()
}

#[test]
fn connection_and_its_counters_go_on_in_the_new_process() {
    let weir = Weir::start(&config("echo", "rules: [{ name: all, limit: 5/h, algorithm: fixed_window }]"));
    let address = weir.address();
    let (mut client, mut unused) = (Client::connect(address), Client::connect(address));
    assert_eq!(statuses(&mut client, 2), [200, 200]);
    weir.replace();
    weir.until_old_has_ended();
    assert_eq!(statuses(&mut client, 2), [200, 200]);
    assert_eq!(statuses(&mut unused, 2), [200, 429]);
    assert_eq!(get(address, "/").status, 429);
    assert_eq!(weir.admin_json("/server_info")["config"]["generation"], 1);
}

#[test]
fn requests_in_flight_end_in_the_old_process_and_give_their_permits_back() {
    let origin = Origin::hello();
    let rules = "rules: [{ name: one, match: { path: /one }, in_flight: 1 }]";
    let weir = Weir::start(&config(origin.address(), rules));
    let address = weir.address();
    let mut busy = Client::connect(address);
    busy.send("POST /one HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab");
    origin.until_request("the upload", |request| request.head.word(1) == "/one");
    weir.replace();
    assert_eq!(get(address, "/one").status, 429, "the permit is in use in the old process");
    busy.send("cd");
    assert_eq!(busy.read_response("POST").status, 200);
    wait::until_true("the permit", || get(address, "/one").status == 200);
    weir.until_old_has_ended();
}

#[test]
fn process_is_replaced_once_the_one_before_has_ended() {
    let origin = Origin::hello();
    let rules = "rules: [{ name: one, match: { path: /one }, in_flight: 1 }]";
    let weir = Weir::start(&config(origin.address(), rules));
    let address = weir.address();
    let mut busy = Client::connect(address);
    busy.send("POST /one HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab");
    origin.until_request("the upload", |request| request.head.word(1) == "/one");
    weir.replace();
    signal(weir.serving_pid(), "USR2");
    wait::until_true("the wait", || {
        weir.has_logged("this process is replaced once the one before has ended")
    });
    assert_eq!(get(address, "/one").status, 429, "the permit is in use in the first process");
    busy.send("cd");
    assert_eq!(busy.read_response("POST").status, 200);
    wait::until_true("the third process", || weir.successors().len() == 2);
    wait::until_true("the permit", || get(address, "/one").status == 200);
}

#[test]
fn rate_limit_service_is_served_by_the_new_process_alone() {
    let origin = Origin::hello();
    let rest = "rules: []\nrls: { address: 127.0.0.1:0, http: 127.0.0.1:0 }";
    let weir = Weir::start(&config(origin.address(), rest));
    let http = weir.rls_address("http");
    // Keeps the old process, which is not healthy any longer.
    let busy = Client::connect(weir.address());
    busy.send("POST /slow HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab");
    origin.until_request("the upload", |request| request.head.word(1) == "/slow");
    weir.replace();
    assert!((0..20).all(|_| get(http, "/healthcheck").status == 200));
}

#[test]
fn permits_of_an_old_process_that_is_killed_come_back() {
    let origin = Origin::hello();
    let rules = "rules: [{ name: one, match: { path: /one }, in_flight: 1 }]";
    let mut weir = Weir::start(&config(origin.address(), rules));
    let address = weir.address();
    let busy = Client::connect(address);
    busy.send("POST /one HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab");
    origin.until_request("the upload", |request| request.head.word(1) == "/one");
    weir.replace();
    assert_eq!(get(address, "/one").status, 429);
    weir.kill();
    wait::until_true("the permit", || get(address, "/one").status == 200);
}

#[test]
fn http2_connections_end_in_order() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), "rules: []"));
    let address = weir.address();
    let mut client = H2Client::connect(address);
    assert_eq!(client.fetch(client.request("GET", "/")).status, 200);
    let (response, mut upload) = client.send_request(client.request("POST", "/slow"), false);
    upload.send_data("ab".into(), false).unwrap();
    origin.until_request("the upload", |request| request.head.word(1) == "/slow");
    weir.replace();
    upload.send_data("cd".into(), true).unwrap();
    assert_eq!(client.read_response(response).unwrap().status, 200);
    client.until_closed().unwrap();
    weir.until_old_has_ended();
    let mut next = H2Client::connect(address);
    assert_eq!(next.fetch(next.request("GET", "/")).status, 200);
}

#[test]
fn bans_and_boosts_stay_in_force() {
    let rules = "rules: [{ name: each, key: { header: x-user }, limit: 2/h, algorithm: fixed_window }]";
    let weir = Weir::start(&config("echo", rules));
    for command in [
        "ban?rule=each&key=header.x-user=bad&for=1h",
        "boost?rule=each&key=header.x-user=good&factor=2&for=1h",
    ] {
        let answer = weir.admin_post(&format!("/limits/{command}"));
        assert_eq!(answer.status, 200, "{command}: {}", answer.body.text());
    }
    let get = |user: &str| {
        let request = crate::support::Request::get("/").header("x-user", user);
        crate::support::fetch(weir.address(), &request).status
    };
    assert_eq!((get("good"), get("bad")), (200, 429));
    weir.replace();
    assert_eq!(get("bad"), 429);
    assert_eq!([get("good"), get("good"), get("good"), get("good")], [200, 200, 200, 429]);
    let listed = weir.admin_get("/limits/overrides").body.text();
    assert!(listed.contains("boost") && listed.contains("ban"), "{listed}");
}

#[test]
fn configuration_of_the_new_process_may_differ() {
    let rules = "rules: [{ name: all, limit: 5/h, algorithm: fixed_window }]";
    let weir = Weir::start(&config("echo", rules));
    let address = weir.address();
    let mut client = Client::connect(address);
    assert_eq!(statuses(&mut client, 3), [200; 3]);
    // The sockets of three workers serve one.
    let other = config("echo", "rules: [{ name: all, limit: 4/h, algorithm: fixed_window }]")
        .replace("workers: 2", "workers: 5");
    weir.replace_file(&other);
    weir.replace();
    assert_eq!(statuses(&mut client, 2), [200, 429]);
    let fewer = other.replace("workers: 5", "workers: 1");
    weir.replace_file(&fewer);
    weir.replace();
    for _ in 0..20 {
        assert_eq!(get(address, "/").status, 429);
    }
}

#[test]
fn first_process_stays_and_passes_signals_on() {
    let mut weir = Weir::start(&config("echo", "rules: []"));
    let address = weir.address();
    let memory_of_a_proxy = weir.anonymous_memory();
    weir.replace();
    weir.until_old_has_ended();
    weir.replace_file(&config("echo", "rules: [{ name: no, action: deny }]"));
    weir.signal("HUP");
    wait::until_true("the reload", || get(address, "/").status == 403);
    // It is replaced again, by a signal to the first process.
    weir.signal("USR2");
    wait::until_true("the next process", || weir.successors().len() == 2);
    assert_eq!(get(address, "/").status, 403);
    let memory = weir.anonymous_memory();
    assert!(memory < memory_of_a_proxy * 3 / 4, "{memory} KiB of {memory_of_a_proxy} KiB");
    weir.terminate();
    assert!(weir.wait_exit().success());
    assert!(std::net::TcpStream::connect(address).is_err(), "no process is left");
}

/// The first process may be replaced, drain or become the supervisor when the signal arrives.
#[test]
fn signal_to_end_is_never_lost() {
    let random = &mut fastrand::Rng::new();
    for _ in 0..20 {
        let mut weir = Weir::start(&config("echo", "rules: []"));
        let address = weir.address();
        weir.signal("USR2");
        wait::pause(Duration::from_millis(random.u64(0..120)));
        weir.terminate();
        let status = weir.wait_exit();
        assert!(status.success(), "{status}");
        assert!(std::net::TcpStream::connect(address).is_err(), "no process is left");
    }
}

#[test]
fn each_process_drains_after_one_signal_to_end() {
    let mut weir = Weir::start(&config("echo", "rules: []\ndrain: { timeout: 1h }"));
    let address = weir.address();
    let in_flight = || {
        let client = Client::connect(address);
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab");
        wait::until_true("the request", || weir.metric("weir_requests_in_flight", &[]) == 1.0);
        client
    };
    let mut old = in_flight();
    weir.replace();
    let mut new = in_flight();
    weir.terminate();
    wait::until_true("the drain", || std::net::TcpStream::connect(address).is_err());
    old.send("cd");
    assert_eq!(old.read_response("POST").status, 200);
    // The supervisor looks for processes to end once a second.
    wait::throughout(Duration::from_millis(1500), || assert!(!weir.has_logged("exiting immediately")));
    new.send("cd");
    assert_eq!(new.read_response("POST").status, 200);
    assert!(weir.wait_exit().success());
}

#[test]
fn signals_reach_the_process_that_serves_while_its_predecessor_drains() {
    let drain = "drain: { timeout: 1h }";
    let mut weir = Weir::start(&config("echo", &format!("rules: []\n{drain}")));
    let address = weir.address();
    weir.replace();
    weir.until_old_has_ended();
    let mut busy = Client::connect(address);
    busy.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab");
    wait::until_true("the request", || weir.metric("weir_requests_in_flight", &[]) == 1.0);
    weir.signal("USR2");
    wait::until_true("the next process", || weir.successors().len() == 2);
    weir.replace_file(&config("echo", &format!("rules: [{{ name: no, action: deny }}]\n{drain}")));
    weir.signal("HUP");
    wait::until_true("the reload", || get(address, "/").status == 403);
    weir.terminate();
    wait::until_true("the drain", || std::net::TcpStream::connect(address).is_err());
    busy.send("cd");
    assert_eq!(busy.read_response("POST").status, 200);
    assert!(weir.wait_exit().success());
}
