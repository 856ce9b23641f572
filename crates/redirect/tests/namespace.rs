//! The rules in a network namespace of its own: connections arrive where they should, over IPv4 and IPv6, also after a second run.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use nlink::netlink::link::VethLink;
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

/// Network between the pod and the outside.
const POD: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1))];
const OUTSIDE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2)), IpAddr::V6(Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2))];

/// Attempts to connect, 50 ms apart.
const MAX_ATTEMPTS: usize = 400;

fn set_up(link: &str, addresses: [IpAddr; 2]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let connection = Connection::<Route>::new().expect("netlink");
        for (address, prefix) in addresses.into_iter().zip([24, 64]) {
            connection.add_address_by_name(link, address, prefix).await.expect("an address");
        }
        connection.set_link_up(link).await.expect("a link");
    });
}

/// Returns what replies at a port of the pod to another network namespace, over both versions of IP.
fn replies_outside(port: u16) -> Vec<String> {
    let program = std::env::current_exe().expect("a path");
    let mut outside = Command::new("unshare")
        .args([
            "-n",
            program.to_str().expect("text"),
            "--exact",
            "outside_of_the_pod",
            "--ignored",
            "--nocapture",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare");
    let mut lines =
        BufReader::new(outside.stdout.take().expect("output")).lines().map(|line| line.expect("text"));
    assert!(lines.any(|line| line.ends_with("ready")), "the other namespace exists");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let connection = Connection::<Route>::new().expect("netlink");
        let pair = VethLink::new("pod", "outside").peer_netns_pid(outside.id());
        connection.add_link(pair).await.expect("a pair of links");
    });
    set_up("pod", POD);
    writeln!(outside.stdin.take().expect("input"), "{port}").expect("a process");
    let replies = lines.filter_map(|line| line.strip_prefix("reply ").map(str::to_owned)).collect();
    assert!(outside.wait().expect("a process").success());
    replies
}

#[test]
#[ignore = "runs in another network namespace, by the test below"]
#[expect(clippy::disallowed_methods, reason = "polls until the address is in use, of which nothing tells")]
fn outside_of_the_pod() {
    println!("ready");
    // The port arrives when the link is there.
    let port = io::stdin().lines().next().unwrap().unwrap().parse().unwrap();
    set_up("outside", OUTSIDE);
    for address in POD {
        // An IPv6 address is in use when the kernel knows that it is unique.
        let is_refused = |_: &usize| TcpStream::connect((address, port)).is_err();
        for _ in (0..MAX_ATTEMPTS).take_while(is_refused) {
            thread::sleep(Duration::from_millis(50));
        }
        println!("reply {}", reply_at((address, port).into()));
    }
}

#[test]
#[ignore = "runs in a network namespace, by the first test"]
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
    assert_eq!(replies_outside(application), ["weir", "weir"], "connections from outside of the pod");
    assert_eq!(replies_outside(probes), ["probes", "probes"]);
    install(&Redirection { uid: 0, ..rules.clone() }).unwrap();
    assert_eq!(replies(application), "application", "connections of Weir's user reach the application");
    install(&Redirection { excluded: Vec::new(), ..rules }).unwrap();
    assert_eq!((replies(application), rule_count()), ("weir".to_owned(), 2));
}
