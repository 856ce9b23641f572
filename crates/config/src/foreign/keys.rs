//! Keys of other programs.

use serde_yaml::Value;

use super::snake_case;

/// A key of another program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForeignKey {
    /// What to write here.
    pub(crate) hint: &'static str,
    /// The key here that it stands for, which is then not reported as missing.
    pub(crate) meant: Option<&'static str>,
}

/// Keys of one map here, which `marker` distinguishes from other maps.
struct MapKeys {
    marker: &'static str,
    keys: &'static [(&'static str, &'static str, &'static str)],
}

/// Names in snake case, separated by spaces; the key that is meant, or nothing; what to write.
const MAPS: &[MapKeys] = &[
    MapKeys { marker: "rules", keys: ROOT },
    MapKeys { marker: "on_missing", keys: RULE },
    MapKeys { marker: "schedule", keys: MATCH },
    MapKeys { marker: "ban_max", keys: ON_LIMIT },
    MapKeys { marker: "proxy_protocol", keys: LISTENER },
    MapKeys { marker: "connect_timeout", keys: UPSTREAM },
    MapKeys { marker: "trusted_proxies", keys: CLIENT_IP },
    MapKeys { marker: "cookie", keys: KEY_PART },
    MapKeys { marker: "refill", keys: TOKEN_BUCKET },
    MapKeys { marker: "from", keys: LIMIT },
    MapKeys { marker: "client_ca", keys: LISTENER_TLS },
    MapKeys { marker: "sentinel_username", keys: REDIS },
    MapKeys { marker: "cache", keys: BOOTSTRAP },
    MapKeys { marker: "origins", keys: CORS },
    MapKeys { marker: "json", keys: BODY },
];

const ROOT: &[(&str, &str, &str)] = &[
    ("ruls rule rate_limits rate_limit limits policies", "rules", "did you mean `rules`?"),
    (
        "listen bind port address entry_points frontend frontends gateways",
        "listeners",
        "did you mean `listeners`, as in `listeners: 0.0.0.0:8080`?",
    ),
    ("server servers http", "", "write `listeners: 0.0.0.0:8080`, `upstream: 127.0.0.1:3000` and `rules`"),
    (
        "proxy_pass backend backends service services cluster clusters target targets",
        "upstream",
        "did you mean `upstream`, as in `upstream: 127.0.0.1:3000`?",
    ),
    ("routes routers", "", "write `upstreams` with a `match` each, or `match` in a rule"),
    (
        "static_resources",
        "",
        "a configuration of Envoy: write `listeners`, `upstream` and `rules`; `weir import local-ratelimit FILE` converts its limits",
    ),
    (
        "descriptors domain",
        "",
        "limits of Envoy's rate limit service: `weir import envoy-ratelimit FILE` converts them",
    ),
    (
        "plugins middlewares filters",
        "",
        "write each limit as an item of `rules`, as in `{ name: per-ip, key: client_ip, limit: 100/min }`",
    ),
    ("worker_processes threads concurrency nbthread", "", "did you mean `workers`?"),
    (
        "use_remote_address trust_proxy trust_proxies real_ip",
        "",
        "write `client_ip: { trusted_proxies: [10.0.0.0/8] }`",
    ),
    (
        "timeout timeouts",
        "",
        "write `upstream: { address: …, timeout: 15s }`, or `idle_timeout` in a listener",
    ),
    (
        "whitelist allowlist allow bypass",
        "",
        "write a rule: `{ name: allowed, match: { client_ip: [10.0.0.0/8] }, action: allow }`",
    ),
    (
        "blacklist blocklist denylist deny",
        "",
        "write a rule: `{ name: blocked, match: { client_ip: [10.0.0.0/8] }, action: deny }`",
    ),
    (
        "log_level logging log loglevel",
        "",
        "the option `--log-level LEVEL`, or the variable `WEIR_LOG_LEVEL`",
    ),
    (
        "metrics prometheus health healthz probes",
        "",
        "the admin port serves them: `admin: { address: 127.0.0.1:9901, probes: 0.0.0.0:9902 }`",
    ),
    (
        "standard_headers legacy_headers draft_polli_ratelimit_headers",
        "",
        "write `ratelimit_headers: full` (x-ratelimit-*), or `ietf_headers: true`",
    ),
    ("redis database", "", "write `store: { redis: redis://127.0.0.1:6379 }`"),
    (
        "tls ssl certificate certificates",
        "",
        "write it in a listener: `{ address: 0.0.0.0:8443, tls: { certificate: tls.crt, key: tls.key } }`",
    ),
    ("spec metadata kind", "", "a configuration is a value under `data` of a ConfigMap"),
];

const RULE: &[(&str, &str, &str)] = &[
    (
        "rate rps qps rpm requests requests_per_second requests_per_minute requests_per_unit average max points permits limit_for_period replenish_rate capacity rate_limit ratelimit bandwidth bandwidths second minute hour day month",
        "limit",
        "did you mean `limit`, as in `limit: 100/min`?",
    ),
    (
        "limit_req limit_request",
        "limit",
        "write `limit: 10/s` and `burst: 5`; `weir import nginx FILE` converts nginx",
    ),
    (
        "limit_conn max_connections concurrency max_concurrent in_flight_req",
        "in_flight",
        "did you mean `in_flight`, as in `in_flight: 10`?",
    ),
    (
        "window window_ms window_size period duration interval limit_refresh_period unit every ttl time",
        "",
        "the period is part of the limit, as in `limit: 100/15min`",
    ),
    ("burst_capacity max_burst bucket_size max_tokens burst_size", "", "did you mean `burst`?"),
    ("requested_tokens hits_addend weight tokens", "", "did you mean `cost`?"),
    ("nodelay", "", "remove it: without `throttle: delay`, requests above the burst are rejected at once"),
    ("delay delay_after timeout_duration queue", "", "write `throttle: delay 500ms`"),
    (
        "dry_run shadow_mode shadow mode report_only log_only limit_req_dry_run",
        "",
        "write `throttle: shadow`",
    ),
    ("filter_enforced filter_enabled runtime_fraction percent percentage sample", "", "write `enforce: 10%`"),
    (
        "zone zones sync_rate namespace",
        "",
        "counters need no zone: write `key`, and `counter` to share one among rules",
    ),
    ("stick_table track_sc0 track_sc1 track_sc2", "", "write `key: client_ip` and `limit: 100/10s`"),
    (
        "location locations path uri url prefix route routes method methods host hosts hostname header cookie source_ip country acl when condition conditions if",
        "match",
        "write it in `match`, as in `match: { path: /api/* }`",
    ),
    (
        "unless skip exclude excluded excluded_ips ignore allowlist whitelist",
        "",
        "write `except`, as in `except: { client_ip: [10.0.0.0/8] }`",
    ),
    ("denylist blacklist blocklist deny block", "", "write a rule with `match` and `action: deny`"),
    ("allow", "", "write a rule with `match` and `action: allow`"),
    (
        "limit_by by group_by identifier source_criterion key_generator key_resolver key_by per descriptors",
        "",
        "did you mean `key`, as in `key: client_ip` or `key: { header: x-api-key }`?",
    ),
    (
        "status status_code code error_code deny_status rejected_status limit_req_status limit_conn_status return",
        "",
        "write `on_limit: { status: 503 }`",
    ),
    (
        "message error_message body response response_body on_exceeded on_exceed on_reject on_rejected on_limited rate_limited_status",
        "",
        "write `on_limit: { body: { text: slow down } }`",
    ),
    (
        "headers response_headers response_headers_to_add add_header",
        "",
        "write `on_limit: { headers: { x-name: value } }`",
    ),
    (
        "retry_after",
        "",
        "`retry-after` is computed; with `action: deny`, write `on_limit: { headers: { retry-after: \"600\" } }`",
    ),
    ("cors", "", "write `on_limit: { cors: { origins: [https://app.example] } }`"),
    ("ban block_duration block_for jail penalty", "", "write `on_limit: { ban: 10m }`"),
    (
        "policy strategy redis storage global shared cluster",
        "",
        "write `scope: local` (this instance) or `scope: shared` (all instances, through `store`)",
    ),
    (
        "fault_tolerant failure_mode_deny fail_open fail_closed on_error",
        "",
        "write `scope: { shared: lease, on_store_loss: allow }`",
    ),
    (
        "skip_successful_requests skip_failed_requests",
        "",
        "write which responses count, as in `count: { response_status: [401, 403] }`",
    ),
    ("hide_client_headers disable_x_ratelimit_headers", "", "write `ratelimit_headers: off` at the top"),
    ("type", "", "did you mean `algorithm`, as in `algorithm: fixed_window`?"),
    ("enabled disabled", "", "remove the rule, or write `enforce: 0%` to count only"),
    ("priority order", "", "every rule that matches applies; write `except` to exclude requests"),
];

const MATCH: &[(&str, &str, &str)] = &[
    (
        "location uri url prefix path_prefix path_beg path_sub path_reg path_regex regex safe_regex",
        "",
        "did you mean `path`, as in `path: /api/*` (below it) or `path: \"~^/v[0-9]+/\"` (a regex)?",
    ),
    ("headers hdr request_headers", "", "did you mean `header`, as in `header: { x-tenant: acme }`?"),
    (
        "ip source_ip src remote_addr remote_address cidr",
        "",
        "did you mean `client_ip`, as in `client_ip: [10.0.0.0/8]`?",
    ),
    ("authority domains server_name virtual_host sni", "", "did you mean `host`?"),
    ("methods verb http_method", "", "did you mean `method`?"),
    (
        "query query_string args params",
        "",
        "queries cannot be matched; `key: { query: NAME }` counts by them",
    ),
    ("cookie cookies", "", "write `header: { cookie: \"~(^|; )beta=1\" }`"),
    ("user consumer claim", "", "write `jwt: { sub: NAME }`"),
    ("time hours days cron", "", "did you mean `schedule`, as in `schedule: \"Mon-Fri 01:00-06:00\"`?"),
];

const ON_LIMIT: &[(&str, &str, &str)] = &[
    ("status_code code http_status error_code", "", "did you mean `status`?"),
    ("message text error error_message response", "", "write `body: { text: slow down }`"),
    ("json", "", "write `body: { json: { error: slow down } }`"),
    ("file template", "", "write `body: { file: busy.html }`"),
    ("header response_headers", "", "did you mean `headers`?"),
    ("content_type", "", "write `headers: { content-type: text/html }`"),
    (
        "retry_after",
        "",
        "`retry-after` is computed; with `action: deny`, write `headers: { retry-after: \"600\" }`",
    ),
    (
        "access_control_allow_origin allow_origin origins",
        "",
        "write `cors: { origins: [https://app.example] }`",
    ),
    ("ban_for block_duration", "", "did you mean `ban`?"),
];

const LISTENER: &[(&str, &str, &str)] = &[
    ("port host listen bind target_port container_port", "address", "write `address: 0.0.0.0:8080`"),
    ("ssl certificate cert", "", "did you mean `tls`, as in `tls: { certificate: tls.crt, key: tls.key }`?"),
    (
        "maxconn max_connections worker_connections",
        "",
        "write `overload: { connections: { max: 10000 } }` at the top",
    ),
    ("timeout client_timeout", "", "write `header_timeout: 10s` or `idle_timeout: 60s`"),
    ("max_header_size large_client_header_buffers", "", "write `limits: { header_size: 64KiB }`"),
];

const UPSTREAM: &[(&str, &str, &str)] = &[
    (
        "url uri server target backend service endpoint dns host_name",
        "address",
        "did you mean `address`, as in `address: 127.0.0.1:3000`?",
    ),
    ("port", "address", "write `address: 127.0.0.1:3000`"),
    (
        "targets servers endpoints hosts addresses load_assignment nodes",
        "address",
        "did you mean `address`, as in `address: [10.0.0.1:3000, 10.0.0.2:3000]`?",
    ),
    ("ssl https", "", "write `address: https://host:443`"),
    ("read_timeout response_timeout proxy_read_timeout", "", "did you mean `timeout`?"),
    ("max_connections maxconn circuit_breakers", "", "write `limits: { requests: 100 }`"),
    ("lb_policy load_balancing algorithm", "", "did you mean `balance`?"),
    ("health_checks healthcheck check", "", "did you mean `health_check`?"),
    ("outlier_detection", "", "did you mean `outliers`?"),
];

const CLIENT_IP: &[(&str, &str, &str)] = &[
    (
        "set_real_ip_from proxies trusted trusted_ips trust_proxy",
        "",
        "did you mean `trusted_proxies`, as in `trusted_proxies: [10.0.0.0/8]`?",
    ),
    (
        "depth xff_num_trusted_hops trusted_hops num_trusted_hops hops",
        "",
        "hops are not counted: write the networks of the proxies, as in `trusted_proxies: [10.0.0.0/8]`",
    ),
    ("real_ip_header forwarded_header headers", "header", "did you mean `header`?"),
    ("ipv6_subnet ipv6_mask ipv6_prefix_length", "", "did you mean `ipv6_prefix`?"),
];

const KEY_PART: &[(&str, &str, &str)] = &[
    (
        "headers request_headers request_header header_name request_header_name http_header",
        "",
        "did you mean `header`, as in `{ header: x-api-key }`?",
    ),
    ("cookies cookie_name", "", "did you mean `cookie`?"),
    ("arg args param query_param query_parameter query_parameters", "", "did you mean `query`?"),
    ("ip remote_address source_cluster", "", "did you mean `client_ip`?"),
    ("claim claims jwt_claim metadata", "", "did you mean `jwt`, as in `{ jwt: sub }`?"),
];

const TOKEN_BUCKET: &[(&str, &str, &str)] = &[
    ("max_tokens capacity size", "", "write `burst: 100` beside `token_bucket`"),
    ("tokens_per_fill tokens rate refill_rate", "refill", "did you mean `refill`?"),
    ("fill_interval interval period refill_interval", "every", "did you mean `every`?"),
];

const LISTENER_TLS: &[(&str, &str, &str)] = &[
    (
        "cert crt cert_file ssl_certificate certificate_chain cert_chain",
        "certificate",
        "did you mean `certificate`?",
    ),
    ("key_file private_key ssl_certificate_key", "key", "did you mean `key`?"),
    ("ca ca_file client_certificate ssl_client_certificate", "client_ca", "did you mean `client_ca`?"),
];

const REDIS: &[(&str, &str, &str)] = &[(
    "host port address url password username database",
    "sentinel master",
    "write `redis: redis://USER:PASSWORD@127.0.0.1:6379`; a map is for Sentinel",
)];

const BOOTSTRAP: &[(&str, &str, &str)] = &[(
    "listeners upstream upstreams admin rules store",
    "http",
    "`config` is the address of a configuration server: write this key at the top",
)];

const LIMIT: &[(&str, &str, &str)] = &[(
    "rate limit count requests requests_per_unit max_requests amount value average unit period per window interval burst \
     algorithm",
    "default from",
    "write `limit: 100/min`, with `burst` beside it; `limits` takes a list of maps",
)];

const CORS: &[(&str, &str, &str)] = &[
    (
        "origin allow_origin allow_origins allowed_origins allow_origin_string_match",
        "origins",
        "did you mean `origins`?",
    ),
    ("allow_credentials", "", "did you mean `credentials`?"),
    (
        "methods headers allow_methods allow_headers expose_headers max_age",
        "",
        "remove it: a rejected preflight allows what it asks for, and all headers of the rejection are exposed",
    ),
];

const BODY: &[(&str, &str, &str)] = &[
    ("message error msg content html string", "", "write `text: …`, or `json: { error: … }`"),
    ("path template", "", "did you mean `file`?"),
];

/// Returns what a key that is unknown in the map with these `properties` stands for.
pub(crate) fn foreign_key(key: &str, has_property: impl Fn(&str) -> bool) -> Option<ForeignKey> {
    let map = MAPS.iter().find(|map| has_property(map.marker))?;
    let name = snake_case(key);
    let row = map.keys.iter().find(|(names, ..)| names.split(' ').any(|known| known == name));
    row.map(|(_, meant, hint)| ForeignKey { hint, meant: Some(*meant).filter(|meant| !meant.is_empty()) })
}

/// Returns a hint for a value of another kind than `key` has here.
pub(crate) fn structure_hint(key: &str, value: &Value) -> Option<&'static str> {
    Some(match (key, value) {
        ("match" | "except", Value::String(_)) => "write `{ path: /api/* }`",
        ("match" | "except", Value::Sequence(_)) if key == "match" => "write `{ path: [/a, /b] }`",
        ("header", Value::Sequence(_)) => "write a map of names to patterns, as in `{ x-tenant: acme }`",
        ("body", Value::String(_)) => "write `{ text: … }`",
        ("store", Value::String(_)) => "write `store: { redis: redis://127.0.0.1:6379 }`",
        ("path" | "host" | "method", Value::Mapping(_)) => {
            "write the pattern itself: `/exact`, `/below/*`, or `~` and a regex"
        }
        ("limit", Value::Mapping(_)) => {
            "write `limit: 100/min`, with `burst` beside it; `limits` takes a list of maps"
        }
        ("limit", Value::Sequence(_)) => "did you mean `limits`?",
        ("status", Value::String(_) | Value::Mapping(_)) => "write the number, as in `429`",
        ("address", Value::Mapping(_)) => "write `0.0.0.0:8080`",
        ("upstream", Value::Sequence(_)) => {
            "write `upstream: { address: [10.0.0.1:3000, 10.0.0.2:3000] }`, or `upstreams` with a `match` each"
        }
        ("cors", Value::Bool(_) | Value::String(_) | Value::Sequence(_)) => {
            "write `{ origins: [https://app.example] }`"
        }
        ("memory", Value::Mapping(_)) => "write the size, as in `memory: 64MiB`",
        ("tls", Value::Bool(true)) => "write `{ certificate: tls.crt, key: tls.key }`",
        _ => return None,
    })
}
