//! Test helper: a rate limit service with its limiter, and short methods for requests.

use std::sync::Arc;
use std::time::Duration;

use weir::limiter::timestamp::Timestamp;
use weir::limiter::{Limiter, LimiterSettings as Table};
use weir::rls::answer::{Answer, Code, Status, Undecided};
use weir::rls::request::{Descriptor, Entry, Override, Request};
use weir::rls::rules::Rules;
use weir::rls::service::Service;
use weir::rls::settings::Settings;
use weir::rls::unit::Unit;
use weir::rls::windows::Windows;

/// 2026-11-21T08:00:02Z: two seconds into a minute.
pub(crate) const START: Timestamp = Timestamp::from_secs(1_795_248_002);

pub(crate) struct Desk {
    pub(crate) service: Service,
    pub(crate) limiter: Limiter,
    pub(crate) now: Timestamp,
}

impl Desk {
    pub(crate) fn new(yaml: &str) -> Self {
        Self::with(yaml, Settings::default())
    }

    pub(crate) fn with(yaml: &str, settings: Settings) -> Self {
        let limiter = Limiter::new(Table { max_keys: 10_000, secret: [7, 11] });
        let windows = Windows::install(&limiter, START).expect("a limit for each unit");
        let rules = Rules::from_yaml([("config.test", yaml)], false).expect("valid rules");
        let rules = Some(Arc::new(rules));
        let service = Service { rules, settings: Arc::new(settings), windows, sharing: None, native: None };
        Self { service, limiter, now: START }
    }

    pub(crate) fn reload(&mut self, yaml: &str) {
        self.service.rules =
            Some(Arc::new(Rules::from_yaml([("config.test", yaml)], false).expect("valid rules")));
    }

    pub(crate) fn pass(&mut self, seconds: u64) {
        self.now = self.now.saturating_add(Duration::from_secs(seconds));
    }

    pub(crate) fn try_ask(&self, request: &Request) -> Result<Answer, Undecided> {
        self.service.decide(request, &self.limiter, self.now)
    }

    pub(crate) fn ask_all(&self, domain: &str, descriptors: Vec<Descriptor>) -> Answer {
        self.try_ask(&Request { domain: domain.to_owned(), descriptors, hits_addend: 0 }).expect("a response")
    }

    /// Sends one descriptor in domain `d`, written `key=value,key=value`.
    pub(crate) fn ask(&self, entries: &str) -> Answer {
        self.ask_all("d", vec![descriptor(entries)])
    }

    pub(crate) fn status(&self, entries: &str) -> Status {
        self.ask(entries).statuses.remove(0)
    }

    /// Returns the limit that applies to a descriptor, in requests per unit.
    pub(crate) fn limit(&self, entries: &str) -> Option<u32> {
        self.status(entries).current_limit.map(|limit| limit.requests_per_unit)
    }
}

pub(crate) fn descriptor(entries: &str) -> Descriptor {
    let entry = |entry: &str| {
        let (key, value) = entry.split_once('=').expect("an entry `key=value`");
        Entry { key: key.to_owned(), value: value.to_owned() }
    };
    let entries = entries.split(',').filter(|entry| !entry.is_empty()).map(entry).collect();
    Descriptor { entries, ..Descriptor::default() }
}

pub(crate) fn hits(entries: &str, hits: u64) -> Descriptor {
    Descriptor { hits_addend: Some(hits), ..descriptor(entries) }
}

pub(crate) fn given_back(entries: &str, count: u64) -> Descriptor {
    Descriptor { is_negative_hits: true, ..hits(entries, count) }
}

pub(crate) fn limited(entries: &str, requests_per_unit: u32, unit: Option<Unit>) -> Descriptor {
    Descriptor { limit: Some(Override { requests_per_unit, unit }), ..descriptor(entries) }
}

pub(crate) fn codes(answer: &Answer) -> Vec<Code> {
    answer.statuses.iter().map(|status| status.code).collect()
}

pub(crate) fn remaining(answer: &Answer) -> Vec<u32> {
    answer.statuses.iter().map(|status| status.limit_remaining).collect()
}
