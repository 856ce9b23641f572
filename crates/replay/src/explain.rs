//! What would happen to a request, and why: which rules match, with which keys, and what their counters say.
//!
//! A described request ([`RequestDescription`]) is identified, matched and decided by the same functions as a proxied one.
//! The decision is made on copies of the counters, so it charges nothing and creates no counter. The result is plain
//! data, for the admin port as JSON and for a terminal as text. There is no I/O here.

mod body;
mod decide;
mod document;
mod outcome;
mod report;
mod request;
mod rules;
mod text;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use http::header::HOST;
use http::{Method, StatusCode};

pub use self::decide::{PredictedAction, StoreState, predict};
pub use self::document::{DocumentLimitReport, DocumentReport};
pub use self::report::{
    ExplainedClass, ExplainedClient, ExplainedKeyText, ExplainedRule, Explanation, HeaderLine, LimitReport,
    OverrideReport, override_report,
};
pub use self::request::{DescriptionError, RequestDescription};
pub use self::text::render;
use weir_limiter::Limiter;
use weir_limiter::elastic::Headroom;
use weir_limiter::leases::PartsByGroup;
use weir_limiter::timestamp::Timestamp;
use weir_policy::engine::Policy;
use weir_policy::engine::overrides::OverrideBook;
use weir_policy::identify::body::BodyFields;
use weir_policy::identify::descriptor::ParsedDescriptor;
use weir_policy::identify::{Attributes, host, identify, is_forwarded_method};
use weir_policy::rules::explain::RuleStatus;

/// The state by which a request is explained.
#[derive(Clone, Copy, Debug)]
pub struct ExplainContext<'a> {
    /// The policy in force.
    pub policy: &'a Policy,
    /// The counters. They are only read.
    pub limiter: &'a Limiter,
    /// Overrides of single keys.
    pub overrides: &'a OverrideBook,
    /// Headroom of elastic limits.
    pub headroom: Headroom,
    /// The store of shared limits.
    pub store: StoreState,
    /// Parts of shared limits that may be spent without the store.
    pub parts: &'a PartsByGroup,
    /// Time of the limits.
    pub now: Timestamp,
    /// Wall-clock time, for schedules and tokens.
    pub wall_clock: Timestamp,
}

impl ExplainContext<'_> {
    /// Converts a time of the limits to wall-clock time.
    fn wall_clock_at(&self, time: Timestamp) -> Timestamp {
        self.wall_clock.saturating_add(time.since(self.now))
    }
}

/// Explains what would happen to `request`.
pub fn explain(request: &RequestDescription, context: &ExplainContext<'_>) -> Explanation {
    if let Some(malformed) = malformed(request) {
        return Explanation::malformed(&malformed, request, context);
    }
    let fields = match request.domain {
        Some(_) => BodyFields::absent(),
        None => body::read(request, context),
    };
    let (settings, time) = (&context.policy.identify, context.wall_clock);
    let descriptor =
        ParsedDescriptor::new(request.entries.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    let attributes = match request.domain {
        Some(_) => descriptor.attributes(settings, time),
        None => {
            let RequestDescription { method, uri, headers, peer, .. } = request;
            match identify(method, uri, headers, *peer, settings, time) {
                Ok(mut attributes) => {
                    attributes.connection.listener = request.listener.as_deref();
                    attributes
                }
                Err(error) => {
                    let malformed = MalformedRequest::bad_request(error);
                    return Explanation::malformed(&malformed, request, context);
                }
            }
        }
    };
    let explanation =
        explain_attributes(&attributes, &fields, request.domain.as_deref(), request.peer, context);
    Explanation { body: body::problem(&fields), ..explanation }
}

/// A request that is rejected before any rule.
struct MalformedRequest {
    status: StatusCode,
    problem: String,
}

impl MalformedRequest {
    fn bad_request(problem: impl fmt::Display) -> Self {
        Self { status: StatusCode::BAD_REQUEST, problem: problem.to_string() }
    }
}

/// Returns why a request is rejected before any rule, as far as its description shows that. A description without a host
/// is not that of a request without one.
fn malformed(request: &RequestDescription) -> Option<MalformedRequest> {
    if request.domain.is_some() {
        return None;
    }
    if !is_forwarded_method(&request.method) {
        let problem = format!("the method {} is not supported", request.method);
        let status = match request.method {
            Method::CONNECT | Method::TRACE => StatusCode::METHOD_NOT_ALLOWED,
            _ => StatusCode::NOT_IMPLEMENTED,
        };
        return Some(MalformedRequest { status, problem });
    }
    let mut hosts = request.headers.get_all(HOST).iter();
    let (first, others) = (hosts.next(), hosts.count());
    if others > 0 {
        return Some(MalformedRequest::bad_request("several hosts"));
    }
    first
        .filter(|host| !host::is_valid(host.as_bytes()))
        .map(|_| MalformedRequest::bad_request("invalid host"))
}

/// Explains what would happen to a request with these attributes and fields, which arrives from `peer`. Of a batch, each rule is described
/// for the first element to which it applies.
fn explain_attributes<'f>(
    request: &Attributes<'f>,
    fields: &'f BodyFields,
    domain: Option<&str>,
    peer: IpAddr,
    context: &ExplainContext<'_>,
) -> Explanation {
    let prediction = predict(request, fields, domain, context);
    let mut rules = Vec::new();
    for element in fields.of_elements() {
        request.body.set(element);
        let of_element = context.policy.rules.explain(request, domain, context.policy.identify.ipv6_prefix);
        if rules.is_empty() {
            rules = of_element;
            continue;
        }
        for (known, other) in rules.iter_mut().zip(of_element) {
            if !matches!(known.status, RuleStatus::Applies(_))
                && matches!(other.status, RuleStatus::Applies(_))
            {
                *known = other;
            }
        }
    }
    let class = if domain.is_none() { class_of(request, peer, context) } else { None };
    Explanation { class, ..rules::report(request, peer, &rules, &prediction, context) }
}

/// Returns the class of a request; `None` if the concurrency of upstreams is not divided.
fn class_of(request: &Attributes<'_>, peer: IpAddr, context: &ExplainContext<'_>) -> Option<ExplainedClass> {
    let classes = context.policy.classes.as_ref().filter(|classes| classes.all().len() > 1)?;
    let named = classes.header().filter(|_| context.policy.identify.trusted_proxies.contains(peer));
    let named = named.and_then(|header| request.headers.get(header));
    let class = classes.get(classes.classify(request, named, context.limiter.hasher()).index)?;
    Some(ExplainedClass {
        name: class.name().to_owned(),
        share: class.share.get(),
        of: classes.all().iter().map(|class| class.share.get()).sum(),
        sheddable: class.is_sheddable,
    })
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

#[cfg(test)]
mod tests;
