//! A blocking interface to the store client for tests. The client's tasks run on a separate thread.

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, mpsc as std_mpsc};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::mpsc;
use weir_store::redis::{CallError, RedisClient, RunId, Script, ScriptCall, Value};
use weir_store::remote::channel::ServerAddress;
use weir_store::settings::{Credentials, SentinelSettings, SingleServer as One, StoreSettings, Topology};

use crate::servers::{Cluster, Group, Server};
use crate::support::wait;

/// Result of a call.
pub(crate) type StoreCallResult = Result<(Value, RunId), CallError>;

/// A call to be made, and where its result goes.
type Job = (Script, String, String, std_mpsc::Sender<StoreCallResult>);

/// Capacity of the queue of calls, more than any test needs.
const MAX_JOBS: usize = 2048;

/// A store client.
pub(crate) struct Caller {
    jobs: mpsc::Sender<Job>,
}

/// Returns a script that increments a key.
pub(crate) fn increment() -> Script {
    Script::new("return redis.call('INCR', KEYS[1])")
}

/// Returns a script that returns its argument.
pub(crate) fn echo() -> Script {
    Script::new("return ARGV[1]")
}

impl Caller {
    pub(crate) fn new(settings: StoreSettings) -> Self {
        let (jobs, mut queue) = mpsc::channel::<Job>(MAX_JOBS);
        std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = Arc::new(RedisClient::new(&settings, "test").unwrap());
                while let Some((script, key, argument, called)) = queue.recv().await {
                    let client = Arc::clone(&client);
                    tokio::spawn(async move {
                        let (keys, args) = ([key], [argument.into_bytes()]);
                        let result =
                            client.call(ScriptCall { script: &script, keys: &keys, args: &args }).await;
                        // The test may have ended, and the receiver with it.
                        let _ = called.send(result);
                    });
                }
            });
        });
        Self { jobs }
    }

    /// Starts a call. Its result arrives at the receiver.
    pub(crate) fn start_call(
        &self,
        script: &Script,
        key: &str,
        argument: &str,
    ) -> std_mpsc::Receiver<StoreCallResult> {
        let (called, result) = std_mpsc::channel();
        self.jobs.blocking_send((script.clone(), key.to_owned(), argument.to_owned(), called)).unwrap();
        result
    }

    /// Calls `script` with a key and an argument.
    pub(crate) fn call(&self, script: &Script, key: &str, argument: &str) -> StoreCallResult {
        self.start_call(script, key, argument).recv().unwrap()
    }

    /// Increments a key and returns its value.
    pub(crate) fn increment(&self, key: &str) -> Result<i64, CallError> {
        self.call(&increment(), key, "").map(|(value, _)| number(&value))
    }

    /// Returns the run ID of the server that executes calls with `key`.
    pub(crate) fn run_id(&self, key: &str) -> Result<String, CallError> {
        self.call(&echo(), key, "").map(|(_, run)| run.to_string())
    }

    /// Repeats a call until it fails with an error that `is_expected` accepts, and returns that error.
    ///
    /// # Panics
    ///
    /// If there is no such error within the deadline.
    pub(crate) fn await_error(&self, what: &str, is_expected: impl Fn(&CallError) -> bool) -> CallError {
        let mut last = None;
        let failed = wait::within(wait::DEADLINE, || {
            last = self.increment("weir:fails").err();
            last.clone().filter(&is_expected)
        });
        failed.unwrap_or_else(|| panic!("timed out waiting for {what}: {last:?}"))
    }

    /// Repeats a call until it succeeds.
    pub(crate) fn await_success(&self) {
        wait::until("a result", || self.increment("weir:recovers").ok());
    }
}

/// Accepts the next connection.
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

/// Returns settings for these servers.
pub(crate) fn settings(topology: Topology) -> StoreSettings {
    StoreSettings {
        topology,
        credentials: Credentials::default(),
        tls: None,
        prefix: "weir".into(),
        timeout: Duration::from_secs(2),
        registration: Duration::from_secs(60),
        weight: 1.try_into().unwrap(),
        instance: None,
        regions: None,
    }
}

/// Returns the address of a port of the loopback interface.
pub(crate) fn server_address(port: u16) -> ServerAddress {
    ServerAddress::Tcp("127.0.0.1".into(), port)
}

/// Returns settings for one server.
pub(crate) fn single_server(server: &Server) -> StoreSettings {
    settings(Topology::Single(One { address: server_address(server.port()), db: 0 }))
}

/// Returns a user and its password.
pub(crate) fn credentials(username: Option<&str>, password: &str) -> Credentials {
    Credentials { username: username.map(Into::into), password: Some(password.into()) }
}

/// Returns settings for a Cluster, with one of its servers as the seed.
pub(crate) fn cluster_settings(cluster: &Cluster) -> StoreSettings {
    settings(Topology::Cluster(vec![server_address(cluster.servers[0].port())]))
}

/// Returns settings for the master that a sentinel names.
pub(crate) fn sentinel_settings(group: &Group) -> StoreSettings {
    settings(Topology::Sentinel(SentinelSettings {
        sentinels: vec![server_address(group.sentinel.port())],
        master: "limits".into(),
        credentials: Credentials::default(),
        db: 0,
    }))
}

/// Returns the run ID that a server reports.
pub(crate) fn run_id_of(server: &Server) -> String {
    let info = server.cli(&["info", "server"]);
    let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap();
    run.trim().to_owned()
}

/// Returns a number from a section of `INFO`.
pub(crate) fn info(server: &Server, section: &str, name: &str) -> Option<u64> {
    let info = server.cli(&["info", section]);
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    // The value is like `calls=7,usec=…` or `count=7`, or a plain number.
    let number = value.split(['=', ',']).find_map(|word| word.trim().parse().ok());
    Some(number.unwrap_or_else(|| panic!("{name}:{value}")))
}
