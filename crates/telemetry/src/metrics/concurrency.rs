//! Metrics of the classes that share the concurrency of an upstream.

use super::exporter::MetricRegistry;
use super::families;
use super::upstream::{ClusterView, ConcurrencyView};
use weir_limiter::classes::{ClassCounts, ClassView};

impl ClusterView {
    /// Sets the metrics of the classes that share its concurrency, and of its throttle.
    pub(super) fn fill_concurrency(&self, sums: &MetricRegistry) {
        let upstream = &*self.name;
        if let Some(probability) = self.throttle {
            sums.set_gauge(&families::THROTTLE_PROBABILITY, &[("upstream", upstream)], probability);
        }
        let Some(ConcurrencyView { classes, gate }) = &self.concurrency else { return };
        let limit = f64::from(gate.limit.limit);
        sums.set_gauge(&families::UPSTREAM_CONCURRENCY_LIMIT, &[("upstream", upstream)], limit);
        for (name, class) in classes.iter().zip(&gate.classes) {
            fill_class(class, [("upstream", upstream), ("class", name)], sums);
        }
    }
}

fn fill_class(class: &ClassView, labels: [(&'static str, &str); 2], sums: &MetricRegistry) {
    sums.set_gauge(&families::CLASS_IN_FLIGHT, &labels, f64::from(class.in_flight));
    sums.set_gauge(&families::CLASS_WAITING, &labels, f64::from(class.waiting));
    let shed_for = class.shed_for.unwrap_or_default();
    sums.set_gauge(&families::CLASS_SHED_SECONDS, &labels, shed_for.as_secs_f64());
    let ClassCounts { admitted, waited, shed, left } = class.counts;
    for (outcome, count) in [("admitted", admitted), ("waited", waited), ("shed", shed), ("abandoned", left)]
    {
        let [upstream, class] = labels;
        sums.set_counter(&families::CLASS_REQUESTS, &[upstream, class, ("outcome", outcome)], count);
    }
}
