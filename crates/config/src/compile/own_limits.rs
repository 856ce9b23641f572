//! The path of a listener at which callers read their own limits (`quota`).

use crate::at::At;
use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use crate::{defaults, parse, raw};
use weir_limiter::algorithm::Algorithm;
use weir_limiter::quota::Quota;
use weir_policy::rules::own_limits::OwnLimitsSettings;
use weir_policy::rules::pattern::PathPattern;

/// Compiles `quota` of the listener at `at`.
pub(super) fn compile(raw: &raw::ListenerMap, at: At<'_>) -> Option<OwnLimitsSettings> {
    let quota = raw.quota.as_ref()?;
    let at = at.key("quota");
    if raw.decide.is_some() {
        at.key_error(ValueError::new("cannot be combined with `decide`: another proxy asks, not the caller"));
    }
    if raw.forward_proxy.as_ref().is_some_and(raw::ForwardProxy::is_on) {
        let error = "cannot be combined with `forward_proxy`: the path is that of the destination";
        at.key_error(ValueError::new(error));
    }
    let rate = quota.limit.as_ref().map_or(defaults::OWN_LIMITS_RATE, |rate| &rate.0);
    let limit_at = at.key("limit");
    let limit_at = limit_at.single_item();
    let limit = limit_at.ok(parse::rate(rate));
    let quota_of = |limit| Quota::new(Algorithm::Gcra, limit, None).map_err(|error| error.to_string());
    let callers = limit.and_then(|limit| limit_at.ok(quota_of(limit).map_err(ValueError::new)));
    let path = at.key("path").ok(read_path(quota.path.as_deref()?));
    Some(OwnLimitsSettings { path: path?, quota: callers? })
}

fn read_path(text: &str) -> Result<Box<str>, ValueError> {
    let is_pattern = text.contains(['*', '{', '}']) || text.starts_with('~');
    let path = PathPattern::parse(text).ok().filter(|_| !is_pattern).and_then(|pattern| pattern.example());
    path.map(Into::into).ok_or_else(|| {
        ValueError::new(format!("expected one path, such as `/rate_limit`, got {}", quoted(text)))
    })
}
