//! Local replies to requests that a limit rejects.

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, StatusCode};

use super::LocalReply;
use crate::proxy::request_context::ResponseFlag;
use weir_http::headers::Headers;
use weir_limits::{LimitRejection, LimitsView, RejectionReason};
use weir_policy::response::dynamic_reply::{ConfiguredParts, ReplyDraft};
use weir_policy::response::fallback::CachedResponse;
use weir_policy::response::problem::PROBLEM_JSON;

impl<'a> LocalReply<'a> {
    /// Replies to a request that a limit rejects: with the `cached` response, the degraded response for its method, the
    /// reply of the service that counts the limit, or that of the rule. The memory of `headers` is reused.
    pub(in crate::proxy) fn rate_limited(
        limits: &'a LimitsView,
        rejected: &LimitRejection<'_>,
        cached: Option<Arc<CachedResponse>>,
        method: &Method,
        headers: &mut HeaderMap,
    ) -> Self {
        let (rule, flag) = (limits.rejection(rejected.rule), ResponseFlag::RateLimited);
        if let RejectionReason::NoResponse = rejected.reason {
            // It is unknown whether the request exceeds the limit (fail closed).
            let (status, flag) = (StatusCode::SERVICE_UNAVAILABLE, ResponseFlag::RateLimitServiceError);
            let mut reply = Self::plain(status, flag, "service unavailable\n");
            if let Some(problem) = &rule.problem {
                reply.draft.headers.set(&CONTENT_TYPE, &PROBLEM_JSON);
                reply.draft.body = problem.unavailable.clone();
            }
            return reply.of_rule(rule, ConfiguredParts::None);
        }
        if let Some(cached) = cached {
            let mut headers = rejected.headers_with(limits, &rule.headers);
            cached.extend(headers.map_mut(), rejected.limits.decided_at());
            let reply = Self::new(StatusCode::OK, flag, headers, cached.body().clone());
            return reply.of_rule(rule, ConfiguredParts::Headers);
        }
        if let Some(degraded) = rule.degraded(method) {
            let headers = rejected.headers_with(limits, &degraded.headers);
            let reply = Self::new(degraded.status, flag, headers, degraded.body.clone());
            return reply.of_rule(rule, ConfiguredParts::Headers);
        }
        if let RejectionReason::Remote(body) = &rejected.reason
            && !body.is_empty()
        {
            let mut headers = rejected.headers_with(limits, &rule.headers);
            rejected.write_content_type(&mut headers);
            let reply = Self::new(rule.status, flag, headers, body.clone());
            return reply.of_rule(rule, ConfiguredParts::Headers);
        }
        let headers = match rejected.raw_headers(limits) {
            Some(raw) => Headers::from_raw(raw, std::mem::take(headers)),
            None => rejected.headers_with(limits, &rule.headers),
        };
        let draft = ReplyDraft { status: rule.status, headers, body: rule.body.clone() };
        // Created at once, because it is large.
        Self { draft, flag, rule: Some((rule, ConfiguredParts::All)), is_last: false }
    }
}
