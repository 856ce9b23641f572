//! Regions with their stores and the global store, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;
use std::time::Duration;

use fastrand::Rng;
use weir_store::regions::{Allotted, BegunErrand, Region};

use super::limit::{SECOND, Spending};
use super::server::{ScriptServer, Snapshot};
use crate::limit::Limit;

pub(super) const REGIONS: usize = 3;
/// Numbers of a query for no units.
const IDLE: &str = "0 0 0 0 0 0 0 300000";
/// Time for which an allotment is valid.
const VALID: u64 = 60 * SECOND;
/// Time for which all regions must have been connected, so that the global store knows all allotments.
const COMPLETE_AFTER: u64 = 20 * SECOND;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Query(usize),
    Errand { region: usize, is_further: bool },
    Report { region: usize, begun: BegunErrand },
    Deposit { region: usize, number: i64, allotted: Allotted },
    Spend { region: usize, units: u64 },
    Fault,
}

pub(super) struct SimulatedRegion {
    identity: Region,
    server: ScriptServer,
    known: String,
    global_known: String,
    /// Time until which it does not reach the global store.
    cut_until: u64,
    /// Demand in units a second.
    pub(super) demand: f64,
    asked_at: u64,
    /// Units that are given back, and when they were granted by the clock of the store.
    returned: (u64, u64),
    snapshot: Option<Snapshot>,
    pub(super) admitted: u64,
}

/// Faults of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) cuts: bool,
    pub(super) regional_loss: bool,
    pub(super) global_loss: bool,
    /// Parts in 256 of the messages between regions that are lost.
    pub(super) lost: u8,
}

pub(super) struct World {
    pub(super) limit: Limit,
    pub(super) faults: Faults,
    rng: Rng,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    pub(super) regions: Vec<SimulatedRegion>,
    global: ScriptServer,
    global_snapshot: Option<Snapshot>,
    pub(super) spending: Spending,
    /// Most units by which a window had more than the limit admits.
    pub(super) excess: f64,
    round_trip: u64,
    /// Minimum time between two queries of a region.
    pub(super) min_interval: u64,
}

impl World {
    pub(super) fn new(seed: u64, limit: Limit, faults: Faults, [regional, global]: [&str; 2]) -> Self {
        let mut rng = Rng::with_seed(seed);
        let regions = (0..REGIONS).map(|number| {
            let mut server = ScriptServer::new(regional);
            server.lead = f64::from(rng.u32(0..20_000));
            let count = NonZeroU32::new(REGIONS as u32).unwrap();
            SimulatedRegion {
                identity: Region::new(&format!("r{number}"), count, Duration::from_micros(VALID), false),
                server,
                known: "-".to_owned(),
                global_known: "-".to_owned(),
                cut_until: 0,
                demand: 0.0,
                asked_at: 0,
                returned: (0, 0),
                snapshot: None,
                admitted: 0,
            }
        });
        let regions: Vec<_> = regions.collect();
        let mut global = ScriptServer::new(global);
        if faults.cuts {
            (global.lead, global.clock_rate) = (f64::from(rng.u32(..)), 0.95 + 0.1 * rng.f64());
        }
        let mut world = Self {
            limit,
            faults,
            rng,
            now: 1_700_000_000 * SECOND,
            events: BinaryHeap::new(),
            sequence: 0,
            regions,
            global,
            global_snapshot: None,
            spending: Spending::default(),
            excess: 0.0,
            round_trip: 100_000,
            min_interval: 150_000,
        };
        for region in 0..REGIONS {
            world.regions[region].asked_at = world.now;
            world.regions[region].demand =
                [0.0, 1.0, 4.0][world.rng.usize(0..3)] * world.rate().min(20_000.0);
            world.after(0, Event::Query(region));
        }
        world.after(SECOND, Event::Fault);
        world
    }

    /// Leaves the demand and the links as they are.
    pub(super) fn without_faults(mut self) -> Self {
        self.events.retain(|Reverse((_, _, event))| *event != Event::Fault);
        self
    }

    fn after(&mut self, micros: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((self.now + micros, self.sequence, event)));
    }

    /// Rate of the limit, in units a second.
    fn rate(&self) -> f64 {
        match self.limit {
            Limit::Bucket { interval, .. } => SECOND as f64 / interval as f64,
            Limit::Window { count, length } | Limit::Sliding { count, length } => {
                count as f64 * SECOND as f64 / length as f64
            }
            Limit::Refill { count, every, .. } => count as f64 * SECOND as f64 / every as f64,
        }
    }

    pub(super) fn run(&mut self, duration: u64) {
        let until = self.now + duration;
        while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= until) {
            let Some(Reverse((at, _, event))) = self.events.pop() else { return };
            self.now = at;
            match event {
                Event::Query(region) => self.query(region),
                Event::Errand { region, is_further } => self.begin_errand(region, is_further),
                Event::Report { region, begun } => self.report(region, &begun),
                Event::Deposit { region, number, allotted } => self.deposit(region, number, &allotted),
                Event::Spend { region, units } => {
                    let local = self.regions[region].server.time(self.now);
                    self.regions[region].admitted += units;
                    self.excess = self.excess.max(self.spending.spend(self.limit, units, self.now, local));
                }
                Event::Fault => self.fault(),
            }
        }
        self.now = until;
    }

    fn ask(&mut self, region: usize, action: char, more: &str, question: &str) -> Vec<i64> {
        let limit = self.limit;
        let head = self.regions[region].identity.head(action, &limit.regional()) + more + ";" + question;
        let new = self.rng.u64(..).to_string();
        let it = &mut self.regions[region];
        let keys = ["generation", "parts", "counter", "counter:region"];
        let reply = it.server.call(&keys, &it.known, &new, &["-", &head], self.now);
        it.known = reply.generation;
        reply.numbers.into_iter().next().unwrap()
    }

    fn query(&mut self, region: usize) {
        let it = &self.regions[region];
        let elapsed = self.now - it.asked_at;
        let demanded = it.demand * elapsed as f64 / SECOND as f64;
        let demanded = demanded.floor() as u64 + u64::from(self.rng.f64() < demanded.fract());
        let needed = demanded.min(self.rng.u64(0..4));
        let wanted = needed + if self.rng.bool() { demanded } else { 0 };
        let (returned, granted_at) = it.returned;
        let valid = if wanted > needed { self.limit.max_valid() } else { self.limit.max_valid().min(20_000) };
        let valid =
            if matches!(self.limit, Limit::Bucket { .. }) && self.rng.u8(0..8) == 0 { 0 } else { valid };
        let demand = format!("{needed} {wanted} {demanded} {elapsed} {returned} {granted_at} 0 300000");
        let local = it.server.time(self.now);
        let question = self.limit.question(local, valid, &demand, "3 1");
        let reply = self.ask(region, 'q', "", &question);
        let (granted, valid) = (reply[0].max(0) as u64, reply[1].max(0) as u64);
        let it = &mut self.regions[region];
        (it.asked_at, it.returned) = (self.now, (0, 0));
        if granted > 0 {
            // Spent at once, at the end, or given back.
            let back = if self.rng.u8(0..6) == 0 { self.rng.u64(0..=granted) } else { 0 };
            it.returned = (back, local);
            let delay = [0, valid.saturating_sub(1), self.rng.u64(0..=valid.max(1) - u64::from(valid > 0))]
                [self.rng.usize(0..3)];
            if granted > back {
                self.after(delay, Event::Spend { region, units: granted - back });
            }
        }
        if reply.get(6) == Some(&1) {
            let delay = self.rng.u64(0..3000);
            self.after(delay, Event::Errand { region, is_further: false });
        }
        let wait = (reply[2].max(0) as u64).clamp(self.min_interval, 2_500_000);
        let delay = self.rng.u64(wait / 2..wait);
        self.after(delay, Event::Query(region));
    }

    fn begin_errand(&mut self, region: usize, is_further: bool) {
        let local = self.regions[region].server.time(self.now);
        let question = self.limit.question(local, 0, IDLE, "3 1");
        let reply = self.ask(region, if is_further { 'f' } else { 'e' }, "", &question);
        if let Some(begun) = BegunErrand::decode(&reply) {
            // An errand without a reply is tried again.
            self.after(2 * SECOND, Event::Errand { region, is_further: true });
            let delay = self.delay();
            self.send(region, delay, Event::Report { region, begun });
        }
    }

    fn delay(&mut self) -> u64 {
        let late =
            if self.faults.lost > 0 && self.rng.u8(0..8) == 0 { self.rng.u64(0..30 * SECOND) } else { 0 };
        self.round_trip / 2 + late
    }

    fn send(&mut self, region: usize, delay: u64, event: Event) {
        if self.now >= self.regions[region].cut_until && self.rng.u8(..) >= self.faults.lost {
            self.after(delay, event);
        }
    }

    fn report(&mut self, region: usize, begun: &BegunErrand) {
        let connected = self.regions.iter().map(|it| it.cut_until).max().unwrap();
        // A region whose messages are lost may not report in time.
        let is_complete = self.faults.lost == 0 && self.now >= connected + COMPLETE_AFTER;
        let text = self.regions[region].identity.report(&self.limit.regional(), begun, is_complete);
        let new = self.rng.u64(..).to_string();
        let it = &mut self.regions[region];
        let reply = self.global.call(&["generation", "limit"], &it.global_known, &new, &[&text], self.now);
        it.global_known = reply.generation;
        if let Some(allotted) = Allotted::decode(&reply.numbers[0]) {
            let delay = self.delay();
            self.send(region, delay, Event::Deposit { region, number: begun.number, allotted });
        }
    }

    fn deposit(&mut self, region: usize, number: i64, allotted: &Allotted) {
        let local = self.regions[region].server.time(self.now);
        let question = self.limit.question(local, 0, IDLE, "3 1");
        self.ask(region, 'd', &allotted.deposit(number), &question);
        if let Some(again) = allotted.report_again_after() {
            let delay = again.as_micros() as u64 + self.rng.u64(0..20_000);
            self.after(delay, Event::Errand { region, is_further: true });
        }
    }

    fn fault(&mut self) {
        let region = self.rng.usize(0..REGIONS);
        let fault = self.rng.u8(0..10);
        let rate = self.rate();
        match fault {
            0..4 => {
                self.regions[region].demand =
                    [0.0, 0.02, 0.3, 1.0, 4.0][self.rng.usize(0..5)] * rate.min(20_000.0)
            }
            4 if self.faults.cuts => {
                self.regions[region].cut_until = self.now + [2, 20, 200][self.rng.usize(0..3)] * SECOND;
            }
            5 if self.faults.regional_loss => match self.rng.u8(0..3) {
                0 => self.regions[region].server.flush(),
                1 => self.regions[region].snapshot = Some(self.regions[region].server.snapshot()),
                _ => {
                    if let Some(snapshot) = self.regions[region].snapshot.take() {
                        self.regions[region].server.restore(snapshot);
                    }
                }
            },
            6 if self.faults.global_loss => match self.rng.u8(0..3) {
                // Its process goes on, so only a region that knew its generation can recognise the loss.
                0 if self.regions.iter().any(|it| it.global_known == "-") => {}
                0 => self.global.flush(),
                1 => self.global_snapshot = Some(self.global.snapshot()),
                _ => {
                    if let Some(snapshot) = self.global_snapshot.take() {
                        self.global.restore(snapshot);
                    }
                }
            },
            _ => {}
        }
        let delay = self.rng.u64(SECOND / 10..6 * SECOND);
        self.after(delay, Event::Fault);
    }
}
