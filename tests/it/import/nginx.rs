//! Imported rules against nginx itself: the same requests, in the same order, get the same decisions.
//!
//! All rates are one request a minute, so no test depends on how fast it runs.

use std::fs;
use std::net::SocketAddr;

use tempfile::TempDir;

use crate::support::peers::Peer;
use crate::support::weir::run;
use crate::support::{Client, Request, Weir};

/// The decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Admitted,
    Rejected,
    Denied,
}

/// A request, as both proxies receive it.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    client: &'static str,
    host: &'static str,
    path: &'static str,
    key: Option<&'static str>,
    method: &'static str,
}

const PLAIN: Attempt = Attempt { client: "127.0.0.1", host: "a.test", path: "/", key: None, method: "GET" };

fn decide(proxy: SocketAddr, attempt: &Attempt) -> Decision {
    let request = Request::new(attempt.method, attempt.path).host(attempt.host);
    let request = attempt.key.into_iter().fold(request, |request, key| request.header("x-key", key));
    match Client::connect_from(attempt.client, proxy).fetch(&request).status {
        429 | 503 => Decision::Rejected,
        403 => Decision::Denied,
        _ => Decision::Admitted,
    }
}

/// Converts a configuration with the program; returns the rules with all comments.
fn import(directory: &TempDir, config: &str) -> String {
    let file = directory.path().join("nginx.conf");
    fs::write(&file, config).unwrap();
    let output = run(["import", "nginx", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}\n{config}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn start_weir(rules: &str) -> Weir {
    Weir::start(&format!(
        "listeners: 127.0.0.1:0\nadmin: {{ address: 127.0.0.1:0 }}\nupstream: echo\n{rules}"
    ))
}

/// Sends the requests to nginx and to Weir with the imported rules, and compares each decision. Returns those of
/// nginx.
#[track_caller]
fn assert_same_decisions(config: &str, attempts: &[Attempt]) -> Vec<Decision> {
    let directory = TempDir::new().unwrap();
    let rules = import(&directory, config);
    assert!(!rules.contains("not converted"), "{config}\n{rules}");
    let nginx = Peer::nginx(config);
    let weir = start_weir(&rules);
    // The request that shows that nginx is ready counts in zones that all clients share.
    decide(weir.address(), &Attempt { client: "127.99.99.99", host: "ready.invalid", ..PLAIN });
    let decided: Vec<Decision> = attempts.iter().map(|attempt| decide(nginx.address(), attempt)).collect();
    for (index, (attempt, expected)) in attempts.iter().zip(&decided).enumerate() {
        let ours = decide(weir.address(), attempt);
        assert_eq!(ours, *expected, "request {index}: {attempt:?}\n{config}\n{rules}");
    }
    decided
}

fn count(decisions: &[Decision], wanted: Decision) -> usize {
    decisions.iter().filter(|decision| **decision == wanted).count()
}

#[test]
fn imported_burst_admits_as_many_requests_as_nginx() {
    for (parameters, admitted) in [("", 1), ("burst=4 nodelay", 5), ("burst=6 delay=6", 7)] {
        let config = format!(
            "limit_req_zone $binary_remote_addr zone=ip:1m rate=1r/m;\n\
             server {{ listen 8080; limit_req zone=ip {parameters}; }}"
        );
        let decided = assert_same_decisions(&config, &[PLAIN; 12]);
        assert_eq!(count(&decided, Decision::Admitted), admitted, "{parameters}");
    }
}

#[test]
fn imported_delays_are_those_of_nginx() {
    // Five a second: of four requests at once, one passes and two wait for 200 and 400 ms.
    let config = "limit_req_zone $binary_remote_addr zone=ip:1m rate=5r/s;\n\
                  server { listen 8080; limit_req zone=ip burst=2; }";
    let directory = TempDir::new().unwrap();
    let nginx = Peer::nginx(config);
    let weir = start_weir(&import(&directory, config));
    for proxy in [nginx.address(), weir.address()] {
        let begun = crate::support::wait::now();
        let decisions = crate::support::run_concurrently(4, |_| decide(proxy, &PLAIN));
        assert_eq!(count(&decisions, Decision::Admitted), 3, "{decisions:?}");
        assert!(begun.elapsed().as_millis() >= 390, "{:?}", begun.elapsed());
    }
}

#[test]
fn imported_whitelist_of_geo_and_map_exempts_the_same_clients() {
    let config = "geo $limited { default 1; 127.0.0.2/32 0; 127.0.1.0/24 0; }
map $limited $limit_key { 0 \"\"; 1 $binary_remote_addr; }
limit_req_zone $limit_key zone=ip:1m rate=1r/m;
server { listen 8080; limit_req zone=ip burst=1 nodelay; }";
    let from = |client| Attempt { client, ..PLAIN };
    let attempts: Vec<_> = ["127.0.0.1", "127.0.0.2", "127.0.1.9", "127.0.2.1"]
        .into_iter()
        .flat_map(|client| [from(client); 4])
        .collect();
    let decided = assert_same_decisions(config, &attempts);
    assert_eq!(count(&decided, Decision::Rejected), 4);
}

#[test]
fn imported_map_of_a_method_or_header_limits_the_same_requests() {
    let config = "map $request_method $posts { default \"\"; POST $binary_remote_addr; }
map $http_x_key $by_key { \"\" $binary_remote_addr; ~*^internal \"\"; default $http_x_key; }
limit_req_zone $posts zone=posts:1m rate=1r/m;
limit_req_zone $by_key zone=keys:1m rate=1r/m;
server { listen 8080;
    location / { limit_req zone=posts; }
    location /keys/ { limit_req zone=keys burst=1 nodelay; }
}";
    let mut attempts = Vec::new();
    for method in ["GET", "POST"] {
        attempts.extend([Attempt { method, ..PLAIN }; 3]);
    }
    for key in [None, Some("a"), Some("b"), Some("Internal-1")] {
        attempts.extend([Attempt { key, path: "/keys/x", ..PLAIN }; 4]);
    }
    let decided = assert_same_decisions(config, &attempts);
    assert_eq!(count(&decided, Decision::Rejected), 2 + 3 * 2);
}

#[test]
fn imported_text_in_keys_separates_counters() {
    let config = "map $http_x_key $class { default \"\"; ~*bot bot; ~*curl curl; }
map $request_method $by_method { default $binary_remote_addr; POST \"p$binary_remote_addr\"; }
geo $network { default 0; 127.0.0.2/32 1; }
limit_req_zone $class zone=class:1m rate=1r/m;
limit_req_zone $by_method zone=method:1m rate=1r/m;
limit_req_zone $network zone=network:1m rate=1r/m;
server { listen 8080;
    location /class/ { limit_req zone=class burst=1 nodelay; }
    location /method/ { limit_req zone=method burst=1 nodelay; }
    location /network/ { limit_req zone=network burst=1 nodelay; }
}";
    let mut attempts = Vec::new();
    for key in [Some("a bot"), Some("curl"), None] {
        attempts.extend([Attempt { key, path: "/class/x", ..PLAIN }; 3]);
    }
    for method in ["GET", "POST"] {
        attempts.extend([Attempt { method, path: "/method/x", ..PLAIN }; 3]);
    }
    for client in ["127.0.0.1", "127.0.0.3", "127.0.0.2"] {
        attempts.extend([Attempt { client, path: "/network/x", ..PLAIN }; 2]);
    }
    let decided = assert_same_decisions(config, &attempts);
    assert_eq!(count(&decided, Decision::Rejected), 2 + 2 + 2);
}

#[test]
fn imported_limits_behind_try_files_count_the_same_requests() {
    let config = "limit_req_zone $binary_remote_addr zone=ip:1m rate=1r/m;
limit_req_zone $binary_remote_addr zone=php:1m rate=1r/m;
server { listen 8080;
    location /app/ { try_files $uri @app; }
    location @app { limit_req zone=ip burst=2 nodelay; }
    location /blog/ { try_files $uri $uri/ /index.php?$args; }
    location ~ \\.php$ { limit_req zone=php; }
    location /own/ { limit_req zone=php burst=1 nodelay; try_files $uri @app; }
    location /free/ { }
}";
    let paths = ["/app/x", "/blog/x", "/a.php", "/free/x"];
    let attempts: Vec<_> = paths.iter().flat_map(|path| [Attempt { path, ..PLAIN }; 4]).collect();
    let decided = assert_same_decisions(config, &attempts);
    assert_eq!(count(&decided, Decision::Rejected), 1 + 3 + 4);
    let decided = assert_same_decisions(config, &[Attempt { path: "/own/x", ..PLAIN }; 4]);
    assert_eq!(count(&decided, Decision::Rejected), 2, "a request is counted by the first location only");
}

#[test]
fn imported_map_of_a_composed_text_limits_the_same_requests() {
    let config = "geo $office { default 0; 127.0.0.2/32 1; }
map $http_x_key $known { default 0; a 1; }
map \"$office:$known\" $limited { default $binary_remote_addr; 1:1 \"\"; 1:0 office; }
map \"$request_method:$uri\" $logins { default \"\"; POST:/login $binary_remote_addr; ~^PUT:/put/ $binary_remote_addr; }
limit_req_zone $limited zone=limited:1m rate=1r/m;
limit_req_zone $logins zone=logins:1m rate=1r/m;
server { listen 8080;
    location / { limit_req zone=logins; }
    location /l/ { limit_req zone=limited burst=1 nodelay; }
}";
    let mut attempts = Vec::new();
    for client in ["127.0.0.1", "127.0.0.2"] {
        for key in [None, Some("a")] {
            attempts.extend([Attempt { client, key, path: "/l/x", ..PLAIN }; 3]);
        }
    }
    for (method, path) in [("POST", "/login"), ("GET", "/login"), ("PUT", "/put/x"), ("POST", "/put/x")] {
        attempts.extend([Attempt { method, path, ..PLAIN }; 2]);
    }
    let decided = assert_same_decisions(config, &attempts);
    // The address of the first client has one counter for both keys, and so have its logins.
    assert_eq!(count(&decided, Decision::Rejected), 4 + 1 + 3);
}

#[test]
fn imported_dump_of_nginx_limits_what_its_files_limit() {
    let config = "limit_req_zone $binary_remote_addr zone=ip:1m rate=1r/m;
server { listen 8080; location /api/ { limit_req zone=ip; } location / { } }";
    let dump = "nginx: the configuration file /etc/nginx/nginx.conf syntax is ok
# configuration file /etc/nginx/nginx.conf:
http { limit_req_zone $binary_remote_addr zone=ip:1m rate=1r/m; include sites/*; }
# configuration file /etc/nginx/sites/a:
server { listen 8080; location /api/ { include /etc/nginx/snippets/limit.conf; } location / { } }
# configuration file /etc/nginx/snippets/limit.conf:
limit_req zone=ip;
";
    let directory = TempDir::new().unwrap();
    let [of_files, of_dump] = [config, dump].map(|text| import(&directory, text));
    let rules =
        |text: &str| -> String { text.lines().filter(|line| !line.trim().starts_with('#')).collect() };
    assert_eq!(rules(&of_dump), rules(&of_files));
    assert!(of_dump.contains("match: { path: \"/api/*\" }"), "{of_dump}");
}

#[test]
fn imported_access_rules_deny_the_same_requests() {
    let config = "server { listen 8080;
    deny 127.0.0.3;
    location /admin/ { deny 127.0.0.1; allow 127.0.0.0/30; deny all; }
    location = /admin/open { allow all; }
    location ~ \\.php$ { return 404; }
}";
    let paths = ["/", "/admin/x", "/admin/open", "/admin/a.php", "/x.php"];
    let clients = ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"];
    let attempts: Vec<_> =
        paths.iter().flat_map(|path| clients.map(|client| Attempt { client, path, ..PLAIN })).collect();
    let decided = assert_same_decisions(config, &attempts);
    assert_eq!(count(&decided, Decision::Denied), 3);
}

/// A generator of the same numbers in every run (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as usize % end
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

const KEYS: [&str; 9] = [
    "$binary_remote_addr",
    "$http_x_key",
    "$binary_remote_addr$http_x_key",
    "$http_x_key:$host",
    "$server_name",
    "$binary_remote_addr$server_name",
    "$uri",
    "$request_method",
    "$by_network",
];
const LOCATIONS: [&str; 10] = [
    "/",
    "/api/",
    "/api",
    "/api/v1/",
    "= /api/v1/x",
    "^~ /static/",
    "~ \\.php$",
    "~* ^/API/",
    "= /login",
    "~ ^/static/.*\\.js$",
];
const NAMES: [&str; 6] = ["a.test", "b.test www.b.test", "*.b.test", ".c.test", "www.*", "~^x\\d"];
const HOSTS: [&str; 9] = [
    "a.test",
    "b.test",
    "www.b.test",
    "y.b.test",
    "c.test",
    "z.c.test",
    "www.d.test",
    "x1.test",
    "other.test",
];
const PATHS: [&str; 12] = [
    "/",
    "/api",
    "/api/",
    "/apis",
    "/api/v1/x",
    "/api/v1/y",
    "/API/q",
    "/static/a.php",
    "/static/b.js",
    "/a.php",
    "/login",
    "/login/",
];

/// Returns the limits or access rules of a level.
fn generated_level(numbers: &mut Numbers, zones: usize, is_access: bool, percent: usize) -> String {
    let mut text = String::new();
    for zone in 0..zones {
        if !is_access && numbers.chance(percent) {
            // One burst for each zone: rules cannot share a counter with several.
            text += &format!("limit_req zone=z{zone} burst={} nodelay; ", zone + 1);
        }
    }
    if is_access && numbers.chance(percent) {
        for _ in 0..=numbers.below(3) {
            let access = numbers.pick(&["allow", "deny"]);
            let network = numbers.pick(&["127.0.0.1", "127.0.0.2/31", "127.0.0.0/30", "all"]);
            text += &format!("{access} {network}; ");
        }
    }
    if numbers.chance(8) {
        text += "limit_req_status 429; ";
    }
    text
}

fn generated_config(numbers: &mut Numbers, is_access: bool) -> String {
    let zones = 1 + numbers.below(3);
    let mut text = "geo $office { default 0; 127.0.0.2/32 1; }\n\
                    map $office $by_network { 0 $binary_remote_addr; 1 \"\"; }\n"
        .to_owned();
    for zone in 0..zones {
        let key = numbers.pick(&KEYS);
        text += &format!("limit_req_zone {key} zone=z{zone}:1m rate=1r/m;\n");
    }
    text += &generated_level(numbers, zones, is_access, 30);
    let mut names = NAMES.to_vec();
    for server in 0..1 + numbers.below(3) {
        let name = names.remove(numbers.below(names.len()));
        let default = if server == 1 && numbers.chance(30) { " default_server" } else { "" };
        text += &format!("\nserver {{ listen 8080{default}; server_name {name}; ");
        text += &generated_level(numbers, zones, is_access, 30);
        let mut locations = LOCATIONS.to_vec();
        for _ in 0..numbers.below(6) {
            let location = locations.remove(numbers.below(locations.len()));
            let inner = match numbers.chance(10) {
                true => "return 204; ".to_owned(),
                false => generated_level(numbers, zones, is_access, 40),
            };
            text += &format!("\n  location {location} {{ {inner}}}");
        }
        text += "\n}";
    }
    text
}

#[test]
fn imported_rules_decide_generated_requests_as_nginx_does() {
    let mut numbers = Numbers(18);
    let (mut rejected, mut denied, mut compared) = (0, 0, 0);
    for case in 0..40 {
        let config = generated_config(&mut numbers, case % 4 == 3);
        let attempts: Vec<Attempt> = (0..60)
            .map(|_| Attempt {
                client: numbers.pick(&["127.0.0.1", "127.0.0.2", "127.0.0.3"]),
                host: numbers.pick(&HOSTS),
                path: numbers.pick(&PATHS),
                key: numbers.pick(&[None, Some("k1"), Some("k2")]),
                method: numbers.pick(&["GET", "GET", "HEAD"]),
            })
            .collect();
        let directory = TempDir::new().unwrap();
        let is_complete =
            config.contains("limit_req zone") || config.contains("allow") || config.contains("deny");
        if !is_complete || import(&directory, &config).contains("not converted") {
            continue;
        }
        let decided = assert_same_decisions(&config, &attempts);
        compared += 1;
        rejected += count(&decided, Decision::Rejected);
        denied += count(&decided, Decision::Denied);
    }
    assert!(compared >= 25 && rejected >= 200 && denied >= 20, "{compared} {rejected} {denied}");
}
