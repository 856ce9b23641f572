//! Faults of the store and of instances: admissions of the fleet in each second, and its excess over the limit.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::task::LocalSet;
use weir_net::clock::Clock;
use weir_store::remote::channel::ServerAddress;
use weir_store::settings::{
    RegionSettings, SentinelSettings, SingleServer as StoreServer, StoreSettings, Topology,
};

use crate::SharingMethod;
use crate::admission_stats::AdmissionStats;
use crate::demand::{Demand, Pattern};
use crate::experiment::{self, Fleet};
use crate::leases::{self, FleetLimit, FleetPart, LeaseInstance};
use crate::servers::{Group, Server};

/// Rate in units per second, and the burst.
const LIMIT: u32 = 10_000;
const DEMAND: f64 = 1.5;
const FAULT_AT: u64 = 8;
/// Time for which a request may wait for the store.
const WAIT: Duration = Duration::from_millis(5);
/// Delay of a late store each way: twice that is longer than the timeout of a call.
const LATE: Duration = Duration::from_millis(60);
/// Faults by name. With the prefix `parts:` the limit has `on_store_loss: strict_split`, otherwise `split`. With `regions:`
/// a third of the instances is in each of three regions, 120 ms from the global store, which has the fault.
const FAULTS: [&str; 21] = [
    "none",
    "killed",
    "frozen",
    "late",
    "flushed",
    "old_snapshot",
    "failed_over",
    "third_killed",
    "doubled",
    "third_cut",
    "parts:none",
    "parts:killed",
    "parts:frozen",
    "parts:old_snapshot",
    "parts:third_killed",
    "parts:third_cut",
    "parts:half_cut",
    "parts:two_thirds_cut",
    "regions:none",
    "regions:region_cut",
    "regions:flushed",
];

/// State of one experiment.
struct FaultScenario {
    server: Option<Server>,
    group: Option<Group>,
    /// Link to the server of the instances that lose it.
    link: Option<Link>,
    /// Stores of the regions, and their links to the global store.
    regions: Vec<(Server, Link)>,
    newcomers: Option<mpsc::Receiver<Vec<LeaseInstance>>>,
    clock: Arc<Clock>,
    limit: FleetLimit,
    instances: usize,
    /// Second of the last tick.
    second: Option<u64>,
}

/// A link to the server, and how many of twelve instances use it.
struct Link {
    address: SocketAddr,
    is_cut: Arc<AtomicBool>,
    is_late: Arc<AtomicBool>,
    twelfths: usize,
}

/// Returns the fault without the way to share, and whether the limit has parts.
fn split_name(name: &str) -> (&str, bool) {
    let fault = name.strip_prefix("regions:").unwrap_or(name);
    fault.strip_prefix("parts:").map_or((fault, false), |fault| (fault, true))
}

/// Returns how many of twelve instances have a fault of their connections.
fn twelfths(fault: &str) -> usize {
    match fault {
        "third_cut" => 4,
        "half_cut" => 6,
        "two_thirds_cut" => 8,
        "late" => 12,
        _ => 0,
    }
}

/// Runs all experiments, or only the one with this name. `docs/shared/draw.py` draws what they print.
pub(crate) fn run(instances: usize, only: Option<&str>) {
    println!("fault,used_before,used_meanwhile,used_after,full_again_after_s,excess,v100ms,v1s,v10s,seconds");
    for name in FAULTS.into_iter().filter(|name| only.is_none_or(|only| only == *name)) {
        experiment(name, instances);
    }
}

/// Returns the duration of the fault in seconds.
fn duration(name: &str) -> u64 {
    match split_name(name).0 {
        "killed" => 30,
        "frozen" | "late" | "third_cut" | "half_cut" | "two_thirds_cut" | "region_cut" => 10,
        _ => 1,
    }
}

fn experiment(name: &'static str, instances: usize) {
    let mut scene = FaultScenario::new(name, instances);
    let fleet = Fleet::Leases(scene.start(), WAIT);
    let lasts = Duration::from_secs(FAULT_AT + duration(name) + 12);
    let judge = AdmissionStats::new((LIMIT.into(), LIMIT.into()), 1, (Duration::from_secs(2), lasts));
    let demand = Demand { pattern: Pattern::Even, rate: f64::from(LIMIT) * DEMAND, keys: 1 };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let clock = Arc::clone(&scene.clock);
    let each_tick = |at: Duration, fleet: &mut Fleet| scene.tick(name, at, fleet);
    let outcome =
        LocalSet::new().block_on(&runtime, experiment::run(fleet, demand, judge, lasts, &clock, each_tick));
    report(name, &outcome.stats);
}

fn report(name: &str, judge: &AdmissionStats) {
    let seconds = judge.admissions_per_second();
    let (begin, end) = (FAULT_AT as usize, (FAULT_AT + duration(name)) as usize);
    let used = |from: usize, to: usize| {
        let part = &seconds[from.min(seconds.len())..to.min(seconds.len())];
        f64::from(part.iter().sum::<u32>()) / (part.len().max(1) as f64 * f64::from(LIMIT))
    };
    let is_full = |count: &u32| f64::from(*count) > 0.95 * f64::from(LIMIT);
    let recovered = seconds[end..].iter().position(is_full);
    let [short, second, long] = judge.violations().unwrap_or_default();
    let list: Vec<_> = seconds.iter().map(u32::to_string).collect();
    println!(
        "{name},{:.3},{:.3},{:.3},{},{:.0},{short},{second},{long},{}",
        used(3, begin),
        used(begin, end),
        used(end + 2, end + 10),
        recovered.map_or_else(|| "-".into(), |seconds| seconds.to_string()),
        judge.excess,
        list.join(" ")
    );
}

impl FaultScenario {
    fn new(name: &str, instances: usize) -> Self {
        let (fault, has_parts) = split_name(name);
        let (is_group, behind) = (fault == "failed_over", twelfths(fault));
        let server = (!is_group).then(Server::start);
        let method = if has_parts { SharingMethod::Parts } else { SharingMethod::Lease };
        let port = server.as_ref().map_or(0, Server::port);
        let regions = if name.starts_with("regions:") { 3 } else { 0 };
        let regions = (0..regions).map(|_| {
            let link = Link::start(port, 4);
            link.is_late.store(true, Ordering::Relaxed);
            (Server::start(), link)
        });
        Self {
            regions: regions.collect(),
            link: server.as_ref().filter(|_| behind > 0).map(|server| Link::start(server.port(), behind)),
            server,
            group: is_group.then(Group::start),
            newcomers: None,
            clock: Arc::new(Clock::start()),
            limit: leases::fleet_limit(LIMIT, method.lease_policy(WAIT), 1),
            instances,
            second: None,
        }
    }

    fn store(&self, port: u16) -> StoreSettings {
        let place = |port| ServerAddress::Tcp("127.0.0.1".into(), port);
        let topology = match &self.group {
            Some(group) => Topology::Sentinel(SentinelSettings {
                sentinels: vec![place(group.sentinel.port())],
                master: "limits".into(),
                credentials: weir_store::settings::Credentials::default(),
                db: 0,
            }),
            None => Topology::Single(StoreServer { address: place(port), db: 0 }),
        };
        leases::store_settings(topology, "faults")
    }

    fn start(&mut self) -> Vec<LeaseInstance> {
        if !self.regions.is_empty() {
            return self.start_regions();
        }
        let port = self.server.as_ref().map_or(0, Server::port);
        let store = self.store(port);
        let Some(link) = &self.link else {
            return leases::start_fleet(
                FleetPart::entire_fleet(self.instances),
                self.limit,
                &store,
                &self.clock,
            );
        };
        // Some of the instances connect through the link. Both parts wait until they know all instances.
        let (whole, behind_link) = (self.instances, self.instances * link.twelfths / 12);
        let (behind, limit, clock) = (self.store(link.address.port()), self.limit, Arc::clone(&self.clock));
        let cut = FleetPart { first: 0, count: behind_link, fleet_size: whole };
        let cut = std::thread::spawn(move || leases::start_fleet(cut, limit, &behind, &clock));
        let rest = FleetPart { first: behind_link, count: whole - behind_link, fleet_size: whole };
        let mut all = leases::start_fleet(rest, self.limit, &store, &self.clock);
        all.extend(cut.join().unwrap());
        all
    }

    /// Starts a third of the instances in each region. All of them wait until they know all regions.
    fn start_regions(&self) -> Vec<LeaseInstance> {
        let part = self.instances / 3;
        let started = self.regions.iter().enumerate().map(|(number, (server, link))| {
            let timeout = Duration::from_secs(1);
            let regions = RegionSettings {
                name: format!("r{number}").into(),
                global: StoreSettings { timeout, ..self.store(link.address.port()) },
                count: NonZeroU32::MIN.saturating_add(2),
                keeps_allotment: true,
            };
            let store = StoreSettings { regions: Some(Box::new(regions)), ..self.store(server.port()) };
            let members = FleetPart { first: number * part, count: part, fleet_size: self.instances };
            let (limit, clock) = (self.limit, Arc::clone(&self.clock));
            std::thread::spawn(move || leases::start_fleet(members, limit, &store, &clock))
        });
        let started: Vec<_> = started.collect();
        started.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    }

    /// Begins or ends the fault if its second has come.
    fn tick(&mut self, name: &str, at: Duration, fleet: &mut Fleet) {
        let Fleet::Leases(instances, _) = fleet else { return };
        if let Some(newcomers) = self.newcomers.as_ref().and_then(|newcomers| newcomers.try_recv().ok()) {
            instances.extend(newcomers);
        }
        if self.second.replace(at.as_secs()) == Some(at.as_secs()) {
            return;
        }
        let name = split_name(name).0;
        if at.as_secs() == FAULT_AT - 3 && name == "old_snapshot" {
            self.server.as_ref().unwrap().cli(&["save"]);
        }
        if at.as_secs() == FAULT_AT {
            self.inject_fault(name, instances);
        } else if at.as_secs() == FAULT_AT + duration(name) {
            self.end_fault(name);
        }
    }

    fn inject_fault(&mut self, name: &str, instances: &mut [LeaseInstance]) {
        match name {
            "killed" => self.server.as_mut().unwrap().kill(),
            "frozen" => self.server.as_ref().unwrap().freeze(),
            "flushed" => drop(self.server.as_ref().unwrap().cli(&["flushall"])),
            "failed_over" => self.group.as_mut().unwrap().master.kill(),
            "third_killed" => instances.iter_mut().step_by(3).for_each(LeaseInstance::kill),
            "doubled" => {
                let (sender, receiver) = mpsc::channel();
                let store = self.store(self.server.as_ref().unwrap().port());
                let (limit, clock) = (self.limit, Arc::clone(&self.clock));
                let newcomers = FleetPart {
                    first: self.instances,
                    count: self.instances,
                    fleet_size: 2 * self.instances,
                };
                std::thread::spawn(move || {
                    sender.send(leases::start_fleet(newcomers, limit, &store, &clock))
                });
                self.newcomers = Some(receiver);
            }
            "old_snapshot" => self.server.as_mut().unwrap().restart(),
            _ => self.set_link(name, true),
        }
    }

    fn end_fault(&mut self, name: &str) {
        match name {
            "killed" => self.server.as_mut().unwrap().restart(),
            "frozen" => self.server.as_ref().unwrap().thaw(),
            _ => self.set_link(name, false),
        }
    }

    fn set_link(&self, fault: &str, is_faulty: bool) {
        let of_region = self.regions.first().map(|(_, link)| link).filter(|_| fault == "region_cut");
        let Some(link) = self.link.as_ref().or(of_region) else { return };
        let state = if fault == "late" { &link.is_late } else { &link.is_cut };
        state.store(is_faulty, Ordering::Relaxed);
    }
}

impl Link {
    /// Starts a link to a local port, which forwards nothing while it is cut, and late while it is late.
    fn start(port: u16, twelfths: usize) -> Self {
        let (is_cut, is_late) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let states = [Arc::clone(&is_cut), Arc::clone(&is_late)];
        std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            LocalSet::new().block_on(&runtime, forward_connections(listener, port, states));
        });
        Self { address, is_cut, is_late, twelfths }
    }
}

async fn forward_connections(listener: std::net::TcpListener, port: u16, states: [Arc<AtomicBool>; 2]) {
    let listener = TcpListener::from_std(listener).unwrap();
    while let Ok((client, _)) = listener.accept().await {
        let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        tokio::task::spawn_local(forward_bytes(from_client, to_server, states.clone()));
        tokio::task::spawn_local(forward_bytes(from_server, to_client, states.clone()));
    }
}

async fn forward_bytes(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    [is_cut, is_late]: [Arc<AtomicBool>; 2],
) {
    let mut bytes = vec![0; 16_384];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if is_late.load(Ordering::Relaxed) {
            tokio::time::sleep(LATE).await;
        }
        while is_cut.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
