//! What holds where the configuration says nothing, and how far values may go.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use http::Method;

/// From a request's first byte to the end of its head. Slow clients need a second or two; one that trickles
/// its head to hold a connection gets this long.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// A request's head may take this much; Envoy's default.
pub const HEADER_SIZE: u32 = 60 * 1024;
/// The same as it is written.
pub const HEADER_SIZE_TEXT: &str = "60KiB";

/// Fields of a request's head; Envoy's default. Browsers send some twenty.
pub const MOST_HEADERS: u32 = 100;

/// Requests that a connection of HTTP/2 may have under way: as many as RFC 9113 section 6.5.2 recommends, and some.
pub const MOST_STREAMS: u32 = 128;

/// How long a connection may stay without a request. Longer than the 600 s for which large load balancers
/// keep idle connections, so that they close first and never send a request into a closing connection.
pub const LISTENER_IDLE_TIMEOUT: Duration = Duration::from_secs(620);

/// TLS handshakes that each worker has under way at once. Each takes some 12 KiB until it has ended, and this many take a
/// worker less than a second.
pub const HANDSHAKES: usize = 256;

/// Until a connection to the upstream stands. The service is beside us; this covers a lost SYN or two.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// From the request's last byte to the answer's headers; Envoy's default.
pub const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a body may stand still, and an unused connection to the upstream is kept. Five minutes, as most
/// proxies have it; a body that moves may take as long as it likes.
pub const UPSTREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// How often names are looked up again; Envoy's default.
pub const DNS_REFRESH: Duration = Duration::from_secs(5);

/// The seed of a rule's `enforce` that names none.
pub const ENFORCE_SEED: &str = crate::rules::enforce::DEFAULT_SEED;

/// Between two health checks, and for each of them.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// As much as a healthy service takes at its worst.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// Health checks in a row that make an endpoint healthy.
pub const HEALTHY_AFTER: u32 = 2;
/// Health checks in a row that make it unhealthy; one may be lost.
pub const UNHEALTHY_AFTER: u32 = 3;

/// Failed requests in a row after which an endpoint is left out; this and the next two are Envoy's defaults.
pub const OUTLIER_FAILURES: u32 = 5;
/// For how long it is the first time.
pub const EJECTION: Duration = Duration::from_secs(30);
/// At the longest.
pub const EJECTION_MAX: Duration = Duration::from_secs(300);
/// Percent of the endpoints that may be left out. Above Envoy's tenth, which is one of the few that a sidecar has.
pub const MAX_EJECTED: u8 = 50;

/// What connections may go over to.
pub const UPGRADES: [&str; 1] = ["websocket"];

/// Percent of the endpoints that must be healthy, or all are used; Envoy's default.
pub const PANIC_THRESHOLD: u8 = 50;

/// Open connections to an upstream, requests that wait for one, and requests under way; Envoy's default for each.
pub const MOST_UNDER_WAY: u32 = 1024;
/// What a client must send or take a second to keep a request while they are scarce: less than the slowest mobile
/// networks carry, and enough to make it costly to hold many.
pub const MIN_CLIENT_RATE: NonZeroU32 = NonZeroU32::new(1024).expect("not zero");
/// The same as it is written.
pub const MIN_CLIENT_RATE_TEXT: &str = "1KiB";
/// Retries under way at once; Envoy's default.
pub const MOST_RETRIES: u32 = 3;

/// Where nothing is said of retries, a request whose connection cannot be made asks another endpoint this often.
pub const MOVES: u32 = 1;
/// Attempts after the first, where something is.
pub const RETRIES: u32 = 2;
/// The longest pause before the first retry, and before any; Envoy's defaults.
pub const BACKOFF: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(250));
/// Percent of the requests under way that may be retries; Envoy's default.
pub const RETRY_BUDGET: u8 = 20;

/// The admin port: Envoy sidecars use the same neighbourhood. On loopback, because its POSTs act.
pub const ADMIN_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9901);

/// Nothing has to be told before we stop, unless `drain.delay` says so.
pub const DRAIN_DELAY: Duration = Duration::ZERO;

/// For what is in flight at the end: with the delay, less than the 30 s after which Kubernetes kills.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

/// The share of requests that get a span.
pub const SAMPLE: &str = "100%";
/// What we are called in traces.
pub const SERVICE_NAME: &str = "weir";

/// Leading bits of an IPv6 address that make one client: what a home or a host is given (RFC 6177).
pub const IPV6_PREFIX: u8 = 64;

/// By how much an issuer's clock may differ from ours: what most that verify tokens allow.
pub const JWT_LEEWAY: Duration = Duration::from_secs(60);

/// Counters the limiter has room for; some 40 MB when all are in use.
pub const MAX_KEYS: usize = 1_000_000;

/// How often counters are written where they are to survive: what a crash may forgive.
pub const STATE_INTERVAL: Duration = Duration::from_secs(30);

/// What each request costs.
pub const COST: u32 = 1;

/// The longest ban, and how long one is remembered after its end.
pub const BAN_MAX: Duration = Duration::from_secs(86_400);

/// What a refused request is answered with (RFC 6585 section 4).
pub const REFUSAL_STATUS: u16 = 429;

/// What a degraded answer from a file is sent with: it stands in for the upstream's.
pub const FALLBACK_STATUS: u16 = 200;

/// The methods of requests that get such an answer: those that only read (RFC 9110 section 9.2.1).
pub const FALLBACK_METHODS: [Method; 2] = [Method::GET, Method::HEAD];

/// Older answers are not given in place of a refusal.
pub const OLDEST_KEPT: Duration = Duration::from_secs(86_400);

/// The largest answer that is kept, in bytes; pages and documents, not downloads.
pub const LARGEST_KEPT: u64 = 1 << 20;

/// A budget holds at least so many answers of the largest size, so that one does not drive out all others.
pub const FEWEST_KEPT: u64 = 4;

/// Largest file that is sent as a body, in bytes: it is held in memory.
pub const LARGEST_BODY: u64 = 1 << 20;

/// Longest duration: more is surely a slip of the pen, and timers far away cost nothing but sense.
pub const LONGEST_DURATION: Duration = Duration::from_secs(365 * 86_400);

/// Largest configuration file. Read before anything is parsed; ten thousand rules take about as much.
pub const LARGEST_FILE: u64 = 1 << 20;

/// Longest name of a rule or listener: it goes into every metric of it.
pub const LONGEST_NAME: usize = 128;

/// From which share of a limit on hits count as near it: `NEAR_LIMIT_RATIO` of envoyproxy/ratelimit.
pub const NEAR_LIMIT: &str = "80%";
/// `LIMIT_LIMIT_HEADER` and its like of envoyproxy/ratelimit.
pub const LIMIT_HEADER: &str = "RateLimit-Limit";
/// For what is left.
pub const REMAINING_HEADER: &str = "RateLimit-Remaining";
/// For the time until all of it is there again.
pub const RESET_HEADER: &str = "RateLimit-Reset";
/// `GRPC_MAX_CONNECTION_AGE` of envoyproxy/ratelimit.
pub const RLS_MAX_AGE: Duration = Duration::from_secs(86_400);
/// `GRPC_MAX_CONNECTION_AGE_GRACE` of envoyproxy/ratelimit.
pub const RLS_GRACE: Duration = Duration::from_secs(3600);
/// `STATS_FLUSH_INTERVAL` of envoyproxy/ratelimit.
pub const STATSD_INTERVAL: Duration = Duration::from_secs(10);
/// `CONFIG_GRPC_XDS_NODE_ID` of envoyproxy/ratelimit.
pub const XDS_NODE: &str = "default";
/// Pauses before a management server is asked again: `XDS_CLIENT_BACKOFF_*` of envoyproxy/ratelimit.
pub const XDS_BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));
/// The largest answer of a management server, in bytes.
pub const XDS_LARGEST: u64 = 16 << 20;
/// For an answer of another rate limit service; Envoy's.
pub const REMOTE_TIMEOUT: Duration = Duration::from_millis(20);
/// Where Prometheus looks.
pub const METRICS_PATH: &str = "/metrics";
/// How long a server may hold a request for the configuration.
pub const CENTRAL_WAIT: Duration = Duration::from_secs(60);
/// The longest that it may.
pub const CENTRAL_LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// Between two requests for the configuration.
pub const CENTRAL_INTERVAL: Duration = Duration::from_secs(10);
/// The shortest time between them.
pub const CENTRAL_SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// For a response with the configuration.
pub const CENTRAL_TIMEOUT: Duration = Duration::from_secs(5);
/// What every key in the store begins with.
pub const STORE_PREFIX: &str = "weir";
/// For one call of the store.
pub const STORE_TIMEOUT: Duration = Duration::from_millis(50);
/// For a request that asks the store for a unit.
pub const SHARED_WAIT: Duration = Duration::from_millis(5);
/// Of a rule with a shared limit.
pub const SHARED_PRIORITY: u8 = 1;
/// The longest that a request may wait for the store.
pub const MAX_SHARED_WAIT: Duration = Duration::from_secs(1);
/// The longest prefix of keys in the store: each key has it.
pub const MAX_STORE_PREFIX: usize = 64;
