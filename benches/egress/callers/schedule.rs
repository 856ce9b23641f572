//! When calls are due.

use serde::{Deserialize, Serialize};

/// Period of bursts, in seconds.
const BURST_PERIOD: f64 = 1.0;
/// Part of a period in which a burst takes place.
const BURST_PART: f64 = 0.25;

/// Demand of a group of callers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Demand {
    /// Calls a second at random times (Poisson), whether or not earlier calls have returned.
    Random(f64),
    /// Calls a second on average, all of them in the first quarter of each second.
    Bursts(f64),
    /// Callers that each make their next call when the last one has returned.
    Closed(usize),
}

/// Times at which calls are due, in seconds since the start.
#[derive(Debug)]
pub(crate) struct Schedule {
    demand: Demand,
    number: u64,
    next: f64,
}

impl Schedule {
    pub(crate) fn new(demand: Demand) -> Self {
        let mut schedule = Self { demand, number: 0, next: 0.0 };
        schedule.advance();
        schedule
    }

    /// Returns when the next call is due. Infinity for callers that wait for their responses.
    pub(crate) const fn next(&self) -> f64 {
        self.next
    }

    pub(crate) fn advance(&mut self) {
        self.next = match self.demand {
            Demand::Random(rate) => self.next - (1.0 - fastrand::f64()).ln() / rate,
            Demand::Bursts(rate) => {
                let each = rate * BURST_PERIOD;
                let period = (self.number as f64 / each).floor();
                let within = self.number as f64 - period * each;
                (period + within / each * BURST_PART) * BURST_PERIOD
            }
            Demand::Closed(_) => f64::INFINITY,
        };
        self.number += 1;
    }
}
