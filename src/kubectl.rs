//! `kubectl weir`: finds the pods of a workload, forwards their admin ports, and runs a command on each of them.
//!
//! The cluster is reached through `kubectl` alone, so that contexts, logins and permissions are the user's own. Which pods
//! there are (`target`, `pods`, `admin_port`), how they are reached (`process`, `forward`), and what is done with each
//! (`commands`, `table`) are apart.

mod admin_port;
mod arguments;
mod commands;
mod forward;
mod key_rules;
mod object;
mod pods;
mod process;
mod table;
mod target;

use std::io::{self, ErrorKind, Write as _};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;

use self::arguments::{Request, TopRequest, Work};
use self::commands::{CommandFailure, PodCommand, PodReport};
use self::forward::{ForwardError, PortForward};
use self::pods::{FoundPods, WeirPod, find_pods};
use self::process::Kubectl;
use crate::admin_client::AdminClient;
use crate::cli::{KubectlCli, OutputFormat};
use crate::top::{self, TopInstance, TopOptions, TopSource};
use weir_net::jitter::{backoff, equal_jitter};

/// Maximum number of pods on which a command runs at a time. A view of all pods needs one process for each.
const MAX_CONCURRENT: usize = 8;

/// Pauses before a port is forwarded again.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// How a command has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubectlExit {
    /// Everything was done.
    Done,
    /// Something has failed, and is on standard error.
    Failed,
    /// The arguments are wrong, and nothing was done.
    BadUsage,
}

/// Runs a command, and prints its results. `token` is that of the admin ports.
pub fn run(cli: &KubectlCli, token: Option<&str>) -> KubectlExit {
    let request = match Request::new(cli) {
        Ok(request) => request,
        Err(problem) => {
            report(&problem);
            return KubectlExit::BadUsage;
        }
    };
    let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            report(&format!("cannot start: {error}"));
            return KubectlExit::Failed;
        }
    };
    let session = Session { kubectl: Kubectl::new(&cli.pods), token: token.map(str::to_owned) };
    let is_done = runtime.block_on(async {
        tokio::select! {
            result = session.run(cli, &request) => result,
            interrupted = interruption() => match request.work {
                // A live view ends in this way.
                Work::Top(TopRequest { is_once: false, .. }) => true,
                Work::Top(_) | Work::EachPod { .. } => {
                    report(&interrupted);
                    false
                }
            }
        }
    });
    // Tasks that are left own processes, which end with them.
    drop(runtime);
    if is_done { KubectlExit::Done } else { KubectlExit::Failed }
}

/// Waits for a signal, and returns what to say about it.
async fn interruption() -> String {
    let listen = || -> io::Result<_> {
        Ok((
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ))
    };
    let (mut interrupt, mut terminate, mut hangup) = match listen() {
        Ok(signals) => signals,
        Err(error) => return format!("cannot wait for signals: {error}"),
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    "interrupted: not all pods have a result".to_owned()
}

/// How the pods of one command are reached.
#[derive(Clone, Debug)]
struct Session {
    kubectl: Kubectl,
    token: Option<String>,
}

/// A client of a pod's admin port, with the process that leads there.
struct PodConnection {
    forward: PortForward,
    client: AdminClient,
}

impl Session {
    /// Returns whether everything was done.
    async fn run(&self, cli: &KubectlCli, request: &Request) -> bool {
        let found = match find_pods(&self.kubectl, request.target.as_deref(), &cli.pods).await {
            Ok(found) => found,
            Err(error) => {
                report(&error.to_string());
                return false;
            }
        };
        for note in &found.notes {
            report(note);
        }
        match &request.work {
            Work::Top(options) => self.show_top(found, *options).await,
            Work::EachPod { command, format } => {
                self.run_on_each(found, command, *format, cli.pods.all_namespaces).await
            }
        }
    }

    async fn connect(&self, pod: &WeirPod) -> Result<PodConnection, ForwardError> {
        let forward = PortForward::start(&self.kubectl, pod, None).await?;
        let client = AdminClient::new(&forward.address().to_string(), self.token.as_deref())?;
        Ok(PodConnection { forward, client })
    }

    /// Runs a command on all pods, and prints the results in the order of the pods.
    async fn run_on_each(
        &self,
        found: FoundPods,
        command: &PodCommand,
        format: OutputFormat,
        has_namespaces: bool,
    ) -> bool {
        let places = Arc::new(Semaphore::new(MAX_CONCURRENT));
        let mut tasks = JoinSet::new();
        for (index, pod) in found.pods.iter().cloned().enumerate() {
            let (session, command, places) = (self.clone(), command.clone(), Arc::clone(&places));
            tasks.spawn(async move {
                // The semaphore is never closed.
                let _place = places.acquire().await;
                (index, session.report_of(&pod, &command).await)
            });
        }
        let mut reports: Vec<PodReport> = vec![PodReport::default(); found.pods.len()];
        while let Some(ended) = tasks.join_next().await {
            match ended {
                Ok((index, report)) => reports[index] = report,
                Err(error) => {
                    report(&format!("a task has failed: {error}"));
                    return false;
                }
            }
        }
        let results: Vec<(&WeirPod, PodReport)> = found.pods.iter().zip(reports).collect();
        let output = match format {
            OutputFormat::Text => text_of(&results, has_namespaces),
            OutputFormat::Json => json_of(&results),
        };
        let is_printed = print(&output);
        for (pod, problem) in
            results.iter().flat_map(|(pod, report)| report.problems.iter().map(move |text| (pod, text)))
        {
            report(&format!("{}: {problem}", shown_name(pod, has_namespaces)));
        }
        is_printed && results.iter().all(|(_, report)| report.problems.is_empty())
    }

    /// Runs a command on one pod.
    async fn report_of(&self, pod: &WeirPod, command: &PodCommand) -> PodReport {
        let connection = match self.connect(pod).await {
            Ok(connection) => connection,
            Err(error) => return PodReport::failure(error.to_string()),
        };
        match command.run(&connection.client).await {
            Ok(report) => report,
            Err(CommandFailure::Other(problem)) => PodReport::failure(problem),
            Err(CommandFailure::Connection(problem)) => {
                let reason = connection.forward.reason().await;
                PodReport::failure(format!(
                    "{problem} (kubectl port-forward to port {}: {reason})",
                    pod.admin_port
                ))
            }
        }
    }

    /// Shows all pods that can be reached in one view.
    async fn show_top(&self, found: FoundPods, request: TopRequest) -> bool {
        let connections = self.connect_all(&found.pods).await;
        if connections.is_empty() {
            return false;
        }
        let is_complete = connections.len() == found.pods.len();
        let instances = connections.iter().map(|(index, connection)| TopInstance {
            name: found.pods[*index].name.clone(),
            client: connection.client.clone(),
        });
        let source = TopSource::Several { title: found.title, instances: instances.collect() };
        let options = TopOptions { source, is_once: request.is_once, has_colors: request.has_colors };
        let forwards =
            connections.into_iter().map(|(index, connection)| (&found.pods[index], connection.forward));
        let (mut kept, mut once) = (JoinSet::new(), Vec::new());
        for (pod, forward) in forwards {
            if request.is_once {
                once.push((pod, forward));
            } else {
                kept.spawn(keep_forwarding(self.kubectl.clone(), pod.clone(), forward));
            }
        }
        let Err(error) = top::show(&options).await else { return is_complete };
        report(&error.to_string());
        for (pod, forward) in &once {
            if let Some(message) = forward.message() {
                report(&format!("{}: kubectl: {message}", pod.name));
            }
        }
        false
    }

    /// Connects to all pods that can be reached, and reports why others cannot. Each connection has the position of its pod.
    async fn connect_all(&self, pods: &[WeirPod]) -> Vec<(usize, PodConnection)> {
        let mut tasks = JoinSet::new();
        for (index, pod) in pods.iter().cloned().enumerate() {
            let session = self.clone();
            tasks.spawn(async move { (index, session.connect(&pod).await) });
        }
        let mut connections = Vec::with_capacity(pods.len());
        while let Some(ended) = tasks.join_next().await {
            match ended {
                Ok((index, Ok(connection))) => connections.push((index, connection)),
                Ok((index, Err(error))) => report(&format!("{}: {error}", pods[index].name)),
                Err(error) => report(&format!("a task has failed: {error}")),
            }
        }
        connections.sort_by_key(|(index, _)| *index);
        connections
    }
}

/// Forwards the same port again whenever kubectl has ended, such as after a restart of the container.
async fn keep_forwarding(kubectl: Kubectl, pod: WeirPod, mut forward: PortForward) {
    let mut attempts = 0_u32;
    loop {
        forward.ended().await;
        let port = forward.address().port();
        forward = loop {
            attempts = attempts.saturating_add(1);
            sleep(equal_jitter(backoff(FIRST_PAUSE, MAX_PAUSE, attempts))).await;
            // The view shows that the pod is lost, and a pod that is gone stays so.
            if let Ok(next) = PortForward::start(&kubectl, &pod, Some(port)).await {
                break next;
            }
        };
    }
}

fn shown_name(pod: &WeirPod, has_namespaces: bool) -> String {
    if has_namespaces { format!("{}/{}", pod.namespace, pod.name) } else { pod.name.clone() }
}

/// Returns the results with a heading for each pod, unless there is only one.
fn text_of(results: &[(&WeirPod, PodReport)], has_namespaces: bool) -> String {
    let with_text = results.iter().filter(|(_, report)| !report.text.is_empty());
    let parts = with_text.map(|(pod, report)| match results.len() {
        1 => report.text.clone(),
        _ => format!("== {} ==\n{}", shown_name(pod, has_namespaces), report.text),
    });
    parts.collect::<Vec<_>>().join("\n")
}

/// Returns the results as a list with an entry for each pod.
fn json_of(results: &[(&WeirPod, PodReport)]) -> String {
    let entries = results.iter().map(|(pod, report)| {
        let mut entry = json!({ "namespace": pod.namespace, "pod": pod.name });
        if !report.json.is_null() {
            entry["result"] = report.json.clone();
        }
        if !report.problems.is_empty() {
            entry["problems"] = report.problems.clone().into();
        }
        entry
    });
    format!("{:#}\n", Value::Array(entries.collect()))
}

/// Prints the results. The reading process may end early, as `head` does.
fn print(text: &str) -> bool {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            report(&format!("cannot print the results: {error}"));
            false
        }
        Ok(()) | Err(_) => true,
    }
}

/// Writes a line to standard error, whose reader may have ended.
fn report(message: &str) {
    let _ = writeln!(io::stderr(), "weir: {message}");
}
