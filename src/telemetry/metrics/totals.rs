//! The sums over all workers at one moment, from which every output is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::histogram;
use super::arrival::{Handshake, LOAD_SHED, Preamble};
use super::rule::Decisions;
use super::upstream::{ClusterMetrics, UpstreamCells, UpstreamOutcome};
use super::worker::{CLASSES, ListenerCells, Spans, WorkerCells};

/// One listener over all workers.
#[derive(Clone, Debug, Default)]
pub(super) struct ListenerTotals {
    pub(super) name: Box<str>,
    pub(super) started: u64,
    pub(super) answered: [u64; CLASSES.len()],
    pub(super) reset: u64,
    pub(super) opened: u64,
    pub(super) closed: u64,
    pub(super) handshakes: [u64; Handshake::LABELS.len()],
    /// Begun and ended.
    pub(super) shaking: (u64, u64),
    pub(super) waiting_to_shake: (u64, u64),
    pub(super) preambles: [u64; Preamble::LABELS.len()],
    pub(super) duration: histogram::Totals,
}

/// An upstream, or an endpoint of one, over all workers.
#[derive(Clone, Debug, Default)]
pub struct UpstreamTotals {
    /// Attempts begun.
    pub started: u64,
    /// Attempts after a request's first.
    pub retries: u64,
    /// Connections established.
    pub opened: u64,
    /// Connections that could not be.
    pub failed: u64,
    pub(super) ended: [u64; UpstreamOutcome::LABELS.len()],
    pub(super) answered: [u64; CLASSES.len()],
    pub(super) closed: u64,
    pub(super) duration: histogram::Totals,
}

/// Everything that was counted.
#[derive(Clone, Debug)]
pub(super) struct Totals {
    pub(super) workers: usize,
    pub(super) listeners: Vec<ListenerTotals>,
    pub(super) upstreams: Vec<(Box<str>, UpstreamTotals)>,
    pub(super) clusters: Vec<(Box<str>, Arc<ClusterMetrics>)>,
    pub(super) malformed: u64,
    pub(super) load_shed: [u64; LOAD_SHED.len()],
    pub(super) accept_failures: u64,
    pub(super) delay: histogram::Totals,
    pub(super) delays_started: u64,
    pub(super) rules: Vec<(Box<str>, Decisions)>,
}

// The ends are read before the beginnings, and differences saturate: while others go on counting, nothing
// that is over can seem to have begun later and so make a gauge negative.

impl ListenerTotals {
    pub(super) fn finished(&self) -> u64 {
        self.answered.iter().sum()
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.started.saturating_sub(self.finished().saturating_add(self.reset))
    }

    pub(super) fn connections(&self) -> u64 {
        self.opened.saturating_sub(self.closed)
    }

    fn add(&mut self, cells: &ListenerCells) {
        self.duration.add(&cells.duration);
        add_all(&mut self.answered, &cells.answered);
        add(&mut self.reset, &cells.reset);
        add(&mut self.closed, &cells.closed);
        add(&mut self.started, &cells.started);
        add(&mut self.opened, &cells.opened);
        add_all(&mut self.handshakes, &cells.handshakes);
        add_span(&mut self.shaking, &cells.shaking);
        add_span(&mut self.waiting_to_shake, &cells.waiting_to_shake);
        add_all(&mut self.preambles, &cells.preambles);
    }
}

impl UpstreamTotals {
    /// Attempts waiting for an answer.
    pub fn in_flight(&self) -> u64 {
        self.started.saturating_sub(self.ended.iter().sum())
    }

    /// Connections open.
    pub fn connections(&self) -> u64 {
        self.opened.saturating_sub(self.closed)
    }

    /// Attempts answered with anything but a 5xx.
    pub fn successes(&self) -> u64 {
        self.answered[..CLASSES.len() - 1].iter().sum()
    }

    /// Attempts that failed: a 5xx or no answer, the client's own leaving apart.
    pub fn failures(&self) -> u64 {
        let ended: u64 = self.ended.iter().sum();
        let ours = self.ended_as("abandoned").saturating_add(self.ended_as("overflowed"));
        ended.saturating_sub(self.successes().saturating_add(ours))
    }

    /// Attempts that ended so, by the label value of the outcome.
    pub fn ended_as(&self, label: &str) -> u64 {
        let position = UpstreamOutcome::LABELS.iter().position(|known| *known == label);
        position.map_or(0, |position| self.ended[position])
    }

    /// Adds what was counted elsewhere.
    pub(super) fn merge(&mut self, other: &Self) {
        self.duration.merge(&other.duration);
        merge_all(&mut self.ended, &other.ended);
        merge_all(&mut self.answered, &other.answered);
        let pairs = [
            (&mut self.retries, other.retries),
            (&mut self.closed, other.closed),
            (&mut self.failed, other.failed),
            (&mut self.started, other.started),
            (&mut self.opened, other.opened),
        ];
        pairs.into_iter().for_each(|(total, value)| *total = total.saturating_add(value));
    }

    pub(super) fn add(&mut self, cells: &UpstreamCells) {
        self.duration.add(&cells.duration);
        add_all(&mut self.ended, &cells.ended);
        add_all(&mut self.answered, &cells.answered);
        add(&mut self.retries, &cells.retries);
        add(&mut self.closed, &cells.closed);
        add(&mut self.failed, &cells.failed);
        add(&mut self.started, &cells.started);
        add(&mut self.opened, &cells.opened);
    }
}

impl Totals {
    pub(super) fn new(listeners: &[Box<str>], rules: Vec<(Box<str>, Decisions)>) -> Self {
        let listeners = listeners
            .iter()
            .map(|name| ListenerTotals { name: name.clone(), ..Default::default() })
            .collect();
        Self {
            workers: 0,
            listeners,
            upstreams: Vec::new(),
            clusters: Vec::new(),
            malformed: 0,
            load_shed: Default::default(),
            accept_failures: 0,
            delay: histogram::Totals::default(),
            delays_started: 0,
            rules,
        }
    }

    pub(super) fn add(&mut self, worker: &WorkerCells) {
        self.workers += 1;
        for (totals, cells) in self.listeners.iter_mut().zip(&worker.listeners) {
            totals.add(cells);
        }
        add(&mut self.malformed, &worker.malformed);
        add_all(&mut self.load_shed, &worker.load_shed);
        add(&mut self.accept_failures, &worker.accept_failures);
        self.delay.add(&worker.delay);
        add(&mut self.delays_started, &worker.delays_started);
    }

    /// Requests held back.
    pub(super) fn delayed(&self) -> u64 {
        self.delays_started.saturating_sub(self.delay.count())
    }
}

fn add(total: &mut u64, cell: &AtomicU64) {
    *total = total.saturating_add(cell.load(Ordering::Relaxed));
}

fn add_span(sum: &mut (u64, u64), spans: &Spans) {
    let (begun, ended) = spans.load();
    *sum = (sum.0.saturating_add(begun), sum.1.saturating_add(ended));
}

fn add_all(totals: &mut [u64], cells: &[AtomicU64]) {
    for (total, cell) in totals.iter_mut().zip(cells) {
        add(total, cell);
    }
}

fn merge_all(totals: &mut [u64], others: &[u64]) {
    for (total, value) in totals.iter_mut().zip(others) {
        *total = total.saturating_add(*value);
    }
}
