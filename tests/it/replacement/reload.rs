//! Reloads of settings that only a start applies: another process takes over with them.

use std::net::{SocketAddr, TcpListener, TcpStream};

use super::{config, statuses};
use crate::servers::Server;
use crate::support::{Client, Request, Weir, fetch, get, wait};

const LIMITED: &str = "rules: [{ name: all, limit: 5/h, algorithm: fixed_window }]";

#[test]
fn number_of_workers_changes_and_counters_and_connections_stay() {
    let weir = Weir::start(&config("echo", LIMITED));
    let address = weir.address();
    let (mut client, mut other) = (Client::connect(address), Client::connect(address));
    assert_eq!(statuses(&mut client, 2), [200, 200]);
    let more = config("echo", LIMITED).replace("workers: 2", "workers: 4");
    weir.reload_at_start(&more);
    assert_eq!((statuses(&mut client, 2), statuses(&mut other, 1)), (vec![200, 200], vec![200]));
    assert_eq!(weir.admin_json("/server_info")["workers"], 4);
    // A change of other keys is applied in place, and the value before in another process again.
    weir.reload(&more.replace("5/h", "6/h"));
    assert_eq!(statuses(&mut client, 2), [200, 429]);
    weir.reload_at_start(&config("echo", LIMITED));
    assert_eq!(weir.admin_json("/server_info")["workers"], 2);
    assert_eq!(statuses(&mut client, 1), [429]);
    assert_eq!(weir.successors().len(), 2);
}

#[test]
fn value_that_cannot_be_used_rejects_the_whole_reload() {
    let weir = Weir::start(&config("echo", LIMITED));
    let mut client = Client::connect(weir.address());
    let occupied = TcpListener::bind("127.0.0.1:0").unwrap();
    let denying = "rules: [{ name: all, action: deny }]";
    let address = occupied.local_addr().unwrap();
    weir.assert_reload_rejected(&config("echo", &format!("{denying}\nrls: {{ address: \"{address}\" }}")));
    let problems = weir.admin_json("/server_info")["config"]["last_reload"]["problems"].to_string();
    assert!(problems.contains("rls: no process with the new value could take over"), "{problems}");
    assert!(weir.has_logged(&format!("cannot listen on {address}")), "the log says why");
    assert_eq!(statuses(&mut client, 6), [200, 200, 200, 200, 200, 429]);
    // The next file is tried, too.
    weir.reload_at_start(&config("echo", denying).replace("workers: 2", "workers: 1"));
    assert_eq!(client.get("/").status, 403);
}

#[test]
fn address_of_the_rate_limit_service_moves() {
    let with = |address: SocketAddr| {
        config("echo", &format!("{LIMITED}\nrls: {{ address: 127.0.0.1:0, http: \"{address}\" }}"))
    };
    let [first, second] = [free_address(), free_address()];
    let weir = Weir::start(&with(first));
    assert_eq!(get(first, "/healthcheck").status, 200);
    weir.reload_at_start(&with(second));
    wait::until_true("the new address", || {
        TcpStream::connect(second).is_ok() && get(second, "/healthcheck").status == 200
    });
    wait::until_true("the end of the old address", || TcpStream::connect(first).is_err());
}

/// Returns an address that was free a moment ago.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// What was not used of a lease goes back to the old store, and what was used of the new one is bounded by its limit.
#[test]
fn store_moves_with_its_leases() {
    let [first, second] = [Server::start(), Server::start()];
    let rule =
        "rules: [{ name: keyed, key: [{ header: x-key }], limit: 20/d, scope: { shared: lease, wait: 1s } }]";
    let with = |store: &Server| {
        config("echo", &format!("store: {{ redis: \"{}\", timeout: 2s }}\n{rule}", store.url()))
    };
    let status = |weir: &Weir| fetch(weir.address(), &Request::get("/").header("x-key", "a")).status;
    let admitted = |weir: &Weir, requests: usize| (0..requests).filter(|_| status(weir) == 200).count();
    let until_up = |weir: &Weir| wait::until_true("the store", || weir.metric("weir_store_up", &[]) == 1.0);
    let weir = Weir::start(&with(&first));
    until_up(&weir);
    assert_eq!(admitted(&weir, 5), 5);
    weir.reload_at_start(&with(&second));
    weir.until_old_has_ended();
    until_up(&weir);
    let after = admitted(&weir, 40);
    assert!((5..=20).contains(&after), "{after}");
    // Another instance that still uses the first store gets the rest, except what is held back for leases.
    let other = Weir::start(&with(&first));
    until_up(&other);
    let rest = admitted(&other, 40);
    assert!((10..=15).contains(&rest), "{rest}");
}
