//! Several instances of the service share limits through a real Redis.

use super::client::RlsClient;
use super::{Code, descriptor};
use crate::servers::Server;
use crate::support::{Weir, config, wait};

const RULES: &str = "\
domain: d
descriptors:
  - { key: k, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: other, rate_limit: { unit: year, requests_per_unit: 100 } }
  - { key: fast, rate_limit: { unit: second, requests_per_unit: 100 } }
";

/// Instances of the service without a proxy, configured by environment variables.
#[derive(Debug)]
struct RlsFleet {
    instances: Vec<Weir>,
    clients: Vec<RlsClient>,
    _root: tempfile::TempDir,
}

impl RlsFleet {
    fn start(store: &Server, more: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("config")).unwrap();
        std::fs::write(root.path().join("config/d.yaml"), RULES).unwrap();
        let url = store.url();
        let variables = [
            ("RUNTIME_ROOT", root.path().to_str().unwrap()),
            ("GRPC_HOST", "127.0.0.1"),
            ("GRPC_PORT", "0"),
            ("HOST", "127.0.0.1"),
            ("PORT", "0"),
            ("DEBUG_PORT", "0"),
            ("USE_STATSD", "false"),
            ("REDIS_URL", &url),
            ("WEIR_ADMIN_ADDRESS", "127.0.0.1:0"),
            ("WEIR_SHARED_WAIT", "1s"),
        ];
        let variables: Vec<_> = variables.into_iter().chain(more.iter().copied()).collect();
        let instances: Vec<_> = (0..2).map(|_| Weir::start_rls(&variables)).collect();
        for weir in &instances {
            wait::until_true("the fleet", || weir.metric("weir_store_instances", &[]) == 2.0);
        }
        let clients = instances.iter().map(|weir| RlsClient::connect(weir.rls_address("grpc"))).collect();
        Self { instances, clients, _root: root }
    }

    /// Returns how many of `requests` requests are admitted, sent to the instances in turn.
    fn count_admitted(&self, entries: &str, requests: usize) -> usize {
        let codes = (0..requests).map(|turn| self.clients[turn % 2].check("d", entries).overall_code());
        codes.filter(|code| *code == Code::Ok).count()
    }
}

#[test]
fn instances_share_the_limits_of_a_file() {
    let store = Server::start();
    let fleet = RlsFleet::start(&store, &[("WEIR_SHARED", "exact")]);
    assert_eq!(fleet.count_admitted("k=a", 30), 10);
    let first = fleet.clients[0].check("d", "other=x");
    let second = fleet.clients[1].check("d", "other=x");
    let left = [&first, &second].map(|answer| answer.statuses[0].limit_remaining);
    assert_eq!(left, [99, 98], "remaining units of the fleet");
    let both = vec![descriptor("k=b"), descriptor("other=x")];
    let answer = fleet.clients[0].check_all("d", both);
    assert_eq!((answer.statuses[0].limit_remaining, answer.statuses[1].limit_remaining), (9, 97));
    let rejected = fleet.clients[1].check("d", "k=a");
    assert_eq!((rejected.overall_code(), rejected.statuses[0].limit_remaining), (Code::OverLimit, 0));
}

#[test]
fn leases_never_exceed_the_limit() {
    let store = Server::start();
    let fleet = RlsFleet::start(&store, &[("WEIR_ON_STORE_LOSS", "deny")]);
    let passed = fleet.count_admitted("other=y", 300);
    // On a busy machine, a response of the store may come too late for its request.
    let late: f64 = fleet.instances.iter().map(Weir::unanswered).sum();
    assert!(passed <= 100 && passed as f64 + late >= 80.0, "{passed}, {late} too late");
}

#[test]
fn on_store_loss_applies_to_files() {
    for (loss, expected) in [("split", 10), ("local", 20), ("deny", 0), ("allow", 60)] {
        let mut store = Server::start();
        let fleet = RlsFleet::start(&store, &[("WEIR_ON_STORE_LOSS", loss)]);
        store.kill();
        wait::until_true("the loss", || {
            fleet.instances.iter().all(|weir| weir.metric("weir_store_up", &[]) == 0.0)
        });
        assert_eq!(fleet.count_admitted("k=a", 60), expected, "{loss}");
    }
}

#[test]
fn parts_of_short_limits_are_spent_without_the_store() {
    let mut store = Server::start();
    let fleet = RlsFleet::start(&store, &[("WEIR_ON_STORE_LOSS", "strict_split")]);
    for weir in &fleet.instances {
        wait::until_true("a part", || weir.metric("weir_store_part", &[]) > 0.1);
    }
    store.kill();
    for (weir, client) in fleet.instances.iter().zip(&fleet.clients) {
        wait::until_true("the loss", || weir.metric("weir_store_up", &[]) == 0.0);
        wait::until_true("a part", || client.check("d", "fast=x").overall_code() == Code::Ok);
        assert_eq!(client.check("d", "k=a").overall_code(), Code::OverLimit, "a year has no parts");
    }
}

#[test]
fn native_rule_is_shared_by_its_scope() {
    let store = Server::start();
    let rules = format!(
        "store: {{ redis: \"{}\", timeout: 2s }}\nrls: {{ address: 127.0.0.1:0 }}\nrules:\n  \
         - {{ name: a, domain: edge, key: {{ descriptor: k }}, limit: 10/d, scope: {{ shared: exact, wait: 1s }} }}\n",
        store.url()
    );
    let fleet = [Weir::start(&config("echo", &rules)), Weir::start(&config("echo", &rules))];
    for weir in &fleet {
        wait::until_true("the fleet", || weir.metric("weir_store_instances", &[]) == 2.0);
    }
    let clients = fleet.each_ref().map(|weir| RlsClient::connect(weir.rls_address("grpc")));
    let passes = |turn: &usize| clients[turn % 2].check("edge", "k=x").overall_code() == Code::Ok;
    assert_eq!((0..30).filter(passes).count(), 10);
}
