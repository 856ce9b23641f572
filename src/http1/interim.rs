//! Interim responses (RFC 9110 section 15.2) on their way from an upstream to the client that waits for the final one.
//!
//! A request's future is for its final response, so what comes before that is left here, and taken by whoever writes to
//! the client. 100 is not among it: Weir itself answers an expectation.

use std::cell::{Cell, RefCell};

use http::{HeaderMap, StatusCode};

/// What the heads of interim responses to one request may take, all together.
const MAX_OCTETS: usize = 16 * 1024;
/// Each counts as this much at the least, so there are at most eight.
const MIN_OCTETS: usize = MAX_OCTETS / 8;

/// An interim response.
#[derive(Debug)]
pub struct Interim {
    /// Its status, from 102 to 199.
    pub status: StatusCode,
    /// Its fields, without those of framing.
    pub headers: HeaderMap,
}

/// The interim responses to one request after the other that are still to be written.
#[derive(Debug, Default)]
pub struct Interims {
    waiting: RefCell<Vec<Interim>>,
    room: Cell<usize>,
}

impl Interims {
    /// The next request begins, whose client `takes` interim responses.
    pub fn begin(&self, takes: bool) {
        self.room.set(if takes { MAX_OCTETS } else { 0 });
    }

    /// Leaves one whose head took so many octets. What there is no room for is dropped: a client must be able to do
    /// without.
    ///
    /// # Errors
    /// Those of `interim`, which is made only where it is wanted.
    pub fn push<E>(
        &self,
        status: StatusCode,
        octets: usize,
        headers: impl FnOnce() -> Result<HeaderMap, E>,
    ) -> Result<(), E> {
        let is_final = !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS;
        if is_final || status == StatusCode::CONTINUE {
            return Ok(());
        }
        if let Some(room) = self.room.get().checked_sub(octets.max(MIN_OCTETS)) {
            self.room.set(room);
            self.waiting.borrow_mut().push(Interim { status, headers: headers()? });
        }
        Ok(())
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }

    /// All that wait.
    pub fn take(&self) -> Vec<Interim> {
        self.waiting.take()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn push(interims: &Interims, status: u16, octets: usize) {
        let made = || Ok::<_, Infallible>(HeaderMap::new());
        interims.push(StatusCode::from_u16(status).unwrap(), octets, made).unwrap();
    }

    #[test]
    fn interim_responses_are_bounded_in_number_and_in_octets() {
        let interims = Interims::default();
        for (octets, most) in
            [(10, 8), (MAX_OCTETS / 2, 2), (MAX_OCTETS, 1), (MAX_OCTETS + 1, 0), (usize::MAX, 0)]
        {
            interims.begin(true);
            (0..1000).for_each(|_| push(&interims, 103, octets));
            assert_eq!(interims.take().len(), most, "{octets}");
        }
    }

    #[test]
    fn only_what_is_forwarded_is_kept_and_only_for_clients_that_take_it() {
        let interims = Interims::default();
        interims.begin(false);
        push(&interims, 103, 10);
        assert!(interims.is_empty());
        interims.begin(true);
        [100, 101, 200, 102, 103, 199].iter().for_each(|status| push(&interims, *status, 10));
        let kept: Vec<_> = interims.take().iter().map(|interim| interim.status.as_u16()).collect();
        assert_eq!(kept, [102, 103, 199]);
        assert!(interims.is_empty());
    }
}
