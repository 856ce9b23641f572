//! The clock on which all timeouts downstream hang: one sweep per tick over all of a worker's connections.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::{Rc, Weak};

use super::lingering::Lingering;
use super::{Activity, Patience, TICK};

/// A worker's slow clock.
#[derive(Debug, Default)]
pub struct SlowClock {
    now: Cell<u32>,
    draining_since: Cell<Option<u32>>,
    connections: RefCell<Vec<Weak<Activity>>>,
    lingering: Lingering,
}

impl SlowClock {
    /// Notes for a new connection, idle so far.
    pub fn watch(self: &Rc<Self>, patience: Patience) -> Rc<Activity> {
        let activity = Rc::new(Activity::new(self, None, patience));
        self.add(&activity);
        activity
    }

    pub(super) fn add(&self, activity: &Rc<Activity>) {
        self.connections.borrow_mut().push(Rc::downgrade(activity));
    }

    /// A connection from `peer` lingers from now on; where there are too many that do, another one ends.
    pub(super) fn linger(&self, peer: IpAddr, connection: &Rc<Activity>) {
        self.lingering.add(peer, connection);
    }

    /// Ticks passed.
    pub(super) fn now(&self) -> u32 {
        self.now.get()
    }

    /// Ticks passed when the drain began, if it has.
    pub(super) fn draining_since(&self) -> Option<u32> {
        self.draining_since.get()
    }

    /// From now on idle connections have to go.
    pub fn drain(&self) {
        self.draining_since.set(Some(self.now.get()));
    }

    /// Whether the drain has begun.
    pub fn is_draining(&self) -> bool {
        self.draining_since.get().is_some()
    }

    /// Answers once no connection is left; looks once per tick.
    pub async fn until_all_closed(&self) {
        while self.open() > 0 {
            tokio::time::sleep(TICK).await;
        }
    }

    /// A tick has passed.
    pub fn tick(&self) {
        self.now.set(self.now.get().saturating_add(1));
        self.connections.borrow_mut().retain(|connection| match connection.upgrade() {
            Some(activity) => {
                activity.sweep();
                true
            }
            None => false,
        });
    }

    /// Connections that are still open.
    pub fn open(&self) -> usize {
        self.connections.borrow().iter().filter(|connection| connection.strong_count() > 0).count()
    }
}
