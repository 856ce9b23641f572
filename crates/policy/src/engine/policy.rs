//! An applied configuration generation, as a request uses it; immutable.

use std::sync::Arc;

use http::HeaderName;

use crate::identify::body::{BodySettings, RequestFields};
use crate::identify::{self, Attributes};
use crate::response;
use crate::response::rejection::RejectionResponse;
use crate::rules::attribute::Attribute;
use crate::rules::classes::{ClassOfRequest, Classes};
use crate::rules::header_twins::HeaderTwins;
use crate::rules::routes::Routes;
use crate::rules::rule::Rule;
use crate::rules::{RuleIndex, RuleSet};
use weir_bodies::fields::FieldMask;
use weir_bodies::response::ResponseFields;
use weir_limiter::LimitHandle;

/// One configuration generation. A request keeps the one with which it began, also if a reload happens meanwhile.
#[derive(Debug)]
pub struct Policy {
    /// Generation number: from 1, plus one per applied configuration.
    pub generation: u64,
    /// How the client's address and identity are determined.
    pub identify: identify::IdentifySettings,
    pub rules: RuleSet,
    /// Assignment of requests to upstreams.
    pub routes: Routes,
    /// Classes of requests, between which the concurrency of upstreams is divided; `None` if it is not.
    pub classes: Option<Arc<Classes>>,
    /// The local reply of `deny` rules, unless they have their own.
    pub denied: RejectionResponse,
    /// Whether a local reply of a rule depends on more of the request than its limits.
    pub has_dynamic_replies: bool,
    /// Header names that differ from those of the rules only in `-` and `_`.
    pub header_twins: HeaderTwins,
    /// What rules read of bodies; `None` if no rule reads any.
    pub bodies: Option<Arc<BodySettings>>,
    /// Fields that rules read of the bodies of responses; `None` if there are none.
    pub response_fields: Option<Arc<ResponseFields>>,
    /// Rate limit headers of responses.
    pub response: response::LimitHeaderSettings,
}

impl Policy {
    /// Returns the name of the class of a request; `None` if it has none.
    pub fn class_name(&self, class: Option<ClassOfRequest>) -> Option<&str> {
        self.classes.as_ref()?.get(class?.index).map(|class| class.name())
    }

    /// Returns the local reply for rejections by the rule at `index`.
    pub fn rejection(&self, index: RuleIndex) -> Option<&RejectionResponse> {
        self.rules.get(index).map(|rule| &rule.rejection)
    }

    /// Returns the local reply to requests that the rule at `index` rejects before any limit.
    pub fn denial(&self, index: RuleIndex) -> &RejectionResponse {
        self.rejection(index).and_then(|rejection| rejection.denied.as_deref()).unwrap_or(&self.denied)
    }

    /// Returns the fields without which it is unclear which rules apply to a request; `None` if there are none. Without a body, a GraphQL
    /// request may be in its URL.
    pub fn body_fields_needed(&self, request: &Attributes<'_>, has_body: bool) -> Option<FieldMask> {
        let settings = self.bodies.as_ref().filter(|_| has_body || request.query.is_some())?;
        request.body.set(RequestFields::Unread);
        let needed = self.rules.body_fields_needed(request);
        request.body.set(RequestFields::Absent);
        let is_needed = if has_body { !needed.is_empty() } else { settings.fields.has_graphql(needed) };
        is_needed.then_some(needed)
    }

    /// Yields the limits of all rules.
    pub fn limit_handles(&self) -> impl Iterator<Item = LimitHandle> + '_ {
        (0..self.rules.rules().len()).flat_map(|index| self.rules.limit_handles(RuleIndex(index)))
    }

    /// Returns the headers that identify clients, without duplicates.
    pub fn identifying_headers(&self) -> Box<[HeaderName]> {
        let header = |attribute: &Attribute| attribute.source().header().cloned();
        let parts = self.rules.rules().iter().flat_map(Rule::identifying);
        let token = self.identify.jwt.iter().filter_map(|verifier| verifier.header().cloned());
        let mut names: Vec<_> = parts.filter_map(header).chain(token).collect();
        names.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
        names.dedup();
        names.into()
    }
}
