//! Connections by worker: each worker has an event loop of its own, and the kernel tells which sockets it contains.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// State of an established connection in `/proc/net/tcp`.
const ESTABLISHED: &str = "01";
/// State of a connected socket in `/proc/net/unix`.
const CONNECTED: &str = "03";

/// Returns the number of established connections of each event loop of the process `pid` that accepts at `address`.
pub(crate) fn tcp_connections(pid: u32, address: SocketAddr) -> Vec<usize> {
    let port = format!(":{:04X}", address.port());
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let own = rows.filter(|row| row[1].ends_with(&port));
    by_event_loop(pid, &own.map(|row| (row[9].to_owned(), row[3] == ESTABLISHED)).collect())
}

/// Returns the number of connections of each event loop of the process `pid` that accepts at the Unix socket `path`.
pub(crate) fn unix_connections(pid: u32, path: &Path) -> Vec<usize> {
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let own = rows.filter(|row| row.get(7).is_some_and(|given| Path::new(given) == path));
    by_event_loop(pid, &own.map(|row| (row[6].to_owned(), row[5] == CONNECTED)).collect())
}

/// `sockets` has the inodes of a port's sockets, and whether each is a connection rather than a listening socket.
fn by_event_loop(pid: u32, sockets: &BTreeMap<String, bool>) -> Vec<usize> {
    let of_process = format!("/proc/{pid}");
    let link = |descriptor: &str| fs::read_link(format!("{of_process}/fd/{descriptor}")).ok();
    let inode = |descriptor: &str| {
        let link = link(descriptor)?.to_str()?.to_owned();
        Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    let mut loops = BTreeSet::new();
    for entry in fs::read_dir(format!("{of_process}/fd")).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if link(&name).is_none_or(|link| link != Path::new("anon_inode:[eventpoll]")) {
            continue;
        }
        let info = fs::read_to_string(format!("{of_process}/fdinfo/{name}")).unwrap_or_default();
        let targets = info.lines().filter_map(|line| line.strip_prefix("tfd:")?.split_whitespace().next());
        let targets: BTreeSet<_> = targets.map(str::to_owned).collect();
        // A second descriptor of the same event loop has the same targets.
        loops.insert(targets);
    }
    let sockets_of = |targets: &BTreeSet<String>| -> Vec<bool> {
        targets.iter().filter_map(|target| sockets.get(&inode(target)?).copied()).collect()
    };
    let all = loops.iter().map(sockets_of);
    let accepting = all.filter(|own| own.contains(&false));
    accepting.map(|own| own.iter().filter(|is_connection| **is_connection).count()).collect()
}
