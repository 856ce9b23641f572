//! Rules by country, continent and autonomous system, and databases that are replaced while the proxy runs.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::support::{Client, Request, Weir, config, fetch, wait};

const TRUSTED_PROXIES: &str = "client_ip: { trusted_proxies: [127.0.0.1] }";

/// Returns the path of a file in `tests/data`; the README there describes the contents.
fn test_data_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn geo_config() -> String {
    format!(
        "geo: {{ database: {}, asn_database: {} }}",
        test_data_path("country.mmdb").display(),
        test_data_path("asn.mmdb").display()
    )
}

fn start_with_rules(rules: &str) -> Weir {
    Weir::start(&config("echo", &format!("{TRUSTED_PROXIES}\n{}\nrules:\n{rules}\n", geo_config())))
}

/// Sends requests from these addresses in order, and returns the status codes.
fn statuses(weir: &Weir, clients: &[&str]) -> Vec<u16> {
    let mut connection = Client::connect(weir.address());
    clients.iter().map(|client| connection.fetch(&Request::get("/").forwarded_for(client)).status).collect()
}

/// A proxy whose databases are beside its configuration, where a test can replace them.
struct ReplaceableDatabases {
    weir: Weir,
    directory: TempDir,
}

impl ReplaceableDatabases {
    fn start(rules: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::copy_database(directory.path(), "country.mmdb", "places.mmdb");
        Self::copy_database(directory.path(), "asn.mmdb", "systems.mmdb");
        let file = directory.path().join("weir.yaml");
        let settings = "geo: { database: places.mmdb, asn_database: systems.mmdb }";
        fs::write(&file, config("echo", &format!("{TRUSTED_PROXIES}\n{settings}\nrules:\n{rules}\n")))
            .unwrap();
        Self { weir: Weir::start_file(&file), directory }
    }

    /// Replaces a database atomically.
    fn replace(&self, with: &str, name: &str) {
        Self::copy_database(self.directory.path(), with, name);
    }

    fn copy_database(directory: &Path, from: &str, name: &str) {
        let next = directory.join("next");
        fs::copy(test_data_path(from), &next).unwrap();
        fs::rename(&next, directory.join(name)).unwrap();
    }

    fn status(&self, client: &str) -> u16 {
        statuses(&self.weir, &[client])[0]
    }

    fn until_status(&self, client: &str, status: u16) {
        wait::until_true("the new database", || self.status(client) == status);
    }

    fn until_rejected(&self, before: f64) {
        wait::until_true("the rejection", || self.weir.rejected_reloads() > before);
    }
}

#[test]
fn decisions_are_counted_by_country() {
    let weir = start_with_rules(
        "  - { name: no, match: { path: /denied }, action: deny }\n  - { name: one, key: client_ip, limit: 1/d }",
    );
    let counted = |country, outcome| {
        weir.metric("weir_geo_decisions_total", &[("country", country), ("outcome", outcome)])
    };
    assert_eq!(
        statuses(&weir, &["198.51.100.7", "198.51.100.7", "192.0.2.1", "10.9.9.9"]),
        [200, 429, 200, 200]
    );
    assert_eq!(get_from(&weir, "/denied", "198.51.100.7"), 403);
    wait::until_true("the counts", || counted("BR", "rejected") == 2.0);
    assert_eq!(
        [counted("BR", "admitted"), counted("DE", "admitted"), counted("unknown", "admitted")],
        [1.0; 3]
    );
    assert_eq!([counted("DE", "rejected"), counted("FR", "admitted")], [0.0; 2]);
    let other = Weir::start(&config("echo", ""));
    assert_eq!(fetch(other.address(), &Request::get("/")).status, 200);
    assert!(!other.admin_get("/metrics").body.text().contains("weir_geo_"));
}

fn get_from(weir: &Weir, path: &str, client: &str) -> u16 {
    fetch(weir.address(), &Request::get(path).forwarded_for(client)).status
}

#[test]
fn country_can_be_denied() {
    let weir = start_with_rules("  - { name: no, match: { country: [br, IN] }, action: deny }");
    assert_eq!(
        statuses(&weir, &["198.51.100.7", "198.51.100.130", "2001:db8:2::1", "::ffff:198.51.100.7"]),
        [403; 4]
    );
    assert_eq!(statuses(&weir, &["192.0.2.1", "203.0.113.1", "203.0.113.200", "2001:db8:1::1"]), [200; 4]);
}

#[test]
fn continent_and_asn_match_and_all_fields_must_hold() {
    let weir = start_with_rules(
        "  - { name: africa-asia, match: { continent: [AF, AS] }, action: deny }\n  \
           - { name: system, match: { asn: [AS64500, 64999], country: FR }, action: deny }",
    );
    assert_eq!(statuses(&weir, &["198.51.100.130", "192.0.2.130"]), [403; 2]);
    // An address in the autonomous system but another country, one in neither, and one that is not in the databases.
    assert_eq!(statuses(&weir, &["192.0.2.1", "203.0.113.1", "10.9.9.9"]), [200; 3]);
}

#[test]
fn except_country_admits_only_that_country() {
    let weir = start_with_rules("  - { name: only-home, except: { country: DE }, action: deny }");
    assert_eq!(statuses(&weir, &["192.0.2.1", "192.0.2.130", "203.0.113.200"]), [200, 403, 403]);
}

#[test]
fn country_and_schedule_select_requests_to_limit() {
    let weir = start_with_rules(
        "  - name: brazil\n    match: { country: BR, schedule: \"00:00-24:00 America/Sao_Paulo\" }\n    limit: 3/d",
    );
    let one_after_the_other =
        ["198.51.100.1", "198.51.100.2", "2001:db8:2::1", "198.51.100.3", "198.51.100.1"];
    assert_eq!(statuses(&weir, &one_after_the_other), [200, 200, 200, 429, 429]);
    assert_eq!(statuses(&weir, &["192.0.2.1"; 5]), [200; 5]);
}

#[test]
fn country_continent_and_asn_are_keys() {
    let weir = start_with_rules("  - { name: a, key: country, limit: 1/d }");
    assert_eq!(
        statuses(&weir, &["192.0.2.1", "192.0.2.2", "2001:db8:1::1", "192.0.2.130"]),
        [200, 429, 429, 200]
    );
    let weir = start_with_rules("  - { name: a, key: continent, limit: 1/d }");
    assert_eq!(statuses(&weir, &["192.0.2.1", "192.0.2.130", "203.0.113.1"]), [200, 429, 200]);
    let weir = start_with_rules("  - { name: a, key: [asn], limit: 1/d }");
    assert_eq!(statuses(&weir, &["192.0.2.1", "192.0.2.200", "198.51.100.1"]), [200, 429, 200]);
}

#[test]
fn unknown_country_is_a_missing_key_part() {
    for (on_missing, expected) in [("skip", [200; 3]), ("shared", [200, 429, 429]), ("deny", [403; 3])] {
        let rule = format!("  - {{ name: a, key: country, limit: 1/d, on_missing: {on_missing} }}");
        let weir = start_with_rules(&rule);
        // One address is in the database without a country, two are not in it.
        assert_eq!(
            statuses(&weir, &["203.0.113.130", "203.0.113.200", "10.1.1.1"]),
            expected,
            "{on_missing}"
        );
        assert_eq!(statuses(&weir, &["192.0.2.1"]), [200]);
    }
}

#[test]
fn untrusted_x_forwarded_for_does_not_set_the_country() {
    let rules = "rules: [{ name: no, match: { country: BR }, action: deny }]";
    let weir = Weir::start(&config("echo", &format!("{}\n{rules}", geo_config())));
    assert_eq!(statuses(&weir, &["198.51.100.7"]), [200]);
}

#[test]
fn replaced_database_is_reloaded_and_counters_are_retained() {
    let place = ReplaceableDatabases::start(
        "  - { name: no, match: { country: BR }, action: deny }\n  \
         - { name: counted, match: { path: /counted }, key: country, limit: 2/d }\n  \
         - { name: system, match: { asn: 64503 }, action: deny }",
    );
    let counted = |client: &str| {
        let request = Request::get("/counted").forwarded_for(client);
        Client::connect(place.weir.address()).fetch(&request).status
    };
    assert_eq!([counted("192.0.2.1"), counted("192.0.2.130")], [200, 200]);
    place.replace("country-moved.mmdb", "places.mmdb");
    place.until_status("192.0.2.1", 403);
    assert_eq!([counted("192.0.2.130"), counted("192.0.2.130")], [200, 429], "the counter is kept");
    place.replace("country.mmdb", "places.mmdb");
    place.until_status("192.0.2.1", 200);
    assert_eq!([counted("192.0.2.1"), counted("192.0.2.1")], [200, 429], "the counter is kept");
    place.replace("asn-moved.mmdb", "systems.mmdb");
    place.until_status("192.0.2.1", 403);
    assert_eq!(place.status("198.51.100.1"), 403, "this country is still denied");
}

#[test]
fn damaged_database_is_rejected_and_reported() {
    let place = ReplaceableDatabases::start("  - { name: no, match: { country: BR }, action: deny }");
    let damage = |content: &[u8]| {
        let before = place.weir.rejected_reloads();
        let next = place.directory.path().join("next");
        fs::write(&next, content).unwrap();
        fs::rename(&next, place.directory.path().join("places.mmdb")).unwrap();
        place.until_rejected(before);
        assert_eq!((place.status("198.51.100.7"), place.status("192.0.2.1")), (403, 200));
    };
    let whole = fs::read(test_data_path("country-moved.mmdb")).unwrap();
    damage(&whole[..whole.len() / 2]);
    damage(b"<html>quota exceeded</html>");
    damage(&fs::read(test_data_path("asn.mmdb")).unwrap());
    let problem = "geo.database: no countries in this database of type \"GeoLite2-ASN\"";
    let info = place.weir.admin_json("/server_info");
    let shown = info["config"]["last_reload"]["problems"][0].as_str().unwrap();
    assert!(shown.contains(problem) && shown.contains("weir.yaml:"), "{shown}");
    wait::until_true("the log", || {
        place.weir.log().iter().any(|line| line.contains("no countries in this database"))
    });
    assert_eq!(place.weir.metric("weir_config_last_reload_successful", &[]), 0.0);
    // A valid database is loaded again.
    place.replace("country-moved.mmdb", "places.mmdb");
    place.until_status("192.0.2.1", 403);
    wait::until_true("a successful reload", || {
        place.weir.metric("weir_config_last_reload_successful", &[]) == 1.0
    });
}

#[test]
fn deleted_database_stays_in_use() {
    let place = ReplaceableDatabases::start("  - { name: no, match: { country: BR }, action: deny }");
    let before = place.weir.rejected_reloads();
    fs::remove_file(place.directory.path().join("places.mmdb")).unwrap();
    place.until_rejected(before);
    assert_eq!((place.status("198.51.100.7"), place.status("192.0.2.1")), (403, 200));
}

#[test]
fn database_of_the_wrong_type_fails_check_and_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weir.yaml");
    fs::write(
        &file,
        config("echo", &format!("geo: {{ database: {} }}", test_data_path("asn.mmdb").display())),
    )
    .unwrap();
    let path = file.to_str().unwrap();
    for command in [vec!["check", path], vec!["run", "-c", path]] {
        let output = crate::support::weir::run(command);
        assert_eq!(output.status.code(), Some(2));
        let said = [output.stdout, output.stderr].concat();
        assert!(String::from_utf8_lossy(&said).contains("it belongs in `geo.asn_database`"));
    }
}
