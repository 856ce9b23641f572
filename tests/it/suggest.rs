//! `weir suggest`: limits from the traffic of a running instance.

use crate::support::weir::run;
use crate::support::{Request, Weir, config, fetch};

const TOKEN: &str = "secret-secret-secret";

fn suggest(weir: &Weir, more: &[&str]) -> (String, bool) {
    let address = weir.admin_address("full").to_string();
    let arguments = ["suggest", "--admin", &address].into_iter().chain(more.iter().copied());
    let output = run(arguments);
    (String::from_utf8(output.stdout).unwrap(), output.status.success())
}

#[test]
fn instance_without_observed_traffic_suggests_nothing_and_says_why() {
    let rules = "rules:\n  - { name: per-ip, key: client_ip, limit: 9/min }\n  - { name: all, limit: 100/s }\n  \
                 - { name: bytes, key: client_ip, limit: 9/min, cost: { header: x-cost } }\n";
    let weir = Weir::start(&config("echo", rules));
    fetch(weir.address(), &Request::get("/"));
    let (text, is_success) = suggest(&weir, &[]);
    assert!(is_success);
    let reasons: Vec<_> = text.lines().skip(1).collect();
    assert_eq!(
        reasons,
        [
            "# There is nothing to change.",
            "# per-ip: no minute with requests has been observed yet.",
            "# all: it has no key, and demand is observed by key.",
            "# bytes: its cost is not 1 for every request, and demand is observed in requests.",
        ]
    );
    assert_eq!(suggest(&weir, &["--lower"]).0.lines().count(), text.lines().count());
}

#[test]
fn unreachable_instance_and_missing_token_are_failures() {
    let text = config("echo", "rules: []\n");
    let admin = "admin: { address: 127.0.0.1:0 }";
    assert!(text.contains(admin), "{text}");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weir.yaml");
    let with_token = format!("admin: {{ address: 127.0.0.1:0, token: {TOKEN} }}");
    std::fs::write(&file, text.replace(admin, &with_token)).unwrap();
    let weir = Weir::start_file_with_token(&file, TOKEN);
    let address = weir.admin_address("full").to_string();
    let output = run(["suggest", "--admin", &address]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && message.contains("token"), "{message}");
    assert!(run(["suggest", "--admin", &address, "--token", TOKEN]).status.success());

    let (_socket, nowhere) = crate::support::origin::refusing_address();
    let output = run(["suggest", "--admin", &nowhere.to_string()]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && message.contains("cannot reach"), "{message}");
}
