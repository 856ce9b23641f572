//! `kubectl port-forward`: a port of this machine that leads to a port of a pod.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{ChildStderr, ChildStdout, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::pods::WeirPod;
use super::process::{Kubectl, KubectlError, Process};
use crate::admin_client::AdminClientError;

/// Maximum time until kubectl forwards.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time in which a reason is expected after a connection has failed.
const REASON_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum number of messages of kubectl that are kept, and of their characters.
const MAX_MESSAGES: usize = 5;
const MAX_MESSAGE_CHARS: usize = 300;

/// Why there is no forwarded port.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardError {
    /// The program cannot be run.
    #[error(transparent)]
    Kubectl(#[from] KubectlError),
    /// The admin token cannot be sent.
    #[error(transparent)]
    Client(#[from] AdminClientError),
    /// The program has ended, or closed its output.
    #[error("kubectl port-forward has ended: {0}")]
    Ended(String),
    /// The program has not said that it forwards.
    #[error("kubectl port-forward is not ready after {seconds} s: {0}", seconds = START_TIMEOUT.as_secs())]
    Timeout(String),
}

/// A running `kubectl port-forward`, which ends with this value.
#[derive(Debug)]
pub(super) struct PortForward {
    address: SocketAddr,
    messages: Arc<Messages>,
    /// Closed by the thread that reads the output, at its end.
    ended: oneshot::Receiver<()>,
    _process: Process,
}

impl PortForward {
    /// Starts forwarding to the admin port of a pod, and waits until it is ready. Without `local`, a free port of this machine
    /// is used.
    pub(super) async fn start(
        kubectl: &Kubectl,
        pod: &WeirPod,
        local: Option<u16>,
    ) -> Result<Self, ForwardError> {
        let local = local.map(|port| port.to_string()).unwrap_or_default();
        let mut command = kubectl.command();
        command
            .args(["port-forward", "--address=127.0.0.1"])
            .arg(format!("--namespace={}", pod.namespace))
            .arg(format!("pod/{}", pod.name))
            .arg(format!("{local}:{}", pod.admin_port))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Process::start_group(&mut command)?;
        let messages = Arc::new(Messages::default());
        let (ready, address) = oneshot::channel();
        let (running, ended) = oneshot::channel();
        if let Some(stdout) = process.child.stdout.take() {
            thread::spawn(move || {
                announce_address(stdout, ready);
                drop(running);
            });
        }
        if let Some(stderr) = process.child.stderr.take() {
            let messages = Arc::clone(&messages);
            thread::spawn(move || messages.collect(stderr));
        }
        match timeout(START_TIMEOUT, address).await {
            Ok(Ok(address)) => Ok(Self { address, messages, ended, _process: process }),
            Ok(Err(_)) => Err(ForwardError::Ended(messages.reason().await)),
            Err(_) => Err(ForwardError::Timeout(messages.reason().await)),
        }
    }

    /// Returns the address of this machine that leads to the pod.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until kubectl has closed its output.
    pub(super) async fn ended(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.ended).await;
    }

    /// Returns what kubectl says about a connection that has failed.
    pub(super) async fn reason(&self) -> String {
        self.messages.reason().await
    }

    /// Returns the messages of kubectl so far, if there are any.
    pub(super) fn message(&self) -> Option<String> {
        self.messages.joined()
    }
}

/// Reads the output to its end, and passes on the first address in it.
fn announce_address(stdout: ChildStdout, ready: oneshot::Sender<SocketAddr>) {
    let mut ready = Some(ready);
    // Without a reader, kubectl would wait to report the next connection.
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if let Some(address) = forwarded_address(&line)
            && let Some(ready) = ready.take()
        {
            // There is no receiver after an interruption.
            let _ = ready.send(address);
        }
    }
}

/// Reads `Forwarding from 127.0.0.1:41573 -> 9901`.
fn forwarded_address(line: &str) -> Option<SocketAddr> {
    let (address, _) = line.strip_prefix("Forwarding from ")?.split_once(" -> ")?;
    address.parse::<SocketAddr>().ok().filter(|address| address.ip().is_loopback())
}

/// The last messages of kubectl on standard error.
#[derive(Debug, Default)]
struct Messages {
    lines: Mutex<VecDeque<String>>,
    arrived: Notify,
}

impl Messages {
    fn collect(&self, stderr: ChildStderr) {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let line: String =
                line.chars().filter(|letter| !letter.is_control()).take(MAX_MESSAGE_CHARS).collect();
            let mut lines = self.lines.lock();
            if lines.len() == MAX_MESSAGES {
                lines.pop_front();
            }
            lines.push_back(line);
            self.arrived.notify_one();
        }
        self.arrived.notify_one();
    }

    /// Returns the messages in one line. The reason may arrive shortly after a connection has failed.
    async fn reason(&self) -> String {
        if self.lines.lock().is_empty() {
            // Without a message there is no more to say.
            let _ = timeout(REASON_TIMEOUT, self.arrived.notified()).await;
        }
        self.joined().unwrap_or_else(|| "it gives no reason".to_owned())
    }

    fn joined(&self) -> Option<String> {
        let lines = self.lines.lock();
        (!lines.is_empty()).then(|| lines.iter().map(String::as_str).collect::<Vec<_>>().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_read_from_the_announcement() {
        let address = |line| forwarded_address(line).map(|address| address.to_string());
        assert_eq!(address("Forwarding from 127.0.0.1:41573 -> 9901").as_deref(), Some("127.0.0.1:41573"));
        assert_eq!(address("Forwarding from [::1]:41573 -> 9901").as_deref(), Some("[::1]:41573"));
        for other in [
            "Handling connection for 41573",
            "Forwarding from 127.0.0.1 -> 9901",
            "Forwarding from 192.0.2.1:80 -> 9901",
            "",
        ] {
            assert_eq!(address(other), None, "{other}");
        }
    }
}
