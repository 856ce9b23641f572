//! nginx and HAProxy, for comparison. Both get a listening socket from the test, so no port can be taken
//! between its choice and its use.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::client::{Client, Request};
use super::wait;

/// A running proxy. It is killed when dropped; if the test failed, its log is printed.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    directory: TempDir,
    address: SocketAddr,
}

impl Peer {
    /// Starts nginx with this configuration of `http`, in which `listen 8080` becomes the port of the test.
    pub(crate) fn nginx(http: &str) -> Self {
        let (listener, address) = listener();
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().display();
        let http = http.replace("listen 8080", &format!("listen {address}"));
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|name| format!("{name}_temp_path {at}/{name};\n"))
            .collect();
        let text = format!(
            "daemon off;\nuser root;\nworker_processes 1;\npid {at}/pid;\nerror_log {at}/log error;\nevents {{ }}\n\
             http {{\naccess_log off;\n{temporary}{http}\n}}\n"
        );
        let file = directory.path().join("nginx.conf");
        fs::write(&file, text).unwrap();
        let mut command = Command::new(installed("nginx"));
        // nginx takes the sockets of a previous instance from this variable.
        command.arg("-p").arg(directory.path()).arg("-c").arg(&file).env("NGINX", "0;");
        Self::spawn(command, listener, directory, address)
    }

    /// Starts HAProxy with this configuration, in which `bind :8080` becomes the port of the test.
    pub(crate) fn haproxy(config: &str) -> Self {
        let (listener, address) = listener();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("haproxy.cfg");
        let defaults = "defaults\n    timeout connect 5s\n    timeout client 60s\n    timeout server 60s\n";
        fs::write(&file, format!("{defaults}{}", config.replace("bind :8080", "bind fd@0"))).unwrap();
        let mut command = Command::new(installed("haproxy"));
        command.args(["-db", "-f"]).arg(&file);
        Self::spawn(command, listener, directory, address)
    }

    fn spawn(mut command: Command, listener: TcpListener, directory: TempDir, address: SocketAddr) -> Self {
        let log = fs::File::create(directory.path().join("output")).unwrap();
        let child = command
            .stdin(Stdio::from(OwnedFd::from(listener)))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut peer = Self { child, directory, address };
        // The socket accepts connections before the process does, so only a response shows that it is ready.
        wait::until("the proxy", || {
            assert!(peer.child.try_wait().unwrap().is_none(), "exited: {}", peer.log());
            let mut client = Client::connect_from("127.99.99.99", address);
            client.try_fetch(&Request::get("/").host("ready.invalid")).ok()
        });
        peer
    }

    /// Returns the address of the listener.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    fn log(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.directory.path().join(name)).unwrap_or_default();
        read("output") + &read("log")
    }
}

impl Drop for Peer {
    #[expect(clippy::print_stderr, reason = "the harness shows it only where a test failed")]
    fn drop(&mut self) {
        // nginx ends its worker only when it receives SIGTERM.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of the peer\n{}\n---", self.log());
        }
    }
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Returns the path of a program that `tests/run` has installed.
fn installed(name: &str) -> String {
    let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let mut paths = folders.iter().map(|folder| format!("{folder}/{name}"));
    let found = paths.find(|path| Path::new(path).is_file());
    found.unwrap_or_else(|| panic!("no {name}: `bash tests/run` installs it"))
}
