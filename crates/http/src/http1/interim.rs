//! Interim responses (RFC 9110 section 15.2) from an upstream, until they are sent to the client.
//!
//! The future of a request resolves to its final response only. Interim responses are stored here meanwhile, and the
//! task that writes to the client takes them. `100 Continue` is never among them: Weir generates that itself.

use std::cell::{Cell, RefCell};

use http::{HeaderMap, StatusCode};

/// Maximum bytes of the heads of all interim responses to one request.
const MAX_HEADS_SIZE: usize = 16 * 1024;
/// Minimum that each one counts as, which allows at most eight.
const MIN_COUNTED_SIZE: usize = MAX_HEADS_SIZE / 8;

/// Bytes that further interim responses to a request may have.
#[derive(Clone, Copy, Debug)]
pub struct InterimRoom(usize);

impl Default for InterimRoom {
    /// Of a request without interim responses so far.
    fn default() -> Self {
        Self(MAX_HEADS_SIZE)
    }
}

#[derive(Debug)]
pub struct InterimResponse {
    /// Status code, from 102 to 199 but not 101.
    pub status: StatusCode,
    /// Headers, without framing headers.
    pub headers: HeaderMap,
}

/// Interim responses of the current request that have not been sent yet; reused from request to request.
#[derive(Debug, Default)]
pub struct InterimResponses {
    queue: RefCell<Vec<InterimResponse>>,
    remaining_size: Cell<usize>,
}

impl InterimResponses {
    /// Starts the next request; `takes`: whether its client accepts interim responses.
    pub fn start_request(&self, takes: bool) {
        self.remaining_size.set(if takes { MAX_HEADS_SIZE } else { 0 });
    }

    /// Continues a request of one of several streams, which have these interim responses in common: those that are stored
    /// until [`Self::suspend`] belong to it. `room` is what the last call for the stream returned.
    pub fn resume(&self, InterimRoom(room): InterimRoom) {
        self.remaining_size.set(room);
    }

    /// Returns the room that is left for the stream. Until another one is resumed, nothing is stored.
    pub fn suspend(&self) -> InterimRoom {
        InterimRoom(self.remaining_size.replace(0))
    }

    /// Stores an interim response with a head of `size` bytes, or drops it if there is no room: clients must not
    /// depend on interim responses.
    ///
    /// # Errors
    /// The error of `headers`, which is only called if the response is stored.
    pub fn push<E>(
        &self,
        status: StatusCode,
        size: usize,
        headers: impl FnOnce() -> Result<HeaderMap, E>,
    ) -> Result<(), E> {
        let is_final = !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS;
        if is_final || status == StatusCode::CONTINUE {
            return Ok(());
        }
        if let Some(room) = self.remaining_size.get().checked_sub(size.max(MIN_COUNTED_SIZE)) {
            self.remaining_size.set(room);
            self.queue.borrow_mut().push(InterimResponse { status, headers: headers()? });
        }
        Ok(())
    }

    /// Whether no interim response is stored.
    pub fn is_empty(&self) -> bool {
        self.queue.borrow().is_empty()
    }

    /// Takes all stored interim responses.
    pub fn take_all(&self) -> Vec<InterimResponse> {
        self.queue.take()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn push(interims: &InterimResponses, status: u16, size: usize) {
        let made = || Ok::<_, Infallible>(HeaderMap::new());
        interims.push(StatusCode::from_u16(status).unwrap(), size, made).unwrap();
    }

    #[test]
    fn interim_responses_are_bounded_in_number_and_bytes() {
        let interims = InterimResponses::default();
        for (size, most) in
            [(10, 8), (MAX_HEADS_SIZE / 2, 2), (MAX_HEADS_SIZE, 1), (MAX_HEADS_SIZE + 1, 0), (usize::MAX, 0)]
        {
            interims.start_request(true);
            (0..1000).for_each(|_| push(&interims, 103, size));
            assert_eq!(interims.take_all().len(), most, "{size}");
        }
    }

    #[test]
    fn only_forwardable_interim_responses_are_kept_for_clients_that_accept_them() {
        let interims = InterimResponses::default();
        interims.start_request(false);
        push(&interims, 103, 10);
        assert!(interims.is_empty());
        interims.start_request(true);
        [100, 101, 200, 102, 103, 199].iter().for_each(|status| push(&interims, *status, 10));
        let kept: Vec<_> = interims.take_all().iter().map(|interim| interim.status.as_u16()).collect();
        assert_eq!(kept, [102, 103, 199]);
        assert!(interims.is_empty());
    }
}
