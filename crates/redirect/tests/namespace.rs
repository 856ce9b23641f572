//! The rules in a network namespace of its own: connections arrive where they should, over IPv4 and IPv6, also after a second run.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use nlink::netlink::nftables::Family;
use nlink::netlink::{Connection, Nftables, Route};
use weir_redirect::{Redirection, TABLE, install};

/// Runs the other test of this file in a namespace. A machine without namespaces for users skips it.
#[test]
fn connections_are_redirected_in_a_network_namespace() {
    let unshare = |arguments: &[&str]| Command::new("unshare").arg("-Urn").args(arguments).output();
    match unshare(&["true"]) {
        Ok(output) if output.status.success() => {}
        outcome => {
            println!("skipped: unshare -Urn does not work here: {outcome:?}");
            return;
        }
    }
    let program = std::env::current_exe().unwrap();
    let arguments =
        [program.to_str().unwrap(), "--exact", "inside_the_namespace", "--ignored", "--nocapture"];
    let output = unshare(&arguments).unwrap();
    let shown =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && shown.contains("1 passed"), "{shown}");
}

/// Returns a port on which a thread replies with `name`, on all addresses.
fn serve(name: &'static str) -> u16 {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).expect("a namespace");
    let port = listener.local_addr().expect("a namespace").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            stream.expect("a namespace").write_all(name.as_bytes()).expect("a namespace");
        }
    });
    port
}

fn reply_at(address: SocketAddr) -> String {
    let mut reply = String::new();
    TcpStream::connect(address).expect("a namespace").read_to_string(&mut reply).expect("a namespace");
    reply
}

/// Returns what replies at a port, over both versions of IP.
#[track_caller]
fn replies(port: u16) -> String {
    let [four, six] = [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()].map(reply_at);
    assert_eq!(four, six);
    four
}

fn rule_count() -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a namespace");
    runtime.block_on(async {
        let connection = Connection::<Nftables>::new().expect("a namespace");
        connection.list_rules(TABLE, Family::Inet).await.expect("a namespace").len()
    })
}

#[test]
#[ignore = "runs in a network namespace, by the test above"]
fn inside_the_namespace() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { Connection::<Route>::new().unwrap().set_link_up("lo").await.unwrap() });
    let (application, weir, probes) = (serve("application"), serve("weir"), serve("probes"));
    assert_eq!(replies(application), "application");
    // This process has user 0, which is not that of Weir.
    let rules = Redirection { port: application, to: weir, uid: 65532, excluded: vec![probes] };
    for _ in 0..2 {
        install(&rules).unwrap();
        assert_eq!(replies(application), "weir");
        assert_eq!(replies(weir), "weir");
        assert_eq!(replies(probes), "probes");
        assert_eq!(rule_count(), 4, "a second run replaces the rules");
    }
    install(&Redirection { uid: 0, ..rules.clone() }).unwrap();
    assert_eq!(replies(application), "application", "connections of Weir's user reach the application");
    install(&Redirection { excluded: Vec::new(), ..rules }).unwrap();
    assert_eq!((replies(application), rule_count()), ("weir".to_owned(), 2));
}
