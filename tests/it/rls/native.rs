//! Rules of the configuration under a domain, queried over gRPC and as JSON, together with the proxy.

use envoy_types::pb::google::protobuf::UInt64Value;

use super::client::RlsClient;
use super::{Code, descriptor};
use crate::support::{Request, Weir, config, fetch, get};

/// Returns the configuration of a proxy with these rules that also serves Envoy.
fn yaml(rules: &str) -> String {
    let service = "rls: { address: 127.0.0.1:0, http: 127.0.0.1:0 }";
    config("echo", &format!("{service}\nrules:\n{rules}"))
}

#[test]
fn native_rule_reports_its_name_and_limit() {
    let weir = Weir::start(&yaml(
        r#"
  - { name: odd, domain: edge, match: { descriptor: { route: odd } }, limit: 2/500s, algorithm: fixed_window }
  - { name: even, domain: edge, key: { descriptor: tenant }, limit: 3/year, algorithm: fixed_window }
"#,
    ));
    let client = RlsClient::connect(weir.rls_address("grpc"));
    let answer = client.check_all("edge", vec![descriptor("route=odd"), descriptor("tenant=a")]);
    assert_eq!(answer.overall_code(), Code::Ok);
    let limits = answer.statuses.iter().map(|status| status.current_limit.clone().unwrap());
    let limits: Vec<_> = limits.map(|limit| (limit.name, limit.requests_per_unit, limit.unit)).collect();
    assert_eq!(limits, [("odd".to_owned(), 2, 0), ("even".to_owned(), 3, 6)], "0 is UNKNOWN, 6 is YEAR");
    let question = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"tenant","value":"a"}]}]}"#;
    let statuses: Vec<u16> =
        (0..3).map(|_| fetch(weir.rls_address("http"), &Request::post("/json", question)).status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    let decisions =
        |rule, outcome| weir.metric("weir_decisions_total", &[("rule", rule), ("outcome", outcome)]) as u64;
    assert_eq!((decisions("odd", "allowed"), decisions("even", "allowed")), (1, 3));
    assert_eq!(decisions("even", "limited"), 1);
}

#[test]
fn refunds_and_calls_without_hits_are_no_decisions_on_a_key() {
    let weir = Weir::start(&yaml("  - { name: q, domain: edge, key: { descriptor: id }, limit: 10/year }\n"));
    let client = RlsClient::connect(weir.rls_address("grpc"));
    let ask = |id: &str, hits: u64, is_negative_hits: bool| {
        let mut one = descriptor(&format!("id={id}"));
        one.hits_addend = Some(UInt64Value { value: hits });
        one.is_negative_hits = is_negative_hits;
        client.check_all("edge", vec![one]).statuses[0].limit_remaining
    };
    assert_eq!((ask("a", 3, false), ask("a", 0, false), ask("a", 2, true)), (7, 7, 9));
    ask("b", 0, false);
    let top = weir.admin_json("/limits/top?rule=q")["rules"][0].clone();
    assert_eq!((&top["tracked"], &top["keys"][0]["admitted"]), (&1.into(), &1.into()), "{top}");
}

#[test]
fn envoy_and_proxy_share_counters_and_a_reload_changes_both() {
    let rule = |count: u32| {
        format!(
            "  - {{ name: both, domain: edge, key: client_ip, limit: {count}/year, algorithm: fixed_window }}\n"
        )
    };
    let weir = Weir::start(&yaml(&rule(4)));
    let client = RlsClient::connect(weir.rls_address("grpc"));
    let by_mesh = || client.check("edge", "remote_address=127.0.0.1").overall_code();
    let by_proxy = || get(weir.address(), "/").status;
    assert_eq!((by_mesh(), by_proxy(), by_mesh(), by_proxy()), (Code::Ok, 200, Code::Ok, 200));
    assert_eq!((by_mesh(), by_proxy()), (Code::OverLimit, 429));
    assert_eq!(client.check("edge", "remote_address=127.0.0.2").overall_code(), Code::Ok);
    weir.reload(&yaml(&rule(6)));
    assert_eq!((by_mesh(), by_proxy(), by_mesh(), by_proxy()), (Code::Ok, 200, Code::OverLimit, 429));
    weir.reload(&yaml(&rule(6).replace("edge", "other")));
    assert_eq!((by_mesh(), by_proxy()), (Code::Ok, 429), "the old domain has no rules");
}

#[test]
fn banned_descriptor_has_nothing_left_until_the_ban_ends() {
    let weir = Weir::start(&yaml(
        "  - { name: q, domain: edge, key: { descriptor: id }, limit: 10/m, on_limit: { ban: 10m } }\n",
    ));
    let ask = |hits: u32| {
        let question = format!(
            r#"{{"domain":"edge","hitsAddend":{hits},"descriptors":[{{"entries":[{{"key":"id","value":"a"}}]}}]}}"#
        );
        let response = fetch(weir.rls_address("http"), &Request::post("/json", question));
        let body: serde_json::Value = serde_json::from_str(&response.body.text()).unwrap();
        body["statuses"][0].clone()
    };
    assert_eq!(ask(2)["code"], "OK");
    for hits in [9, 1] {
        let banned = ask(hits);
        assert_eq!(banned["code"], "OVER_LIMIT");
        // JSON omits zeros.
        assert!(banned.get("limitRemaining").is_none(), "{banned}");
        let rest: u64 = banned["durationUntilReset"].as_str().unwrap().trim_end_matches('s').parse().unwrap();
        assert!((590..=600).contains(&rest), "{banned}");
    }
    let calls = |outcome| weir.metric("weir_rate_limit_call_outcomes_total", &[("outcome", outcome)]) as u64;
    assert_eq!((calls("allowed"), calls("limited"), calls("banned")), (1, 1, 1));
}

#[test]
fn heaviest_keys_of_a_rule_are_those_of_the_proxy_and_of_envoy() {
    let weir = Weir::start(&yaml(
        "  - { name: both, domain: edge, key: client_ip, limit: 2/year, algorithm: fixed_window }
  - { name: tenants, domain: edge, match: { descriptor: { kind: paid } }, key: { descriptor: tenant }, limit: 9/d, on_missing: deny }
",
    ));
    let client = RlsClient::connect(weir.rls_address("grpc"));
    assert_eq!(get(weir.address(), "/").status, 200);
    for (address, code) in [("127.0.0.1", Code::Ok), ("127.0.0.1", Code::OverLimit), ("192.0.2.9", Code::Ok)]
    {
        assert_eq!(client.check("edge", &format!("remote_address={address}")).overall_code(), code);
    }
    client.check("edge", "kind=paid,tenant=a");
    client.check("edge", "kind=paid");
    let top = weir.admin_json("/limits/top");
    let key = |rule: usize, position: usize, field: &str| top["rules"][rule]["keys"][position][field].clone();
    assert_eq!(key(0, 0, "key"), "client_ip=127.0.0.1", "{top}");
    assert_eq!((key(0, 0, "admitted"), key(0, 0, "rejected")), (2.into(), 1.into()));
    assert_eq!((key(0, 1, "key"), key(0, 1, "admitted")), ("client_ip=192.0.2.9".into(), 1.into()));
    let texts: Vec<String> =
        (0..2).map(|position| key(1, position, "key").as_str().unwrap_or_default().to_owned()).collect();
    assert!(texts.iter().any(|text| text == "incomplete key"), "{top}");
    assert!(texts.iter().any(|text| text.starts_with("descriptor.tenant=#")), "{top}");
}
