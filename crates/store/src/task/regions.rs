//! What the task does if regions share the limits: it registers the region and makes errands.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::{CompletedCall, StoreTask};
use crate::redis::CallError;
use crate::regions::RegionStatus;
use crate::regions::calls::{self, ErrandContext};
use crate::regions::errands::{ErrandBatch, ErrandBook, ErrandOutcome};
use crate::regions::link::REGISTRATION_TTL;
use weir_limiter::Fleet;
use weir_limiter::timestamp::Timestamp;

impl<F: FnMut(Fleet)> StoreTask<F> {
    /// Time after which a registration or an errand is due.
    pub(super) fn regional_work_after(&self) -> Option<Duration> {
        let link = self.region_link.as_ref()?;
        let registration = link.next_registration().filter(|_| self.reported_instances > 0);
        let registration = registration.map(|at| at.saturating_duration_since(tokio::time::Instant::now()));
        let errand = self.scheduler.errands.as_ref().and_then(|errands| errands.next_due());
        let errand = errand.map(|due: Timestamp| due.since(self.clock.now()));
        registration.into_iter().chain(errand).min()
    }

    /// Starts a registration of the region and errands, if they are due.
    pub(super) fn start_regional_calls(&mut self) {
        let Some(link) = &mut self.region_link else { return };
        // The regional store is asked for its secret first: another one would begin all its limits anew.
        if self.reported_instances > 0 && link.begin_registration() {
            let proposed = link.secret.unwrap_or_else(|| self.limiter.fleet().hasher.secret());
            let calls = Arc::clone(&link.calls);
            self.in_flight.spawn_local(async move {
                CompletedCall::RegionRegistered(calls.register(proposed, REGISTRATION_TTL).await)
            });
        }
        let now = self.clock.now();
        let is_overloaded = self.scheduler.errands.as_ref().is_some_and(ErrandBook::is_overloaded);
        let (global, is_complete) = (Arc::clone(&link.calls), link.is_complete() && !is_overloaded);
        while let Some(errands) = &mut self.scheduler.errands
            && let Some(batch) = errands.next_batch(now)
        {
            let region = errands.region;
            let (store, global) = (Arc::clone(&self.store), Arc::clone(&global));
            let context = ErrandContext {
                region,
                instance: self.scheduler.instance,
                generation: self.scheduler.generation(batch.group),
                random: self.secret[0] ^ now.as_nanos(),
                is_complete,
                now,
            };
            self.in_flight.spawn_local(async move {
                let made = calls::make(&store, &global, &batch, &context).await;
                CompletedCall::ErrandsMade(batch, made)
            });
        }
    }

    pub(super) fn handle_errands(
        &mut self,
        batch: &ErrandBatch,
        made: Result<Vec<ErrandOutcome>, CallError>,
    ) {
        let outcomes = made.unwrap_or_else(|error| {
            if !std::mem::replace(&mut self.has_reported_errands, true) {
                tracing::warn!(
                    %error,
                    "cannot move parts of limits between regions; they are moved later. Reported once, \
                     weir_store_errands_total counts it"
                );
            }
            vec![ErrandOutcome::Failed; batch.errands.len()]
        });
        let failed = outcomes.iter().filter(|outcome| **outcome == ErrandOutcome::Failed).count();
        self.metrics.record_errands((outcomes.len() - failed) as u64, failed as u64);
        let now = self.clock.now();
        if let Some(errands) = &mut self.scheduler.errands {
            errands.complete(batch, &outcomes, now);
        }
    }

    pub(super) fn handle_region_registration(&mut self, registered: Result<([u64; 2], u32), CallError>) {
        let (Some(link), Some(errands)) = (&mut self.region_link, &mut self.scheduler.errands) else {
            return;
        };
        let max_regions = errands.region.count().get();
        let error = registered.as_ref().err().map(ToString::to_string);
        let before = (link.secret.unwrap_or_else(|| self.limiter.fleet().hasher.secret()), link.regions);
        let has_changed = link.end_registration(registered.ok());
        match (has_changed, error) {
            (true, Some(error)) => tracing::warn!(
                %error,
                "the global store is unavailable: this region counts with its part of the limits"
            ),
            (true, None) => tracing::info!(regions = link.regions, "the global store is available"),
            (false, _) => {}
        }
        if link.secret.is_some_and(|secret| secret != before.0) {
            tracing::warn!(
                "the other regions have another secret for keys: the limits of this one start anew"
            );
            self.next_heartbeat = tokio::time::Instant::now();
        }
        if link.regions > max_regions && link.regions != before.1 {
            tracing::error!(
                regions = link.regions,
                max = max_regions,
                "there are more regions than `store.regions.count`: all of them together may admit more than the limits"
            );
        }
        errands.set_cut_off(link.is_down());
        self.metrics.set_regions(link.regions, !link.is_down());
        self.handle.set_region(RegionStatus {
            name: link.calls.region_name.clone(),
            regions: link.regions,
            is_global_away: link.is_down(),
            reported_counters: errands.counters(),
        });
    }

    /// Returns the number by which limits are divided while the regional store is away, with this many instances in the region.
    pub(super) fn divisor(&self, instances: NonZeroU32) -> NonZeroU32 {
        let regions = self.scheduler.errands.as_ref().map(|errands| errands.region.count());
        instances.saturating_mul(regions.unwrap_or(NonZeroU32::MIN))
    }
}
