//! What is going to be done to one workload, decided before anything is changed.

use std::collections::BTreeSet;

use crate::application_port::{self, ApplicationPort, PortProblem};
use crate::manifest::{self, ManifestFile, ManifestObject};
use crate::obstacle;
use crate::pod::{PodProbe, PodTemplate, ProbeAction};
use crate::port_edit;
use crate::service::{self, PortReferences, ReferenceKind};
use crate::sidecar_config::{ANY, PodNeeds, SidecarConfig};
use crate::tree::TreeNodeId;
use crate::{ConfigSource, InjectOptions, InjectProblem};

/// How connections for the application arrive at the sidecar.
#[derive(Clone, Debug)]
pub(crate) enum TrafficRoute {
    /// Services and NetworkPolicies of the input are directed to it.
    References(PortReferences),
    /// It takes over the name of the application's port, which Services use. NetworkPolicies are directed to it.
    Name(String, PortReferences),
    /// Rules of the pod's network redirect them.
    Redirect,
}

/// A workload that gets the sidecar.
#[derive(Debug)]
pub(crate) struct WorkloadPlan<'d> {
    /// Index of the object.
    pub(crate) object: usize,
    pub(crate) pod: PodTemplate<'d>,
    pub(crate) port: ApplicationPort,
    pub(crate) config: SidecarConfig,
    pub(crate) config_map: String,
    pub(crate) route: TrafficRoute,
    /// User of the sidecar.
    pub(crate) user: u32,
    pub(crate) remarks: Vec<String>,
}

/// Why a workload gets no plan.
#[derive(Debug)]
pub(crate) enum NoPlan {
    /// There is nothing to limit. It stays as it is, unless it is the only one.
    Skipped(InjectProblem),
    Problems(Vec<InjectProblem>),
}

/// Everything that the plan of a workload depends on.
#[derive(Debug)]
pub(crate) struct PlanContext<'c, 'o> {
    pub(crate) files: &'c [ManifestFile<'c>],
    pub(crate) objects: &'c [ManifestObject],
    pub(crate) options: &'o InjectOptions,
    /// Configuration of the file, or of the ConfigMap of the input, that the options name.
    pub(crate) file_config: Option<&'o SidecarConfig>,
    pub(crate) is_only_workload: bool,
}

/// Annotation of a pod template that gets no sidecar.
const OPT_OUT: (&str, &str) = ("weir.dev/inject", "disabled");

/// Of the 253 letters that a name may have, the longest kind with what is around it needs 27.
const MAX_WORKLOAD_NAME: usize = 226;

/// `net.ipv4.ip_unprivileged_port_start` of Linux; some runtimes set it to 0 in pods.
const FIRST_UNPRIVILEGED_PORT: u16 = 1024;

impl<'c> PlanContext<'c, '_> {
    /// Plans the injection into the pod template at `node`.
    pub(crate) fn plan(&self, object: usize, node: TreeNodeId) -> Result<WorkloadPlan<'c>, NoPlan> {
        let workload = &self.objects[object];
        let problem =
            |node: TreeNodeId, message: String| InjectProblem::at(self.files, workload, node, &message);
        let failed = |node: TreeNodeId, message: String| NoPlan::Problems(vec![problem(node, message)]);
        let document = &self.files[workload.document.file].documents[workload.document.document];
        let Some(pod) = PodTemplate::read(&document.tree, node) else {
            return Err(failed(node, "the pod template has no containers".to_owned()));
        };
        if pod.annotation(OPT_OUT.0) == Some(OPT_OUT.1) {
            return Err(NoPlan::Skipped(problem(node, format!("`{}` is {}", OPT_OUT.0, OPT_OUT.1))));
        }
        if let Some(owner) = manifest::controller(&document.tree, workload.node) {
            let message = format!("{owner} controls the object and would undo the change, inject that one");
            return Err(NoPlan::Skipped(problem(workload.node, message)));
        }
        let references = service::references(self.files, self.objects, workload, &pod);
        let port = self.application_port(&pod, &references).map_err(|wrong| match wrong {
            PortProblem::Nothing(message) => NoPlan::Skipped(problem(pod.spec, message)),
            PortProblem::Choice(message) => failed(pod.spec, message),
        })?;
        let problems = self.problems(workload, &pod, &port, &references);
        if !problems.is_empty() {
            return Err(NoPlan::Problems(problems));
        }
        let config = self.config(&pod, &port).map_err(|wrong| NoPlan::Problems(vec![wrong]))?;
        if let Some(taken) = config.ports().find(|taken| pod.taken_ports().contains(taken)) {
            return Err(failed(
                pod.spec,
                format!("the configuration uses a port that the pod uses already, {taken}"),
            ));
        }
        let (route, mut remarks) =
            self.route(&pod, &port, &config, references).map_err(|(node, message)| failed(node, message))?;
        remarks.extend(obstacle::remarks(&pod));
        remarks.extend(self.probe_remarks(&pod, &port));
        let config_map = self.config_map_name(object);
        remarks.extend(self.config_remarks(&config, &config_map, port.number));
        remarks.extend(config.ports().find(|port| *port < FIRST_UNPRIVILEGED_PORT).map(|port| {
            format!("the sidecar is not root, and a runtime may not let it listen on {port}, below {FIRST_UNPRIVILEGED_PORT}")
        }));
        let user = obstacle::weir_user(&pod, self.options.is_redirect);
        Ok(WorkloadPlan { object, pod, port, config, config_map, route, user, remarks })
    }

    /// Returns everything that prevents an injection, apart from the configuration.
    fn problems(
        &self,
        workload: &ManifestObject,
        pod: &PodTemplate<'_>,
        port: &ApplicationPort,
        references: &PortReferences,
    ) -> Vec<InjectProblem> {
        let mut found = obstacle::obstacles(pod, self.options.is_redirect);
        found.extend(obstacle::names(pod));
        found.extend(obstacle::shared(pod, port));
        if !self.options.is_redirect {
            let shared = port_edit::shared_host_port(pod, port.number);
            found.extend(shared.map(|node| (node, obstacle::SHARED.to_owned())));
        }
        found.extend(self.tls_problem(pod, port, references).map(|message| (pod.spec, message)));
        if !is_object_name(&workload.name) || workload.name.len() > MAX_WORKLOAD_NAME {
            let name = &workload.name;
            let message = format!(
                "not a name of Kubernetes objects with at most {MAX_WORKLOAD_NAME} letters, which the ConfigMap needs, \"{name}\""
            );
            found.push((workload.node, message));
        }
        let found = found.iter();
        let mut problems: Vec<_> =
            found.map(|(node, message)| InjectProblem::at(self.files, workload, *node, message)).collect();
        problems.extend(self.shared_references(references, port.number));
        problems
    }

    /// Returns what the user should know of probes that arrive at the sidecar.
    fn probe_remarks(&self, pod: &PodTemplate<'_>, port: &ApplicationPort) -> Vec<String> {
        if !self.options.is_redirect {
            return Vec::new();
        }
        let mut found = Vec::new();
        for probe in probes_of(pod, port).filter(|probe| probe.action == ProbeAction::Tcp) {
            found.push(format!(
                "{} of {} connects to the sidecar, and succeeds while the application does not listen: use httpGet, grpc or exec",
                probe.key,
                pod.container_name(probe.container)
            ));
        }
        let is_written =
            self.file_config.is_none() && !matches!(self.options.config, Some(ConfigSource::ConfigMap(_)));
        let paths: BTreeSet<_> =
            probes_of(pod, port).filter_map(|probe| probe.path.as_deref().map(path_only)).collect();
        if !is_written && !paths.is_empty() {
            let paths: Vec<_> = paths.into_iter().collect();
            found.push(format!(
                "probes arrive at the sidecar: the configuration must exempt {} by a rule with `action: allow`",
                paths.join(" and ")
            ));
        }
        found
    }

    /// Returns what the user should know of a configuration that inject has not written.
    fn config_remarks(&self, config: &SidecarConfig, config_map: &str, application: u16) -> Option<String> {
        let listener = config.listeners.first().copied().unwrap_or_default();
        if config.text.is_none() && self.file_config.is_none() {
            return Some(format!(
                "ConfigMap {config_map} must have a listener on {ANY}:{listener}, the upstream 127.0.0.1:{application}, \
                 and admin.probes {ANY}:{}",
                config.probes,
            ));
        }
        config.is_ipv4.then(|| {
            format!(
                "a pod may have addresses of IPv6, set the listener to {ANY}:{listener} and admin.probes to {ANY}:{}",
                config.probes
            )
        })
    }

    fn application_port(
        &self,
        pod: &PodTemplate<'_>,
        references: &PortReferences,
    ) -> Result<ApplicationPort, PortProblem> {
        let service_ports: Vec<_> = references.services.iter().map(|reference| reference.target).collect();
        let configured = self.file_config.and_then(|config| config.upstream);
        let given = match (self.options.port, self.file_config) {
            (Some(port), Some(config)) if config.upstream != Some(port) => {
                let found =
                    configured.map_or_else(|| "no port on loopback".to_owned(), |port| port.to_string());
                return Err(PortProblem::Choice(format!(
                    "--port is {port}, but the upstream of the configuration is {found}"
                )));
            }
            (None, Some(_)) if configured.is_none() => {
                let problem = "the configuration has no upstream on loopback, where the application is";
                return Err(PortProblem::Choice(problem.to_owned()));
            }
            (given, _) => given.or(configured),
        };
        application_port::find(pod, given, &service_ports, self.is_only_workload)
    }

    /// Returns Services and NetworkPolicies that cannot be changed, because they share what must change with other places.
    fn shared_references(&self, references: &PortReferences, port: u16) -> Vec<InjectProblem> {
        if self.options.is_redirect {
            return Vec::new();
        }
        let all =
            references.services.iter().chain(&references.policies).filter(|reference| reference.has(port));
        let problem = |reference: &service::PortReference| {
            let object = &self.objects[reference.object];
            let tree = &self.files[object.document.file].documents[object.document.document].tree;
            let metadata = tree.get(object.node, "metadata").into_iter();
            let shared = metadata.chain([reference.entry]).find(|node| tree.is_shared(*node));
            let value = tree.entry(reference.entry, reference.key).map(|(_, value)| value);
            let shared = shared.or_else(|| value.filter(|value| tree.uses(*value) > 1))?;
            Some(InjectProblem::at(self.files, object, shared, obstacle::SHARED))
        };
        all.filter_map(problem).collect()
    }

    /// The sidecar cannot read what TLS encrypts, unless its configuration has the certificate.
    fn tls_problem(
        &self,
        pod: &PodTemplate<'_>,
        port: &ApplicationPort,
        references: &PortReferences,
    ) -> Option<String> {
        if self.file_config.is_some() || matches!(self.options.config, Some(ConfigSource::ConfigMap(_))) {
            return None;
        }
        let name = port.declared.as_ref().and_then(|declared| declared.name.as_deref());
        let is_named = name.map_or(matches!(port.number, 443 | 8443), |name| name.starts_with("https"));
        let is_probed = probes_of(pod, port).any(|probe| probe.is_https);
        let is_served =
            references.services.iter().any(|reference| reference.target == port.number && reference.is_tls);
        (is_named || is_probed || is_served).then(|| {
            format!(
                "port {} is for TLS, and inject mounts no certificate, set --port to one without TLS, or use the chart",
                port.number
            )
        })
    }

    fn config(&self, pod: &PodTemplate<'_>, port: &ApplicationPort) -> Result<SidecarConfig, InjectProblem> {
        let needs = PodNeeds {
            taken: pod.taken_ports(),
            probe_paths: match self.options.is_redirect {
                true => probes_of(pod, port)
                    .filter_map(|probe| probe.path.clone())
                    .map(|path| path_only(&path))
                    .collect(),
                false => BTreeSet::new(),
            },
        };
        match (&self.options.config, self.file_config) {
            (Some(ConfigSource::ConfigMap(_)), None) => Ok(SidecarConfig::of_unknown(port.number)),
            (_, Some(config)) => Ok(config.clone()),
            (Some(ConfigSource::Limit(limit)), None) => {
                SidecarConfig::for_limit(Some(limit), port.number, &needs)
            }
            (Some(ConfigSource::File { .. }) | None, None) => {
                SidecarConfig::for_limit(None, port.number, &needs)
            }
        }
    }

    fn route(
        &self,
        pod: &PodTemplate<'_>,
        port: &ApplicationPort,
        config: &SidecarConfig,
        references: PortReferences,
    ) -> Result<(TrafficRoute, Vec<String>), (TreeNodeId, String)> {
        if self.options.is_redirect {
            return Ok((TrafficRoute::Redirect, Vec::new()));
        }
        let mut remarks = vec![format!(
            "clients that connect to port {} of a pod bypass the sidecar, unless a NetworkPolicy prevents it",
            port.number
        )];
        let leads_here = |reference: &service::PortReference| reference.has(port.number);
        let references = PortReferences {
            services: references.services.into_iter().filter(leads_here).collect(),
            policies: references.policies.into_iter().filter(leads_here).collect(),
            headless: references.headless,
            foreign: references.foreign,
        };
        let listener = config.listeners.first().copied().unwrap_or_default();
        remarks.extend(references.foreign.iter().map(|title| {
            format!("{title} is not read: where it admits port {}, it must admit {listener}", port.number)
        }));
        if references.policies.iter().any(|policy| policy.kind == ReferenceKind::Ingress) {
            remarks.push(
                "the NetworkPolicy must admit the port for probes and metrics, too, if Prometheus reads it"
                    .to_owned(),
            );
        }
        if !references.services.is_empty() {
            remarks.extend(references.headless.iter().map(|name| {
                format!("Service {name} is headless, its clients connect to the pods directly, use --redirect to limit them")
            }));
            return Ok((TrafficRoute::References(references), remarks));
        }
        match port.declared.as_ref().and_then(|declared| declared.name.clone()) {
            Some(name) => {
                if let Some(problem) = port_edit::name_problem(pod, port, &name) {
                    return Err(problem);
                }
                remarks.push(format!(
                    "the port name {name} is that of the sidecar now, which a Service finds in Kubernetes 1.32 and later; \
                     a Service with the targetPort {} must use the name, or be part of the input",
                    port.number
                ));
                Ok((TrafficRoute::Name(name, references), remarks))
            }
            None if has_host_port(pod, port) => Ok((TrafficRoute::References(references), remarks)),
            None => Err((
                port.declared.as_ref().map_or(pod.spec, |declared| declared.node),
                format!(
                    "nothing leads to the sidecar: port {} has no name, and no Service of the input selects the pods; \
                     add the Service to the input, or use --redirect",
                    port.number
                ),
            )),
        }
    }

    /// Returns the name of the ConfigMap: that of the workload, with its kind unless it is a Deployment. So workloads of the same
    /// name have each its own, also if they are injected one by one.
    fn config_map_name(&self, object: usize) -> String {
        if let Some(ConfigSource::ConfigMap(name)) = &self.options.config {
            return name.clone();
        }
        let workload = &self.objects[object];
        match workload.kind.as_str() {
            "Deployment" => format!("{}-weir", workload.name),
            kind => format!("{}-{}-weir", workload.name, kind.to_lowercase()),
        }
    }
}

/// Returns the probes of the application's port.
pub(crate) fn probes_of<'p>(
    pod: &'p PodTemplate<'_>,
    port: &'p ApplicationPort,
) -> impl Iterator<Item = &'p PodProbe> {
    pod.probes.iter().filter(|probe| probe.number == Some(port.number))
}

fn has_host_port(pod: &PodTemplate<'_>, port: &ApplicationPort) -> bool {
    pod.declarations(port.number).any(|declared| declared.host_port.is_some())
}

/// Returns a path without its query, which rules do not match.
fn path_only(path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

/// Whether a text is a DNS subdomain, as names of objects are.
pub(crate) fn is_object_name(name: &str) -> bool {
    let is_allowed =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-.".contains(letter);
    !name.is_empty() && name.chars().all(is_allowed)
}
