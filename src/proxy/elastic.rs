//! Load measurement for elastic limits: what workers record for the controller, and the headroom that they read.
//!
//! Requests only touch this if a rule is elastic. A response then costs two or three additions to memory that only its
//! worker writes. Requests in flight and failures are taken from the metrics.

pub mod control;

mod cpu;
mod load;
mod orca;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use parking_lot::Mutex;

use self::load::LoadTotals;
pub(super) use self::load::WorkerLoad;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) use self::orca::utilization;
use weir_limiter::elastic::Headroom;
use weir_limiter::elastic::controller::Assessment;

/// State of elastic limits. There is no headroom until the control task sets it.
#[derive(Debug, Default)]
pub struct HeadroomState {
    headroom: AtomicU16,
    loads: Mutex<Vec<Arc<WorkerLoad>>>,
    latest: Mutex<Option<Assessment>>,
}

impl HeadroomState {
    /// Returns the current headroom.
    pub fn headroom(&self) -> Headroom {
        // Relaxed: no other memory depends on this value.
        Headroom::from_bits(self.headroom.load(Ordering::Relaxed))
    }

    /// Returns the latest assessment of the controller; `None` while no rule is elastic.
    pub fn assessment(&self) -> Option<Assessment> {
        *self.latest.lock()
    }

    /// Creates the load record of a worker.
    pub(super) fn add_worker(&self) -> Arc<WorkerLoad> {
        let load = Arc::new(WorkerLoad::default());
        self.loads.lock().push(Arc::clone(&load));
        load
    }

    fn load_totals(&self) -> LoadTotals {
        self.loads.lock().iter().fold(LoadTotals::default(), |all, load| all.combined_with(load.totals()))
    }

    fn set_assessment(&self, assessment: Option<Assessment>) {
        let headroom = assessment.map_or(Headroom::NONE, |assessment| assessment.headroom);
        self.headroom.store(headroom.to_bits(), Ordering::Relaxed);
        *self.latest.lock() = assessment;
    }
}
