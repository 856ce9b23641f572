use super::*;

fn imported(text: &str) -> Result<String, String> {
    let rules = import("nginx.conf", text, &|_| Vec::new()).map_err(|errors| errors[0].to_string())?;
    // Without the comments on all rules.
    let lines = rules.rules.lines().filter(|line| !line.starts_with('#'));
    // Without the effects of comments, which `warnings` has.
    let without_effect = |line: &str| {
        ["looser", "tighter", "differs"]
            .iter()
            .fold(line.to_owned(), |line, effect| line.replacen(&format!("# {effect}: "), "# ", 1))
    };
    Ok(lines.map(|line| format!("{}\n", without_effect(line))).collect())
}

const ZONE: &str = "limit_req_zone $binary_remote_addr zone=ip:10m rate=10r/s;\n";

#[test]
fn nginx_limit_of_a_whole_server_becomes_one_rule() {
    let text = format!(
        "{ZONE} limit_req zone=ip burst=20 nodelay; server {{ location /a {{ }} location ~ b {{ }} }}"
    );
    let expected = "rules:
  - name: ip
    key: [{ client_ip: { prefix: 128 } }]
    limit: 10/s
    burst: 21
    on_limit: { status: 503 }
";
    assert_eq!(imported(&text).unwrap(), expected);
}

#[test]
fn nginx_burst_without_nodelay_becomes_a_delay() {
    let throttle = |parameters: &str, rate: &str| {
        let text = format!("limit_req_zone $uri zone=a:1m rate={rate};\nlimit_req zone=a {parameters};");
        let rules = imported(&text).unwrap();
        let field =
            |name: &str| rules.lines().find_map(|line| line.trim().strip_prefix(name).map(str::to_owned));
        (field("burst: ").unwrap(), field("throttle: "))
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(throttle("", "10r/s"), ("1".to_owned(), None));
    assert_eq!(throttle("burst=5", "10r/s"), ("1".to_owned(), some("delay 500ms")));
    assert_eq!(throttle("burst=5 delay=3", "10r/s"), ("4".to_owned(), some("delay 200ms")));
    assert_eq!(throttle("burst=5", "3r/s"), ("1".to_owned(), some("{ delay: 1667ms, queue: 5 }")));
    assert_eq!(throttle("burst=2", "1r/m"), ("1".to_owned(), some("delay 120s")));
}

#[test]
fn nginx_location_with_its_own_limit_is_excepted_from_the_server() {
    let text = format!(
        "{ZONE}limit_req_zone $http_x_key zone=key:1m rate=1r/m;
limit_req_status 429;
server {{
    limit_req zone=ip;
    location /api/ {{ limit_req zone=key burst=5 nodelay; }}
    location = /health {{ return 200; }}
}}"
    );
    let expected = r#"rules:
  - name: key
    match: { path: "/api/*" }
    key: [{ header: x-key }]
    limit: 1/min
    burst: 6
  - name: ip
    except: { path: ["/api/*", "/health"], trailing_slash: exact }
    key: [{ client_ip: { prefix: 128 } }]
    limit: 10/s
    burst: 1
"#;
    assert_eq!(imported(&text).unwrap(), expected);
}

#[test]
fn nginx_locations_that_no_single_rule_covers_share_a_counter() {
    // `/a/b/` has another limit than `/a/`, and `/a/b/c/` the same.
    let text = format!(
        "{ZONE}limit_req_status 429;
server {{
    location /a/ {{ limit_req zone=ip; }}
    location /a/b/ {{ }}
    location /a/b/c/ {{ limit_req zone=ip; }}
}}"
    );
    let expected = r#"rules:
  - name: ip
    match: { path: "/a/*" }
    except: { path: ["/a/b/*", "/a/b/c/*"] }
    key: [{ client_ip: { prefix: 128 } }]
    limit: 10/s
    burst: 1
    counter: ip
  - name: ip-2
    match: { path: "/a/b/c/*" }
    key: [{ client_ip: { prefix: 128 } }]
    limit: 10/s
    burst: 1
    counter: ip
"#;
    assert_eq!(imported(&text).unwrap(), expected);
}

#[test]
fn nginx_servers_become_hosts() {
    let text = format!(
        "{ZONE}limit_req_zone $server_name zone=host:1m rate=100r/s;
limit_req_status 429;
server {{ server_name a.com; }}
server {{ server_name b.com www.b.com; limit_req zone=ip; limit_req zone=host burst=9 nodelay; }}
server {{ server_name *.b.com; limit_req zone=host burst=9 nodelay; }}"
    );
    let expected = r#"rules:
  - name: ip
    match: { host: [b.com, www.b.com] }
    key: [{ client_ip: { prefix: 128 } }]
    limit: 10/s
    burst: 1
  - name: host
    match: { host: [b.com, www.b.com] }
    key: []
    limit: 100/s
    burst: 10
  - name: host-2
    match: { host: "*.b.com" }
    except: { host: www.b.com }
    key: []
    limit: 100/s
    burst: 10
"#;
    assert_eq!(imported(&text).unwrap(), expected);
}

#[test]
fn nginx_default_server_has_its_names_and_all_other_hosts() {
    // `www.*` is between the name of the default server and the rest of its hosts.
    let text = format!(
        "{ZONE}limit_req_status 429;
server {{ server_name www.a.com; limit_req zone=ip; }}
server {{ server_name www.*; }}"
    );
    let rules = imported(&text).unwrap();
    assert!(rules.contains("match: { host: www.a.com }\n"), "{rules}");
    assert!(rules.contains("except: { host: [www.a.com, \"~^www\\\\..\"] }\n"), "{rules}");
    assert_eq!(rules.matches("counter: ip\n").count(), 2, "{rules}");
}

#[test]
fn nginx_access_rules_apply_in_order() {
    let text =
        "location /admin/ { deny 10.0.0.1; allow 10.0.0.0/8; deny 192.0.2.0/24; deny all; allow 1.1.1.1; }";
    let expected = r#"rules:
  - name: deny
    match: { path: "/admin/*", client_ip: "10.0.0.1/32" }
    action: deny
  - name: deny-2
    match: { path: "/admin/*", client_ip: "192.0.2.0/24" }
    except: { client_ip: "10.0.0.0/8" }
    action: deny
  - name: deny-3
    match: { path: "/admin/*" }
    except: { client_ip: "10.0.0.0/8" }
    action: deny
"#;
    assert_eq!(imported(text).unwrap(), expected);
}

#[test]
fn nginx_connection_limits_and_dry_runs_are_converted() {
    let text = "limit_conn_zone $binary_remote_addr zone=addr:10m; limit_conn addr 5; limit_conn_dry_run on;";
    let expected = "rules:
  - name: addr
    key: [{ client_ip: { prefix: 128 } }]
    in_flight: 5
    throttle: shadow
    on_limit: { status: 503 }
";
    assert_eq!(imported(text).unwrap(), expected);
}

#[test]
fn nginx_limits_that_cannot_be_converted_are_comments_with_their_line() {
    for (text, expected) in [
        ("limit_req zone=a;", "nginx.conf:1: `limit_req` of zone `a`: `limit_req_zone` is not here"),
        (
            "limit_req_zone $ssl_client_serial zone=a:1m;\nlimit_req zone=a;",
            "nginx.conf:2: zone `a` is not converted: the variable `$ssl_client_serial` is not supported (nginx.conf:1)",
        ),
        (
            "map $uri $k { /a $remote_addr; }\nlimit_req_zone $k zone=a:1m;\nlocation /b { limit_req zone=a; }",
            "nginx.conf:3: zone `a` is not converted: its key and its place both select hosts or paths",
        ),
        (
            "location ~ (?!a) { deny all; }",
            "nginx.conf:1: rules do not support the regex `(?!a)`: its requests get the limits of other locations",
        ),
    ] {
        let rules = imported(text).unwrap();
        assert!(rules.contains(&format!("  # {expected}\n")), "{expected}\n{rules}");
        assert!(rules.starts_with("rules: []\n"), "{rules}");
    }
}

#[test]
fn nginx_file_without_limits_is_an_error() {
    let error = imported("server { listen 80; }").unwrap_err();
    assert_eq!(error, "nginx.conf: no limit_req, limit_conn, allow or deny in the file");
    assert_eq!(imported("server {").unwrap_err(), "nginx.conf:1:8: block without a closing `}`");
}

#[test]
fn nginx_default_servers_of_all_addresses_are_converted() {
    let text = format!(
        "{ZONE}limit_req_status 429;
server {{ listen 8080; server_name _; limit_req zone=ip burst=5 nodelay; }}
server {{ listen 9090; server_name _; limit_req zone=ip burst=50 nodelay; }}"
    );
    let expected = "rules:
  # nginx.conf:3: rules do not tell addresses apart: requests for other hosts to `*:8080` also get the limits of the server in nginx.conf:4
  # nginx.conf:4: rules do not tell addresses apart: requests for other hosts to `*:9090` also get the limits of the server in nginx.conf:3
  # zone `ip` has several bursts, delays or numbers: each is counted apart; nginx has one counter
  - name: ip
    key: [{ client_ip: { prefix: 128 } }]
    limit: 10/s
    burst: 6
  # zone `ip` has several bursts, delays or numbers: each is counted apart; nginx has one counter
  - name: ip-2
    key: [{ client_ip: { prefix: 128 } }]
    limit: 10/s
    burst: 51
";
    assert_eq!(imported(&text).unwrap(), expected);
}

#[test]
fn nginx_server_that_redirects_is_not_the_default_of_another_address() {
    let redirecting = "listen 80 default_server; listen [::]:80; server_name a.com;
    location /.well-known/acme-challenge/ { root /var/www; }
    location / { return 301 https://$host$request_uri; }";
    let text = format!(
        "{ZONE}limit_req_status 429;
server {{ {redirecting} }}
server {{ listen 443 ssl; server_name a.com; limit_req zone=ip; }}"
    );
    let expected = "rules:
  # nginx.conf:3: the server has no limits and redirects, except for some locations: not converted
  - name: ip
    key: [{ client_ip: { prefix: 128 } }]
    limit: 10/s
    burst: 1
";
    assert_eq!(imported(&text).unwrap(), expected);
}

#[test]
fn nginx_servers_of_different_addresses_are_excepted_only_where_both_are() {
    let comments = |servers: &str| -> Vec<String> {
        let rules = imported(&format!("{ZONE}limit_req_status 429;\n{servers}")).unwrap();
        rules.lines().filter(|line| !line.starts_with("rules:")).map(|line| line.trim().to_owned()).collect()
    };
    let limited = "key: [{ client_ip: { prefix: 128 } }]";
    // The same limit at two addresses is charged once.
    assert_eq!(
        comments(
            "server { listen 80; limit_req zone=ip; }
server { listen 81; server_name a.com; limit_req zone=ip; } server { listen 81; server_name b.com; return 204; }"
        ),
        [
            "# nginx.conf:4: rules do not tell addresses apart: requests for `b.com` to `*:81` also get the limits of the server in nginx.conf:3",
            "- name: ip",
            limited,
            "limit: 10/s",
            "burst: 1"
        ]
    );
    // A name of one of two addresses.
    assert_eq!(
        comments(
            "server { listen 80; listen 443; server_name a.com; limit_req zone=ip; }
server { listen 443; server_name b.com; }"
        ),
        [
            "# nginx.conf:3: rules do not tell addresses apart: requests for `b.com` to `*:80` do not get its limits",
            "- name: ip",
            "except: { host: b.com }",
            limited,
            "limit: 10/s",
            "burst: 1"
        ]
    );
    // nginx ignores the second of two equal names.
    assert_eq!(
        comments(
            "server { server_name x; } server { server_name a.com; }
server { server_name a.com; limit_req zone=ip; }"
        ),
        ["# nginx.conf:4: nginx ignores the name `a.com`, which the server in nginx.conf:3 has"]
    );
}

#[test]
fn nginx_keys_with_different_text_have_different_counters() {
    let names = |selection: &str| -> Vec<String> {
        let text = format!("{selection}\nlimit_req_zone $k zone=k:1m rate=10r/s;\nlimit_req zone=k;");
        let rules = imported(&text).unwrap();
        let wanted = |line: &&str| ["- name: ", "counter: ", "key: "].iter().any(|key| line.contains(key));
        rules.lines().filter(wanted).map(|line| line.trim().to_owned()).collect()
    };
    let agents = "map $http_user_agent $k { default \"\"; ~*bot bot; ~*curl curl; }";
    assert_eq!(names(agents), ["- name: k", "key: []", "- name: k-2", "key: []"]);
    let client = "key: [{ client_ip: { prefix: 128 } }]";
    let posts = "map $request_method $k { default $binary_remote_addr; POST \"p$binary_remote_addr\"; }";
    assert_eq!(names(posts), ["- name: k", client, "- name: k-2", client]);
    let networks = "geo $k { default 0; 10.0.0.0/8 1; }";
    assert_eq!(names(networks), ["- name: k", "key: []", "- name: k-2", "key: []"]);
    // Those with the same text share one, also across locations.
    let inner = "server { location /a/ { limit_req zone=k; } location /a/b/ { } location /a/b/c/ { limit_req zone=k; } }";
    let methods = "map $request_method $k { default \"\"; GET g; POST p; }";
    let text = format!("{methods}\nlimit_req_zone $k zone=k:1m rate=10r/s;\n{inner}");
    let rules = imported(&text).unwrap();
    assert_eq!(rules.matches("counter: k\n").count(), 2, "{rules}");
    assert_eq!(rules.matches("counter: k-3\n").count(), 2, "{rules}");
}

#[test]
fn nginx_server_names_are_written_once() {
    let text = format!(
        "{ZONE}server {{ server_name x; limit_req zone=ip; }} server {{ server_name a.com a.com .a.com; }}"
    );
    let rules = imported(&text).unwrap();
    assert!(rules.contains("except: { host: [a.com, \"*.a.com\"] }\n"), "{rules}");
}
