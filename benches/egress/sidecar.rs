//! Egress instances: processes of the `weir` binary.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::http1::control;
use crate::metrics;
use crate::support::wait;

/// Maximum length of a message about the configuration, in characters.
const MAX_MESSAGE: usize = 160;

/// A running instance. It is killed when dropped.
#[derive(Debug)]
pub(crate) struct Sidecar {
    child: Child,
    address: SocketAddr,
    admin: SocketAddr,
    directory: TempDir,
    /// Log lines after the start.
    log: Arc<Mutex<Vec<String>>>,
}

/// The configuration of an instance.
#[derive(Clone, Debug)]
pub(crate) struct SidecarConfig {
    pub(crate) provider: SocketAddr,
    /// Keys of the upstream beside its address, as YAML lines with an indentation of two.
    pub(crate) upstream: String,
    /// URL of the store of shared limits.
    pub(crate) store: Option<String>,
    /// Items of `rules`, as YAML.
    pub(crate) rules: String,
}

impl SidecarConfig {
    /// Returns the file. Limits other than those of the rules are out of the way.
    pub(crate) fn yaml(&self) -> String {
        let mut yaml = format!(
            "listeners: {{ address: 127.0.0.1:0, limits: {{ streams: 10000 }} }}\n\
             admin: {{ address: 127.0.0.1:0 }}\n\
             workers: 1\n\
             overload: {{ connections: 19000 }}\n\
             upstream:\n  address: {}\n{}",
            self.provider, self.upstream
        );
        // Writing to a `String` cannot fail.
        if let Some(url) = &self.store {
            let _ = writeln!(yaml, "store: {{ redis: '{url}' }}");
        }
        let _ = write!(yaml, "rules:\n{}", self.rules);
        yaml
    }
}

impl Sidecar {
    /// Starts an instance and waits until it is ready. The error is what the program says about the configuration.
    pub(crate) fn start(program: &Path, yaml: &str) -> Result<Self, String> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("weir.yaml");
        fs::write(&file, yaml).unwrap();
        let mut command = Command::new(program);
        command.args(["run", "--log-format", "json", "-c"]).arg(&file);
        for name in ["RUST_LOG", "WEIR_LOG_LEVEL", "WEIR_LOG_FORMAT"] {
            command.env_remove(name);
        }
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let addresses = read_addresses(&mut stderr);
        let [address, admin] = match addresses {
            Ok(addresses) => addresses,
            Err(said) => {
                let _ = child.wait();
                return Err(said.chars().take(MAX_MESSAGE).collect());
            }
        };
        let log = Arc::default();
        let lines = Arc::clone(&log);
        std::thread::spawn(move || collect_log(stderr, &lines));
        let sidecar = Self { child, address, admin, directory, log };
        wait::until_true("readiness", || control(admin, "GET", "/ready").is_ok());
        Ok(sidecar)
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the sum over the samples of a metric.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let text = control(self.admin, "GET", "/metrics").ok()?;
        metrics::has(&text, name).then(|| metrics::sum(&text, name, &[]))
    }

    /// Replaces the configuration and waits until it is in force.
    pub(crate) fn reload(&self, yaml: &str) {
        let before = self.metric("weir_config_generation");
        let file = self.file();
        let next = file.with_extension("next");
        fs::write(&next, yaml).unwrap();
        fs::rename(&next, &file).unwrap();
        wait::until_true("the new configuration", || self.metric("weir_config_generation") > before);
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("weir.yaml")
    }

    /// Returns the resident memory in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Returns the log since the start.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        // Fails only if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the log until both ports listen. The error is the log of a program that ends before.
fn read_addresses(stderr: &mut BufReader<ChildStderr>) -> Result<[SocketAddr; 2], String> {
    let (mut listener, mut admin, mut said) = (None, None, String::new());
    loop {
        let mut line = String::new();
        if stderr.read_line(&mut line).unwrap_or_default() == 0 {
            return Err(said);
        }
        let event: Value = serde_json::from_str(&line).unwrap_or_default();
        let address = || event["address"].as_str().and_then(|text| text.parse().ok());
        match event["message"].as_str() {
            Some("listening") => listener = address(),
            Some("admin listening") => admin = address(),
            Some(_) | None => said.push_str(&line),
        }
        if let (Some(listener), Some(admin)) = (listener, admin) {
            return Ok([listener, admin]);
        }
    }
}

fn collect_log(stderr: BufReader<ChildStderr>, lines: &Mutex<Vec<String>>) {
    for line in stderr.lines().map_while(Result::ok) {
        lines.lock().unwrap().push(line);
    }
}

/// Waits until each instance knows the others through the store.
pub(crate) fn await_fleet(sidecars: &[Sidecar]) {
    let size = sidecars.len() as f64;
    let is_whole = |sidecar: &Sidecar| sidecar.metric("weir_store_instances") == Some(size);
    let found = wait::within(Duration::from_secs(20), || sidecars.iter().all(is_whole).then_some(()));
    assert!(found.is_some(), "instances do not discover each other");
}
