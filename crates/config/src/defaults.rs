//! Default values of the configuration, and the bounds of values.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use http::Method;

use weir_limiter::adaptive;
use weir_limiter::percent::Percent;

/// Default share of a class, and the least that requests of no class have.
pub const CLASS_SHARE: NonZeroU32 = NonZeroU32::MIN.saturating_add(9);

/// Maximum time from a request's first byte to the end of its header section. Slow clients need a second or
/// two. A connection that a slow header section is meant to hold open is closed after this time.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of a request's header section, in bytes; Envoy's default.
pub const MAX_HEADER_SIZE: u32 = 60 * 1024;
/// [`MAX_HEADER_SIZE`] as written in the configuration.
pub const MAX_HEADER_SIZE_TEXT: &str = "60KiB";

/// Maximum number of header fields of a request; Envoy's default. Browsers send about twenty.
pub const MAX_HEADERS: u32 = 100;

/// Maximum number of concurrent streams on an HTTP/2 connection. RFC 9113 section 6.5.2 recommends 100 or more.
pub const MAX_CONCURRENT_STREAMS: u32 = 128;

/// Maximum time that a connection may be without a request. Longer than the 600 s of large load balancers, so
/// that they close first and never send a request on a connection that is being closed.
pub const LISTENER_IDLE_TIMEOUT: Duration = Duration::from_secs(620);

/// Maximum number of concurrent TLS handshakes per worker. Each uses about 12 KiB until it has ended; a
/// worker completes this many in less than a second.
pub const MAX_HANDSHAKES: usize = 256;

/// Timeout for connecting to the upstream. The service is nearby; this allows for one or two lost SYN
/// packets.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout from the request's last byte to the response's header section; Envoy's default.
pub const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum time without progress of a body, and idle timeout of upstream connections. Five minutes, as in
/// most proxies; a body that makes progress may take any time.
pub const UPSTREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// Interval between DNS lookups of an upstream's names; Envoy's default.
pub const DNS_REFRESH: Duration = Duration::from_secs(5);

/// Interval between DNS lookups of a forward proxy's destinations. There may be many of them.
pub const DESTINATION_DNS_REFRESH: Duration = Duration::from_secs(30);
/// Ports that CONNECT may reach on a forward proxy: HTTPS. Mail and database ports are left out on purpose.
pub const CONNECT_PORTS: [u16; 1] = [443];

/// Time after which an alert that is still firing is sent again. A reminder each hour, without a flood of them.
pub const ALERT_REPEAT_INTERVAL: Duration = Duration::from_secs(3600);
/// Minimum of that time.
pub const MIN_ALERT_REPEAT_INTERVAL: Duration = Duration::from_secs(30);

/// Default seed of a rule's `enforce`.
pub const ENFORCE_SEED: &str = weir_policy::rules::enforced_share::DEFAULT_SEED;

/// Interval between health checks of an endpoint.
pub const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Timeout of a health check: what a healthy service needs in the worst case.
pub const HEALTH_CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// Consecutive successful health checks that make an endpoint healthy.
pub const HEALTHY_THRESHOLD: u32 = 2;
/// Consecutive failed health checks that make an endpoint unhealthy, so that a single lost probe does not.
pub const UNHEALTHY_THRESHOLD: u32 = 3;

/// Consecutive failed requests after which an endpoint is ejected. This and the next two values are Envoy's
/// defaults.
pub const OUTLIER_CONSECUTIVE_FAILURES: u32 = 5;
/// Duration of an endpoint's first ejection.
pub const BASE_EJECTION_TIME: Duration = Duration::from_secs(30);
/// Maximum duration of an ejection.
pub const MAX_EJECTION_TIME: Duration = Duration::from_secs(300);
/// Maximum percentage of endpoints that may be ejected at a time. Above Envoy's 10 %, because the upstream of
/// a sidecar has only a few endpoints.
pub const MAX_EJECTION_PERCENT: u8 = 50;

/// Protocols that connections may be upgraded to.
pub const UPGRADE_PROTOCOLS: [&str; 1] = ["websocket"];

/// Panic threshold: percentage of healthy endpoints below which all endpoints are used; Envoy's default.
pub const PANIC_THRESHOLD: u8 = 50;

/// Maximum number of connections to an upstream, of requests that wait for one, and of requests in flight;
/// Envoy's default for each.
pub const CIRCUIT_BREAKER_MAX: u32 = 1024;
/// Minimum transfer rate of a client, in bytes per second, for keeping its request when requests are scarce.
/// Less than the slowest mobile networks carry, and enough to make holding many requests costly.
pub const MIN_CLIENT_RATE: NonZeroU32 = NonZeroU32::new(1024).expect("not zero");
/// [`MIN_CLIENT_RATE`] as written in the configuration.
pub const MIN_CLIENT_RATE_TEXT: &str = "1KiB";
/// Maximum number of concurrent retries; Envoy's default.
pub const MAX_CONCURRENT_RETRIES: u32 = 3;

/// Attempts at another endpoint after a failure to connect, if `retries` is not configured.
pub const CONNECT_RETRIES: u32 = 1;
/// Attempts after the first, if `retries` is configured.
pub const RETRIES: u32 = 2;
/// Maximum pause before the first retry, and before any retry; Envoy's defaults.
pub const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(250));
/// Maximum time for which a retry waits because the upstream asks for it. The request holds its connection meanwhile.
pub const MAX_RETRY_WAIT: Duration = Duration::from_secs(5);
/// Retry budget: percentage of the requests in flight that may be retries; Envoy's default.
pub const RETRY_BUDGET: u8 = 20;

/// Lower bound of a limit that follows a provider, as a share of the limit.
pub const FEEDBACK_MIN: Percent = Percent::from_hundredths(1000);
/// Part by which a rejection lowers such a limit.
pub const FEEDBACK_DECREASE: Percent = Percent::from_hundredths(3000);
/// Part of the limit by which it rises in one period.
pub const FEEDBACK_INCREASE: Percent = Percent::from_hundredths(5000);

/// Address of the admin port; 9901 is also the admin port in Envoy's examples. On loopback, because its POST
/// endpoints change state.
pub const ADMIN_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9901);

/// Delay between failing readiness and closing the listeners: none, unless `drain.delay` is configured.
pub const DRAIN_DELAY: Duration = Duration::ZERO;

/// Time for requests in flight during shutdown. Together with the delay less than the 30 s after which
/// Kubernetes kills the process.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

/// Share of requests that are traced.
pub const TRACE_SAMPLE: &str = "100%";
pub const TRACE_SERVICE_NAME: &str = "weir";

/// Maximum depth of the fields of a GraphQL operation: that of the introspection queries of tools.
pub const GRAPHQL_DEPTH: u32 = 15;

/// Arguments of GraphQL fields that state a number of elements: those of connections, and the usual one of lists.
pub const GRAPHQL_LISTS: [&str; 3] = ["first", "last", "limit"];

/// Bytes of a body that are held until its fields are known.
pub const MAX_BODY_PREFIX: usize = 64 * 1024;

/// Leading bits of an IPv6 address that identify a client: the size of a home's or host's prefix (RFC 6177).
pub const IPV6_PREFIX: u8 = 64;

/// Tolerated difference between the clocks of a token's issuer and of this host; the common value of JWT
/// libraries.
pub const JWT_LEEWAY: Duration = Duration::from_secs(60);

/// Maximum number of counters; about 40 MB if all are in use.
pub const MAX_KEYS: usize = 1_000_000;

/// Interval between writes of the state file: how much counting a crash may lose.
pub const STATE_FILE_INTERVAL: Duration = Duration::from_secs(30);

/// Units that a request costs.
pub const REQUEST_COST: u32 = 1;

/// Minimum of an adaptive concurrency limit: a service with fewer workers is rare, and one that is slow to respond keeps
/// some permits for others.
pub const MIN_IN_FLIGHT: NonZeroU32 = adaptive::DEFAULT_MIN;

/// Maximum of an adaptive concurrency limit; Envoy's default.
pub const MAX_IN_FLIGHT: NonZeroU32 = adaptive::DEFAULT_MAX;

/// Maximum duration of a ban, and the time that one is remembered after its end.
pub const MAX_BAN: Duration = Duration::from_secs(86_400);

/// Maximum number of requests of a key that wait in a queue.
pub const MAX_WAITING: u32 = 1000;

/// Status code of a rejection (RFC 6585 section 4).
pub const REJECTION_STATUS: u16 = 429;

/// Status code of a degraded response from a file, which replaces the upstream's response.
pub const FALLBACK_STATUS: u16 = 200;

/// Methods of the requests that degraded responses are sent to: safe ones (RFC 9110 section 9.2.1).
pub const FALLBACK_METHODS: [Method; 2] = [Method::GET, Method::HEAD];

/// Maximum age of a stored response that is served in place of a rejection.
pub const MAX_CACHED_AGE: Duration = Duration::from_secs(86_400);

/// Maximum size of a stored response, in bytes: pages and documents, not downloads.
pub const MAX_CACHED_SIZE: u64 = 1 << 20;

/// Minimum number of responses of the maximum size that a cache budget must hold, so that one response does
/// not evict all others.
pub const MIN_CACHED_RESPONSES: u64 = 4;

/// Maximum size of a file that is sent as a body, in bytes; it is kept in memory.
pub const MAX_BODY_FILE_SIZE: u64 = 1 << 20;

/// Maximum duration. A longer one is probably a mistake in the configuration.
pub const MAX_DURATION: Duration = Duration::from_secs(365 * 86_400);

/// Maximum size of the configuration file, in bytes. Checked before parsing; ten thousand rules need about
/// this much.
pub const MAX_CONFIG_FILE_SIZE: u64 = 1 << 20;
/// Maximum size of all files of a folder together.
pub const MAX_CONFIG_FOLDER_SIZE: usize = 8 << 20;

/// Maximum length of the name of a rule or listener, which is part of each of its metrics.
pub const MAX_NAME_LENGTH: usize = 128;

/// Share of a limit from which on hits count as near it: `NEAR_LIMIT_RATIO` of envoyproxy/ratelimit.
pub const NEAR_LIMIT: &str = "80%";
/// Response header with the limit: `LIMIT_LIMIT_HEADER` of envoyproxy/ratelimit.
pub const LIMIT_HEADER: &str = "RateLimit-Limit";
/// Response header with the remaining units: `LIMIT_REMAINING_HEADER` of envoyproxy/ratelimit.
pub const REMAINING_HEADER: &str = "RateLimit-Remaining";
/// Response header with the time until the quota is whole again: `LIMIT_RESET_HEADER` of
/// envoyproxy/ratelimit.
pub const RESET_HEADER: &str = "RateLimit-Reset";
/// Maximum age of a connection: `GRPC_MAX_CONNECTION_AGE` of envoyproxy/ratelimit.
pub const RLS_MAX_CONNECTION_AGE: Duration = Duration::from_secs(86_400);
/// Time for calls in flight on a connection of that age: `GRPC_MAX_CONNECTION_AGE_GRACE` of
/// envoyproxy/ratelimit.
pub const RLS_CONNECTION_GRACE: Duration = Duration::from_secs(3600);
/// Interval between StatsD reports: `STATS_FLUSH_INTERVAL` of envoyproxy/ratelimit.
pub const STATSD_INTERVAL: Duration = Duration::from_secs(10);
/// Node identifier sent to a management server: `CONFIG_GRPC_XDS_NODE_ID` of envoyproxy/ratelimit.
pub const XDS_NODE_ID: &str = "default";
/// First and maximum pause before reconnecting to a management server: `XDS_CLIENT_BACKOFF_*` of
/// envoyproxy/ratelimit.
pub const XDS_BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));
/// Maximum size of a management server's response, in bytes.
pub const XDS_MAX_RESPONSE_SIZE: u64 = 16 << 20;
/// Timeout of a call to another rate limit service; Envoy's default.
pub const REMOTE_TIMEOUT: Duration = Duration::from_millis(20);
/// Path of the metrics, where Prometheus expects them.
pub const METRICS_PATH: &str = "/metrics";
/// Maximum time that a server may hold a long-polling request for the configuration.
pub const CENTRAL_WAIT: Duration = Duration::from_secs(60);
/// Upper bound of `config.wait`, whose default is [`CENTRAL_WAIT`].
pub const CENTRAL_MAX_WAIT: Duration = Duration::from_secs(3600);
/// Interval between requests for the configuration.
pub const CENTRAL_INTERVAL: Duration = Duration::from_secs(10);
/// Lower bound of `config.interval`, whose default is [`CENTRAL_INTERVAL`].
pub const CENTRAL_MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout for a response with the configuration.
pub const CENTRAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Prefix of every key in the store.
pub const STORE_PREFIX: &str = "weir";
/// Timeout of a call to the store.
pub const STORE_TIMEOUT: Duration = Duration::from_millis(50);
/// Default of `listeners[].quota.limit`.
pub const OWN_LIMITS_RATE: &str = "10/s";
/// Default of `store.regions.count`.
pub const REGIONS: u8 = 4;
/// Default of `store.regions.timeout`.
pub const GLOBAL_STORE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which the store holds back the part of an instance that it does not hear of.
pub const STORE_REGISTRATION: Duration = Duration::from_secs(60);
/// Minimum of that time, which has to cover several renewals.
pub const MIN_STORE_REGISTRATION: Duration = Duration::from_secs(10);
/// Maximum of that time.
pub const MAX_STORE_REGISTRATION: Duration = Duration::from_secs(24 * 60 * 60);
/// Priority of a rule with a shared limit.
pub const SHARED_PRIORITY: u8 = 1;
/// Upper bound of `scope.wait`, whose default follows the latency of the store.
pub const MAX_SHARED_WAIT: Duration = Duration::from_secs(1);
/// Status code of the response to a call that is sent later.
pub const DEFERRAL_STATUS: u16 = 202;
/// Attempts to send such a call.
pub const DEFERRAL_ATTEMPTS: NonZeroU32 = NonZeroU32::new(10).expect("not zero");
/// Backoff between the attempts, and its maximum.
pub const DEFERRAL_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// [`DEFERRAL_BACKOFF`] as written in the configuration.
pub const DEFERRAL_BACKOFF_TEXT: &str = "1s..5m";
/// Maximum age of a call that is sent.
pub const DEFERRAL_MAX_AGE: Duration = Duration::from_secs(86_400);
/// Maximum size of its body, in bytes.
pub const DEFERRAL_MAX_BODY: u32 = 64 * 1024;
/// [`DEFERRAL_MAX_BODY`] as written in the configuration.
pub const DEFERRAL_MAX_BODY_TEXT: &str = "64KiB";
/// Maximum number of stored calls of a rule.
pub const DEFERRAL_MAX_STORED: NonZeroU64 = NonZeroU64::new(1_000_000).expect("not zero");
/// Maximum length of the prefix, which is part of every key in the store.
pub const MAX_STORE_PREFIX_LENGTH: usize = 64;
