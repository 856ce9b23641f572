//! Rate limit headers of responses, from local limits and other services.

use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue};
use smallvec::SmallVec;

use super::header_tables::HeaderTables;
use super::{AppliedLimits, LimitRejection, LimitsView};
use weir_http::headers::{Headers, RawHeaders};
use weir_limiter::algorithm::CounterUsage;
use weir_limiter::decision::{Enforcement, Verdict};
use weir_policy::response::ietf::{self, ServiceLimit};
use weir_policy::response::rate_limit_headers::{self, LimitInForce, LimitStatus, X_WEIR_OVER_LIMIT};
use weir_policy::response::rejection::{PreparedHeaders, X_ENVOY_RATELIMITED, limited_headers};
use weir_policy::response::{LimitHeaderNames, Visibility};
use weir_policy::rules::outcome;
use weir_policy::rules::selection::{CheckRole, SelectedCheck};

impl LimitRejection<'_> {
    /// Returns the headers of the rule's configured rejection.
    pub fn headers(&self, view: &LimitsView) -> Headers {
        match self.prepared(view) {
            Some((prepared, usage)) => prepared.fill(self.retry_after, &usage).into(),
            None => self.headers_with(view, &view.rejection(self.rule).headers),
        }
    }

    /// Returns the same headers in HTTP/1.1 notation; `None` if they are not precomputed.
    pub fn raw_headers(&self, view: &LimitsView) -> Option<RawHeaders> {
        let (prepared, usage) = self.prepared(view)?;
        Some(prepared.raw(self.retry_after, &usage))
    }

    fn prepared<'v>(&self, view: &'v LimitsView) -> Option<(&'v PreparedHeaders, CounterUsage)> {
        let [verdict] = self.limits.decision.verdicts() else { return None };
        if self.limits.selected.iter().any(|one| one.check.request_limit().is_some()) {
            return None;
        }
        if verdict.is_boosted() || verdict.is_paused() || verdict.is_banned() {
            return None;
        }
        let prepared = view.prepared(self.rule).filter(|_| self.limits.verdicts().is_none())?;
        Some((prepared, verdict.usage(self.limits.decided_at)?))
    }

    /// Returns the headers of a rejection: those in `configured`, the rate limit headers, and those of other services.
    pub fn headers_with(&self, view: &LimitsView, configured: &HeaderMap) -> Headers {
        let mut headers = Headers::from(limited_headers(configured, self.retry_after));
        self.limits.write_limit_status(&mut headers, &view.tables.header_tables, Some(self.retry_after));
        self.limits.write_remote(&mut headers, &view.tables.header_tables);
        headers
    }

    /// Sets the `content-type` of a body that another service provided, if its response has one.
    pub fn write_content_type(&self, headers: &mut Headers) {
        let said = self.limits.verdicts().and_then(|verdicts| verdicts.headers.get(CONTENT_TYPE));
        if let Some(content_type) = said {
            headers.set(&CONTENT_TYPE, content_type);
        }
    }
}

impl AppliedLimits {
    /// Yields the names of the rules whose limits the request exceeds within their margin; none while it is held.
    pub fn mark_values(&self, view: &LimitsView) -> impl Iterator<Item = HeaderValue> {
        // The configuration restricts names to visible ASCII, so the value is valid.
        self.marked_rules()
            .filter(|_| !self.is_held())
            .filter_map(|rule| HeaderValue::from_str(view.rule_name(rule)).ok())
    }

    /// Returns the names of the rules of groups that the request is charged to; none while it is held.
    pub fn charged_values(&self, view: &LimitsView) -> SmallVec<[HeaderValue; 2]> {
        if self.is_held() {
            return SmallVec::new();
        }
        let charged = self.charged_alternatives(&view.policy.rules).into_iter();
        charged.filter_map(|rule| HeaderValue::from_str(view.rule_name(rule)).ok()).collect()
    }

    /// Adds all headers about limits to the upstream's response.
    pub fn write_all(&self, headers: &mut Headers, view: &LimitsView) {
        self.write_limit_status(headers, &view.tables.header_tables, None);
        for mark in self.mark_values(view) {
            headers.append(X_WEIR_OVER_LIMIT, &mark);
        }
        self.write_remote(headers, &view.tables.header_tables);
    }

    /// Adds the headers of other services, except single-valued ones that are already set.
    fn write_remote(&self, headers: &mut Headers, tables: &HeaderTables) {
        let Some(verdicts) = self.verdicts() else { return };
        let headers = headers.map_mut();
        let LimitHeaderNames { limit, remaining, reset, .. } = &tables.settings.names;
        let singletons = [&CONTENT_TYPE, &RETRY_AFTER, &X_ENVOY_RATELIMITED, limit, remaining, reset];
        let is_said: Vec<_> = singletons.into_iter().filter(|name| headers.contains_key(*name)).collect();
        for (name, value) in verdicts.headers.iter().filter(|(name, _)| !is_said.contains(name)) {
            headers.append(name, value.clone());
        }
    }

    /// Adds the rate limit headers that the configuration enables; for a rejection, consistent with its `retry-after`.
    pub fn write_limit_status(
        &self,
        headers: &mut Headers,
        tables: &HeaderTables,
        retry_after: Option<Duration>,
    ) {
        let settings = &tables.settings;
        if self.selected.is_empty() && self.verdicts().is_none() {
            return;
        }
        let visible = match settings.ratelimit_headers {
            Visibility::Full => true,
            Visibility::Limited => self.is_rejected(),
            Visibility::Off => false,
        };
        if visible {
            self.write_envoy(headers, tables);
        }
        if settings.ietf_headers {
            self.write_ietf(headers, tables, retry_after);
        }
    }

    /// Yields the checks that headers show. Of several checks of one counter, only the last is shown.
    fn shown(&self) -> impl Iterator<Item = (&SelectedCheck, &Verdict)> + '_ {
        // The usual order, in which no limit occurs twice.
        let is_distinct = self.selected.is_sorted_by(|one, next| one.check.handle.id < next.check.handle.id);
        let checked = self.selected.iter().zip(self.decision.verdicts()).enumerate();
        let shown = checked.filter(move |(position, (_, verdict))| {
            let is_last = is_distinct || self.last_of_counter(*position).is_none();
            is_last && !matches!(verdict.enforcement, Enforcement::Shadow | Enforcement::PassedOver)
        });
        shown.map(|(_, checked)| checked)
    }

    fn write_envoy(&self, headers: &mut Headers, tables: &HeaderTables) {
        let mut standings: SmallVec<[LimitStatus<'_>; 4]> = SmallVec::with_capacity(self.selected.len());
        self.shown().for_each(|(selected, verdict)| {
            if let Some(notation) = tables.notation(selected)
                && let Some(usage) = verdict.usage(self.decided_at)
            {
                let usage = self.shown_usage(usage, selected, verdict);
                standings.push(LimitStatus { notation, in_force: limit_in_force(selected, verdict), usage });
            }
        });
        if let Some(verdicts) = self.verdicts() {
            let remote = verdicts.limit_statuses.iter();
            standings.extend(remote.map(|(notation, _, usage)| LimitStatus {
                notation,
                in_force: None,
                usage: *usage,
            }));
        }
        rate_limit_headers::write_envoy(headers, &standings, &tables.settings.names);
    }

    /// Adds the IETF headers. `retry-after` must not be earlier than a `t` in the same response (the draft, "Server
    /// Behavior"). So `t` of a rejecting limit is reduced to `retry-after` (it may be longer, as with a queue), and
    /// that of another limit is omitted if it is longer.
    fn write_ietf(&self, headers: &mut Headers, tables: &HeaderTables, retry_after: Option<Duration>) {
        let fitting = |more: Option<Duration>, rejects: bool| match retry_after {
            Some(most) if rejects => more.map(|more| more.min(most)),
            Some(most) => more.filter(|more| *more <= most),
            None => more,
        };
        let remote = self.verdicts().into_iter().flat_map(|verdicts| &verdicts.limit_statuses);
        let remote = remote.map(|(_, policy, usage)| ServiceLimit {
            policy,
            in_force: None,
            remaining: usage.remaining,
            time_until_more: fitting(Some(usage.reset), usage.remaining == 0),
            partition: None,
        });
        let limits: SmallVec<[ServiceLimit<'_>; 4]> = self
            .shown()
            .filter_map(|(selected, verdict)| {
                let closed = self.time_closed(selected, verdict);
                let rejects = verdict.rejects() || closed.is_some();
                let more = closed.or_else(|| verdict.time_until_more(selected.unit_cost, self.decided_at));
                let usage = self.shown_usage(verdict.usage(self.decided_at)?, selected, verdict);
                Some(ServiceLimit {
                    policy: tables.quota_policy(selected)?,
                    in_force: limit_in_force(selected, verdict),
                    remaining: usage.remaining,
                    time_until_more: fitting(more, rejects),
                    partition: tables.partition(selected),
                })
            })
            .chain(remote)
            .collect();
        ietf::write(headers, &limits);
    }

    /// Returns the usage of a limit in requests. While the key is banned, or the provider has paused the limit, nothing is
    /// left.
    fn shown_usage(&self, usage: CounterUsage, selected: &SelectedCheck, verdict: &Verdict) -> CounterUsage {
        let usage = usage.in_requests(selected.unit_cost);
        if let Some(reset) = self.time_closed(selected, verdict) {
            return CounterUsage { remaining: 0, reset, ..usage };
        }
        match verdict.is_paused() && verdict.exceeds() {
            true => CounterUsage { remaining: 0, reset: usage.reset.max(verdict.retry_after()), ..usage },
            false => usage,
        }
    }

    /// Returns the time for which a ban keeps this client from a limit, until the limit has room too; `None` without a ban
    /// by a rule that counts in the same counter.
    pub(super) fn time_closed(&self, selected: &SelectedCheck, verdict: &Verdict) -> Option<Duration> {
        if !self.decision.is_rejected() {
            return None;
        }
        let counter = selected.check.counter_id();
        let shares = |rule| {
            rule == selected.rule
                || self.selected.iter().any(|one| one.rule == rule && one.check.counter_id() == counter)
        };
        let checked = self.selected.iter().zip(self.decision.verdicts());
        let bans = checked.filter_map(|(one, verdict)| {
            outcome::time_banned(one, verdict, self.decided_at).filter(|_| shares(one.rule))
        });
        bans.max().map(|ban| ban.max(verdict.retry_after()))
    }
}

/// Returns the present size of an elastic limit, of one that follows the provider, of one that the request states, or of
/// one that an operator has raised; `None` if it is as configured.
fn limit_in_force(selected: &SelectedCheck, verdict: &Verdict) -> Option<LimitInForce> {
    let quota = verdict.quota()?;
    let (shares, price) = (u32::from(quota.units_per_request().get()), selected.unit_cost.get());
    let is_changed = verdict.is_boosted() || selected.check.request_limit().is_some();
    if price == shares && !is_changed {
        return None;
    }
    let limit = quota.limit();
    let count = u64::from(limit.count.get()) * u64::from(shares) / u64::from(price);
    let has_new_window = is_changed && selected.role != CheckRole::Permit;
    Some(LimitInForce {
        count: u32::try_from(count).unwrap_or(u32::MAX).max(1),
        window: has_new_window.then(|| limit.period.duration()),
    })
}
