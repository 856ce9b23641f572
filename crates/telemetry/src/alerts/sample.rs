//! What alerts are evaluated from: the state of the process at one moment.

use std::collections::BTreeMap;

pub use crate::metrics::CountryLabel;
use weir_limiter::timestamp::Timestamp;
use weir_net::tls::key_pair::CertificateValidity;

/// State of the process at one moment. Counts are totals since the process started.
#[derive(Clone, Debug, Default)]
pub struct AlertSample {
    /// Time of the sample on the clock of the limits, which never goes backwards.
    pub now: Timestamp,
    /// The same moment on the wall clock.
    pub wall_clock: Timestamp,
    /// Rejected requests of each rule.
    pub rejections_by_rule: Vec<(Box<str>, u64)>,
    /// Rejected requests of each country; empty without a database of countries.
    pub rejections_by_country: Vec<(CountryLabel, u64)>,
    /// Whether the store of shared limits is unreachable; `None` without a store.
    pub is_store_unreachable: Option<bool>,
    /// The first problem of the last configuration, if it was rejected.
    pub reload_problem: Option<String>,
    /// Charges to overflow counters.
    pub table_overflows: u64,
    /// Validity of each certificate file.
    pub certificates: BTreeMap<Box<str>, CertificateValidity>,
    pub upstreams: Vec<UpstreamSample>,
}

/// An upstream at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamSample {
    pub name: Box<str>,
    pub endpoints: usize,
    /// Number of endpoints that may receive requests.
    pub healthy: usize,
}
