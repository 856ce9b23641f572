//! The program kubectl: its options, its output, and its end.
//!
//! A process of kubectl never outlives the value that stands for it: it is killed when that is dropped.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::cli::PodArgs;

/// The program, which is looked up on `PATH`.
const PROGRAM: &str = "kubectl";

/// Maximum size of what kubectl prints, in bytes. A pod has about 10 KB.
const MAX_OUTPUT: u64 = 128 << 20;

/// Time between two looks at a process that is about to end.
const POLL: Duration = Duration::from_millis(5);

/// Why kubectl has not done what it should.
#[derive(Debug, thiserror::Error)]
pub(super) enum KubectlError {
    /// There is no such program.
    #[error("kubectl is not on PATH: install it, or add its directory to PATH")]
    Missing,
    /// The program cannot be started.
    #[error("kubectl cannot be started: {0}")]
    Start(io::Error),
    /// The output cannot be read.
    #[error("the output of `{0}` cannot be read: {1}")]
    Output(String, io::Error),
    /// The program has ended with an error, which it has written to standard error.
    #[error("`{0}` has failed ({1})")]
    Failed(String, ExitStatus),
    /// The output is longer than that of any usable number of pods.
    #[error("`{0}` prints more than {max} MiB: select fewer pods", max = MAX_OUTPUT >> 20)]
    TooLong(String),
    /// The output is not the JSON of Kubernetes objects.
    #[error("`{0}` prints something unexpected: {1}")]
    Json(String, serde_json::Error),
}

/// How kubectl is called.
#[derive(Clone, Debug)]
pub(super) struct Kubectl {
    options: Vec<OsString>,
}

impl Kubectl {
    /// Returns kubectl with the context and the kubeconfig of the arguments.
    pub(super) fn new(args: &PodArgs) -> Self {
        let mut options = Vec::new();
        options.extend(args.context.iter().map(|context| format!("--context={context}").into()));
        options.extend(args.kubeconfig.iter().map(|file| {
            let mut option = OsString::from("--kubeconfig=");
            option.push(file);
            option
        }));
        Self { options }
    }

    /// Runs `kubectl get` and returns what it prints as JSON. Its messages go to standard error.
    pub(super) async fn get<T: DeserializeOwned>(&self, arguments: &[String]) -> Result<T, KubectlError> {
        let mut shown = format!("{PROGRAM} get");
        for argument in arguments {
            // Writing to a string cannot fail.
            let _ = write!(shown, " {argument}");
        }
        let mut command = self.command();
        // Programs that log in may ask for something, so they have the terminal.
        command.arg("get").args(arguments).arg("--output=json").stdout(Stdio::piped());
        let mut process = Process::start(&mut command)?;
        let output =
            process.read_output().await.map_err(|error| KubectlError::Output(shown.clone(), error))?;
        if output.len() as u64 > MAX_OUTPUT {
            return Err(KubectlError::TooLong(shown));
        }
        match process.exit_status().await {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(KubectlError::Failed(shown, status)),
            Err(error) => return Err(KubectlError::Output(shown, error)),
        }
        serde_json::from_slice(&output).map_err(|error| KubectlError::Json(shown, error))
    }

    /// Returns a command with the options of all commands.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(&self.options);
        command
    }
}

/// A process of kubectl.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) child: Child,
    is_group: bool,
}

impl Process {
    /// Starts a process in a group of its own, which also ends what a script around kubectl has started.
    pub(super) fn start_group(command: &mut Command) -> Result<Self, KubectlError> {
        let mut process = Self::start(command.process_group(0))?;
        process.is_group = true;
        Ok(process)
    }

    fn start(command: &mut Command) -> Result<Self, KubectlError> {
        let child = command.spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => KubectlError::Missing,
            _ => KubectlError::Start(error),
        })?;
        Ok(Self { child, is_group: false })
    }

    /// Returns everything that the process prints, or its beginning if that is longer than the maximum.
    async fn read_output(&mut self) -> io::Result<Vec<u8>> {
        let Some(stdout) = self.child.stdout.take() else { return Ok(Vec::new()) };
        let (sender, received) = oneshot::channel();
        thread::spawn(move || {
            let mut output = Vec::new();
            let read = stdout.take(MAX_OUTPUT + 1).read_to_end(&mut output);
            // There is no receiver after an interruption.
            let _ = sender.send(read.map(|_| output));
        });
        received.await.map_err(io::Error::other)?
    }

    /// Waits for the end of a process that has closed its output.
    async fn exit_status(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            sleep(POLL).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // All fail only if the process has ended already.
        if self.is_group {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
