//! The interface of systemd: sockets that it passes, and what it is told.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{fs, io};

use crate::support::replacement::signal;
use crate::support::{Client, get, wait};

/// The process, which is ended with this.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the program as systemd does, with this socket as the first that it passes.
fn start(
    socket: Option<&TcpListener>,
    config: &str,
    variables: &[(&str, &str)],
) -> (Service, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weir.yaml");
    fs::write(&file, config).unwrap();
    let stdin = socket.map_or_else(Stdio::null, |socket| OwnedFd::from(socket.try_clone().unwrap()).into());
    let passes = if socket.is_some() { "LISTEN_FDS=1 LISTEN_PID=$$" } else { "" };
    // The shell moves the socket to the first number that systemd uses, and keeps its process ID.
    let script = format!("exec 3<&0 </dev/null; export {passes} WATCHDOG_PID=$$; exec \"$0\" run -c \"$1\"");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &script, env!("CARGO_BIN_EXE_weir")])
        .arg(&file)
        .stdin(stdin)
        .envs(variables.iter().copied());
    (Service(shell.stderr(Stdio::null()).spawn().unwrap()), directory)
}

fn config(listener: SocketAddr) -> String {
    format!(
        "listeners: {listener}\nadmin: {{ address: 127.0.0.1:0 }}\nupstream: echo\nrules: []\nworkers: 2\n"
    )
}

#[test]
fn passed_socket_is_used_and_stays_open_between_processes() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let (service, _directory) = start(Some(&socket), &config(address), &[]);
    assert_eq!(get(address, "/").status, 200);
    for _ in 0..8 {
        assert_eq!(Client::connect(address).get("/").status, 200);
    }
    drop(service);
    // The connection waits for the next process.
    let mut waiting = Client::connect(address);
    waiting.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let (_service, _directory) = start(Some(&socket), &config(address), &[]);
    assert_eq!(waiting.read_response("GET").status, 200);
}

#[test]
fn service_manager_learns_that_it_is_ready_reloads_works_and_stops() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let notified = UnixDatagram::bind(&path).unwrap();
    notified.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let variables = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "200000")];
    let (mut service, _directory) = start(None, &config(SocketAddr::from(([127, 0, 0, 1], 0))), &variables);
    let mut heard = Vec::new();
    let mut hear = |state: &str| {
        heard.clear();
        wait::until(state, || {
            let mut buffer = [0; 1024];
            let received: io::Result<usize> = notified.recv(&mut buffer);
            heard.extend(received.map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned()));
            heard.iter().any(|text| text.lines().any(|line| line == state)).then_some(())
        });
    };
    hear("READY=1");
    hear("WATCHDOG=1");
    hear("WATCHDOG=1");
    signal(service.0.id(), "HUP");
    hear("RELOADING=1");
    hear("READY=1");
    signal(service.0.id(), "TERM");
    hear("STOPPING=1");
    assert!(wait::until("the exit", || service.0.try_wait().unwrap()).success());
}

#[test]
fn service_manager_learns_which_process_has_replaced_another() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let notified = UnixDatagram::bind(&path).unwrap();
    notified.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let variables = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "200000")];
    let (mut service, _directory) = start(Some(&socket), &config(address), &variables);
    // Other messages may come in between.
    let hear = |prefix: &str| {
        wait::until(prefix, || {
            let mut buffer = [0; 1024];
            let length = notified.recv(&mut buffer).ok()?;
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            text.lines().find_map(|line| line.strip_prefix(prefix)).map(str::to_owned)
        })
    };
    hear("READY=1");
    assert_eq!(get(address, "/").status, 200);
    signal(service.0.id(), "USR2");
    let successor: u32 = hear("MAINPID=").parse().unwrap();
    // No supervisor is left, because systemd follows the new process.
    assert!(wait::until("the exit", || service.0.try_wait().unwrap()).success());
    assert_eq!(get(address, "/").status, 200);
    hear("WATCHDOG=1");
    signal(successor, "USR2");
    let next: u32 = hear("MAINPID=").parse().unwrap();
    signal(next, "HUP");
    hear("RELOADING=1");
    hear("READY=1");
    signal(next, "TERM");
    hear("STOPPING=1");
}
