//! Client identification: the address that rules use, and which proxies may forward one.

use crate::support::{Client, Request, Weir, config};

/// Starts a proxy that admits each client once and has these `client_ip` settings.
fn start_admitting_once(client_ip: &str) -> Weir {
    let rules = "rules: [{ name: once, key: [client_ip], limit: 1/d }]";
    Weir::start(&config("echo", &format!("client_ip: {client_ip}\n{rules}")))
}

/// Sends a GET from 127.0.0.1 with each of these X-Forwarded-For headers, and returns the status codes.
fn statuses_for_xff(weir: &Weir, values: &[&str]) -> Vec<u16> {
    let mut client = Client::connect(weir.address());
    values.iter().map(|value| client.fetch(&Request::get("/").forwarded_for(value)).status).collect()
}

const TRUSTED_PROXIES: &str = "{ trusted_proxies: [127.0.0.1, 10.0.0.0/8] }";

#[test]
fn an_untrusted_peer_is_counted_under_its_own_address() {
    let weir = Weir::start(&config("echo", "rules: [{ name: once, key: [client_ip], limit: 1/d }]"));
    assert_eq!(statuses_for_xff(&weir, &["192.0.2.1", "192.0.2.2", "10.0.0.1"]), [200, 429, 429]);
    assert_eq!(Client::connect_from("127.0.0.2", weir.address()).get("/").status, 200, "another client");
}

#[test]
fn only_configured_proxies_are_trusted() {
    let weir = start_admitting_once(TRUSTED_PROXIES);
    let mut untrusted = Client::connect_from("127.0.0.2", weir.address());
    assert_eq!(untrusted.fetch(&Request::get("/").forwarded_for("192.0.2.1")).status, 200);
    assert_eq!(untrusted.fetch(&Request::get("/").forwarded_for("192.0.2.2")).status, 429);
    assert_eq!(statuses_for_xff(&weir, &["192.0.2.1", "192.0.2.2"]), [200, 200]);
}

#[test]
fn the_first_untrusted_hop_from_the_right_is_the_client() {
    let weir = start_admitting_once(TRUSTED_PROXIES);
    assert_eq!(
        statuses_for_xff(&weir, &["192.0.2.1", "192.0.2.1, 10.0.0.5", "192.0.2.1, 10.0.0.6, 10.0.0.5"]),
        [200, 429, 429]
    );
}

#[test]
fn spoofed_hops_left_of_the_client_are_ignored() {
    let weir = start_admitting_once(TRUSTED_PROXIES);
    let spoofed =
        ["192.0.2.1", "6.6.6.6, 192.0.2.1", "7.7.7.7,8.8.8.8,192.0.2.1, 10.0.0.5", "10.0.0.9, 192.0.2.1"];
    assert_eq!(statuses_for_xff(&weir, &spoofed), [200, 429, 429, 429]);
}

#[test]
fn repeated_x_forwarded_for_lines_form_one_list() {
    let weir = start_admitting_once(TRUSTED_PROXIES);
    let mut client = Client::connect(weir.address());
    assert_eq!(client.fetch(&Request::get("/").forwarded_for("192.0.2.1")).status, 200);
    let lines =
        Request::get("/").forwarded_for("6.6.6.6").forwarded_for("192.0.2.1").forwarded_for("10.0.0.5");
    assert_eq!(client.fetch(&lines).status, 429);
}

#[test]
fn invalid_hop_stops_at_the_last_trusted_proxy() {
    let weir = start_admitting_once(TRUSTED_PROXIES);
    // Each of these is counted as 10.0.0.5, the proxy that wrote it, so that a client cannot obtain new counters.
    let unreadable =
        ["unknown, 10.0.0.5", "a.b.c.d, 10.0.0.5", "192.0.2.1, -, 10.0.0.5", "fe80::1%eth0, 10.0.0.5"];
    assert_eq!(statuses_for_xff(&weir, &unreadable), [200, 429, 429, 429]);
}

#[test]
fn address_spellings_are_normalised() {
    let weir = start_admitting_once(TRUSTED_PROXIES);
    let spellings = [
        "192.0.2.1",
        "192.0.2.1:4711",
        "::ffff:192.0.2.1",
        "[::ffff:192.0.2.1]:80",
        "\"192.0.2.1\"",
        " 192.0.2.1\t",
    ];
    assert_eq!(statuses_for_xff(&weir, &spellings), [200, 429, 429, 429, 429, 429]);
}

#[test]
fn ipv6_clients_are_counted_by_64_bit_prefix() {
    let weir = start_admitting_once(TRUSTED_PROXIES);
    let same =
        ["2001:db8:1:2::1", "2001:db8:1:2::2", "2001:db8:1:2:ffff:ffff:ffff:ffff", "[2001:db8:1:2::3]:80"];
    assert_eq!(statuses_for_xff(&weir, &same), [200, 429, 429, 429]);
    assert_eq!(statuses_for_xff(&weir, &["2001:db8:1:3::1", "2001:db8:1:1::1"]), [200, 200]);
}

#[test]
fn ipv6_prefix_is_configurable() {
    let weir = start_admitting_once("{ trusted_proxies: [127.0.0.1], ipv6_prefix: 128 }");
    assert_eq!(statuses_for_xff(&weir, &["2001:db8::1", "2001:db8::2", "2001:db8::1"]), [200, 200, 429]);
    let weir = start_admitting_once("{ trusted_proxies: [127.0.0.1], ipv6_prefix: 48 }");
    assert_eq!(
        statuses_for_xff(&weir, &["2001:db8:1:2::1", "2001:db8:1:3::1", "2001:db8:2::1"]),
        [200, 429, 200]
    );
}

#[test]
fn ipv4_clients_are_counted_by_address() {
    let weir = start_admitting_once(TRUSTED_PROXIES);
    assert_eq!(statuses_for_xff(&weir, &["192.0.2.1", "192.0.2.2", "192.0.3.1"]), [200, 200, 200]);
}

#[test]
fn headers_similar_to_x_forwarded_for_are_ignored() {
    let weir = start_admitting_once(TRUSTED_PROXIES);
    let mut client = Client::connect(weir.address());
    for (name, expected) in [("x_forwarded_for", 200), ("x-real-ip", 429), ("forwarded", 429)] {
        assert_eq!(client.fetch(&Request::get("/").header(name, "192.0.2.1")).status, expected, "{name}");
    }
}

#[test]
fn long_x_forwarded_for_chain_is_accepted() {
    let weir = start_admitting_once(TRUSTED_PROXIES);
    let chain = vec!["10.0.0.1"; 4000].join(",");
    assert_eq!(statuses_for_xff(&weir, &[&chain, "192.0.2.1"]), [200, 200]);
}

#[test]
fn x_forwarded_for_from_an_untrusted_private_peer_warns_once() {
    // The peer is most likely an ingress missing in the configuration: per-IP limits then count it as one client.
    let weir = Weir::start(&config("echo", ""));
    let warnings = || {
        let lines = weir.log();
        lines.iter().filter(|line| line.to_ascii_lowercase().contains("x-forwarded-for")).count()
    };
    assert_eq!(statuses_for_xff(&weir, &["192.0.2.1", "192.0.2.2", "192.0.2.3"]), [200; 3]);
    crate::support::wait::until_true("the warning", || warnings() > 0);
    assert_eq!(statuses_for_xff(&weir, &["192.0.2.1"; 20]), [200; 20]);
    crate::support::wait::throughout(std::time::Duration::from_millis(200), || assert_eq!(warnings(), 1));
}

const NESTED: &str = "\
client_ip: { trusted_proxies: [127.0.0.1] }
rules:
  - name: nets
    key: { client_ip: { prefixes: [64, 56, 48], limits: [2/d, 3/d, { limit: 5/d, algorithm: fixed_window }] } }
";

#[test]
fn nested_prefixes_are_counted_together_and_all_must_admit() {
    let weir = Weir::start(&config("echo", NESTED));
    // Two requests from one /64. Then the /64 is full, and its rejections do not charge the /56.
    assert_eq!(
        statuses_for_xff(&weir, &["2001:db8:1:1::1", "2001:db8:1:1::2", "2001:db8:1:1::3"]),
        [200, 200, 429]
    );
    // A third request from the same /56. The next one from that /56 is rejected, whatever its /64.
    assert_eq!(statuses_for_xff(&weir, &["2001:db8:1:2::1", "2001:db8:1:3::1"]), [200, 429]);
    // Two more requests from the /48, in another /56. Then the /48 is full too.
    assert_eq!(
        statuses_for_xff(&weir, &["2001:db8:1:100::1", "2001:db8:1:200::1", "2001:db8:1:300::1"]),
        [200, 200, 429]
    );
    assert_eq!(statuses_for_xff(&weir, &["2001:db8:2:1::1"]), [200], "another /48 has its own counter");
}

#[test]
fn nested_prefixes_count_ipv4_clients_under_the_first_alone() {
    let weir = Weir::start(&config("echo", NESTED));
    assert_eq!(statuses_for_xff(&weir, &["192.0.2.1", "192.0.2.1", "192.0.2.1"]), [200, 200, 429]);
    assert_eq!(statuses_for_xff(&weir, &["192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5"]), [200; 4]);
}

#[test]
fn nested_prefixes_are_separate_policies_in_headers() {
    let weir = Weir::start(&config("echo", NESTED));
    let mut client = Client::connect(weir.address());
    let answer = client.fetch(&Request::get("/").forwarded_for("2001:db8:1:1::1"));
    let policies = r#"2, 2;w=86400;name="nets/64", 3;w=86400;name="nets/56", 5;w=86400;name="nets/48""#;
    assert_eq!(answer.header("x-ratelimit-limit"), policies);
    assert_eq!(answer.header("x-ratelimit-remaining"), "1");
    let answer = client.fetch(&Request::get("/").forwarded_for("192.0.2.1"));
    assert_eq!(answer.header("x-ratelimit-limit"), r#"2, 2;w=86400;name="nets/64""#);
}

#[test]
fn prefix_is_configurable_per_rule() {
    let rules = "\
client_ip: { trusted_proxies: [127.0.0.1] }
rules:
  - { name: wide, key: { client_ip: { prefix: 48, ipv4_prefix: 24 } }, limit: 2/d }
  - { name: each, key: client_ip, limit: 1/d }
";
    let weir = Weir::start(&config("echo", rules));
    assert_eq!(statuses_for_xff(&weir, &["2001:db8:1:1::1", "2001:db8:1:1::2"]), [200, 429], "one per /64");
    assert_eq!(statuses_for_xff(&weir, &["2001:db8:1:2::1", "2001:db8:1:3::1"]), [200, 429], "two per /48");
    assert_eq!(
        statuses_for_xff(&weir, &["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.3.1"]),
        [200, 200, 429, 200]
    );
}
