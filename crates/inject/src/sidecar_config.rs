//! The configuration of a sidecar: written for a limit, or read from a file for its ports.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use weir_net::listener::ListenAddress;
use weir_telemetry::access_log::Sink;
use weir_upstream::UpstreamAddress;

use crate::problem::InjectProblem;

/// Where the configuration of the sidecar comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigSource {
    /// A rate for each client address, such as `100/s`.
    Limit(String),
    /// A file that the caller has read.
    File { name: String, text: String },
    /// Name of a ConfigMap that exists, with the key `weir.yaml`.
    ConfigMap(String),
}

/// What the manifest needs to know of the configuration.
#[derive(Clone, Debug)]
pub(crate) struct SidecarConfig {
    /// Content for a ConfigMap; `None` if it exists.
    pub(crate) text: Option<String>,
    pub(crate) listeners: Vec<u16>,
    pub(crate) probes: u16,
    pub(crate) admin: Option<u16>,
    /// Whether the first listener, or the port for probes, accepts connections over IPv4 only.
    pub(crate) is_ipv4: bool,
    /// Port of the application, if the configuration names it.
    pub(crate) upstream: Option<u16>,
    /// Maximum time between the signal to stop and the end of the process, in whole seconds.
    pub(crate) drain: u64,
}

/// Limit without an option; that of the chart.
const DEFAULT_LIMIT: &str = "100/s";
/// First choice of the listener's port: applications rarely use it.
const DEFAULT_LISTENER: u16 = 18080;
const DEFAULT_ADMIN: u16 = 9901;
/// All addresses of the pod.
pub(crate) const ANY: &str = "[::]";
const DEFAULT_PROBES: u16 = 9902;
/// `drain.timeout` of a written configuration, in seconds.
const DRAIN_TIMEOUT: u64 = 10;
/// For the process to exit after the drain, in seconds.
const EXIT_SECONDS: u64 = 5;

impl SidecarConfig {
    /// Writes a configuration with one limit, or the default one.
    pub(crate) fn for_limit(
        limit: Option<&str>,
        application: u16,
        pod: &PodNeeds,
    ) -> Result<Self, InjectProblem> {
        let mut taken = pod.taken.clone();
        taken.insert(application);
        let mut choose = |preferred: u16| {
            let free = (preferred..=u16::MAX).find(|port| !taken.contains(port)).unwrap_or(preferred);
            taken.insert(free);
            free
        };
        let (listener, admin, probes) =
            (choose(DEFAULT_LISTENER), choose(DEFAULT_ADMIN), choose(DEFAULT_PROBES));
        // Pods have addresses of IPv4, of IPv6, or of both. `[::]` accepts all, also where there is no IPv6.
        let mut text = format!(
            "listeners:\n  - address: \"{ANY}:{listener}\"\nupstream:\n  address: 127.0.0.1:{application}\n\
             # Without a CPU limit `auto` is one worker per core of the node, far more than a sidecar needs.\n\
             workers: 2\nadmin:\n  address: 127.0.0.1:{admin}\n  probes: \"{ANY}:{probes}\"\n\
             # The kubelet stops Weir after the application, when every endpoint has been removed. So no delay.\n\
             drain: {{ delay: 0s, timeout: {DRAIN_TIMEOUT}s }}\n\
             # Behind an ingress controller, the peer of every request is the controller. Set the addresses whose\n\
             # X-Forwarded-For is trusted:\n\
             # client_ip: {{ trusted_proxies: [10.0.0.0/8] }}\n\
             rules:\n  - name: per-ip\n    key: [client_ip]\n    limit: {}\n",
            limit.unwrap_or(DEFAULT_LIMIT),
        );
        if !pod.probe_paths.is_empty() {
            text.push_str(&probes_rule(&pod.probe_paths));
        }
        let config = weir_config::from_text(&text, Path::new("--limit"), &|_| None).map_err(|problems| {
            let message = problems.first().map(|problem| match &problem.hint {
                Some(hint) => format!("{} ({hint})", problem.message),
                None => problem.message.clone(),
            });
            InjectProblem::of_option("--limit", message.unwrap_or_default())
        })?;
        Ok(Self {
            text: Some(text),
            ..Self::read(&config).map_err(|message| InjectProblem::of_option("--limit", message))?
        })
    }

    /// Checks the configuration in a file, as the sidecar would read it.
    pub(crate) fn from_file(name: &str, text: &str) -> Result<Self, Vec<InjectProblem>> {
        let unreadable = |problems: Vec<weir_config::Diagnostic>, suffix: &str| {
            let problems = problems.into_iter().map(|problem| InjectProblem {
                file: name.to_owned(),
                line: problem.line,
                column: problem.column,
                path: problem.path,
                message: match problem.hint {
                    Some(hint) => format!("{}{suffix} ({hint})", problem.message),
                    None => format!("{}{suffix}", problem.message),
                },
            });
            problems.collect::<Vec<_>>()
        };
        let config = weir_config::from_text(text, Path::new(name), &|_| None)
            .map_err(|problems| unreadable(problems, ""))?;
        // In the pod there are no other files than the one of the ConfigMap.
        let alone = Path::new("/nonexistent/of-the-pod/weir.yaml");
        weir_config::from_text(text, alone, &|_| None)
            .map_err(|problems| unreadable(problems, ", which the ConfigMap does not contain"))?;
        let read = Self::read(&config).map_err(|message| vec![InjectProblem::of_option(name, message)])?;
        Ok(Self { text: Some(text.to_owned()), ..read })
    }

    /// Assumes the default ports for a ConfigMap that is not part of the input.
    pub(crate) fn of_unknown(application: u16) -> Self {
        Self {
            text: None,
            listeners: vec![DEFAULT_LISTENER],
            probes: DEFAULT_PROBES,
            admin: Some(DEFAULT_ADMIN),
            is_ipv4: false,
            upstream: Some(application),

            drain: DRAIN_TIMEOUT + EXIT_SECONDS,
        }
    }

    fn read(config: &weir_config::Config) -> Result<Self, String> {
        let port = |address: &ListenAddress| match address {
            ListenAddress::Tcp(address) => Some(address.port()),
            ListenAddress::Unix(_) => None,
        };
        let listeners: Vec<_> =
            config.listeners.iter().filter_map(|listener| port(&listener.settings.address)).collect();
        let listeners = listeners.into_iter().fold(Vec::new(), |mut distinct, port| {
            if !distinct.contains(&port) {
                distinct.push(port);
            }
            distinct
        });
        let first = config.listeners.first().ok_or("listeners: the sidecar needs one")?;
        match first.settings.address {
            ListenAddress::Tcp(address) if !address.ip().is_loopback() && address.port() != 0 => {}
            ListenAddress::Tcp(_) | ListenAddress::Unix(_) => {
                return Err(format!(
                    "listeners[0].address: clients cannot reach it in the pod, set \"{ANY}:PORT\", got {}",
                    first.settings.address
                ));
            }
        }
        let probe_address = config.admin.probe_address.unwrap_or(config.admin.address);
        let probes = match probe_address {
            address if address.ip().is_loopback() => {
                return Err(format!("admin.probes: the kubelet cannot reach loopback, set \"{ANY}:PORT\""));
            }
            address => address.port(),
        };
        if let Some(problem) = written_file(config) {
            return Err(problem);
        }
        let upstreams = config.upstreams.iter().flat_map(|upstream| &upstream.settings.addresses);
        let upstream = upstreams.into_iter().find_map(|address| match address {
            UpstreamAddress::Tcp { host, port } if is_loopback(host) => Some(*port),
            UpstreamAddress::Tcp { .. } | UpstreamAddress::Unix(_) | UpstreamAddress::Echo => None,
        });
        let drain = config.drain.delay.saturating_add(config.drain.timeout);
        Ok(Self {
            text: None,
            listeners,
            probes,
            admin: Some(config.admin.address.port()).filter(|port| *port != probes),
            is_ipv4: probe_address.is_ipv4()
                || matches!(first.settings.address, ListenAddress::Tcp(address) if address.is_ipv4()),
            upstream,

            drain: whole_seconds(drain).saturating_add(EXIT_SECONDS),
        })
    }

    /// Returns the ports on which the sidecar listens.
    pub(crate) fn ports(&self) -> impl Iterator<Item = u16> {
        self.listeners.iter().copied().chain([self.probes]).chain(self.admin)
    }
}

/// What a pod demands of a written configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodNeeds {
    /// Ports that are in use.
    pub(crate) taken: BTreeSet<u16>,
    /// Paths of probes that arrive at the sidecar.
    pub(crate) probe_paths: BTreeSet<String>,
}

fn probes_rule(paths: &BTreeSet<String>) -> String {
    let paths: Vec<_> = paths.iter().map(|path| serde_json::Value::from(path.as_str()).to_string()).collect();
    format!(
        "  # The kubelet probes the application through Weir. Rejecting a probe under load would remove the pod from\n  \
         # the Service and move its load to the other pods.\n  \
         - name: probes\n    match: {{ path: [{}] }}\n    action: allow\n",
        paths.join(", ")
    )
}

/// Returns a problem if the configuration writes a file: the file system of the sidecar is read-only.
fn written_file(config: &weir_config::Config) -> Option<String> {
    let state = config.state_file.as_ref().map(|state| ("state.file", &state.file));
    let log = config.access_log.as_ref().and_then(|log| match &log.sink {
        Sink::File(path) => Some(("access_log", path)),
        Sink::Stdout | Sink::Stderr => None,
    });
    let (key, path) = state.or(log)?;
    let hint = if key == "state.file" { "the chart can mount a volume" } else { "set stdout" };
    Some(format!("{key}: the sidecar has no volume to write to, {hint}, got \"{}\"", path.display()))
}

fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || format!("[{host}]:1").parse::<SocketAddr>().is_ok_and(|at| at.ip().is_loopback())
        || host.parse::<std::net::Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
}

fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}
