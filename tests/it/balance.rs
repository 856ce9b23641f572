//! Connections are spread over the workers as evenly as possible, and none is lost on its way to another worker.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::support::epoll::{tcp_connections, unix_connections};
use crate::support::{Client, Origin, Request, Weir, config, config_with, run_concurrently, wait};

/// Waits until all workers have started and have `count` connections, and returns how many each has.
fn until_open(workers: usize, count: usize, connections: impl Fn() -> Vec<usize>) -> Vec<usize> {
    wait::until("the connections", || {
        let connections = connections();
        let is_complete = connections.len() == workers && connections.iter().sum::<usize>() == count;
        is_complete.then_some(connections)
    })
}

fn assert_even(connections: &[usize]) {
    let (least, most) = (connections.iter().min().unwrap(), connections.iter().max().unwrap());
    assert!(most - least <= 1, "{connections:?}");
}

fn start(workers: usize, rest: &str) -> Weir {
    Weir::start(&config("echo", &format!("workers: {workers}\n{rest}")))
}

#[test]
fn connections_one_after_another_are_even() {
    for (workers, count) in [(2, 2), (2, 4), (2, 8), (4, 2), (4, 4), (4, 8), (3, 16)] {
        let weir = start(workers, "");
        let mut clients = Vec::new();
        for opened in 1..=count {
            let mut client = Client::connect(weir.address());
            assert_eq!(client.get("/").status, 200);
            clients.push(client);
            let connections = until_open(workers, opened, || tcp_connections(weir.pid(), weir.address()));
            assert_even(&connections);
        }
        assert!(clients.iter_mut().all(|client| client.get("/").status == 200));
    }
}

#[test]
fn connections_opened_at_once_are_even() {
    for (workers, count) in [(2, 2), (2, 8), (4, 4), (4, 8)] {
        let weir = start(workers, "");
        let clients = run_concurrently(count, |_| {
            let mut client = Client::connect(weir.address());
            assert_eq!(client.get("/").status, 200);
            client
        });
        let connections = until_open(workers, clients.len(), || tcp_connections(weir.pid(), weir.address()));
        assert_even(&connections);
    }
}

#[test]
fn connections_of_several_listeners_are_even_in_total() {
    let listeners = "{ address: 127.0.0.1:0, name: inbound }, { address: 127.0.0.1:0, name: outbound }";
    let weir = Weir::start(&config_with(listeners, "echo", "workers: 2\n"));
    let addresses = [weir.listener("inbound"), weir.listener("outbound")];
    let clients: Vec<_> = addresses.iter().cycle().take(8).map(|address| Client::connect(*address)).collect();
    // Event loops are listed in the same order for both, because the same ones accept for both.
    let of_both = || {
        let [inbound, outbound] = addresses.map(|address| tcp_connections(weir.pid(), address));
        inbound.iter().zip(outbound).map(|(inbound, outbound)| inbound + outbound).collect()
    };
    assert_even(&until_open(2, clients.len(), of_both));
}

#[test]
fn connections_through_a_unix_socket_are_even() {
    for (workers, count) in [(2, 2), (2, 8), (4, 4), (4, 8)] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir.sock");
        let listener = format!("{{ address: \"unix:{}\", name: inbound }}", path.display());
        let weir = Weir::start(&config_with(&listener, "echo", &format!("workers: {workers}\n")));
        let mut clients: Vec<_> = (0..count).map(|_| UnixStream::connect(&path).unwrap()).collect();
        let connections = until_open(workers, count, || unix_connections(weir.pid(), &path));
        assert_even(&connections);
        for client in &mut clients {
            client.set_read_timeout(Some(wait::DEADLINE)).unwrap();
            client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
            let mut status = [0; 12];
            client.read_exact(&mut status).unwrap();
            assert_eq!(&status, b"HTTP/1.1 200");
        }
    }
}

#[test]
fn connections_of_the_rate_limit_service_are_even() {
    let weir = start(2, "rls: { address: 127.0.0.1:0 }");
    let address = weir.rls_address("grpc");
    let mut clients = Vec::new();
    for opened in 1..=6 {
        clients.push(TcpStream::connect(address).unwrap());
        assert_even(&until_open(2, opened, || tcp_connections(weir.pid(), address)));
    }
}

#[test]
fn connections_are_even_after_others_have_closed() {
    for workers in [2, 4] {
        let weir = start(workers, "");
        let connections = || tcp_connections(weir.pid(), weir.address());
        let mut clients: Vec<_> = (0..2 * workers).map(|_| Client::connect(weir.address())).collect();
        for turn in 0..40 {
            until_open(workers, clients.len(), connections);
            // From the middle, so that workers lose connections in no order.
            drop(clients.remove(turn * 7 % clients.len()));
            until_open(workers, clients.len(), connections);
            let mut client = Client::connect(weir.address());
            assert_eq!(client.get("/").status, 200);
            clients.push(client);
        }
        // A worker may close a connection's socket an instant before its place is free.
        clients.extend((0..workers).map(|_| Client::connect(weir.address())));
        assert_even(&until_open(workers, clients.len(), connections));
        assert!(clients.iter_mut().all(|client| client.get("/").status == 200));
    }
}

#[test]
fn limits_of_connections_are_exact_while_connections_are_handed_over() {
    let weir = start(4, "overload: { connections: 8, connections_per_client: 5 }");
    let clients = run_concurrently(20, |index| {
        let from = if index % 2 == 0 { "127.0.0.1" } else { "127.0.0.2" };
        let mut client = Client::connect_from(from, weir.address());
        client.try_fetch(&Request::get("/")).is_ok().then_some((from, client))
    });
    let served: Vec<_> = clients.into_iter().flatten().collect();
    let of_first = served.iter().filter(|(from, _)| *from == "127.0.0.1").count();
    assert!((5..=8).contains(&served.len()), "{}", served.len());
    assert!(of_first <= 5 && served.len() - of_first <= 5, "{of_first} of {}", served.len());
    until_open(4, served.len(), || tcp_connections(weir.pid(), weir.address()));
    drop(served);
    wait::until_true("free permits", || {
        let mut clients: Vec<_> = (0..5).map(|_| Client::connect(weir.address())).collect();
        clients.iter_mut().all(|client| client.try_fetch(&Request::get("/")).is_ok())
    });
}

/// Opens connections, one request on each, until one is refused. Returns an error if one that was opened has no response.
fn request_until_refused(address: SocketAddr, served: &AtomicUsize) -> Result<(), String> {
    let request = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    while let Ok(mut stream) = TcpStream::connect(address) {
        let mut response = String::new();
        stream.set_read_timeout(Some(wait::DEADLINE)).unwrap();
        stream.write_all(request).map_err(|error| format!("cannot send: {error}"))?;
        stream.read_to_string(&mut response).map_err(|error| format!("no response: {error}"))?;
        if !response.starts_with("HTTP/1.1 200") {
            return Err(format!("response: {response:?}"));
        }
        served.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

#[test]
fn no_new_connection_is_lost_when_the_drain_begins() {
    for workers in [2, 4] {
        let origin = Origin::hello();
        let drain = format!("workers: {workers}\ndrain: {{ delay: 0s, timeout: 10s }}");
        let mut weir = Weir::start(&config(origin.address(), &drain));
        let (address, served) = (weir.address(), AtomicUsize::new(0));
        let outcomes = thread::scope(|scope| {
            let load = scope.spawn(|| run_concurrently(8, |_| request_until_refused(address, &served)));
            wait::until_true("load", || served.load(Ordering::SeqCst) > 100);
            weir.terminate();
            load.join().unwrap()
        });
        assert_eq!(outcomes, vec![Ok(()); 8]);
        assert_eq!(weir.wait_exit().code(), Some(0));
        assert_eq!(origin.requests().len(), served.load(Ordering::SeqCst), "each is served once");
    }
}
