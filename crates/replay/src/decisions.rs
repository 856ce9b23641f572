//! The rules of a replay, and what they did with the requests so far.

use std::sync::Arc;

use smallvec::SmallVec;

use super::ReplayError;
use super::arrival::LoggedArrival;
use super::clients::ClientTable;
use super::collected::CollectedNames;
use super::format::fields::FieldNames;
use super::peers::ForwardingPeers;
use super::record::{LoggedRequest, ParsedBlock};
use super::simulation::Simulation;
use super::tally::Fate;
use super::timeline::BATCH_SIZE;
use weir_limiter::timestamp::Timestamp;

/// The rules, and what they did so far.
pub(super) struct Replay {
    pub(super) simulation: Simulation,
    /// The rules to compare with.
    pub(super) before: Option<Simulation>,
    pub(super) clients: ClientTable,
    /// The virtual clock.
    now: Timestamp,
    pub(super) first: Option<Timestamp>,
    pub(super) last: Timestamp,
    pub(super) requests: u64,
    /// Requests that the proxy would not accept.
    pub(super) malformed: u64,
    /// Requests that were read after later ones had been decided.
    pub(super) late: u64,
    pub(super) peers: ForwardingPeers,
    /// Whether every time so far is a whole second.
    pub(super) has_whole_seconds: bool,
}

impl Replay {
    /// Creates a replay of no requests so far.
    pub(super) fn new(simulation: Simulation, before: Option<Simulation>) -> Self {
        Self {
            simulation,
            before,
            clients: ClientTable::default(),
            now: Timestamp::EPOCH,
            first: None,
            last: Timestamp::EPOCH,
            requests: 0,
            malformed: 0,
            late: 0,
            peers: ForwardingPeers::default(),
            has_whole_seconds: true,
        }
    }

    /// Returns the names of fields in JSON logs, among them those of all headers that the rules need, and those of `mappings`.
    pub(super) fn field_names(&mut self, mappings: &[String]) -> Result<FieldNames, ReplayError> {
        let mut headers = self.simulation.needs().headers().to_vec();
        let before = self.before.iter().flat_map(|before| before.needs().headers());
        let others: Vec<_> = before.filter(|name| !headers.contains(name)).cloned().collect();
        headers.extend(others);
        let policies = std::iter::once(&self.simulation).chain(&self.before).map(Simulation::policy);
        let collected = Arc::new(CollectedNames::new(headers, policies));
        self.simulation.set_collected(&collected);
        self.before.iter_mut().for_each(|before| before.set_collected(&collected));
        FieldNames::new(&collected, mappings).map_err(ReplayError::Option)
    }

    /// Decides a batch of requests, in this order.
    pub(super) fn decide<'b>(&mut self, batch: impl Iterator<Item = (&'b ParsedBlock, &'b LoggedRequest)>) {
        let arrivals: SmallVec<[LoggedArrival<'b>; BATCH_SIZE]> =
            batch.map(|(block, request)| self.arrive(block, request)).collect();
        let decided = self.simulation.decide(&arrivals);
        let before = self.before.as_mut().map(|before| before.decide(&arrivals));
        let is_rejected = |fate| matches!(fate, Fate::Rejected(_));
        for (index, (arrival, decided)) in arrivals.iter().zip(&decided).enumerate() {
            let before = before.as_ref().and_then(|before| before.get(index));
            self.malformed += u64::from(decided.fate == Fate::Malformed);
            if is_rejected(decided.fate) || before.is_some_and(|before| is_rejected(before.fate)) {
                let client = decided.client.or_else(|| before?.client);
                self.clients.count(client, decided.fate, before.map(|before| before.fate), arrival.now);
            }
        }
    }

    /// Advances the clock to the arrival of a request.
    #[inline]
    fn arrive<'b>(&mut self, block: &'b ParsedBlock, request: &'b LoggedRequest) -> LoggedArrival<'b> {
        self.requests += 1;
        self.late += u64::from(request.start < self.now);
        self.peers.count(block, request, &self.simulation.policy().identify);
        self.has_whole_seconds &= request.start.as_nanos().is_multiple_of(1_000_000_000);
        self.now = self.now.max(request.start);
        self.first.get_or_insert(self.now);
        self.last = self.now;
        LoggedArrival { block, request, now: self.now }
    }
}
