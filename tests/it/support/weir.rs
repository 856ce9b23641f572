//! The proxy under test, as a child process.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::{fs, thread};

use serde_json::Value;
use tempfile::TempDir;

use super::client::{Request, Response, fetch};
use super::{metrics, wait};

type LogLines = Arc<Mutex<Vec<String>>>;

/// A running proxy. It is killed when dropped; if the test failed, its log is printed.
#[derive(Debug)]
pub(crate) struct Weir {
    child: Child,
    log: LogLines,
    file: PathBuf,
    admin: SocketAddr,
    /// Token of the admin port, if it needs one.
    token: Option<String>,
    _directory: Option<TempDir>,
}

impl Weir {
    /// Starts Weir with this configuration and waits until it is ready.
    pub(crate) fn start(yaml: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("weir.yaml");
        fs::write(&file, yaml).unwrap();
        let mut weir = Self::start_file(&file);
        weir._directory = Some(directory);
        weir
    }

    /// Starts Weir with a configuration file of the test and waits until it is ready.
    pub(crate) fn start_file(file: &Path) -> Self {
        let mut run = command(["run", "-c"]);
        run.arg(file);
        Self::spawn(run, file.to_owned(), None)
    }

    /// As [`Self::start`], with a wall clock that leads by what the file `lead` says, such as `+5`, when it is read.
    pub(crate) fn start_with_clock(yaml: &str, lead: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("weir.yaml");
        fs::write(&file, yaml).unwrap();
        let folders = fs::read_dir("/usr/lib").unwrap().map_while(Result::ok);
        let mut libraries = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
        let library = libraries.find(|library| library.exists()).expect("tests/install installs faketime");
        let mut run = command(["run", "-c"]);
        run.arg(&file).env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", lead);
        run.envs([("FAKETIME_NO_CACHE", "1"), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")]);
        let mut weir = Self::spawn(run, file, None);
        weir._directory = Some(directory);
        weir
    }

    /// As [`Self::start_file`], with another binary.
    pub(crate) fn start_binary(binary: &Path, file: &Path) -> Self {
        let mut run = Command::new(binary);
        run.args(["run", "-c"]).arg(file);
        Self::spawn(run, file.to_owned(), None)
    }

    /// As [`Self::start_file`], with a configuration whose admin port needs this token.
    pub(crate) fn start_file_with_token(file: &Path, token: &str) -> Self {
        let mut run = command(["run", "-c"]);
        run.arg(file);
        Self::spawn(run, file.to_owned(), Some(token.to_owned()))
    }

    /// Starts `weir rls` with these environment variables and waits until it is ready.
    pub(crate) fn start_rls(variables: &[(&str, &str)]) -> Self {
        let mut run = command(["rls"]);
        run.env_clear().envs(variables.iter().copied());
        Self::spawn(run, PathBuf::new(), None)
    }

    fn spawn(mut run: Command, file: PathBuf, token: Option<String>) -> Self {
        let mut child = run
            .args(["--log-format", "json"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = LogLines::default();
        let (lines, stderr) = (log.clone(), child.stderr.take().unwrap());
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        });
        let admin = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut weir = Self { child, log, file, admin, token, _directory: None };
        weir.admin = weir.admin_address("full");
        wait::until("readiness", || {
            weir.assert_running();
            let ready = weir.admin_get("/ready");
            (ready.status == 200 || ready.body.bytes == b"OVERLOADED\n").then_some(())
        });
        weir
    }

    /// Returns the address of the first listener.
    pub(crate) fn address(&self) -> SocketAddr {
        wait::until("a listener", || {
            self.logged_addresses("listening", "listener").first().map(|(_, address)| *address)
        })
    }

    /// Returns the address of the listener with this name.
    pub(crate) fn listener(&self, name: &str) -> SocketAddr {
        wait::until("the listener", || self.addresses_of(name).first().copied())
    }

    /// Returns the addresses that the listener with this name has had so far, in all processes.
    pub(crate) fn addresses_of(&self, name: &str) -> Vec<SocketAddr> {
        let announced = self.logged_addresses("listening", "listener");
        announced.into_iter().filter(|(given, _)| given == name).map(|(_, address)| address).collect()
    }

    /// Returns the address of the admin port with `surface`: `full` or `probes`.
    pub(crate) fn admin_address(&self, surface: &str) -> SocketAddr {
        wait::until("the admin port", || {
            self.assert_running();
            let announced = self.logged_addresses("admin listening", "surface");
            announced.iter().find(|(given, _)| given == surface).map(|(_, address)| *address)
        })
    }

    /// Returns the address of a port of the rate limit service: `grpc`, `http`, `debug` or `prometheus`.
    pub(crate) fn rls_address(&self, name: &str) -> SocketAddr {
        wait::until("the port", || {
            self.assert_running();
            let announced = self.logged_addresses("rate limit service listening", "door");
            announced.iter().find(|(given, _)| given == name).map(|(_, address)| *address)
        })
    }

    /// Sends a GET to the admin port.
    pub(crate) fn admin_get(&self, path: &str) -> Response {
        let request = Request::get(path).host("localhost");
        let token = self.token.iter().map(|token| format!("Bearer {token}"));
        let request = token.fold(request, |request, token| request.header("authorization", &token));
        fetch(self.admin, &request)
    }

    /// Sends a POST to the admin port.
    pub(crate) fn admin_post(&self, path: &str) -> Response {
        fetch(self.admin, &Request::post(path, "").host("localhost"))
    }

    /// Sends a GET to the admin port and returns the JSON of the response.
    pub(crate) fn admin_json(&self, path: &str) -> Value {
        let answer = self.admin_get(path);
        assert_eq!(answer.status, 200, "{path}");
        serde_json::from_slice(&answer.body.bytes)
            .unwrap_or_else(|error| panic!("{path} is not JSON: {error}"))
    }

    /// Returns the sum of a metric's samples with these labels.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        metrics::sum(&self.admin_get("/metrics").body.text(), name, labels)
    }

    /// Returns the number of requests that the store has not responded to in time.
    pub(crate) fn unanswered(&self) -> f64 {
        self.metric("weir_store_unanswered_total", &[])
    }

    /// Returns the generation of the configuration in force.
    pub(crate) fn generation(&self) -> u64 {
        let info = self.admin_json("/server_info");
        info["config"]["generation"].as_u64().unwrap_or_else(|| panic!("no config.generation in {info:#}"))
    }

    /// Replaces the configuration file and waits until the new configuration is in force.
    pub(crate) fn reload(&self, yaml: &str) {
        let before = (self.generation(), self.successors().len());
        self.replace_file(yaml);
        wait::until_true("the next configuration", || {
            self.successors().len() > before.1 || self.generation() > before.0
        });
    }

    /// Waits until a generation after `before` is in force.
    pub(crate) fn until_reloaded(&self, before: u64) {
        wait::until("the next configuration", || (self.generation() > before).then_some(()));
    }

    /// Replaces the configuration file with an invalid one and waits until Weir has rejected it.
    pub(crate) fn assert_reload_rejected(&self, yaml: &str) {
        let before = (self.rejected_reloads(), self.generation());
        self.replace_file(yaml);
        wait::until("the rejection", || (self.rejected_reloads() > before.0).then_some(()));
        assert_eq!(self.generation(), before.1, "an invalid configuration was applied");
    }

    /// Returns the number of rejected reloads so far.
    pub(crate) fn rejected_reloads(&self) -> f64 {
        self.metric("weir_config_reloads_total", &[("outcome", "rejected")])
    }

    /// Replaces the configuration file atomically.
    pub(crate) fn replace_file(&self, yaml: &str) {
        let next = self.file.with_extension("next");
        fs::write(&next, yaml).unwrap();
        fs::rename(&next, &self.file).unwrap();
    }

    /// Returns the path of the configuration file.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Sends a signal: `TERM`, `HUP`, …
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(sent.unwrap().success(), "could not send SIG{name}");
    }

    /// Sets the maximum number of open file descriptors of the process.
    pub(crate) fn limit_file_descriptors(&self, max: u64) {
        let pid = self.child.id().to_string();
        let limit = format!("--nofile={max}:");
        let limited = Command::new("prlimit").args(["--pid", &pid, &limit]).status();
        assert!(limited.unwrap().success(), "could not limit the file descriptors");
    }

    /// Returns the ID of the process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the names of its threads.
    pub(crate) fn threads(&self) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
        tasks.filter_map(|task| Some(name(task.ok()?)?.trim_end().to_owned())).collect()
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        self.signal("TERM");
    }

    /// Waits until the process has exited.
    pub(crate) fn wait_exit(&mut self) -> ExitStatus {
        wait::until("the exit", || self.child.try_wait().unwrap())
    }

    /// Whether the process is still running.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Returns the peak resident memory of the process, in KiB.
    pub(crate) fn peak_memory(&self) -> u64 {
        self.memory("VmHWM:")
    }

    /// Returns the resident memory of the process but for mapped files, in KiB. The kernel maps more or less of the program.
    pub(crate) fn anonymous_memory(&self) -> u64 {
        self.memory("RssAnon:")
    }

    fn memory(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Returns the log lines so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Returns name and address from every log event with this `message`; the name is in `field`.
    fn logged_addresses(&self, message: &str, field: &str) -> Vec<(String, SocketAddr)> {
        let lines = self.log();
        let events = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events
            .filter(|event| event["message"] == message)
            .filter_map(|event| {
                let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
                // Unix sockets have no IP address and are skipped; the test knows their paths.
                Some((text(field), text("address").parse().ok()?))
            })
            .collect()
    }

    fn assert_running(&self) {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        let gone = stat.is_empty() || stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z"));
        assert!(!gone, "weir exited before it was ready");
    }
}

impl Drop for Weir {
    #[expect(clippy::print_stderr, reason = "the harness shows it only where a test failed")]
    fn drop(&mut self) {
        // Fails only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.kill_successors();
        if thread::panicking() {
            eprintln!("--- log of weir\n{}\n---", self.log().join("\n"));
        }
    }
}

/// Returns a command that runs the binary with these arguments, without Weir's logging variables in its environment.
pub(crate) fn command<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments);
    for name in ["RUST_LOG", "WEIR_LOG_LEVEL", "WEIR_LOG_FORMAT"] {
        command.env_remove(name);
    }
    command
}

/// Runs the binary until it exits, and returns its output. Kills it and panics if it does not exit in time.
pub(crate) fn run<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Output {
    let mut child = command(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let ended = wait::within(wait::DEADLINE, || child.try_wait().unwrap());
    if ended.is_none() {
        let _ = child.kill();
    }
    let output = child.wait_with_output().unwrap();
    assert!(ended.is_some(), "did not exit; stderr: {}", String::from_utf8_lossy(&output.stderr));
    output
}
