//! Many calls that wait at once: memory of each, their order, and their release when the callers disconnect.
//!
//! The memory of a waiting call is compared with that of a call that waits elsewhere: for a connection to a provider that
//! does not respond. Over HTTP/1.1, it is also the growth beyond connections that are idle after a call.

use std::time::{Duration, Instant};

use crate::experiment::{Laboratory, MAX_CONNECTIONS};
use crate::holders::{HolderSettings, Protocol};
use crate::provider::enforcement::Kind;
use crate::provider::process::{ProviderProcess, RoleProcess};
use crate::provider::{ProviderSettings, Signals};
use crate::rule::{Rule, Treatment};
use crate::sidecar::{Sidecar, SidecarConfig};
use crate::support::wait::{pause, within};

/// Calls of an HTTP/2 connection.
const STREAMS: usize = 10_000;
/// Time in which the allocator returns freed memory.
const SETTLING: Duration = Duration::from_secs(12);
/// Maximum duration of a step.
const DEADLINE: Duration = Duration::from_secs(120);
/// Limit while calls wait, per second. 100 000 calls then wait for less than the maximum of an hour.
const SLOW: f64 = 30.0;
/// Limit when they leave, per second. One connection to the provider is enough for it, so that no call waits for one.
const FAST: f64 = 500.0;
/// Number of calls whose order is compared.
const ORDERED: usize = 10_000;
/// Keys of the upstream: calls that pass the limit use one connection, so that they arrive in their order.
const UPSTREAM: &str = "  timeout: 1h\n  connect_timeout: 1h\n  outliers: false\n  \
    limits: { connections: 1, pending: 1000000, requests: 1000000, requests_per_client: false, min_client_rate: false }\n";
const GAUGE: &str = "weir_requests_in_flight";

/// What calls wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Limit,
    Connection,
}

/// A provider, one instance of Weir, and clients.
struct Crowd {
    provider: ProviderProcess,
    sidecar: Sidecar,
    config: SidecarConfig,
    clients: RoleProcess,
    calls: usize,
}

/// Head of the table.
pub(crate) const HEAD: &str = "| protocol | waiting for | calls | time to queue them, s | MiB before | MiB waiting | bytes per call \
     | released in, s | MiB afterwards |\n|---|---|---|---|---|---|---|---|---|";

/// Measures memory and release with both protocols and at both places, and the order of calls over HTTP/2.
#[expect(clippy::print_stdout, reason = "prints its results")]
pub(crate) fn run(laboratory: &Laboratory, calls: usize, treatment: Treatment) {
    println!("{HEAD}");
    for protocol in [Protocol::Http2, Protocol::Http1] {
        for place in [Place::Limit, Place::Connection] {
            match Crowd::start(laboratory, protocol, place, calls, treatment) {
                Ok(crowd) => println!("{}", crowd.measure_memory(protocol, place)),
                Err(error) => println!("{protocol:?}, {place:?}: {error}"),
            }
        }
    }
    match Crowd::start(laboratory, Protocol::Http2, Place::Limit, calls, treatment) {
        Ok(crowd) => println!("\n{}", crowd.measure_order(treatment)),
        Err(error) => println!("order: {error}"),
    }
}

fn rule(rate: f64, treatment: Treatment) -> Rule {
    Rule {
        rate,
        burst: Some(1),
        algorithm: "gcra",
        treatment,
        max_wait: 3_600_000,
        queue: 1_000_000,
        order: None,
        pace: None,
        is_shared: false,
        has_feedback: false,
    }
}

impl Crowd {
    fn start(
        laboratory: &Laboratory,
        protocol: Protocol,
        place: Place,
        calls: usize,
        treatment: Treatment,
    ) -> Result<Self, String> {
        let provider = ProviderProcess::start(&ProviderSettings {
            kind: Kind::Fixed.name().to_owned(),
            limit: u64::MAX,
            signals: Signals::RetryAfter,
            service_time: if place == Place::Connection { 3_600_000 } else { 0 },
            threads: 1,
        });
        let rules = match place {
            Place::Limit => rule(SLOW, treatment).yaml(),
            Place::Connection => "  []\n".to_owned(),
        };
        let config =
            SidecarConfig { provider: provider.address(), upstream: UPSTREAM.to_owned(), store: None, rules };
        let sidecar = Sidecar::start(&laboratory.weir, &config.yaml())?;
        let (connections, each) = match protocol {
            Protocol::Http1 => (calls.min(MAX_CONNECTIONS), 1),
            Protocol::Http2 => {
                let connections = calls.div_ceil(STREAMS);
                (connections, calls.div_ceil(connections))
            }
        };
        let settings = HolderSettings { target: sidecar.address(), protocol, connections, calls: each };
        let mut clients = RoleProcess::start("holders", &settings);
        clients.obey("open");
        Ok(Self { provider, sidecar, config, clients, calls: connections * each })
    }

    fn in_flight(&self) -> usize {
        self.sidecar.metric(GAUGE).unwrap_or_default() as usize
    }

    /// Sends all calls. Returns the time until all wait, except for those that the limit has admitted meanwhile.
    fn send_calls(&mut self) -> Duration {
        let began = Instant::now();
        self.clients.obey("call");
        let waiting = || self.in_flight() + self.provider.stats().admitted as usize >= self.calls;
        let all = within(DEADLINE, || waiting().then_some(()));
        assert!(all.is_some(), "{} of {} calls wait", self.in_flight(), self.calls);
        began.elapsed()
    }

    fn measure_memory(mut self, protocol: Protocol, place: Place) -> String {
        const MIB: f64 = 1024.0 * 1024.0;
        pause(SETTLING);
        let before = self.sidecar.memory();
        let queued_in = self.send_calls();
        pause(SETTLING);
        let (during, waiting) = (self.sidecar.memory(), self.in_flight());
        self.clients.send("drop");
        let began = Instant::now();
        let released = within(DEADLINE, || (self.in_flight() == 0).then(|| began.elapsed()));
        pause(SETTLING);
        let after = self.sidecar.memory();
        format!(
            "| {} | {} | {waiting} | {:.1} | {:.1} | {:.1} | {:.0} | {} | {:.1} |",
            match protocol {
                Protocol::Http1 => "HTTP/1.1",
                Protocol::Http2 => "HTTP/2",
            },
            match place {
                Place::Limit => "the limit",
                Place::Connection => "a connection",
            },
            queued_in.as_secs_f64(),
            before as f64 / MIB,
            during as f64 / MIB,
            during.saturating_sub(before) as f64 / waiting.max(1) as f64,
            released.map_or_else(|| "never".to_owned(), |time| format!("{:.2}", time.as_secs_f64())),
            after as f64 / MIB,
        )
    }

    /// Raises the limit while all calls wait, and compares the order of arrival with that of sending.
    fn measure_order(mut self, treatment: Treatment) -> String {
        self.send_calls();
        self.config.rules = rule(FAST, treatment).yaml();
        self.sidecar.reload(&self.config.yaml());
        let began = Instant::now();
        let calls = self.calls.min(ORDERED) as u64;
        let all =
            within(DEADLINE, || (self.provider.stats().order.numbered >= calls).then(|| began.elapsed()));
        let order = self.provider.stats().order;
        format!(
            "Order: of {} calls that wait, {} arrived {} after the limit was raised; {} overtaken, by at most {} places.",
            self.calls,
            order.numbered,
            all.map_or_else(|| format!("{DEADLINE:?}"), |time| format!("{:.1} s", time.as_secs_f64())),
            order.overtaken,
            order.displacement,
        )
    }
}
