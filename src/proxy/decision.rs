//! Requests for decisions, from another proxy that forwards the requests itself.
//!
//! Such a request is changed into the one that it describes, which then passes the pipeline as far as the decision. Its
//! local reply is converted for the protocol of the proxy that asks (see `local_reply::decided`).

mod call;

use std::sync::atomic::Ordering;

use http::request;

pub(super) use self::call::answer;
use super::connection::DownstreamConnection;
use super::view::GenerationView;
use weir_policy::decision::{self, InquiryForm, InvalidInquiry};
use weir_telemetry::log_interval::reaches_power_of_ten;

/// A request for a decision, which has arrived.
pub(super) struct Inquiry {
    pub(super) form: InquiryForm,
    /// What is wrong with it.
    pub(super) problem: Option<InvalidInquiry>,
}

impl Inquiry {
    /// Reads a request that arrived on `connection`; `None` if it is to be forwarded. The head becomes that of the request
    /// to decide, unless that is in the body.
    pub(super) fn read(
        connection: &DownstreamConnection,
        view: &GenerationView,
        head: &mut request::Parts,
    ) -> Option<Self> {
        // A stored call is sent to the upstream, even if its listener decides now.
        let protocol = view.decision_protocol(connection.listener).filter(|_| connection.stored.is_none())?;
        let (form, settings) = (InquiryForm::new(protocol, head), &view.policy.identify);
        let restored = match form {
            _ if !settings.trusted_proxies.contains(connection.peer) => Err(InvalidInquiry::UntrustedPeer),
            InquiryForm::GrpcCheck => Ok(()),
            _ => decision::restore(protocol, head, settings),
        };
        let problem = restored.err();
        if let Some(problem) = &problem {
            warn_of_invalid(connection, problem);
        }
        Some(Self { form, problem })
    }
}

/// Warns of a request for a decision that cannot be decided. Its cause is the configuration of the proxy that asks.
pub(super) fn warn_of_invalid(connection: &DownstreamConnection, problem: &InvalidInquiry) {
    let count = connection.worker.shared.invalid_inquiries.fetch_add(1, Ordering::Relaxed).saturating_add(1);
    if reaches_power_of_ten(count, 1) {
        tracing::warn!(
            peer = %connection.peer,
            %problem,
            count,
            "no decision for another proxy; logged at each tenfold of the count"
        );
    }
}
