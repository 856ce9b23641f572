//! Settlement by fields of the response's body.

use http::HeaderName;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};

use super::super::rule_recorder::StatedCostOutcome;
use super::super::view::LimitsView;
use super::{OpenReservation, Settlement, cost_model_of};
use weir_bodies::Unreadable;
use weir_bodies::response::{LatestValues, ResponseReader};
use weir_http::headers::Headers;
use weir_limiter::Limiter;
use weir_limiter::timestamp::Timestamp;
use weir_policy::rules::cost::{CostModel, FinalCharge};

/// How far the body of a response has been read whose fields state the cost.
#[derive(Clone, Copy, Debug)]
pub enum FieldsRead<'a> {
    /// To its end.
    All(&'a LatestValues),
    /// To its end, of a response to a request that should have been changed to ask for the cost, and was not.
    Unasked(&'a LatestValues),
    /// Up to where the upstream broke off.
    BrokenOff(&'a LatestValues),
    /// Up to where the client left.
    Abandoned(&'a LatestValues),
    /// It cannot be read.
    Unreadable,
    /// As a log has recorded, in units.
    Recorded(u32),
}

impl Settlement {
    /// Counts the costs that responses state in the metrics of `view`.
    pub(crate) fn recorded_in(mut self: Box<Self>, view: &LimitsView) -> Box<Self> {
        if self.policy.response_fields.is_some() {
            for open in &mut self.open {
                open.stated_costs =
                    view.recorder(open.rule).and_then(|recorder| recorder.stated_costs.clone());
            }
        }
        self
    }

    /// Returns a reader of the response's body if its fields state the cost.
    ///
    /// # Errors
    /// Why they cannot be read.
    pub fn response_reader(&self, headers: &Headers) -> Result<Option<Box<ResponseReader>>, Unreadable> {
        let fields = self.policy.response_fields.as_ref().filter(|_| self.awaits_fields());
        let value = |name: &HeaderName| headers.get(name);
        let reader = |fields| {
            ResponseReader::new(fields, value(&CONTENT_TYPE), value(&CONTENT_ENCODING)).map(Box::new)
        };
        fields.map(reader).transpose()
    }

    /// Whether fields of the response's body state the cost, and have yet to arrive.
    pub fn awaits_fields(&self) -> bool {
        self.open.iter().any(|open| open.awaits_fields)
    }

    /// Settles by the fields of the response's body.
    pub fn settle_fields(&mut self, read: FieldsRead<'_>, limiter: &Limiter, now: Timestamp) {
        for open in &mut self.open {
            if !std::mem::take(&mut open.awaits_fields) {
                continue;
            }
            let Some(tariff) = cost_model_of(&self.policy, open.rule) else { continue };
            let units = open.units_by_fields(tariff, read);
            if let Some(metrics) = &open.stated_costs {
                metrics.record(read.outcome(tariff), units / open.unit_cost);
            }
            let _ = open.charge(units, limiter, now);
        }
    }
}

impl FieldsRead<'_> {
    /// Takes into account what the body itself says of its end: a client may leave, or a connection break, after the last event. And a
    /// body may end as it should although its stream has failed.
    fn resolved(self, tariff: &CostModel) -> Self {
        match self {
            Self::Unasked(latest) if !tariff.may_be_unasked(latest) => Self::All(latest).resolved(tariff),
            Self::All(latest) if !tariff.is_complete(latest) => Self::BrokenOff(latest),
            Self::BrokenOff(latest) | Self::Abandoned(latest) if tariff.is_complete(latest) => {
                Self::All(latest)
            }
            other => other,
        }
    }

    fn outcome(self, tariff: &CostModel) -> StatedCostOutcome {
        let is_absent = |latest| tariff.charge_by_fields(latest) == FinalCharge::AsReserved;
        match (self, self.resolved(tariff)) {
            (Self::All(latest), _) | (_, Self::All(latest)) if is_absent(latest) => StatedCostOutcome::Absent,
            (_, Self::All(_) | Self::Recorded(_)) => StatedCostOutcome::Stated,
            (_, Self::Unasked(_)) => StatedCostOutcome::Absent,
            (_, Self::BrokenOff(_)) => StatedCostOutcome::BrokenOff,
            (_, Self::Abandoned(_)) => StatedCostOutcome::Abandoned,
            (_, Self::Unreadable) => StatedCostOutcome::Unreadable,
        }
    }
}

impl OpenReservation {
    /// Returns the units of the limit that are due for a response of which so much has been read.
    fn units_by_fields(&self, tariff: &CostModel, read: FieldsRead<'_>) -> u32 {
        let stated = |latest| self.units_due(tariff.charge_by_fields(latest));
        match read.resolved(tariff) {
            FieldsRead::All(latest) => stated(latest),
            // The upstream may have done more work than it has stated.
            FieldsRead::BrokenOff(latest) => stated(latest).max(self.reserved),
            // It is not known either after the client has left, or after a stream that was not asked.
            FieldsRead::Abandoned(latest) | FieldsRead::Unasked(latest) => {
                stated(latest).max(self.reserved).max(self.units_due(tariff.max_stated_charge(self.is_guess)))
            }
            FieldsRead::Unreadable => self.units_due(FinalCharge::AsReserved),
            FieldsRead::Recorded(units) => self.units_due(FinalCharge::Units(units)),
        }
    }
}
