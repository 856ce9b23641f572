//! Finds the pods of a target: those that run Weir, with the admin port of each, and why others are left out.

use std::collections::HashMap;

use super::admin_port::{DEFAULT_ADMIN_PORT, PortSource, port_in, port_source};
use super::object::{ConfigMap, Metadata, Object, Pod, PodContainer, PodList};
use super::process::{Kubectl, KubectlError};
use super::target::selector_of;
use crate::cli::PodArgs;

/// Maximum number of pods without Weir that are named.
const MAX_NAMED: usize = 5;

/// Why there are no pods to work with.
#[derive(Debug, thiserror::Error)]
pub(super) enum PodsError {
    /// kubectl has not done what it should.
    #[error(transparent)]
    Kubectl(#[from] KubectlError),
    /// Anything else, as a sentence.
    #[error("{0}")]
    Selection(String),
}

/// A pod that runs Weir.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WeirPod {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) admin_port: u16,
}

/// The pods of a target.
#[derive(Debug)]
pub(super) struct FoundPods {
    /// What selects them, for the user.
    pub(super) title: String,
    /// At least one.
    pub(super) pods: Vec<WeirPod>,
    /// What the user should know, for standard error.
    pub(super) notes: Vec<String>,
}

/// Finds the pods of `target`, or of the selector without one.
pub(super) async fn find_pods(
    kubectl: &Kubectl,
    target: Option<&str>,
    args: &PodArgs,
) -> Result<FoundPods, PodsError> {
    let (title, pods) = list_pods(kubectl, target, args).await?;
    let (mut running, mut left_out) = (Vec::new(), Vec::new());
    for pod in pods {
        match weir_container(&pod, &args.container) {
            Ok(_) => running.push(pod),
            Err(reason) => left_out.push(format!("{}: {reason}", pod.metadata.name)),
        }
    }
    let skipped = named(&left_out);
    if running.is_empty() {
        let problem = match left_out.len() {
            0 => format!("{title}: there are no such pods"),
            _ => format!("{title}: no pod runs Weir: {}", skipped.join("; ")),
        };
        return Err(PodsError::Selection(problem));
    }
    if running.len() > args.max_pods {
        let count = running.len();
        return Err(PodsError::Selection(format!(
            "{title}: {count} pods run Weir, at most {} are allowed: select fewer, or use --max-pods {count}",
            args.max_pods
        )));
    }
    let mut notes: Vec<String> = skipped.into_iter().map(|pod| format!("skipped: {pod}")).collect();
    let pods = with_ports(kubectl, running, args, &mut notes).await?;
    Ok(FoundPods { title, pods, notes })
}

/// Returns what was looked for, and the pods that were found.
async fn list_pods(
    kubectl: &Kubectl,
    target: Option<&str>,
    args: &PodArgs,
) -> Result<(String, Vec<Pod>), PodsError> {
    let namespace = args.namespace.iter().map(|namespace| format!("--namespace={namespace}"));
    let Some(target) = target else {
        let labels = args.selector.as_deref().unwrap_or_default();
        let mut arguments = vec!["pods".to_owned(), format!("--selector={labels}")];
        arguments.extend(if args.all_namespaces {
            vec!["--all-namespaces".to_owned()]
        } else {
            namespace.collect()
        });
        let place = match (&args.namespace, args.all_namespaces) {
            (_, true) => " in all namespaces".to_owned(),
            (Some(namespace), false) => format!(" in namespace {namespace}"),
            (None, false) => String::new(),
        };
        let list: PodList = kubectl.get(&arguments).await?;
        return Ok((format!("pods with the labels {labels}{place}"), list.items));
    };
    let mut arguments = vec![target.to_owned()];
    arguments.extend(namespace);
    let found: serde_json::Value = kubectl.get(&arguments).await?;
    let unexpected = |error| KubectlError::Json(format!("kubectl get {target}"), error);
    let object: Object = serde_json::from_value(found.clone()).map_err(unexpected)?;
    let Metadata { namespace, .. } = &object.metadata;
    let title = format!("{target} in namespace {namespace}");
    if object.kind == "Pod" {
        return Ok((title, vec![serde_json::from_value(found).map_err(unexpected)?]));
    }
    let selector = selector_of(target, &object).map_err(PodsError::Selection)?;
    let arguments = ["pods".to_owned(), format!("--selector={selector}"), format!("--namespace={namespace}")];
    let list: PodList = kubectl.get(&arguments).await?;
    Ok((format!("{title} (labels {selector})"), list.items))
}

/// Returns the container of Weir in a pod.
///
/// # Errors
/// Returns why the pod does not run it.
fn weir_container<'p>(pod: &'p Pod, name: &str) -> Result<&'p PodContainer, String> {
    // A native sidecar is an init container.
    let mut containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let container = containers.find(|container| container.name == name);
    let container = container.ok_or_else(|| format!("it has no container `{name}`"))?;
    if pod.metadata.deletion_timestamp.is_some() {
        return Err("it is being deleted".to_owned());
    }
    match pod.status.phase.as_str() {
        "Running" => Ok(container),
        "" => Err("it is not running".to_owned()),
        phase => Err(format!("it is not running ({phase})")),
    }
}

/// Returns the beginning of a list, and how many more there are.
fn named(pods: &[String]) -> Vec<String> {
    let mut shown: Vec<String> = pods.iter().take(MAX_NAMED).cloned().collect();
    let more = pods.len().saturating_sub(MAX_NAMED);
    if more > 0 {
        shown.push(format!("{more} more"));
    }
    shown
}

/// Finds the admin port of each pod. A ConfigMap is read once, however many pods mount it.
async fn with_ports(
    kubectl: &Kubectl,
    pods: Vec<Pod>,
    args: &PodArgs,
    notes: &mut Vec<String>,
) -> Result<Vec<WeirPod>, PodsError> {
    let mut known: HashMap<(String, PortSource), u16> = HashMap::new();
    let mut found = Vec::with_capacity(pods.len());
    for pod in pods {
        let Metadata { name, namespace, .. } = &pod.metadata;
        let container = weir_container(&pod, &args.container).map_err(PodsError::Selection)?;
        let admin_port = match (args.admin_port, port_source(container, &pod.spec.volumes)) {
            (Some(port), _) | (None, PortSource::Port(port)) => port,
            (None, source) => {
                let key = (namespace.clone(), source.clone());
                match known.get(&key) {
                    Some(port) => *port,
                    None => {
                        let port = configured_port(kubectl, namespace, &source, notes).await?;
                        known.insert(key, port);
                        port
                    }
                }
            }
        };
        found.push(WeirPod { namespace: namespace.clone(), name: name.clone(), admin_port });
    }
    Ok(found)
}

/// Returns the admin port of a configuration, or the default with a note if it cannot be read.
async fn configured_port(
    kubectl: &Kubectl,
    namespace: &str,
    source: &PortSource,
    notes: &mut Vec<String>,
) -> Result<u16, PodsError> {
    let PortSource::ConfigMap { name, key } = source else { return Ok(DEFAULT_ADMIN_PORT) };
    let arguments = [format!("configmap/{name}"), format!("--namespace={namespace}")];
    let problem = match kubectl.get::<ConfigMap>(&arguments).await {
        Ok(map) => match map.data.get(key).map(|text| port_in(text)) {
            Some(Ok(port)) => return Ok(port),
            Some(Err(problem)) => problem,
            None => format!("it has no key {key}"),
        },
        Err(error @ (KubectlError::Missing | KubectlError::Start(_))) => return Err(error.into()),
        // The message of kubectl is on standard error already.
        Err(error) => error.to_string(),
    };
    notes.push(format!(
        "configmap/{name}: {problem}; the admin port is taken to be {DEFAULT_ADMIN_PORT}, --admin-port sets another"
    ));
    Ok(DEFAULT_ADMIN_PORT)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn pods_that_do_not_run_weir_have_a_reason() {
        let spec = json!({ "containers": [{ "name": "shop" }], "initContainers": [{ "name": "weir" }] });
        let running = json!({ "phase": "Running" });
        for (value, expected) in [
            (json!({ "spec": spec, "status": running }), None),
            (
                json!({ "spec": { "containers": [{ "name": "shop" }] }, "status": running }),
                Some("no container `weir`"),
            ),
            (json!({ "spec": spec, "status": { "phase": "Pending" } }), Some("not running (Pending)")),
            (
                json!({ "metadata": { "deletionTimestamp": "2026-11-29T21:00:00Z" }, "spec": spec, "status": running }),
                Some("being deleted"),
            ),
        ] {
            let pod = pod(value);
            match (weir_container(&pod, "weir"), expected) {
                (Ok(container), None) => assert_eq!(container.name, "weir"),
                (Err(reason), Some(expected)) => assert!(reason.contains(expected), "{reason}"),
                (other, expected) => panic!("{other:?} instead of {expected:?}"),
            }
        }
    }

    #[test]
    fn only_some_of_many_pods_are_named() {
        let pods: Vec<String> = (0..MAX_NAMED + 3).map(|index| format!("shop-{index}")).collect();
        let shown = named(&pods);
        assert_eq!((shown.len(), shown.last().unwrap().as_str()), (MAX_NAMED + 1, "3 more"));
    }
}
