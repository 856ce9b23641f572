//! Processes of the benchmark's own program, and the provider as one of them.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Serialize;

use super::ProviderSettings;
use super::record::Stats;
use crate::http1::control;

/// A process of the same program in another role. It ends when its standard input is closed.
#[derive(Debug)]
pub(crate) struct RoleProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// A running provider.
#[derive(Debug)]
pub(crate) struct ProviderProcess {
    address: SocketAddr,
    _process: RoleProcess,
}

impl RoleProcess {
    /// Starts the program in `role` with `settings`.
    pub(crate) fn start(role: &str, settings: &impl Serialize) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([role, &serde_json::to_string(settings).unwrap()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    /// Returns the next line of the output.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Sends a command and waits until the process has printed it.
    pub(crate) fn obey(&mut self, command: &str) {
        self.send(command);
        assert_eq!(self.line(), command, "the process failed");
    }

    /// Sends a line to the process.
    pub(crate) fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }
}

impl Drop for RoleProcess {
    fn drop(&mut self) {
        // Fails only if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ProviderProcess {
    pub(crate) fn start(settings: &ProviderSettings) -> Self {
        let mut process = RoleProcess::start("provider", settings);
        let address = process.line().parse().unwrap();
        Self { address, _process: process }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Clears the record.
    pub(crate) fn reset(&self) {
        control(self.address, "POST", "/reset").unwrap();
    }

    pub(crate) fn set_limit(&self, limit: u64) {
        control(self.address, "POST", &format!("/limit?n={limit}")).unwrap();
    }

    pub(crate) fn stats(&self) -> Stats {
        serde_json::from_str(&control(self.address, "GET", "/stats").unwrap()).unwrap()
    }
}

/// Prints the address of a server for the process that has started it.
#[expect(clippy::print_stdout, reason = "the output of the role")]
pub(crate) fn announce(address: SocketAddr) {
    println!("{address}");
}

/// Blocks until standard input is closed.
pub(crate) fn await_end_of_input() {
    let _ = io::stdin().read_to_end(&mut Vec::new());
}
