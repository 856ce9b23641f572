//! What clients are told about the limits of a request, whoever counts them.

use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::{Limits, Rejected, View};
use crate::headers::{Headers, RawHeaders};
use crate::limiter::algorithm::Usage;
use crate::limiter::decision::{Enforcement, Verdict};
use crate::response::ietf::{self, ServiceLimit};
use crate::response::rate_limit_headers::{
    self, Standing, X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING, X_RATELIMIT_RESET, X_WEIR_OVER_LIMIT,
};
use crate::response::refusal::{Prepared, X_ENVOY_RATELIMITED, limited_headers};
use crate::response::{Settings, Visibility};
use crate::rules::selection::Selected;

/// Fields that a response has once, or it means nothing.
const SINGLETONS: [HeaderName; 6] = [
    CONTENT_TYPE,
    RETRY_AFTER,
    X_ENVOY_RATELIMITED,
    X_RATELIMIT_LIMIT,
    X_RATELIMIT_REMAINING,
    X_RATELIMIT_RESET,
];

impl Rejected<'_> {
    /// The headers of the rejection that the rule has configured.
    pub fn headers(&self, view: &View) -> Headers {
        match self.prepared(view) {
            Some((prepared, usage)) => prepared.fill(self.retry_after, &usage).into(),
            None => self.headers_with(view, &view.rejection(self.rule).headers),
        }
    }

    /// The same as HTTP/1.1 writes them, where they can be had ready.
    pub fn raw_headers(&self, view: &View) -> Option<RawHeaders> {
        let (prepared, usage) = self.prepared(view)?;
        Some(prepared.raw(self.retry_after, &usage))
    }

    fn prepared<'v>(&self, view: &'v View) -> Option<(&'v Prepared, Usage)> {
        let [verdict] = self.limits.decision.verdicts() else { return None };
        let prepared = view.prepared(self.rule).filter(|_| self.limits.verdicts().is_none())?;
        Some((prepared, verdict.usage(self.limits.at)?))
    }

    /// The headers of a rejection with those `configured`, and with what other services have said.
    pub fn headers_with(&self, view: &View, configured: &HeaderMap) -> Headers {
        let mut headers = Headers::from(limited_headers(configured, self.retry_after));
        self.limits.write_standing(&mut headers, view, Some(self.retry_after));
        self.limits.write_remote(&mut headers);
        headers
    }

    /// Says of what type the body is that another service has for a rejection, if that says so.
    pub fn write_content_type(&self, headers: &mut Headers) {
        let said = self.limits.verdicts().and_then(|verdicts| verdicts.headers.get(CONTENT_TYPE));
        if let Some(content_type) = said {
            headers.set(&CONTENT_TYPE, content_type);
        }
    }
}

impl Limits {
    /// The names of the rules over whose limits the request is; none for one that is within all.
    pub fn marks(&self, view: &View) -> impl Iterator<Item = HeaderValue> {
        // Names are visible ASCII (the configuration sees to it), so the value is valid.
        self.marking().filter_map(|rule| HeaderValue::from_str(view.rule_name(rule)).ok())
    }

    /// All that the client is told with the upstream's response.
    pub fn write_all(&self, headers: &mut Headers, view: &View) {
        self.write_standing(headers, view, None);
        for mark in self.marks(view) {
            headers.append(X_WEIR_OVER_LIMIT, &mark);
        }
        self.write_remote(headers);
    }

    /// What other services have the client told, but for what we have said ourselves.
    fn write_remote(&self, headers: &mut Headers) {
        let Some(verdicts) = self.verdicts() else { return };
        let headers = headers.map_mut();
        let is_said: Vec<_> = SINGLETONS.into_iter().filter(|name| headers.contains_key(name)).collect();
        for (name, value) in verdicts.headers.iter().filter(|(name, _)| !is_said.contains(name)) {
            headers.append(name, value.clone());
        }
    }

    /// Tells the client how it stands, as far as the configuration wants it told; one that is rejected, beside when to
    /// come again.
    fn write_standing(&self, headers: &mut Headers, view: &View, retry_after: Option<Duration>) {
        let Settings { ratelimit_headers, ietf_headers } = view.policy.response;
        if self.selected.is_empty() && self.verdicts().is_none() {
            return;
        }
        let visible = match ratelimit_headers {
            Visibility::Full => true,
            Visibility::Limited => self.is_rejected(),
            Visibility::Off => false,
        };
        if visible {
            self.write_envoy(headers, view);
        }
        if ietf_headers {
            self.write_ietf(headers, view, retry_after);
        }
    }

    /// The checks that responses tell about: of several checks of one counter the last.
    fn shown(&self) -> impl Iterator<Item = (&Selected, &Verdict)> + '_ {
        let checked = self.selected.iter().zip(self.decision.verdicts()).enumerate();
        let shown = checked.filter(|(position, (_, verdict))| {
            verdict.enforcement != Enforcement::Shadow && self.last_of_counter(*position).is_none()
        });
        shown.map(|(_, checked)| checked)
    }

    fn write_envoy(&self, headers: &mut Headers, view: &View) {
        let mut standings: SmallVec<[Standing<'_>; 4]> = SmallVec::new();
        self.shown().for_each(|(selected, verdict)| {
            if let Some(notation) = view.notation(selected)
                && let Some(usage) = verdict.usage(self.at)
            {
                let usage = usage.at_price(selected.price);
                standings.push(Standing { notation, grown: grown(selected, verdict), usage });
            }
        });
        if let Some(verdicts) = self.verdicts() {
            let remote = verdicts.standings.iter();
            standings.extend(remote.map(|(notation, _, usage)| Standing {
                notation,
                grown: None,
                usage: *usage,
            }));
        }
        rate_limit_headers::write_envoy(headers, &standings);
    }

    /// `retry-after` must not be earlier than a `t` beside it (the draft, "Server Behavior"): that of a limit that
    /// rejects is at most as long, as with a queue, and that of another is left out where it is longer.
    fn write_ietf(&self, headers: &mut Headers, view: &View, retry_after: Option<Duration>) {
        let fitting = |more: Option<Duration>, rejects: bool| match retry_after {
            Some(most) if rejects => more.map(|more| more.min(most)),
            Some(most) => more.filter(|more| *more <= most),
            None => more,
        };
        let remote = self.verdicts().into_iter().flat_map(|verdicts| &verdicts.standings);
        let remote = remote.map(|(_, policy, usage)| ServiceLimit {
            policy,
            grown: None,
            remaining: usage.remaining,
            until_more: fitting(Some(usage.reset), usage.remaining == 0),
            partition: None,
        });
        let limits: SmallVec<[ServiceLimit<'_>; 4]> = self
            .shown()
            .filter_map(|(selected, verdict)| {
                Some(ServiceLimit {
                    policy: view.quota_policies.policy(selected)?,
                    grown: grown(selected, verdict),
                    remaining: verdict.usage(self.at)?.at_price(selected.price).remaining,
                    until_more: fitting(verdict.until_more(selected.price, self.at), verdict.refuses()),
                    partition: view.quota_policies.partition(selected),
                })
            })
            .chain(remote)
            .collect();
        ietf::write(headers, &limits);
    }
}

/// The count of an elastic limit at what requests cost now, where that is more than what was written.
fn grown(selected: &Selected, verdict: &Verdict) -> Option<u32> {
    let quota = verdict.quota()?;
    let (shares, price) = (u32::from(quota.shares().get()), selected.price.get());
    if price >= shares {
        return None;
    }
    let count = u64::from(quota.limit().count.get()) * u64::from(shares) / u64::from(price);
    Some(u32::try_from(count).unwrap_or(u32::MAX))
}
