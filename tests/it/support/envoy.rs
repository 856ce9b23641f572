//! A real Envoy as a client of the service under test.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::client::{Request, Response, fetch};
use super::wait;

/// A running Envoy. It is killed when dropped; if the test failed, its log is printed.
#[derive(Debug)]
pub(crate) struct Envoy {
    child: Child,
    directory: TempDir,
    admin: SocketAddr,
    listener: SocketAddr,
}

impl Envoy {
    /// Starts Envoy with these filters before the router, these routes, and these clusters in addition to `upstream`.
    pub(crate) fn start(filters: &[Value], host: &Value, upstream: SocketAddr, clusters: &[Value]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("envoy.json");
        fs::write(&file, bootstrap(filters, host, upstream, clusters).to_string()).unwrap();
        let at = directory.path().join("admin");
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let child = Command::new(binary())
            .arg("-c")
            .arg(&file)
            .arg("--admin-address-path")
            .arg(&at)
            .args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let unset = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut envoy = Self { child, directory, admin: unset, listener: unset };
        envoy.admin = wait::until("Envoy's admin port", || {
            envoy.assert_running();
            fs::read_to_string(&at).ok()?.trim().parse().ok()
        });
        envoy.listener = wait::until("Envoy's listener", || {
            let listeners = fetch(envoy.admin, &Request::get("/listeners")).body.text();
            let (_, address) = listeners.lines().next()?.split_once("::")?;
            (fetch(envoy.admin, &Request::get("/ready")).status == 200).then(|| address.parse().ok())?
        });
        envoy
    }

    /// Sends one request through Envoy.
    pub(crate) fn fetch(&self, request: &Request) -> Response {
        fetch(self.listener, request)
    }

    /// Sends one GET through Envoy.
    pub(crate) fn get(&self, path: &str) -> Response {
        self.fetch(&Request::get(path))
    }

    /// Returns one of Envoy's statistics; 0 if it does not exist.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let stats = fetch(self.admin, &Request::get("/stats")).body.text();
        let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.map_or(0, |count| count.parse().unwrap())
    }

    fn assert_running(&self) {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        let gone = stat.is_empty() || stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z"));
        assert!(!gone, "Envoy exited before it was ready: {}", self.log());
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Envoy {
    #[expect(clippy::print_stderr, reason = "the harness shows it only where a test failed")]
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of envoy\n{}\n---", self.log());
        }
    }
}

/// Returns the path of the Envoy that `tests/run` has installed.
fn binary() -> PathBuf {
    if let Some(path) = option_env!("WEIR_ENVOY") {
        return path.into();
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let versions = fs::read_dir(target.join("venv/lib")).into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("site-packages/envoy/_bin/envoy"));
    found
        .into_iter()
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("no Envoy in {}: `bash tests/run` installs it", target.display()))
}

/// Returns a cluster with one endpoint that uses HTTP/2.
pub(crate) fn grpc_cluster(name: &str, address: SocketAddr) -> Value {
    let mut cluster = cluster(name, address);
    cluster["typed_extension_protocol_options"] = json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": { "http2_protocol_options": {} },
        }
    });
    cluster
}

/// Returns a cluster with one endpoint that uses HTTP/1.1.
pub(crate) fn cluster(name: &str, address: SocketAddr) -> Value {
    let socket = json!({ "address": address.ip().to_string(), "port_value": address.port() });
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "0.5s",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": { "socket_address": socket } } }] }],
        },
    })
}

fn bootstrap(filters: &[Value], host: &Value, upstream: SocketAddr, clusters: &[Value]) -> Value {
    let anywhere = json!({ "socket_address": { "address": "127.0.0.1", "port_value": 0 } });
    let router = json!({
        "name": "envoy.filters.http.router",
        "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" },
    });
    let filters: Vec<Value> = filters.iter().cloned().chain([router]).collect();
    let clusters: Vec<Value> = clusters.iter().cloned().chain([cluster("upstream", upstream)]).collect();
    json!({
        "node": { "id": "test", "cluster": "edge" },
        "admin": { "address": anywhere },
        "static_resources": {
            "listeners": [{
                "name": "ingress",
                "address": anywhere,
                "filter_chains": [{ "filters": [{
                    "name": "envoy.filters.network.http_connection_manager",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.network.\
                                  http_connection_manager.v3.HttpConnectionManager",
                        "stat_prefix": "ingress",
                        "use_remote_address": true,
                        "xff_num_trusted_hops": 1,
                        "http_filters": filters,
                        "route_config": { "name": "routes", "virtual_hosts": [host] },
                    },
                }] }],
            }],
            "clusters": clusters,
        },
    })
}
