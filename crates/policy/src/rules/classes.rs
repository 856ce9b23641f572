//! Classes of requests, between which the concurrency of upstreams is divided.

use std::num::NonZeroU32;

use http::{HeaderName, HeaderValue};

use super::key::{KeyTemplate, incomplete_key};
use super::matcher::{Match, Matcher};
use super::pattern::Route;
use crate::identify::Attributes;
use weir_limiter::classes::{ClassIndex, ClassShare};
use weir_limiter::key::{KeyHash, KeyHasher};

/// Name of the class of requests that belong to no other one.
pub const DEFAULT_CLASS: &str = "default";
/// Header in which trusted peers name the class of a request, unless another one is configured.
pub const X_WEIR_CRITICALITY: HeaderName = HeaderName::from_static("x-weir-criticality");

/// A class of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestClass {
    /// Name in metrics and in the header.
    pub name: HeaderValue,
    /// Which requests belong to it; `None` for those that belong to no other one.
    pub matcher: Option<Matcher>,
    /// What identifies a flow. Flows of a class share its slots evenly.
    pub key: KeyTemplate,
    /// Weight of the class.
    pub share: NonZeroU32,
    /// Whether its requests are the first to be rejected.
    pub is_sheddable: bool,
}

/// The classes of a configuration, of which one takes the requests that belong to no other one.
#[derive(Clone, Debug, PartialEq)]
pub struct Classes {
    classes: Box<[RequestClass]>,
    /// Header in which trusted peers name the class, and in which upstreams receive it; `None` for none.
    header: Option<HeaderName>,
}

/// The class of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassOfRequest {
    /// Position of the class.
    pub index: ClassIndex,
    /// Hash of its key in the class.
    pub flow: KeyHash,
    /// Whether the peer named a class that does not exist.
    pub is_unknown: bool,
}

impl RequestClass {
    /// Returns the name as text.
    pub fn name(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }

    /// Returns the part of the class that a gate needs.
    pub const fn gate_share(&self) -> ClassShare {
        ClassShare { share: self.share, is_sheddable: self.is_sheddable, has_key: !self.key.0.is_empty() }
    }
}

impl Classes {
    /// Creates the classes, which are tried in this order. `header` is where peers name a class.
    pub fn new(classes: impl IntoIterator<Item = RequestClass>, header: Option<HeaderName>) -> Self {
        Self { classes: classes.into_iter().collect(), header }
    }

    /// Returns the header in which the class travels between services.
    pub const fn header(&self) -> Option<&HeaderName> {
        self.header.as_ref()
    }

    /// Returns all classes.
    pub const fn all(&self) -> &[RequestClass] {
        &self.classes
    }

    /// Returns a class.
    pub fn get(&self, ClassIndex(index): ClassIndex) -> Option<&RequestClass> {
        self.classes.get(usize::from(index))
    }

    /// Yields the headers of requests on which the choice depends.
    pub fn headers(&self) -> impl Iterator<Item = HeaderName> + '_ {
        let conditions = self.classes.iter().filter_map(|class| class.matcher.as_ref());
        let conditions = conditions.flat_map(|matcher| &matcher.conditions).map(|part| &part.attribute);
        let attributes = conditions.chain(self.classes.iter().flat_map(|class| &class.key.0));
        attributes.filter_map(|attribute| attribute.source().header().cloned()).chain(self.header.clone())
    }

    /// Returns the class of a request, of which a trusted peer may have `named` one. A class whose conditions hold under
    /// one reading of the request only is skipped.
    pub fn classify(
        &self,
        request: &Attributes<'_>,
        named: Option<&HeaderValue>,
        hasher: KeyHasher,
    ) -> ClassOfRequest {
        let known = named.map(|named| self.classes.iter().position(|class| class.name == named));
        let is_unknown = known == Some(None);
        let (position, route) = match known.flatten() {
            Some(position) => (position, Route("")),
            None => self.matching(request),
        };
        let key = self.classes.get(position).map(|class| class.key.hash(request, route, hasher));
        let flow = match key {
            Some(Ok(flow)) => flow,
            Some(Err(_)) => incomplete_key(hasher),
            None => KeyHash::default(),
        };
        ClassOfRequest { index: ClassIndex(u16::try_from(position).unwrap_or_default()), flow, is_unknown }
    }

    fn matching<'a>(&'a self, request: &Attributes<'_>) -> (usize, Route<'a>) {
        let matching = self.classes.iter().enumerate().find_map(|(position, class)| {
            match class.matcher.as_ref()?.matches(request) {
                Match::Yes(route) => Some((position, route)),
                Match::No | Match::Unclear(..) => None,
            }
        });
        let rest = || self.classes.iter().position(|class| class.matcher.is_none()).unwrap_or_default();
        matching.unwrap_or_else(|| (rest(), Route("")))
    }
}
