//! Fleets that send stored calls: each instance sends the next one as soon as the limit has room.

use weir_limiter::leases::LeasePolicy;

use super::{Event, FleetSimulation, START};
use crate::plan::{LEASE, Pattern, Plan, Role, gcra, rate};
use crate::runs::no_faults;

/// Time for which a stored call waits for the store, in microseconds.
const WAIT: u64 = 1_000_000;
/// Calls of one instance that wait for the store at the same time: the sender hands out the next one when the limit has
/// decided about the last one.
const MAX_WAITING: usize = 1;
/// Minimum pause before a further attempt, in microseconds.
const MIN_PAUSE: u64 = 1000;

fn plan(count: u32, burst: u32, instances: usize) -> Plan {
    Plan {
        role: |_| Role::USUAL,
        instances,
        quota: gcra(count, burst),
        demand: 0.0,
        pattern: Pattern::Even,
        keys: 1,
        lease_policy: LeasePolicy { max_wait: None, ..LEASE },
        wait: WAIT,
        millis: 0,
        warm_up: 0,
        faults: no_faults(),
        second_tier: None,
        change: None,
        partitions: None,
        seed: 1,
    }
}

impl FleetSimulation {
    /// Sends this number of calls, which all instances take from one stream. The first one ends after `killed_after`
    /// milliseconds. Returns the time until the last call, in microseconds.
    fn send_backlog(&mut self, calls: u64, killed_after: Option<u64>) -> u64 {
        let mut paused_until = vec![START; self.plan.instances];
        for milli in 0.. {
            let first = usize::from(killed_after.is_some_and(|at| milli >= at));
            if first > 0 {
                self.instances[0].waiting.clear();
            }
            for (number, paused_until) in paused_until.iter_mut().enumerate().skip(first) {
                self.send_next(number, calls, paused_until);
                self.send_calls(number);
            }
            self.run_events(START + (milli + 1) * 1000);
            if self.outcome.admitted >= calls {
                break;
            }
            assert!(milli < 600_000, "{} of {calls} calls are sent in ten minutes", self.outcome.admitted);
        }
        self.now - START
    }

    /// Sends calls of one instance until the limit has no room.
    fn send_next(&mut self, number: usize, calls: u64, paused_until: &mut u64) {
        while self.now >= *paused_until && self.instances[number].waiting.len() < MAX_WAITING {
            let waiting: usize = self.instances.iter().map(|instance| instance.waiting.len()).sum();
            let before = self.outcome.admitted;
            if before + waiting as u64 >= calls {
                return;
            }
            if !self.attempt(number, 0) {
                let (until, epoch) = (self.now + WAIT, self.instances[number].epoch);
                self.instances[number].waiting.push((0, until));
                self.schedule(until, Event::Expired(number, epoch, 0));
            } else if self.outcome.admitted == before {
                let instance = &self.instances[number];
                let now = instance.local_time(self.now);
                let verdict = instance.limiter.peek([instance.check(0)], now).verdicts()[0];
                *paused_until = self.now + MIN_PAUSE.max(verdict.retry_after().as_micros() as u64);
            }
        }
    }
}

/// Asserts that fleets of various sizes send ten seconds' worth of calls at this part of the limit or more.
fn assert_used(count: u32, burst: u32, least: f64) {
    for (instances, is_killed) in [(1, false), (3, false), (8, false), (3, true)] {
        let plan = plan(count, burst, instances);
        let calls = u64::from(count) * 10;
        let mut fleet = FleetSimulation::new(plan);
        let took = fleet.send_backlog(calls, is_killed.then_some(2000));
        // What the limit admits in this time, of which the burst is a part.
        let possible = rate(&plan.quota) * took as f64 * 1e-6 + f64::from(burst);
        let used = calls as f64 / possible;
        let name = format!("{count}/s, burst {burst}, {instances} instances, killed: {is_killed}");
        assert!(used >= least, "{name}: {used}");
        assert!(fleet.outcome.excess <= 1e-6, "{name}: {:?}", fleet.outcome);
    }
}

#[test]
fn stored_calls_use_their_shared_limit_until_all_are_sent() {
    for (count, burst) in [(50, 50), (100, 100), (200, 20), (200, 200), (1000, 100), (1000, 1000)] {
        assert_used(count, burst, 0.93);
    }
}
