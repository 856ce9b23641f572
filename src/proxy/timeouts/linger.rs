//! Lingering close: the rest of an unread request is read and discarded before a connection is closed (RFC 9112 section
//! 9.6). Time and number of such connections are bounded.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::{Rc, Weak};

use super::connection::ConnectionTimer;

/// Maximum time in ticks for which a connection lingers: in all, without receiving anything, and in all during a drain.
/// Many clients send a whole body before they read.
const MAX_LINGER: u32 = 300;
const MAX_LINGER_IDLE: u32 = 50;
const MAX_LINGER_DRAINING: u32 = 10;
/// Maximum lingering connections of a worker.
const MAX_LINGERING: usize = 256;
/// Maximum lingering connections of one peer: half of them, as a load balancer is a single peer too.
const MAX_LINGERING_PER_PEER: usize = 128;

/// State of lingering of one connection.
#[derive(Debug, Default)]
pub(super) struct LingerTimer {
    /// A head could not be decoded, so the rest of it is unread.
    has_unread_head: Cell<bool>,
    /// The tick at which a part of an unread request was last received.
    discarded: Cell<u32>,
}

impl LingerTimer {
    pub(super) fn head_is_unread(&self) {
        self.has_unread_head.set(true);
    }

    pub(super) fn forget_head(&self) {
        self.has_unread_head.set(false);
    }

    pub(super) fn has_unread_head(&self) -> bool {
        self.has_unread_head.get()
    }

    pub(super) fn discarded(&self, now: u32) {
        self.discarded.set(now);
    }

    /// Whether a connection that has lingered for `elapsed` ticks is to be closed.
    pub(super) fn is_over(&self, now: u32, elapsed: u32, is_draining: bool) -> bool {
        let max = if is_draining { MAX_LINGER_DRAINING } else { MAX_LINGER };
        elapsed > max || now.saturating_sub(self.discarded.get()) > MAX_LINGER_IDLE
    }
}

/// The lingering connections of a worker, oldest first.
#[derive(Debug, Default)]
pub(super) struct LingeringConnections(RefCell<Vec<(IpAddr, Weak<ConnectionTimer>)>>);

impl LingeringConnections {
    /// Adds a connection. Ends the oldest one, of its peer or of all, if there are too many.
    pub(super) fn add(&self, peer: IpAddr, connection: &Rc<ConnectionTimer>) {
        let mut all = self.0.borrow_mut();
        all.retain(|(_, connection)| {
            connection.upgrade().is_some_and(|connection| connection.is_lingering())
        });
        let of_peer = all.iter().filter(|(other, _)| *other == peer).count();
        if of_peer >= MAX_LINGERING_PER_PEER {
            let oldest = all.iter().position(|(other, _)| *other == peer);
            cut(oldest.map(|oldest| all.remove(oldest)));
        } else if all.len() >= MAX_LINGERING {
            cut(Some(all.remove(0)));
        }
        all.push((peer, Rc::downgrade(connection)));
    }
}

fn cut(connection: Option<(IpAddr, Weak<ConnectionTimer>)>) {
    if let Some(connection) = connection.and_then(|(_, connection)| connection.upgrade()) {
        connection.cut_linger();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{CoarseClock, ConnectionTimeouts, TimeoutKind};
    use super::*;

    fn start_lingering(clock: &Rc<CoarseClock>, peer: u8) -> Rc<ConnectionTimer> {
        let connection = clock
            .add_connection(ConnectionTimeouts::new(Duration::from_secs(2), Duration::from_secs(1)), None);
        connection.head_started();
        assert!(connection.start_linger(IpAddr::from([192, 0, 2, peer])));
        connection
    }

    fn expired_indices(connections: &[Rc<ConnectionTimer>]) -> Vec<usize> {
        let is_ended = |index: &usize| connections[*index].expired() == Some(TimeoutKind::Linger);
        (0..connections.len()).filter(is_ended).collect()
    }

    #[test]
    fn oldest_lingering_connection_of_a_peer_is_closed_at_the_per_peer_limit() {
        let clock = Rc::new(CoarseClock::default());
        let other = start_lingering(&clock, 1);
        let all: Vec<_> = (0..MAX_LINGERING_PER_PEER + 2).map(|_| start_lingering(&clock, 2)).collect();
        assert_eq!(expired_indices(&all), [0, 1]);
        assert_eq!(other.expired(), None);
    }

    #[test]
    fn oldest_lingering_connection_is_closed_at_the_limit() {
        let clock = Rc::new(CoarseClock::default());
        let all: Vec<_> =
            (0..MAX_LINGERING + 1).map(|index| start_lingering(&clock, (index % 200) as u8)).collect();
        assert_eq!(expired_indices(&all), [0]);
    }

    #[test]
    fn closed_connections_do_not_count_as_lingering() {
        let clock = Rc::new(CoarseClock::default());
        let first = start_lingering(&clock, 1);
        (0..2 * MAX_LINGERING_PER_PEER).for_each(|_| drop(start_lingering(&clock, 1)));
        assert_eq!(first.expired(), None);
    }
}
