//! The admin port's view of the documents' limits: `/limits`, `/limits/top` and `/limits/reset`.

use serde_json::{Value, json};

use super::{Code, RlsService, descriptor};
use crate::support::wait;
use crate::support::weir::run;

const EDGE: &str = "\
domain: edge
descriptors:
  - key: remote_address
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: path
    value: /login
    descriptors:
      - key: user
        rate_limit: { unit: year, requests_per_unit: 1 }
  - key: tried
    shadow_mode: true
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: free
    rate_limit: { unlimited: true }
";
const OTHER: &str =
    "domain: other\ndescriptors:\n  - { key: id, rate_limit: { unit: day, requests_per_unit: 9 } }\n";

fn start(rest: &str) -> RlsService {
    RlsService::start_with(&[("edge.yaml", EDGE), ("other.yaml", OTHER)], rest)
}

impl RlsService {
    fn code(&self, entries: &str) -> Code {
        self.client.check("edge", entries).overall_code()
    }

    /// Returns the heaviest keys of a limit of the domain `edge`.
    fn top_of(&self, name: &str) -> Value {
        let top = self.weir.admin_json(&format!("/limits/top?domain=edge&name=edge.{name}&n=1000"));
        assert_eq!(top["rules"], json!([]), "{top}");
        top["documents"][0].clone()
    }

    fn post(&self, path: &str) -> (u16, String) {
        let response = self.weir.admin_post(path);
        (response.status, response.body.text())
    }
}

#[test]
fn key_of_a_document_is_listed_and_admitted_again_after_a_reset() {
    let service = start("log_keys: value\n");
    let codes = ["192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2"]
        .map(|address| service.code(&format!("remote_address={address}")));
    assert_eq!(codes, [Code::Ok, Code::Ok, Code::OverLimit, Code::Ok]);
    let top = service.top_of("remote_address");
    assert_eq!((&top["tracked"], &top["incomplete"]), (&2.into(), &false.into()), "{top}");
    let first = &top["keys"][0];
    assert_eq!(first["key"], "descriptor.remote_address=192.0.2.1");
    assert_eq!((&first["admitted"], &first["rejected"]), (&2.into(), &1.into()));
    let (status, text) = service.post("/limits/reset?domain=edge&descriptor.remote_address=192.0.2.1");
    assert_eq!(status, 200, "{text}");
    let done: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&done["counters_freed"], &done["fingerprint"]), (&1.into(), &first["fingerprint"]));
    assert_eq!((&done["name"], &done["key"]), (&"edge.remote_address".into(), &first["key"]));
    assert_eq!(service.code("remote_address=192.0.2.1"), Code::Ok);
    let audited = [r#""action":"reset","domain":"edge""#, "descriptor.remote_address=192.0.2.1"];
    wait::until_true("the audit line", || {
        service.weir.log().iter().any(|line| audited.iter().all(|field| line.contains(field)))
    });
}

#[test]
fn reset_by_fingerprint_frees_one_key_whose_value_is_not_shown() {
    let service = start("");
    let ask = |user: &str| service.code(&format!("path=/login,user={user}"));
    assert_eq!((ask("ann"), ask("ann"), ask("bob")), (Code::Ok, Code::OverLimit, Code::Ok));
    let top = service.top_of("path_/login.user");
    let first = &top["keys"][0];
    let text = first["key"].as_str().unwrap();
    assert!(text.starts_with("descriptor.path=/login, descriptor.user=#"), "{text}");
    let fingerprint = first["fingerprint"].as_str().unwrap();
    let by_name = format!("domain=edge&name=edge.path_/login.user&fingerprint={fingerprint}");
    let (status, text) = service.post(&format!("/limits/reset?{by_name}"));
    assert_eq!(status, 200, "{text}");
    assert_eq!((ask("ann"), ask("bob")), (Code::Ok, Code::OverLimit));
}

/// `a.b` is the key of one limit, and the path of another.
const AMBIGUOUS: &str = "\
domain: edge
descriptors:
  - key: a
    descriptors:
      - key: b
        rate_limit: { unit: year, requests_per_unit: 1 }
  - key: a.b
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: c
    rate_limit: { unit: year, requests_per_unit: 1 }
";

#[test]
fn fingerprint_frees_only_a_tracked_key_of_a_limit_with_the_name() {
    let service = RlsService::start_with(&[("edge.yaml", AMBIGUOUS)], "");
    let exhausted = |entries: &str| {
        service.code(entries);
        service.code(entries) == Code::OverLimit
    };
    assert!(exhausted("a=1,b=1") && exhausted("a.b=1") && exhausted("c=1"));
    let top = service.weir.admin_json("/limits/top?domain=edge&name=edge.a.b")["documents"].clone();
    let paths: Vec<usize> =
        top.as_array().unwrap().iter().map(|limit| limit["descriptor"].as_array().unwrap().len()).collect();
    assert_eq!(paths.iter().sum::<usize>(), 3, "both limits of this name: {top}");
    let single = &top[paths.iter().position(|length| *length == 1).unwrap()];
    let reset = |name: &str, limit: &Value| {
        let fingerprint = limit["keys"][0]["fingerprint"].as_str().unwrap();
        service.post(&format!("/limits/reset?domain=edge&name={name}&fingerprint={fingerprint}"))
    };
    let (status, text) = reset("edge.a.b", &service.top_of("c"));
    assert!(status == 404 && text.contains("tracks no key with this fingerprint"), "{status} {text}");
    assert_eq!(service.code("c=1"), Code::OverLimit, "the key of another limit of the same unit");
    assert_eq!(reset("edge.a.b", single).0, 200);
    assert_eq!((service.code("a.b=1"), service.code("a=1,b=1")), (Code::Ok, Code::OverLimit));
}

#[test]
fn reset_of_a_key_without_a_counter_says_so() {
    let service = start("");
    let (status, text) = service.post("/limits/reset?domain=edge&descriptor.remote_address=192.0.2.9");
    let done: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &done["counters_freed"]), (200, &0.into()));
    assert!(done["notes"][0].as_str().unwrap().starts_with("there was no counter"), "{text}");
}

#[test]
fn limits_of_documents_are_listed_with_their_hits() {
    let service = start("");
    for _ in 0..3 {
        service.code("tried=a");
    }
    let limits = service.weir.admin_json("/limits")["documents"].clone();
    let named = |name: &str| {
        let all = limits.as_array().unwrap();
        all.iter().find(|limit| limit["name"] == name).unwrap_or_else(|| panic!("{limits}")).clone()
    };
    assert_eq!(limits.as_array().map(Vec::len), Some(5), "{limits}");
    let login = named("edge.path_/login.user");
    let entries = json!([{ "key": "path", "value": "/login" }, { "key": "user", "value": null }]);
    assert_eq!((&login["domain"], &login["descriptor"]), (&"edge".into(), &entries));
    assert_eq!((&login["requests_per_unit"], &login["unit"]), (&1.into(), &"YEAR".into()));
    assert_eq!((&named("edge.free")["unlimited"], &named("edge.free")["unit"]), (&true.into(), &Value::Null));
    let tried = named("edge.tried");
    assert_eq!((&tried["shadow_mode"], &tried["hits"]["total"]), (&true.into(), &3.into()));
    assert_eq!(tried["hits"]["shadow_mode"], 2);
    let key = service.top_of("tried")["keys"][0].clone();
    assert_eq!((&key["admitted"], &key["shadow"]), (&1.into(), &2.into()));
}

#[test]
fn descriptor_with_room_is_not_admitted_if_another_is_over_its_limit() {
    let service = start("log_keys: value\n");
    for _ in 0..2 {
        let both = vec![descriptor("remote_address=192.0.2.1"), descriptor("path=/login,user=ann")];
        service.client.check_all("edge", both);
    }
    let key = service.top_of("remote_address")["keys"][0].clone();
    assert_eq!((&key["admitted"], &key["rejected"]), (&1.into(), &0.into()));
    let key = service.top_of("path_/login.user")["keys"][0].clone();
    assert_eq!((&key["admitted"], &key["rejected"]), (&1.into(), &1.into()));
}

#[test]
fn unknown_domains_and_descriptors_are_named() {
    let service = start("");
    for (path, status, expected) in [
        ("/limits/reset?domain=egde&descriptor.user=a", 404, "in the domain `egde`, did you mean `edge`?"),
        (
            "/limits/reset?domain=edge&descriptor.user=a",
            404,
            "no limit of the domain `edge` has these entries, its limits are edge.free, edge.path_/login.user",
        ),
        ("/limits/reset?domain=edge&descriptor.free=a", 400, "the limit is unlimited"),
        ("/limits/reset?domain=edge", 400, "expected either `descriptor.KEY`"),
        ("/limits/reset?domain=edge&name=edge.tried&fingerprint=1", 400, "fingerprint: "),
        ("/limits/reset?domain=edge&name=edge.tired&fingerprint=1", 404, "did you mean `edge.tried`?"),
        ("/limits/reset?domain=edge&descriptor.tried=a&for=1h", 400, "unknown parameter `for`"),
        ("/limits/ban?domain=edge&descriptor.tried=a&for=1h", 400, "only /limits/reset"),
    ] {
        let (got, text) = service.post(path);
        assert!(got == status && text.contains(expected), "{path}: {got} {text}");
    }
    for (path, status, expected) in [
        ("/limits/top?domain=nothing", 404, "no document has limits in the domain `nothing`"),
        ("/limits/top?domain=edge&name=edge.user", 404, "no limit of this domain has the name `edge.user`"),
        ("/limits/top?name=edge.tried", 400, "`name` needs `domain`"),
        ("/limits/top?rule=a&domain=edge", 400, "only one of `rule` and `domain`"),
    ] {
        let response = service.weir.admin_get(path);
        let text = response.body.text();
        assert!(response.status == status && text.contains(expected), "{path}: {} {text}", response.status);
    }
}

#[test]
fn flood_of_distinct_values_keeps_the_heaviest_key_and_is_bounded() {
    let service = start("log_keys: value\n");
    for call in 0..40 {
        let distinct = (0..100).map(|value| descriptor(&format!("remote_address=flood-{call}-{value}")));
        service.client.check_all("edge", distinct.collect());
        for _ in 0..3 {
            service.code("remote_address=heavy");
        }
    }
    let top = service.top_of("remote_address");
    // At most a sketch of 256 keys in each of two windows.
    assert!(
        top["tracked"].as_u64().is_some_and(|tracked| (256..=512).contains(&tracked)),
        "{}",
        top["tracked"]
    );
    let first = &top["keys"][0];
    assert_eq!(first["key"], "descriptor.remote_address=heavy");
    let total = first["admitted"].as_u64().unwrap() + first["rejected"].as_u64().unwrap();
    assert!((120..=120 + top["max_overcount"].as_u64().unwrap()).contains(&total), "{first}");
}

#[test]
fn reload_of_documents_keeps_the_keys_of_a_limit() {
    let service = start("");
    assert_eq!(service.code("remote_address=a"), Code::Ok);
    let changed = EDGE.replace("requests_per_unit: 2", "requests_per_unit: 7");
    std::fs::write(service.rules_directory().join("edge.yaml"), changed).unwrap();
    wait::until("the reload", || {
        let limits = service.weir.admin_json("/limits");
        let all = limits["documents"].as_array()?;
        all.iter().any(|limit| limit["requests_per_unit"] == 7).then_some(())
    });
    assert_eq!(service.code("remote_address=a"), Code::Ok);
    assert_eq!(service.top_of("remote_address")["keys"][0]["admitted"], 2);
}

#[test]
fn live_views_show_the_keys_of_documents() {
    let service = start("log_keys: value\n");
    for _ in 0..3 {
        service.code("remote_address=192.0.2.1");
    }
    let snapshot = service.weir.admin_json("/events?once");
    let shown = &snapshot["documents"];
    assert_eq!(shown.as_array().map(Vec::len), Some(1), "limits without decisions are left out: {shown}");
    assert_eq!(
        (&shown[0]["name"], &shown[0]["keys"][0]["rejected"]),
        (&"edge.remote_address".into(), &1.into())
    );
    let address = service.weir.admin_address("full").to_string();
    let output = run(["top", "--once", "--admin", &address]);
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("descriptor.remote_address=192.0.2.1"));
    assert!(line.is_some_and(|line| line.contains("edge.remote_address")), "{text}");
}
