//! Kubernetes objects, as far as `kubectl weir` reads them.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A workload, a Service, or a pod that was asked for by its name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Object {
    pub(super) kind: String,
    pub(super) metadata: Metadata,
    pub(super) spec: serde_json::Value,
}

/// A list of pods.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PodList {
    pub(super) items: Vec<Pod>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    pub(super) metadata: Metadata,
    pub(super) spec: PodSpec,
    pub(super) status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) deletion_timestamp: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodSpec {
    pub(super) containers: Vec<PodContainer>,
    pub(super) init_containers: Vec<PodContainer>,
    pub(super) volumes: Vec<Volume>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PodStatus {
    pub(super) phase: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodContainer {
    pub(super) name: String,
    pub(super) command: Vec<String>,
    pub(super) args: Vec<String>,
    pub(super) ports: Vec<ContainerPort>,
    pub(super) volume_mounts: Vec<VolumeMount>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ContainerPort {
    pub(super) name: String,
    pub(super) container_port: u16,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct VolumeMount {
    pub(super) name: String,
    pub(super) mount_path: String,
    pub(super) sub_path: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) config_map: Option<ConfigMapSource>,
    pub(super) projected: Option<ProjectedVolume>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ProjectedVolume {
    pub(super) sources: Vec<ProjectedSource>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ProjectedSource {
    pub(super) config_map: Option<ConfigMapSource>,
}

/// A ConfigMap in a volume; without items, each of its keys is a file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ConfigMapSource {
    pub(super) name: String,
    pub(super) items: Vec<KeyToPath>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeyToPath {
    pub(super) key: String,
    pub(super) path: String,
}

/// A ConfigMap.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ConfigMap {
    pub(super) data: BTreeMap<String, String>,
}
