//! Test helper: a rate limit service with its limiter, and short methods for requests.

use std::sync::Arc;
use std::time::Duration;

use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Limiter, LimiterSettings as SlotTable};
use weir_rls::decider::RlsDecider;
use weir_rls::request::{LimitOverride, RlsDescriptor, RlsEntry, RlsRequest};
use weir_rls::response::{Code, RlsDescriptorStatus, RlsError, RlsResponse};
use weir_rls::rules::DescriptorRules;
use weir_rls::settings::RlsSettings;
use weir_rls::unit::RlsUnit;
use weir_rls::unit_limits::UnitLimits;

/// 2026-11-21T08:00:02Z: two seconds into a minute.
pub(crate) const START: Timestamp = Timestamp::from_secs(1_795_248_002);

pub(crate) struct RlsFixture {
    pub(crate) service: RlsDecider,
    pub(crate) limiter: Limiter,
    pub(crate) now: Timestamp,
}

impl RlsFixture {
    pub(crate) fn new(yaml: &str) -> Self {
        Self::with_settings(yaml, RlsSettings::default())
    }

    pub(crate) fn with_settings(yaml: &str, settings: RlsSettings) -> Self {
        let limiter = Limiter::new(SlotTable { max_keys: 10_000, secret: [7, 11] });
        let windows = UnitLimits::install(&limiter, START).expect("a limit for each unit");
        let rules = DescriptorRules::from_yaml([("config.test", yaml)], false).expect("valid rules");
        let rules = Some(Arc::new(rules));
        let service = RlsDecider {
            rules,
            settings: Arc::new(settings),
            unit_limits: windows,
            shared_limits: None,
            native_policy: None,
        };
        Self { service, limiter, now: START }
    }

    pub(crate) fn reload(&mut self, yaml: &str) {
        self.service.rules =
            Some(Arc::new(DescriptorRules::from_yaml([("config.test", yaml)], false).expect("valid rules")));
    }

    pub(crate) fn advance(&mut self, seconds: u64) {
        self.now = self.now.saturating_add(Duration::from_secs(seconds));
    }

    pub(crate) fn try_decide(&self, request: &RlsRequest) -> Result<RlsResponse, RlsError> {
        self.service.decide(request, &self.limiter, self.now)
    }

    pub(crate) fn decide(&self, domain: &str, descriptors: Vec<RlsDescriptor>) -> RlsResponse {
        self.try_decide(&RlsRequest { domain: domain.to_owned(), descriptors, hits_addend: 0 })
            .expect("a response")
    }

    /// Sends one descriptor in domain `d`, written `key=value,key=value`.
    pub(crate) fn decide_one(&self, entries: &str) -> RlsResponse {
        self.decide("d", vec![descriptor(entries)])
    }

    pub(crate) fn status(&self, entries: &str) -> RlsDescriptorStatus {
        self.decide_one(entries).statuses.remove(0)
    }

    /// Returns the limit that applies to a descriptor, in requests per unit.
    pub(crate) fn limit(&self, entries: &str) -> Option<u32> {
        self.status(entries).current_limit.map(|limit| limit.requests_per_unit)
    }
}

pub(crate) fn descriptor(entries: &str) -> RlsDescriptor {
    let entry = |entry: &str| {
        let (key, value) = entry.split_once('=').expect("an entry `key=value`");
        RlsEntry { key: key.to_owned(), value: value.to_owned() }
    };
    let entries = entries.split(',').filter(|entry| !entry.is_empty()).map(entry).collect();
    RlsDescriptor { entries, ..RlsDescriptor::default() }
}

pub(crate) fn with_hits(entries: &str, hits: u64) -> RlsDescriptor {
    RlsDescriptor { hits_addend: Some(hits), ..descriptor(entries) }
}

pub(crate) fn with_negative_hits(entries: &str, count: u64) -> RlsDescriptor {
    RlsDescriptor { is_negative_hits: true, ..with_hits(entries, count) }
}

pub(crate) fn with_limit_override(
    entries: &str,
    requests_per_unit: u32,
    unit: Option<RlsUnit>,
) -> RlsDescriptor {
    RlsDescriptor { limit: Some(LimitOverride { requests_per_unit, unit }), ..descriptor(entries) }
}

pub(crate) fn codes(answer: &RlsResponse) -> Vec<Code> {
    answer.statuses.iter().map(|status| status.code).collect()
}

pub(crate) fn remaining(answer: &RlsResponse) -> Vec<u32> {
    answer.statuses.iter().map(|status| status.limit_remaining).collect()
}
