//! Listeners that a reload adds, removes, moves or changes.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use crate::support::h2::H2Client;
use crate::support::load::{self, Counts, SetOnDrop};
use crate::support::{Client, Origin, Request, Weir, get, run_concurrently, wait};
use crate::upgrades::echo_server;

/// A configuration with these entries of listeners.
fn listening(listeners: &[&str], upstream: impl std::fmt::Display, rest: &str) -> String {
    let listeners = listeners.join(", ");
    format!(
        "listeners: [{listeners}]\nadmin: {{ address: 127.0.0.1:0 }}\nupstream: {{ address: \"{upstream}\" }}\nworkers: 2\n\
         {rest}\n"
    )
}

const ANY: &str = "{ address: 127.0.0.1:0, name: any }";
const OTHER: &str = "{ address: 127.0.0.1:0, name: other }";
const FREE: &str = "rules: []";

/// Returns the address of the listener with this name that is in force.
fn address(weir: &Weir, name: &str) -> SocketAddr {
    find(weir, name).unwrap_or_else(|| panic!("no listener {name}"))
}

fn find(weir: &Weir, name: &str) -> Option<SocketAddr> {
    let listeners = weir.admin_json("/listeners?format=json");
    let status = listeners["listener_statuses"].as_array().unwrap().iter().find(|one| one["name"] == name)?;
    let socket = &status["local_address"]["socket_address"];
    format!("{}:{}", socket["address"].as_str().unwrap(), socket["port_value"]).parse().ok()
}

fn refuses(address: SocketAddr) -> bool {
    // The kernel discards what begins a connection until the queue is empty.
    TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_err()
}

/// Returns an address on which nothing listens.
fn unused_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn added_listener_serves_and_removed_one_refuses() {
    let weir = Weir::start(&listening(&[ANY], "echo", FREE));
    let first = address(&weir, "any");
    weir.reload(&listening(&[ANY, OTHER], "echo", FREE));
    let second = address(&weir, "other");
    assert_eq!((address(&weir, "any"), get(second, "/").status), (first, 200));
    let mut kept = Client::connect(second);
    assert_eq!(kept.get("/").status, 200);
    weir.reload(&listening(&[OTHER], "echo", FREE));
    wait::until_true("the end of the first listener", || refuses(first));
    assert_eq!(find(&weir, "any"), None);
    // The connection of the other listener has not noticed anything.
    let response = kept.get("/");
    assert_eq!((response.status, response.head.get("connection")), (200, None));
    assert_eq!(weir.metric("weir_requests_total", &[("listener", "other")]), 3.0);
}

#[test]
fn listener_that_cannot_be_bound_leaves_the_whole_reload_unapplied() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let weir = Weir::start(&listening(&[ANY], "echo", FREE));
    let first = address(&weir, "any");
    let occupied = format!("{{ address: {}, name: taken }}", taken.local_addr().unwrap());
    let denying = "rules: [{ name: no, action: deny }]";
    weir.assert_reload_rejected(&listening(&[OTHER, &occupied], "echo", denying));
    let problems = weir.admin_json("/server_info")["config"]["last_reload"]["problems"].to_string();
    assert!(
        problems.contains("listeners[1].address: cannot listen on") && problems.contains("in use"),
        "{problems}"
    );
    assert_eq!((address(&weir, "any"), get(first, "/").status, find(&weir, "other")), (first, 200, None));
    drop(taken);
    weir.signal("HUP");
    wait::until_true("the new listeners", || find(&weir, "taken").is_some());
    assert_eq!(get(address(&weir, "other"), "/").status, 403);
}

#[test]
fn removed_listener_drains() {
    let origin = Origin::hello();
    let weir = Weir::start(&listening(&[ANY, OTHER], origin.address(), FREE));
    let removed = address(&weir, "other");
    let (mut idle, mut busy) = (Client::connect(removed), Client::connect(removed));
    let mut h2 = H2Client::connect(removed);
    assert_eq!(h2.fetch(h2.request("GET", "/")).status, 200);
    assert_eq!((idle.get("/").status, busy.get("/").status), (200, 200));
    busy.send("POST /slow HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab");
    origin.until_request("the upload", |request| request.head.word(1) == "/slow");
    weir.reload(&listening(&[ANY], origin.address(), FREE));
    assert!(idle.is_closed());
    h2.until_closed().unwrap();
    busy.send("cd");
    let response = busy.read_response("POST");
    assert_eq!((response.status, response.header("connection")), (200, "close"));
    assert!(busy.is_closed());
}

#[test]
fn drain_of_a_removed_listener_ends_after_its_timeout() {
    // It responds once the request is complete.
    let origin = Origin::hello();
    let weir = Weir::start(&listening(&[ANY, OTHER], origin.address(), FREE));
    let mut stuck = Client::connect(address(&weir, "other"));
    stuck.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab");
    wait::until_true("the request", || {
        weir.metric("weir_requests_in_flight", &[("listener", "other")]) == 1.0
    });
    weir.reload(&listening(&[ANY], origin.address(), "rules: []\ndrain: { timeout: 300ms }"));
    assert!(stuck.is_closed());
    wait::until_true("the end", || weir.metric("weir_requests_in_flight", &[("listener", "other")]) == 0.0);
    assert_eq!(get(address(&weir, "any"), "/").status, 200);
}

#[test]
fn new_settings_apply_to_new_connections_on_the_same_sockets() {
    let limited = "{ address: 127.0.0.1:0, name: any, limits: { headers: 10 } }";
    let weir = Weir::start(&listening(&[ANY], "echo", FREE));
    let address = address(&weir, "any");
    let large =
        || (0..12).fold(Request::get("/"), |request, index| request.header(&format!("x-{index}"), "1"));
    let mut before = Client::connect(address);
    assert_eq!(before.fetch(&large()).status, 200);
    weir.reload(&listening(&[limited], "echo", FREE));
    assert_eq!(Client::connect(address).fetch(&large()).status, 431);
    assert_eq!(before.fetch(&large()).status, 200, "a connection keeps its settings");
}

#[test]
fn listener_moves_between_addresses_of_one_port() {
    // Sockets of other tests may have the port on other addresses.
    assert!((0..20).any(|_| moves_between_addresses(unused_address().port())));
}

/// Returns false if the port is in use on another address.
fn moves_between_addresses(port: u16) -> bool {
    let on = |host: &str| format!("{{ address: \"{host}:{port}\", name: moving }}");
    let weir = Weir::start(&listening(&[&on("127.0.0.1"), ANY], "echo", FREE));
    let loopback = SocketAddr::from(([127, 0, 0, 1], port));
    let second = SocketAddr::from(([127, 0, 0, 2], port));
    assert_eq!(get(loopback, "/").status, 200);
    if !refuses(second) {
        return false;
    }
    weir.replace_file(&listening(&[&on("0.0.0.0"), ANY], "echo", FREE));
    wait::until_true("the wider listener", || !refuses(second) || weir.has_logged("Address already in use"));
    if refuses(second) {
        return false;
    }
    assert_eq!((get(loopback, "/").status, get(second, "/").status), (200, 200));
    weir.reload(&listening(&[&on("127.0.0.2"), ANY], "echo", FREE));
    wait::until_true("the end of the wider listener", || refuses(loopback));
    assert_eq!(get(second, "/").status, 200);
    true
}

/// Clients that use the listener in force never lose a request, and the counters continue.
#[test]
fn listener_moves_under_load_without_a_lost_request_and_without_a_unit_given_twice() {
    const LIMIT: u64 = 1000;
    const MOVES: usize = 20;
    let websockets = echo_server();
    let yaml = |entries: &[&str]| {
        format!(
            "listeners: [{}]\nadmin: {{ address: 127.0.0.1:0 }}\nworkers: 2\n\
             upstreams:\n  - {{ name: chat, address: \"{websockets}\", match: {{ path: /chat }} }}\n  \
             - {{ name: main, address: echo }}\n\
             rules: [{{ name: all, match: {{ path: /limited }}, limit: {LIMIT}/h, algorithm: fixed_window }}]\n",
            entries.join(", ")
        )
    };
    // Each has another port, which the system chooses.
    let entry = |number: usize| format!("{{ address: 127.0.0.1:0, name: at-{number} }}");
    let weir = Weir::start(&yaml(&[&entry(0)]));
    let port_of = |number: usize| address(&weir, &format!("at-{number}")).port();
    let (current, counts) = (AtomicU16::new(port_of(0)), Counts::default());
    let move_listener = || {
        let _end = SetOnDrop(&counts.is_over);
        for number in 0..MOVES {
            weir.reload(&yaml(&[&entry(number), &entry(number + 1)]));
            current.store(port_of(number + 1), Ordering::SeqCst);
            weir.reload(&yaml(&[&entry(number + 1)]));
        }
        wait::until_true("the end of the limit", || counts.rejected.load(Ordering::SeqCst) > 0);
    };
    let address = || SocketAddr::from(([127, 0, 0, 1], current.load(Ordering::SeqCst)));
    run_concurrently(1 + load::KINDS, |index| match index {
        0 => move_listener(),
        kind => load::use_kind(kind - 1, &address, &counts),
    });
    let (admitted, rejected) =
        (counts.admitted.load(Ordering::SeqCst), counts.rejected.load(Ordering::SeqCst));
    assert_eq!(admitted, LIMIT, "rejected {rejected}");
}

#[test]
fn drain_settings_in_force_are_those_of_the_last_reload() {
    let mut weir = Weir::start(&listening(&[ANY], "echo", FREE));
    let stuck = Client::connect(address(&weir, "any"));
    stuck.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab");
    wait::until_true("the request", || weir.metric("weir_requests_in_flight", &[]) == 1.0);
    weir.reload(&listening(&[ANY], "echo", "rules: []\ndrain: { timeout: 200ms }"));
    weir.terminate();
    assert!(weir.wait_exit().success());
    assert!(weir.log().join("\n").contains("drain timeout"));
}

#[test]
fn overload_protection_changes_at_a_reload() {
    let weir = Weir::start(&listening(&[ANY], "echo", FREE));
    let address = address(&weir, "any");
    let mut open = Client::connect(address);
    assert_eq!(open.get("/").status, 200);
    weir.reload(&listening(&[ANY], "echo", "rules: []\noverload: { connections: 1 }"));
    assert!(Client::connect(address).is_closed());
    weir.reload(&listening(&[ANY], "echo", FREE));
    assert_eq!((get(address, "/").status, open.get("/").status), (200, 200));
}
