//! Results of calls.

use serde::{Deserialize, Serialize};

use crate::figures::Quantiles;
use crate::http1::{ResponseHead, Sender};

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallResult {
    Response(ResponseHead),
    /// The connection failed.
    Failed,
    /// All connections were in use.
    Unsent,
}

/// Calls of a group that were due in the measured time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct GroupReport {
    pub(crate) offered: u64,
    pub(crate) succeeded: u64,
    /// Rejections of the provider that reached the caller.
    pub(crate) rejected_by_provider: u64,
    pub(crate) rejected_by_weir: u64,
    pub(crate) failed: u64,
    pub(crate) unsent: u64,
    /// Time from when a call was due to its response, of the successful calls, in microseconds.
    pub(crate) waits: Vec<u64>,
}

impl GroupReport {
    pub(crate) fn add(&mut self, result: CallResult, wait: u64) {
        self.offered += 1;
        match result {
            CallResult::Response(ResponseHead { status: 200..=299, .. }) => {
                self.succeeded += 1;
                self.waits.push(wait);
            }
            CallResult::Response(ResponseHead { sender: Sender::Provider, .. }) => {
                self.rejected_by_provider += 1;
            }
            CallResult::Response(ResponseHead { sender: Sender::Weir, .. }) => self.rejected_by_weir += 1,
            CallResult::Failed => self.failed += 1,
            CallResult::Unsent => self.unsent += 1,
        }
    }

    /// Returns the sum of several reports.
    pub(crate) fn total(reports: &[Self]) -> Self {
        let mut total = Self::default();
        for report in reports {
            total.offered += report.offered;
            total.succeeded += report.succeeded;
            total.rejected_by_provider += report.rejected_by_provider;
            total.rejected_by_weir += report.rejected_by_weir;
            total.failed += report.failed;
            total.unsent += report.unsent;
            total.waits.extend(&report.waits);
        }
        total
    }

    pub(crate) fn quantiles(&mut self) -> Quantiles {
        Quantiles::of(&mut self.waits)
    }
}
