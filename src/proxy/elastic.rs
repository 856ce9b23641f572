//! Headroom in the shell: what workers note for the controller, and the one word that all of them read.
//!
//! Nothing here is touched by a request unless a rule is elastic. Then an answer costs two or three additions to
//! memory that its worker has to itself; what is in flight and what failed is in the metrics anyway.

pub mod control;

mod cpu;
mod load;
mod orca;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use parking_lot::Mutex;

pub(super) use self::load::Load;
use self::load::Noted;
#[cfg(any(test, fuzzing))]
pub(super) use self::orca::utilization;
use crate::limiter::elastic::Headroom;
use crate::limiter::elastic::controller::Assessment;

/// What elastic limits go by. No headroom until the control task says otherwise.
#[derive(Debug, Default)]
pub struct Elastic {
    headroom: AtomicU16,
    loads: Mutex<Vec<Arc<Load>>>,
    latest: Mutex<Option<Assessment>>,
}

impl Elastic {
    /// Headroom at the moment.
    pub fn headroom(&self) -> Headroom {
        // Nothing else is read by it, so no order is needed.
        Headroom::from_bits(self.headroom.load(Ordering::Relaxed))
    }

    /// What the controller thinks; `None` while no rule is elastic.
    pub fn assessment(&self) -> Option<Assessment> {
        *self.latest.lock()
    }

    /// Where a worker notes its answers.
    pub(super) fn worker(&self) -> Arc<Load> {
        let load = Arc::new(Load::default());
        self.loads.lock().push(Arc::clone(&load));
        load
    }

    fn noted(&self) -> Noted {
        self.loads.lock().iter().fold(Noted::default(), |all, load| all.and(load.noted()))
    }

    fn set(&self, assessment: Option<Assessment>) {
        let headroom = assessment.map_or(Headroom::NONE, |assessment| assessment.headroom);
        self.headroom.store(headroom.to_bits(), Ordering::Relaxed);
        *self.latest.lock() = assessment;
    }
}
