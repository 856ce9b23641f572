//! The client as a test calls it: its tasks are on a thread of their own, and a test waits for responses.

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, mpsc as std_mpsc};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::mpsc;
use weir::remote::channel::Place;
use weir::store::redis::{Call, CallError, Client, RunId, Script, Value};
use weir::store::settings::{Credentials, Sentinel, Server as One, Settings, Topology};

use crate::servers::{Cluster, Group, Server};
use crate::support::wait;

/// What a call has come to.
pub(crate) type Called = Result<(Value, RunId), CallError>;

/// A call that is being made.
type Job = (Script, String, String, std_mpsc::Sender<Called>);

/// Calls that wait to be made: more than any test makes at once.
const MAX_JOBS: usize = 2048;

/// A client.
pub(crate) struct Caller {
    jobs: mpsc::Sender<Job>,
}

/// Adds one to a key.
pub(crate) fn increment() -> Script {
    Script::new("return redis.call('INCR', KEYS[1])")
}

/// Returns its argument.
pub(crate) fn echo() -> Script {
    Script::new("return ARGV[1]")
}

impl Caller {
    pub(crate) fn new(settings: Settings) -> Self {
        let (jobs, mut queue) = mpsc::channel::<Job>(MAX_JOBS);
        std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = Arc::new(Client::new(&settings, "test").unwrap());
                while let Some((script, key, argument, called)) = queue.recv().await {
                    let client = Arc::clone(&client);
                    tokio::spawn(async move {
                        let (keys, args) = ([key], [argument.into_bytes()]);
                        let result = client.call(Call { script: &script, keys: &keys, args: &args }).await;
                        // A test that has ended does not mind.
                        let _ = called.send(result);
                    });
                }
            });
        });
        Self { jobs }
    }

    /// Begins a call; the response is received.
    pub(crate) fn begin(&self, script: &Script, key: &str, argument: &str) -> std_mpsc::Receiver<Called> {
        let (called, result) = std_mpsc::channel();
        self.jobs.blocking_send((script.clone(), key.to_owned(), argument.to_owned(), called)).unwrap();
        result
    }

    /// Calls `script` with a key and an argument.
    pub(crate) fn call(&self, script: &Script, key: &str, argument: &str) -> Called {
        self.begin(script, key, argument).recv().unwrap()
    }

    /// Adds one to a key, and says how many there are then.
    pub(crate) fn increment(&self, key: &str) -> Result<i64, CallError> {
        self.call(&increment(), key, "").map(|(value, _)| number(&value))
    }

    /// The process that executes a call with `key`.
    pub(crate) fn run_id(&self, key: &str) -> Result<String, CallError> {
        self.call(&echo(), key, "").map(|(_, run)| run.to_string())
    }

    /// Calls until a call fails in a way that `is_expected`, and returns that.
    pub(crate) fn fails(&self, what: &str, is_expected: impl Fn(&CallError) -> bool) -> CallError {
        let mut last = None;
        let failed = wait::within(wait::DEADLINE, || {
            last = self.increment("weir:fails").err();
            last.clone().filter(&is_expected)
        });
        failed.unwrap_or_else(|| panic!("waited in vain for {what}: {last:?}"))
    }

    /// Calls until a call has a result.
    pub(crate) fn recovers(&self) {
        wait::until("a result", || self.increment("weir:recovers").ok());
    }
}

/// The next connection.
pub(crate) fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let stream = wait::until("a connection", || listener.accept().ok()).0;
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(wait::DEADLINE)).unwrap();
    stream
}

pub(crate) fn number(value: &Value) -> i64 {
    if let Value::Int(number) = value { *number } else { panic!("{value:?}") }
}

pub(crate) fn text(value: &Value) -> &str {
    if let Value::BulkString(bytes) = value {
        std::str::from_utf8(bytes).unwrap()
    } else {
        panic!("{value:?}")
    }
}

/// Settings for these servers.
pub(crate) fn settings(topology: Topology) -> Settings {
    Settings {
        topology,
        credentials: Credentials::default(),
        tls: None,
        prefix: "weir".into(),
        timeout: Duration::from_secs(2),
        weight: 1.try_into().unwrap(),
        instance: None,
    }
}

/// At this port of loopback.
pub(crate) fn place(port: u16) -> Place {
    Place::Tcp("127.0.0.1".into(), port)
}

/// The settings for one server.
pub(crate) fn one(server: &Server) -> Settings {
    settings(Topology::Single(One { place: place(server.port()), db: 0 }))
}

/// A user and its password.
pub(crate) fn credentials(username: Option<&str>, password: &str) -> Credentials {
    Credentials { username: username.map(Into::into), password: Some(password.into()) }
}

/// The settings for a Cluster, of which one server is named.
pub(crate) fn clustered(cluster: &Cluster) -> Settings {
    settings(Topology::Cluster(vec![place(cluster.servers[0].port())]))
}

/// The settings for the master that a sentinel names.
pub(crate) fn watched(group: &Group) -> Settings {
    settings(Topology::Sentinel(Sentinel {
        sentinels: vec![place(group.sentinel.port())],
        master: "limits".into(),
        credentials: Credentials::default(),
        db: 0,
    }))
}

/// The process of a server, as that says.
pub(crate) fn run_id_of(server: &Server) -> String {
    let info = server.cli(&["info", "server"]);
    let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap();
    run.trim().to_owned()
}

/// A number in what `INFO` of a section prints.
pub(crate) fn info(server: &Server, section: &str, name: &str) -> Option<u64> {
    let info = server.cli(&["info", section]);
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    // `calls=7,usec=…` or `count=7` or a number.
    let number = value.split(['=', ',']).find_map(|word| word.trim().parse().ok());
    Some(number.unwrap_or_else(|| panic!("{name}:{value}")))
}
