//! The connections of a worker that linger, and which of them ends when there are too many.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::{Rc, Weak};

use super::{Activity, Doing};

/// Connections of a worker that linger at once.
const MAX_LINGERING: usize = 256;
/// Those of one peer; half, for a load balancer is one peer, too.
const MAX_OF_PEER: usize = 128;

/// The connections that linger, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Lingering(RefCell<Vec<(IpAddr, Weak<Activity>)>>);

impl Lingering {
    /// Adds a connection, and ends the oldest of its peer, or of all, where there are too many.
    pub(super) fn add(&self, peer: IpAddr, connection: &Rc<Activity>) {
        let mut all = self.0.borrow_mut();
        all.retain(|(_, connection)| connection.upgrade().is_some_and(|connection| lingers(&connection)));
        let of_peer = all.iter().filter(|(other, _)| *other == peer).count();
        if of_peer >= MAX_OF_PEER {
            let oldest = all.iter().position(|(other, _)| *other == peer);
            cut(oldest.map(|oldest| all.remove(oldest)));
        } else if all.len() >= MAX_LINGERING {
            cut(Some(all.remove(0)));
        }
        all.push((peer, Rc::downgrade(connection)));
    }
}

fn lingers(connection: &Activity) -> bool {
    connection.doing.get() == Doing::Lingering && connection.overdue.get().is_none()
}

fn cut(connection: Option<(IpAddr, Weak<Activity>)>) {
    if let Some(connection) = connection.and_then(|(_, connection)| connection.upgrade()) {
        connection.cut_linger();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Overdue, Patience, SlowClock};
    use super::*;

    fn lingering(clock: &Rc<SlowClock>, peer: u8) -> Rc<Activity> {
        let connection = clock.watch(Patience::new(Duration::from_secs(2), Duration::from_secs(1)));
        connection.must_linger();
        assert!(connection.begin_linger(IpAddr::from([192, 0, 2, peer])));
        connection
    }

    fn ended(connections: &[Rc<Activity>]) -> Vec<usize> {
        let is_ended = |index: &usize| connections[*index].overdue() == Some(Overdue::Linger);
        (0..connections.len()).filter(is_ended).collect()
    }

    #[test]
    fn the_oldest_of_a_peer_ends_when_the_peer_has_too_many() {
        let clock = Rc::new(SlowClock::default());
        let other = lingering(&clock, 1);
        let all: Vec<_> = (0..MAX_OF_PEER + 2).map(|_| lingering(&clock, 2)).collect();
        assert_eq!(ended(&all), [0, 1]);
        assert_eq!(other.overdue(), None);
    }

    #[test]
    fn the_oldest_of_all_ends_when_there_are_too_many() {
        let clock = Rc::new(SlowClock::default());
        let all: Vec<_> =
            (0..MAX_LINGERING + 1).map(|index| lingering(&clock, (index % 200) as u8)).collect();
        assert_eq!(ended(&all), [0]);
    }

    #[test]
    fn connections_that_have_ended_do_not_count() {
        let clock = Rc::new(SlowClock::default());
        let first = lingering(&clock, 1);
        (0..2 * MAX_OF_PEER).for_each(|_| drop(lingering(&clock, 1)));
        assert_eq!(first.overdue(), None);
    }
}
