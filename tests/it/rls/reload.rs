//! Rules that change while the service runs.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::time::Duration;

use super::{Code, RlsService, config};
use crate::support::{Weir, wait};

fn rules(domain: &str, count: u32) -> String {
    format!(
        "domain: {domain}\ndescriptors:\n  - key: k\n    rate_limit: {{ unit: year, requests_per_unit: {count} }}\n"
    )
}

fn configured_limit(service: &RlsService, domain: &str) -> Option<u32> {
    let limit = service.client.check(domain, "k=looked").statuses[0].current_limit.clone();
    limit.map(|limit| limit.requests_per_unit)
}

const LOADED: &str = "ratelimit.service.config_load_success";
const REJECTED: &str = "ratelimit.service.config_load_error";

#[test]
fn files_are_added_and_removed_and_counters_retained() {
    let service = RlsService::start(&[("one.yaml", &rules("one", 5))]);
    service.client.check("one", "k=counted");
    assert_eq!((configured_limit(&service, "two"), service.stat(LOADED)), (None, 1));
    let other = service.rules_directory().join("two.yaml");
    fs::write(&other, rules("two", 7)).unwrap();
    wait::until_true("the new file", || configured_limit(&service, "two") == Some(7));
    assert_eq!(service.stat(LOADED), 2);
    assert_eq!(service.client.check("one", "k=counted").statuses[0].limit_remaining, 3, "counters are kept");
    fs::remove_file(&other).unwrap();
    wait::until_true("its removal", || configured_limit(&service, "two").is_none());
    assert_eq!((service.stat(LOADED), service.stat(REJECTED)), (3, 0));
}

#[test]
fn one_invalid_file_keeps_all_previous_rules() {
    let service = RlsService::start(&[("one.yaml", &rules("one", 5))]);
    fs::write(service.rules_directory().join("one.yaml"), rules("one", 6)).unwrap();
    wait::until_true("the change", || configured_limit(&service, "one") == Some(6));
    fs::write(service.rules_directory().join("two.yaml"), "domain: two\nunknown: 1\n").unwrap();
    fs::write(service.rules_directory().join("one.yaml"), rules("one", 8)).unwrap();
    wait::until_true("the rejection", || service.stat(REJECTED) > 0);
    assert_eq!((configured_limit(&service, "one"), configured_limit(&service, "two")), (Some(6), None));
    let log = service.weir.log().join("\n");
    assert!(log.contains("two.yaml: config error, unknown key 'unknown'"), "{log}");
    fs::remove_file(service.rules_directory().join("two.yaml")).unwrap();
    wait::until_true("the remaining file", || configured_limit(&service, "one") == Some(8));
}

#[test]
fn swapped_symlink_in_the_path_is_reloaded() {
    let root = tempfile::tempdir().unwrap();
    for (version, count) in [("v1", 1), ("v2", 2)] {
        fs::create_dir_all(root.path().join(version).join("config")).unwrap();
        fs::write(root.path().join(version).join("config/d.yaml"), rules("d", count)).unwrap();
    }
    let current = root.path().join("current");
    symlink("v1", &current).unwrap();
    let weir = Weir::start_rls(&[
        ("RUNTIME_ROOT", current.to_str().unwrap()),
        ("GRPC_HOST", "127.0.0.1"),
        ("GRPC_PORT", "0"),
        ("PORT", "0"),
        ("DEBUG_PORT", "0"),
        ("USE_STATSD", "false"),
        ("MEMCACHE_HOST_PORT", "memcache:11211"),
        ("WEIR_ADMIN_ADDRESS", "127.0.0.1:0"),
    ]);
    let client = super::RlsClient::connect(weir.rls_address("grpc"));
    let limit =
        || client.check("d", "k=x").statuses[0].current_limit.clone().map(|limit| limit.requests_per_unit);
    assert_eq!(limit(), Some(1));
    let named = weir.log().iter().filter(|line| line.contains("MEMCACHE_HOST_PORT")).count();
    assert_eq!(named, 1, "logged once");
    let next = root.path().join("next");
    symlink("v2", &next).unwrap();
    fs::rename(&next, &current).unwrap();
    wait::until_true("the other version", || limit() == Some(2));
}

#[test]
fn rls_settings_are_reloaded() {
    let service = RlsService::start(&[("one.yaml", &rules("one", 1))]);
    service.client.check("one", "k=x");
    assert_eq!(service.client.check("one", "k=x").overall_code(), Code::OverLimit);
    service.weir.reload(&config(service.rules_directory(), "  shadow_mode: true\n"));
    assert_eq!(service.client.check("one", "k=x").overall_code(), Code::Ok);
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("two.yaml"), rules("two", 2)).unwrap();
    service.weir.reload(&config(elsewhere.path(), ""));
    wait::until_true("rules of the other directory", || configured_limit(&service, "two") == Some(2));
    assert_eq!(configured_limit(&service, "one"), None);
}

#[test]
fn check_against_reports_rls_changes() {
    let directory = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| directory.path().join(name));
    for (path, count) in [(&one, 1), (&other, 2)] {
        fs::create_dir(path).unwrap();
        fs::write(path.join("d.yaml"), rules("d", count)).unwrap();
    }
    let write = |name: &str, text: String| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let running = write("running.yaml", config(&one, ""));
    let next = write("next.yaml", config(&other, "  shadow_mode: true\n"));
    let said = |next: &str| {
        let output = crate::support::weir::run(["check", "--against", &running, next]);
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(said(&running), "nothing changes\n");
    assert_eq!(said(&next), "rls: changed\nrules of rls: changed\n");
}

#[test]
fn file_open_for_writing_is_loaded_when_closed() {
    let service = RlsService::start(&[("one.yaml", &rules("one", 5))]);
    let mut writer = fs::File::create(service.rules_directory().join("one.yaml")).unwrap();
    // The file is valid YAML at this point, but incomplete.
    writer.write_all(rules("one", 6).as_bytes()).unwrap();
    for _ in 0..6 {
        wait::pause(Duration::from_millis(250));
        assert_eq!(configured_limit(&service, "one"), Some(5), "an incomplete file was loaded");
        writer.write_all(b"# another line\n").unwrap();
    }
    drop(writer);
    wait::until_true("the whole file", || configured_limit(&service, "one") == Some(6));
}
