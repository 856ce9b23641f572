//! Benchmark of shared limits: a fleet of instances shares one limit through a real Redis. It measures the usage of the
//! limit, violations of it, and the cost, compared with other ways to share a limit in the same run.
//!
//! `cargo bench --features jemalloc --bench fleet -- [--instances 96] [--limits 10,100,10000,300000,2000000] [--keys 1] [--demand 0.9,1.5]
//! [--patterns even,zipf,shifting,bursts] [--ways lease,exact,split,incr,pipeline] [--wait 5] [--seconds 8] [--csv FILE]`.
//! `cargo bench --features jemalloc --bench fleet -- faults [--only NAME]` makes the store and the instances fail.
//! Each instance has its own limiter and its own connection to the store, as a process has. Redis, all connections and
//! all requests run on this machine, so results with saturated processors measure the machine.
#![expect(clippy::print_stdout, reason = "prints its results")]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark")]

#[path = "fleet/admission_stats.rs"]
mod admission_stats;
#[path = "fleet/commands.rs"]
mod commands;
#[path = "fleet/demand.rs"]
mod demand;
#[path = "fleet/experiment.rs"]
mod experiment;
#[path = "fleet/faults.rs"]
mod faults;
#[path = "fleet/histogram.rs"]
mod histogram;
#[path = "fleet/leases.rs"]
mod leases;
#[expect(dead_code, reason = "tests use all of it")]
#[path = "../tests/store/servers.rs"]
mod servers;
#[expect(dead_code, reason = "tests use all of it")]
#[path = "../tests/store/support.rs"]
mod support;

use std::env;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::LocalSet;
use weir_limiter::leases::LeasePolicy;
use weir_net::clock::Clock;
use weir_store::remote::channel::ServerAddress;
use weir_store::settings::{SingleServer as StoreServer, Topology};

use self::admission_stats::AdmissionStats;
use self::commands::CommandStyle;
use self::demand::{Demand, Pattern};
use self::experiment::{Fleet, Outcome};
use self::leases::FleetPart;
use self::servers::Server;

/// The program's allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Time before the measurement, in which instances learn their demand.
const WARM_UP: Duration = Duration::from_secs(3);

/// Ways to share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SharingMethod {
    Lease,
    /// As [`Self::Lease`], with parts for the time without the store.
    Parts,
    Exact,
    Split,
    Incr,
    Pipeline,
}

impl SharingMethod {
    const ALL: [(&'static str, Self); 6] = [
        ("lease", Self::Lease),
        ("parts", Self::Parts),
        ("exact", Self::Exact),
        ("split", Self::Split),
        ("incr", Self::Incr),
        ("pipeline", Self::Pipeline),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, way)| *way == self).map_or("", |(name, _)| name)
    }

    const fn lease_policy(self, wait: Duration) -> Option<LeasePolicy> {
        match self {
            Self::Lease | Self::Parts | Self::Exact => Some(LeasePolicy {
                is_exact: matches!(self, Self::Exact),
                max_wait: Some(wait),
                priority: 1,
                is_max_min: false,
                has_parts: matches!(self, Self::Parts),
            }),
            Self::Split | Self::Incr | Self::Pipeline => None,
        }
    }
}

/// Parameters of one row of the table.
#[derive(Clone, Copy, Debug)]
struct BenchCase {
    method: SharingMethod,
    instances: usize,
    limit: u32,
    keys: u32,
    demand: f64,
    pattern: Pattern,
    wait: Duration,
    duration: Duration,
}

/// Work of Redis so far: calls of scripts and of counting commands, and CPU seconds.
#[derive(Clone, Copy, Debug)]
struct RedisUsage {
    calls: u64,
    seconds: f64,
}

impl RedisUsage {
    fn measure(server: &Server) -> Self {
        let of_command = |line: &str| {
            let counts = ["evalsha", "eval", "incr", "incrby"];
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            counts.contains(&name).then(|| rest.split(',').next()?.parse::<u64>().ok())?
        };
        let of_processor = |line: &str| {
            let main = ["used_cpu_sys:", "used_cpu_user:"];
            main.iter().find_map(|name| line.strip_prefix(name)?.trim().parse::<f64>().ok())
        };
        Self {
            calls: server.cli(&["info", "commandstats"]).lines().filter_map(of_command).sum(),
            seconds: server.cli(&["info", "cpu"]).lines().filter_map(of_processor).sum(),
        }
    }
}

impl BenchCase {
    fn run(&self, server: &Server) -> String {
        server.cli(&["flushall"]);
        let clock = Arc::new(Clock::start());
        let limit = leases::fleet_limit(self.limit, self.method.lease_policy(self.wait), self.keys);
        let address = ([127, 0, 0, 1], server.port()).into();
        let fleet = match self.method {
            SharingMethod::Lease | SharingMethod::Parts | SharingMethod::Exact | SharingMethod::Split => {
                let place = ServerAddress::Tcp("127.0.0.1".into(), server.port());
                let store =
                    leases::store_settings(Topology::Single(StoreServer { address: place, db: 0 }), "bench");
                Fleet::Leases(
                    leases::start_fleet(FleetPart::entire_fleet(self.instances), limit, &store, &clock),
                    self.wait,
                )
            }
            SharingMethod::Incr => Fleet::Commands(
                commands::start_fleet(self.instances, CommandStyle::Incr, address),
                self.limit.into(),
            ),
            SharingMethod::Pipeline => Fleet::Commands(
                commands::start_fleet(self.instances, CommandStyle::IncrByAndExpire, address),
                self.limit.into(),
            ),
        };
        // With several keys, the demand is given in requests per second.
        let rate = if self.keys == 1 { f64::from(self.limit) * self.demand } else { self.demand };
        let demand = Demand { pattern: self.pattern, rate, keys: self.keys };
        let judge =
            AdmissionStats::new((self.limit.into(), self.limit.into()), self.keys, (WARM_UP, self.duration));
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let mut begun = None;
        let outcome = LocalSet::new().block_on(
            &runtime,
            experiment::run(fleet, demand, judge, self.duration, &clock, |at, _| {
                if at >= WARM_UP && begun.is_none() {
                    begun = Some(RedisUsage::measure(server));
                }
            }),
        );
        let (before, after) = (begun.unwrap(), RedisUsage::measure(server));
        let seconds = (self.duration - WARM_UP).as_secs_f64();
        let work = RedisUsage {
            calls: after.calls - before.calls,
            seconds: (after.seconds - before.seconds) / seconds,
        };
        self.csv_row(&outcome, work)
    }

    fn csv_row(&self, outcome: &Outcome, work: RedisUsage) -> String {
        let Outcome { stats: judge, decisions, waits, rejected_waits: crowded } = outcome;
        let mut row = format!(
            "{},{},{},{},{:.2},{:.4},",
            self.method.name(),
            self.limit,
            self.keys,
            self.pattern,
            self.demand,
            judge.admitted as f64 / judge.possible.max(1) as f64,
        );
        let violations =
            judge.violations().map_or_else(|| "-,-,-".into(), |[a, b, c]| format!("{a},{b},{c}"));
        let seconds = (self.duration - WARM_UP).as_secs_f64();
        let _ = write!(
            row,
            "{violations},{:.1},{:.6},{},{},{:.4},{},{:.3},{:.0},{crowded}",
            judge.excess,
            work.calls as f64 / judge.admitted.max(1) as f64,
            decisions.quantile(0.5).as_nanos(),
            decisions.quantile(0.99).as_nanos(),
            waits.total() as f64 / (judge.offered + 1) as f64,
            waits.quantile(0.99).as_micros(),
            work.seconds,
            judge.offered as f64 / seconds,
        );
        row
    }
}

const CSV_HEADER: &str = "way,limit,keys,pattern,demand,used,violations_100ms,violations_1s,violations_10s,excess,calls_per_admitted,\
                    p50_ns,p99_ns,waited,wait_p99_us,redis_cpu,offered_per_second,crowded";

fn main() {
    let instances = argument("--instances").map_or(96, |text| text.parse().unwrap());
    let numbers = |name: &str, default: &str| -> Vec<f64> {
        argument(name).as_deref().unwrap_or(default).split(',').map(|text| text.parse().unwrap()).collect()
    };
    let ways = argument("--ways").unwrap_or_else(|| "lease,exact,split,incr,pipeline".into());
    let patterns = argument("--patterns").unwrap_or_else(|| "even,zipf,shifting,bursts".into());
    let wait = Duration::from_millis(argument("--wait").map_or(5, |text| text.parse().unwrap()));
    let lasts = WARM_UP + Duration::from_secs(argument("--seconds").map_or(8, |text| text.parse().unwrap()));
    if env::args().any(|argument| argument == "faults") {
        return faults::run(instances, argument("--only").as_deref());
    }
    let server = Server::start();
    let mut csv = String::from(CSV_HEADER);
    println!("{CSV_HEADER}");
    for limit in numbers("--limits", "10,100,10000,300000,2000000") {
        for keys in numbers("--keys", "1") {
            for demand in numbers("--demand", "0.9,1.5") {
                for pattern in Pattern::ALL.into_iter().filter(|it| patterns.contains(&it.to_string())) {
                    for (_, way) in SharingMethod::ALL.into_iter().filter(|(name, _)| ways.contains(name)) {
                        let (limit, keys) = (limit as u32, keys as u32);
                        let cell = BenchCase {
                            method: way,
                            instances,
                            limit,
                            keys,
                            demand,
                            pattern,
                            wait,
                            duration: lasts,
                        };
                        let row = cell.run(&server);
                        println!("{row}");
                        let _ = write!(csv, "\n{row}");
                    }
                }
            }
        }
    }
    if let Some(file) = argument("--csv") {
        std::fs::write(file, csv + "\n").unwrap();
    }
}

fn argument(name: &str) -> Option<String> {
    let mut arguments = env::args().skip_while(|argument| argument != name);
    arguments.nth(1)
}
