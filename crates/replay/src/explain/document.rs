//! The limits of the rate limit service's documents in an explanation.

use serde::{Deserialize, Serialize};

use super::Explanation;

/// What the documents of the rate limit service would do to a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentReport {
    pub is_known_domain: bool,
    /// Whether the limit that applies is unlimited.
    pub is_unlimited: bool,
    /// The limit that applies.
    pub limit: Option<DocumentLimitReport>,
}

/// A limit of a document, before the call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentLimitReport {
    /// Name, as in the service's statistics: the domain and the keys.
    pub name: String,
    /// Hits per unit.
    pub requests_per_unit: u32,
    /// Unit, such as `MINUTE`.
    pub unit: String,
    /// Hits that are left.
    pub remaining: u32,
    /// Seconds until the window ends, or until there is room.
    pub reset_seconds: u64,
    /// Whether it never rejects.
    pub is_shadow: bool,
}

impl DocumentReport {
    pub(super) fn to_line(&self) -> String {
        match &self.limit {
            Some(limit) => {
                let DocumentLimitReport {
                    name,
                    requests_per_unit,
                    unit,
                    remaining,
                    reset_seconds,
                    is_shadow,
                } = limit;
                let shadow = if *is_shadow { ", in shadow mode" } else { "" };
                let over = if *remaining == 0 { " -> OVER_LIMIT" } else { "" };
                format!(
                    "{name}: {requests_per_unit} per {unit}{shadow}, remaining {remaining}, reset in {reset_seconds} s{over}"
                )
            }
            None if self.is_unlimited => "unlimited".to_owned(),
            None if self.is_known_domain => "no limit has these entries".to_owned(),
            None => "no document has this domain".to_owned(),
        }
    }
}

impl Explanation {
    /// Adds what the documents of the rate limit service would do. A limit of theirs that is exceeded decides, unless a
    /// rule has rejected the call already.
    #[must_use]
    pub fn with_documents(mut self, report: DocumentReport) -> Self {
        let is_admitted = !matches!(self.outcome.as_str(), "limited" | "banned" | "denied" | "malformed");
        if let Some(limit) = report.limit.as_ref().filter(|limit| limit.remaining == 0 && is_admitted) {
            if limit.is_shadow {
                "shadow".clone_into(&mut self.outcome);
                self.reason = format!("over the limit of `{}` of a document, in shadow mode", limit.name);
            } else {
                "limited".clone_into(&mut self.outcome);
                self.reason = format!("over the limit of `{}` of a document: OVER_LIMIT", limit.name);
                self.retry_after_seconds = Some(limit.reset_seconds as f64);
                self.headers.clear();
            }
            self.rule = None;
        }
        self.documents = Some(report);
        self
    }
}
