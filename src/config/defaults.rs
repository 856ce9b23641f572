//! What holds where the configuration says nothing, and how far values may go.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// From a request's first byte to the end of its head. Slow clients need a second or two; one that trickles
/// its head to hold a connection gets this long.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection may stay without a request. Longer than the 600 s for which large load balancers
/// keep idle connections, so that they close first and never send a request into a closing connection.
pub const LISTENER_IDLE_TIMEOUT: Duration = Duration::from_secs(620);

/// Until a connection to the upstream stands. The service is beside us; this covers a lost SYN or two.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// From the request's last byte to the answer's headers; Envoy's default.
pub const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a body may stand still, and an unused connection to the upstream is kept. Five minutes, as most
/// proxies have it; a body that moves may take as long as it likes.
pub const UPSTREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// The admin port: Envoy sidecars use the same neighbourhood. On loopback, because its POSTs act.
pub const ADMIN_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9901);

/// Nothing has to be told before we stop, unless `drain.delay` says so.
pub const DRAIN_DELAY: Duration = Duration::ZERO;

/// For what is in flight at the end: with the delay, less than the 30 s after which Kubernetes kills.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

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
