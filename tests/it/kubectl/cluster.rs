//! A cluster that a script named `kubectl` plays: objects are files, and forwarded ports are those of the test.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::wait;

/// Records its arguments, prints objects, and runs what the test has written for a pod.
const KUBECTL: &str = r#"#!/bin/sh
here=$(dirname "$0")/..
printf '%s\n' "$*" >>"$here/calls"
for word in "$@"; do
    case $word in
        get | port-forward) verb=$word ;;
        -* | :*) ;;
        *) target=$word ;;
    esac
done
file=$here/$verb/$(echo "$target" | tr / _)
if [ ! -e "$file" ]; then
    echo "Error from server (NotFound): $target not found" >&2
    exit 1
fi
case $verb in
    get) cat "$file" ;;
    port-forward)
        echo $$ >>"$here/forwards"
        . "$file"
        ;;
esac
"#;

/// What a command has printed.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// The directory of the script, of the plugin, and of their files.
#[derive(Debug)]
pub(super) struct Cluster {
    directory: TempDir,
}

impl Cluster {
    /// Returns a cluster with the Deployment `shop` in the namespace `web`, without pods.
    pub(super) fn with_deployment() -> Self {
        let cluster = Self { directory: tempfile::tempdir().unwrap() };
        for name in ["bin", "get", "port-forward"] {
            fs::create_dir(cluster.path(name)).unwrap();
        }
        let script = cluster.path("bin/kubectl");
        fs::write(&script, KUBECTL).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        symlink(env!("CARGO_BIN_EXE_weir"), cluster.path("bin/kubectl-weir")).unwrap();
        cluster.add_object(
            "deploy_shop",
            &json!({
                "kind": "Deployment", "metadata": { "name": "shop", "namespace": "web" },
                "spec": { "selector": { "matchLabels": { "app": "shop" } } },
            }),
        );
        cluster.add_object("pods", &json!({ "kind": "List", "items": [] }));
        cluster
    }

    /// Adds a running pod of the Deployment. With a port, it has Weir, whose admin port is forwarded from there.
    pub(super) fn add_pod(&self, name: &str, port: Option<u16>) {
        let weir = json!([{ "name": "weir", "args": ["run"],
            "volumeMounts": [{ "name": "weir-config", "mountPath": "/etc/weir" }] }]);
        let volume = if self.path("get/configmap_shop-weir").exists() {
            json!({ "name": "weir-config", "configMap": { "name": "shop-weir" } })
        } else {
            json!({ "name": "weir-config", "emptyDir": {} })
        };
        let pod = json!({
            "kind": "Pod", "metadata": { "name": name, "namespace": "web" },
            "spec": {
                "containers": [{ "name": "shop" }],
                "initContainers": if port.is_some() { weir } else { json!([]) },
                "volumes": [volume],
            },
            "status": { "phase": "Running" },
        });
        self.add_object(&format!("pod_{name}"), &pod);
        self.change_pods(|pods| pods.push(pod.clone()));
        if let Some(port) = port {
            self.set_forward(
                name,
                &format!("echo 'Forwarding from 127.0.0.1:{port} -> 9901'\nexec sleep 1000"),
            );
        }
    }

    /// Changes the list of pods.
    pub(super) fn change_pods(&self, change: impl FnOnce(&mut Vec<Value>)) {
        let file = self.path("get/pods");
        let mut list: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        change(list["items"].as_array_mut().unwrap());
        self.add_object("pods", &list);
    }

    /// Gives all pods a ConfigMap with this configuration.
    pub(super) fn add_config_map(&self, yaml: &str) {
        self.add_object(
            "configmap_shop-weir",
            &json!({ "kind": "ConfigMap", "data": { "weir.yaml": yaml } }),
        );
        self.change_pods(|pods| {
            for pod in pods {
                pod["spec"]["volumes"] =
                    json!([{ "name": "weir-config", "configMap": { "name": "shop-weir" } }]);
            }
        });
    }

    /// Adds what `kubectl get` prints.
    pub(super) fn add_object(&self, name: &str, object: &Value) {
        fs::write(self.path("get").join(name), object.to_string()).unwrap();
    }

    /// Sets the commands of a shell that `kubectl port-forward` runs for a pod.
    pub(super) fn set_forward(&self, pod: &str, commands: &str) {
        fs::write(self.path("port-forward").join(format!("pod_{pod}")), commands).unwrap();
    }

    /// Removes kubectl.
    pub(super) fn remove_kubectl(&self) {
        fs::remove_file(self.path("bin/kubectl")).unwrap();
    }

    /// Returns a command of the plugin.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path("bin/kubectl-weir"));
        let bin = self.path("bin");
        command
            .args(arguments)
            .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
            .env_remove("WEIR_ADMIN_TOKEN")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the plugin until it exits.
    pub(super) fn run(&self, arguments: &[&str]) -> Outcome {
        self.run_command(&mut self.command(arguments))
    }

    pub(super) fn run_command(&self, command: &mut Command) -> Outcome {
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Outcome { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Returns the arguments of each call of kubectl.
    pub(super) fn calls(&self) -> Vec<String> {
        self.lines("calls")
    }

    /// Returns the processes that have forwarded a port.
    pub(super) fn forwards(&self) -> Vec<String> {
        self.lines("forwards")
    }

    /// Asserts that so many ports were forwarded, and that no such process runs any more.
    pub(super) fn assert_no_forward_is_left(&self, count: usize) {
        let forwards = self.forwards();
        assert_eq!(forwards.len(), count);
        for pid in forwards {
            let gone = wait::within(wait::DEADLINE, || (!is_running(&pid)).then_some(()));
            assert!(gone.is_some(), "process {pid} of kubectl still runs");
        }
    }

    /// Returns the directory of a file of the test.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// Whether a process runs. One that is still to be reaped does not.
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"))
}
