//! Holds a request while a limit delays it, or while another service decides about it.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;

use super::View;
use super::exchange::Exchange;
use super::fallback::Arrived;
use super::headers::append;
use crate::limiter::timestamp::Timestamp;
use crate::limits::{Limits, Pending, Query, Rejected, Sources};
use crate::response::fallback::Kept;
use crate::rules::RuleIndex;
use crate::rules::tariff::Ending;

/// Responses that are stored for the requests that other services reject.
#[derive(Debug, Default)]
pub(super) struct CachedFallbacks(Vec<(RuleIndex, Arc<Kept>)>);

impl CachedFallbacks {
    /// What is stored for a request, in place of the rejections of the rules whose limits other services count. Looked
    /// for before its head is made into what the upstream sees.
    pub(super) fn look_up(pending: &Pending, view: &View, arrived: Arrived<'_>, now: Timestamp) -> Self {
        let kept = |rule| Some((rule, view.fallbacks.recall(rule, arrived, view, now)?));
        Self(pending.remote_rules().filter_map(kept).collect())
    }

    /// What is stored in place of a rejection by `rule`.
    pub(super) fn take(self, rule: RuleIndex) -> Option<Arc<Kept>> {
        self.0.into_iter().find(|(of, _)| *of == rule).map(|(_, kept)| kept)
    }
}

/// Holds the request back for its delay and until every source of its limits has decided; what the upstream is to be
/// told is added to `headers`.
///
/// # Errors
/// Why the request does not go on; what it was charged is given back.
pub(super) async fn resolve<'a>(
    view: &'a View,
    exchange: &mut Exchange,
    pending: &'a mut Pending,
    (delay, headers): (Option<Duration>, &mut HeaderMap),
) -> Result<&'a mut Limits, Rejected<'a>> {
    let undecided = match pending.sources(&view.limits) {
        Sources::Remote(undecided) => undecided,
        Sources::Local(limits) => {
            if let Some(delay) = delay {
                exchange.wait(delay).await;
            }
            return Ok(limits);
        }
    };
    // In memory of its own: few requests have it, and all would carry it.
    Box::pin(async move {
        let hold = async |query: Query| {
            if let Some(delay) = delay {
                exchange.wait(delay).await;
            }
            exchange.hold(query.send()).await
        };
        match undecided.resolve(hold).await {
            Ok((limits, added)) => {
                if !added.is_empty() {
                    // What the upstream learns from a service may be about this client.
                    exchange.listen(None);
                }
                append(headers, &added);
                Ok(limits)
            }
            Err(rejected) => {
                exchange.settle(&Ending::Refused, rejected.limits);
                exchange.note_refused_by(view.limits.rule_name(rejected.rule));
                Err(rejected)
            }
        }
    })
    .await
}
