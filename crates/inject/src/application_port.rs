//! Finds the port of the application, in front of which the sidecar listens.

use crate::pod::{PodPort, PodProbe, PodTemplate, ProbeAction};

/// The port of the application.
#[derive(Clone, Debug)]
pub(crate) struct ApplicationPort {
    pub(crate) number: u16,
    /// The declared port; `None` if no container declares it.
    pub(crate) declared: Option<PodPort>,
    /// Index of the container that listens on it.
    pub(crate) container: usize,
}

/// Why there is no port in front of which the sidecar could listen.
#[derive(Clone, Debug)]
pub(crate) enum PortProblem {
    /// Nothing to limit: the workload stays as it is, if others have a port.
    Nothing(String),
    /// The user has to choose.
    Choice(String),
}

/// Ports of protocols other than HTTP, with the names that are usual for them.
const OTHER_PROTOCOLS: [(u16, &str); 14] = [
    (22, "ssh"),
    (53, "dns"),
    (1883, "mqtt"),
    (2181, "zookeeper"),
    (2379, "etcd"),
    (3306, "mysql"),
    (4222, "nats"),
    (5432, "postgresql"),
    (5672, "amqp"),
    (6379, "redis"),
    (9042, "cql"),
    (9092, "kafka"),
    (11211, "memcached"),
    (27017, "mongodb"),
];

/// Finds the port: the given one, or the only one, or the one named `http`, or the one of the only Service, or the one that HTTP
/// probes use.
pub(crate) fn find(
    pod: &PodTemplate<'_>,
    given: Option<u16>,
    service_ports: &[u16],
    is_only_workload: bool,
) -> Result<ApplicationPort, PortProblem> {
    if let Some(number) = given {
        let is_known = pod.ports.iter().any(|port| port.number == number);
        if !is_known && !is_only_workload && !pod.ports.is_empty() {
            return Err(PortProblem::Nothing(format!("no container has the port {number} of --port")));
        }
        return Ok(application_port(pod, number));
    }
    let named: Vec<_> = pod.ports.iter().filter(|port| port.name.as_deref() == Some("http")).collect();
    let candidates: [Vec<u16>; 4] = [
        pod.ports.iter().map(|port| port.number).collect(),
        named.iter().map(|port| port.number).collect(),
        service_ports.to_vec(),
        probe_ports(pod),
    ];
    let found = candidates.into_iter().map(distinct).find_map(|numbers| match numbers[..] {
        [number] => Some(number),
        _ => None,
    });
    let Some(number) = found else { return Err(missing(pod)) };
    match other_protocol(pod, number) {
        Some(protocol) => Err(PortProblem::Nothing(format!(
            "port {number} is usually {protocol} and not HTTP, set --port if it is HTTP"
        ))),
        None => Ok(application_port(pod, number)),
    }
}

fn application_port(pod: &PodTemplate<'_>, number: u16) -> ApplicationPort {
    let declared = pod.declarations(number).next().cloned();
    let probed = pod.probes.iter().find(|probe| probe.number == Some(number));
    let container = match (&declared, probed) {
        (Some(port), _) => port.container,
        (None, Some(probe)) => probe.container,
        (None, None) => 0,
    };
    ApplicationPort { number, declared, container }
}

fn missing(pod: &PodTemplate<'_>) -> PortProblem {
    if pod.ports.is_empty() {
        return PortProblem::Nothing("no container declares a port, set --port".to_owned());
    }
    let shown: Vec<_> = pod
        .ports
        .iter()
        .map(|port| {
            let container = pod.container_name(port.container);
            let name = port.name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
            format!("{}{name} of {container}", port.number)
        })
        .collect();
    PortProblem::Choice(format!("several ports, set --port to one of {}", shown.join(", ")))
}

/// Returns the numbers of ports that HTTP probes use.
fn probe_ports(pod: &PodTemplate<'_>) -> Vec<u16> {
    let is_http = |probe: &&PodProbe| probe.action == ProbeAction::Http && probe.is_probe;
    pod.probes.iter().filter(is_http).filter_map(|probe| probe.number).collect()
}

fn distinct(mut numbers: Vec<u16>) -> Vec<u16> {
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Returns the protocol that a port has by its number or by its name, if it is not HTTP.
fn other_protocol(pod: &PodTemplate<'_>, number: u16) -> Option<&'static str> {
    let name = pod.ports.iter().find(|port| port.number == number).and_then(|port| port.name.as_deref());
    let is_named =
        |protocol: &str| name.is_some_and(|name| name.trim_start_matches("tcp-").starts_with(protocol));
    let known = OTHER_PROTOCOLS.iter().find(|(port, protocol)| *port == number || is_named(protocol));
    // A name that says HTTP overrides the number.
    known.map(|(_, protocol)| *protocol).filter(|_| name.is_none_or(|name| !name.contains("http")))
}
