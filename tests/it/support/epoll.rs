//! Connections by worker: each worker has an event loop of its own, and the kernel tells which sockets it contains.

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Returns the number of connections of each event loop of the process `pid` that accepts at `address`.
pub(crate) fn tcp_connections(pid: u32, address: SocketAddr) -> Vec<usize> {
    by_event_loop(pid, |socket| {
        let socket = TcpStream::from(socket);
        (socket.local_addr().ok()?.port() == address.port()).then(|| socket.peer_addr().is_ok())
    })
}

/// Returns the number of connections of each event loop of the process `pid` that accepts at the Unix socket `path`.
pub(crate) fn unix_connections(pid: u32, path: &Path) -> Vec<usize> {
    by_event_loop(pid, |socket| {
        let socket = UnixStream::from(socket);
        (socket.local_addr().ok()?.as_pathname() == Some(path)).then(|| socket.peer_addr().is_ok())
    })
}

/// `is_connection` returns whether a socket is a connection rather than a listening socket, if it counts.
fn by_event_loop(pid: u32, is_connection: impl Fn(OwnedFd) -> Option<bool>) -> Vec<usize> {
    let of_process = format!("/proc/{pid}");
    let process = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    // The tables of all sockets would take long to read where others have tens of thousands.
    let process = pidfd_open(process, PidfdFlags::empty()).unwrap();
    let socket_of =
        |descriptor: &String| pidfd_getfd(&process, descriptor.parse().ok()?, PidfdGetfdFlags::empty()).ok();
    let mut loops = BTreeSet::new();
    for entry in fs::read_dir(format!("{of_process}/fd")).unwrap().flatten() {
        if fs::read_link(entry.path()).is_ok_and(|link| link == Path::new("anon_inode:[eventpoll]")) {
            let name = entry.file_name().into_string().unwrap();
            let info = fs::read_to_string(format!("{of_process}/fdinfo/{name}")).unwrap_or_default();
            let targets =
                info.lines().filter_map(|line| line.strip_prefix("tfd:")?.split_whitespace().next());
            // A second descriptor of the same event loop has the same targets.
            loops.insert(targets.map(str::to_owned).collect::<BTreeSet<_>>());
        }
    }
    let sockets_of = |targets: &BTreeSet<String>| -> Vec<bool> {
        targets.iter().filter_map(|target| is_connection(socket_of(target)?)).collect()
    };
    let all = loops.iter().map(sockets_of);
    let accepting = all.filter(|own| own.contains(&false));
    accepting.map(|own| own.iter().filter(|is_connection| **is_connection).count()).collect()
}
