//! The admin port of a pod: a port that its container names, or that of the configuration in its ConfigMap.

use std::path::{Path, PathBuf};

use super::object::{ConfigMapSource, PodContainer, Volume};
use crate::cli::DEFAULT_CONFIG;
use weir_yaml::{Dialect, Node, NodeValue, parse};

/// Port of a configuration that sets none.
pub(super) const DEFAULT_ADMIN_PORT: u16 = 9901;

/// Name of a container's port that is the admin port.
const PORT_NAME: &str = "admin";

/// Where the admin port of a container is stated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum PortSource {
    /// In the pod.
    Port(u16),
    /// In the configuration under this key of a ConfigMap.
    ConfigMap {
        /// Name of the ConfigMap.
        name: String,
        /// Its key.
        key: String,
    },
    /// Nowhere that can be read.
    Unknown,
}

/// Returns where the admin port of a container is stated.
pub(super) fn port_source(container: &PodContainer, volumes: &[Volume]) -> PortSource {
    if let Some(port) = container.ports.iter().find(|port| port.name == PORT_NAME) {
        return PortSource::Port(port.container_port);
    }
    let file = config_file(container);
    // Of nested mounts, the innermost has the file.
    let mounts = container.volume_mounts.iter().filter(|mount| file.starts_with(&mount.mount_path));
    let Some(mount) = mounts.max_by_key(|mount| mount.mount_path.len()) else { return PortSource::Unknown };
    let inside = file.strip_prefix(&mount.mount_path).unwrap_or(&file);
    let path = Path::new(&mount.sub_path).join(inside);
    let volume = volumes.iter().find(|volume| volume.name == mount.name);
    let sources = volume.into_iter().flat_map(|volume| {
        let projected = volume.projected.iter().flat_map(|projected| &projected.sources);
        volume.config_map.iter().chain(projected.filter_map(|source| source.config_map.as_ref()))
    });
    let mut found = sources.filter_map(|source| {
        Some(PortSource::ConfigMap { name: source.name.clone(), key: key_of(source, &path)? })
    });
    found.next().unwrap_or(PortSource::Unknown)
}

/// Returns the configuration file of a container's command line.
fn config_file(container: &PodContainer) -> PathBuf {
    let mut words = container.command.iter().chain(&container.args).map(String::as_str);
    while let Some(word) = words.next() {
        let value = match word {
            "-c" | "--config" => words.next(),
            _ => word.strip_prefix("--config=").or_else(|| word.strip_prefix("-c")),
        };
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            return PathBuf::from(value.strip_prefix('=').unwrap_or(value));
        }
    }
    PathBuf::from(DEFAULT_CONFIG)
}

/// Returns the key of a ConfigMap that is this file of the volume.
fn key_of(source: &ConfigMapSource, path: &Path) -> Option<String> {
    // A mounted file, by `subPath`, leaves an empty rest.
    let path = path.components().as_path();
    if source.items.is_empty() {
        return path.to_str().filter(|key| !key.is_empty()).map(str::to_owned);
    }
    source.items.iter().find(|item| Path::new(&item.path) == path).map(|item| item.key.clone())
}

/// Returns the admin port of a configuration.
///
/// # Errors
/// Returns why it cannot be read.
pub(super) fn port_in(text: &str) -> Result<u16, String> {
    let unreadable = |line: usize, problem: String| format!("not readable: line {line}: {problem}");
    let parsed = parse(text, Dialect::Core).map_err(|errors| {
        errors
            .first()
            .map_or_else(String::new, |error| unreadable(error.position.line, error.kind.to_string()))
    })?;
    let Some(admin) = parsed.as_ref().and_then(|config| value_of(config, "admin")) else {
        return Ok(DEFAULT_ADMIN_PORT);
    };
    let address = match &admin.value {
        NodeValue::Map(_) => value_of(admin, "address"),
        _ => Some(admin),
    };
    let Some(address) = address else { return Ok(DEFAULT_ADMIN_PORT) };
    let written = address.scalar_text().map(|text| &**text).unwrap_or_default();
    let port = written.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
    port.filter(|port| *port > 0).ok_or_else(|| {
        unreadable(
            address.position.line,
            format!("admin.address has no port that is a number, got `{written}`"),
        )
    })
}

fn value_of<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    match &node.value {
        NodeValue::Map(map) => map.get_key_value(key).map(|(_, value)| value),
        NodeValue::Scalar(_) | NodeValue::List(_) | NodeValue::Tagged(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn source(container: Value, volumes: Value) -> PortSource {
        let container: PodContainer = serde_json::from_value(container).unwrap();
        let volumes: Vec<Volume> = serde_json::from_value(volumes).unwrap();
        port_source(&container, &volumes)
    }

    fn config_map(name: &str, key: &str) -> PortSource {
        PortSource::ConfigMap { name: name.to_owned(), key: key.to_owned() }
    }

    #[test]
    fn port_is_that_of_the_container_or_of_its_configuration() {
        let mount = json!([{ "name": "weir-config", "mountPath": "/etc/weir" }]);
        let volume = json!([{ "name": "weir-config", "configMap": { "name": "shop-weir" } }]);
        let named = json!({ "ports": [{ "name": "admin", "containerPort": 9910 }], "volumeMounts": mount });
        assert_eq!(source(named, volume.clone()), PortSource::Port(9910));
        let default = json!({ "args": ["run"], "volumeMounts": mount });
        assert_eq!(source(default.clone(), volume.clone()), config_map("shop-weir", "weir.yaml"));
        for args in [json!(["run", "-c", "/etc/weir/a.yaml"]), json!(["run", "--config=/etc/weir/a.yaml"])] {
            let other = json!({ "args": args, "volumeMounts": mount });
            assert_eq!(source(other, volume.clone()), config_map("shop-weir", "a.yaml"));
        }
        let items = json!([{ "key": "rules", "path": "weir.yaml" }]);
        let renamed = json!([{ "name": "weir-config", "configMap": { "name": "m", "items": items } }]);
        assert_eq!(source(default.clone(), renamed), config_map("m", "rules"));
        let projected = json!([{ "name": "weir-config", "projected": { "sources": [{ "secret": { "name": "s" } }, { "configMap": { "name": "p" } }] } }]);
        assert_eq!(source(default, projected), config_map("p", "weir.yaml"));
    }

    #[test]
    fn mounted_file_is_a_key_by_its_sub_path() {
        let mounts = json!([{ "name": "c", "mountPath": "/etc/weir/weir.yaml", "subPath": "shop.yaml" }]);
        let volumes = json!([{ "name": "c", "configMap": { "name": "m" } }]);
        assert_eq!(source(json!({ "volumeMounts": mounts }), volumes), config_map("m", "shop.yaml"));
    }

    #[test]
    fn other_sources_are_unknown() {
        let mounts = json!([{ "name": "c", "mountPath": "/etc/weir" }]);
        assert_eq!(source(json!({}), json!([])), PortSource::Unknown);
        let empty = json!([{ "name": "c", "emptyDir": {} }]);
        assert_eq!(source(json!({ "volumeMounts": mounts }), empty), PortSource::Unknown);
    }

    #[test]
    fn configurations_state_the_port_in_two_forms() {
        for (text, expected) in [
            ("admin: 127.0.0.1:9911\n", 9911),
            ("admin: { address: \"[::1]:9912\", probes: 0.0.0.0:9902 }\n", 9912),
            ("admin: { probes: 0.0.0.0:9902 }\n", DEFAULT_ADMIN_PORT),
            ("rules: []\n", DEFAULT_ADMIN_PORT),
            ("", DEFAULT_ADMIN_PORT),
        ] {
            assert_eq!(port_in(text), Ok(expected), "{text}");
        }
        for (text, expected) in [
            ("admin: \"${ADMIN}\"\n", "line 1: admin.address has no port"),
            ("admin: 127.0.0.1:0\n", "line 1: admin.address has no port"),
            ("a: 1\nb: [\n", "not readable: line"),
        ] {
            assert!(port_in(text).unwrap_err().contains(expected), "{text}");
        }
    }
}
