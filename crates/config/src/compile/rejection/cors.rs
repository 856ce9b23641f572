//! Pages that may read a local reply (`on_limit.cors`).

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue};

use super::placeholders::ReplyKind;
use crate::at::At;
use crate::compile::map_items;
use crate::diagnostic::ValueError;
use crate::{parse, raw};
use weir_policy::response::LimitHeaderSettings;
use weir_policy::response::cors::{AllowedOrigin, CorsSettings, exposed_headers};

/// Returns the headers that a page may read: those `configured`, and those about the limit.
pub(super) fn exposed<'a>(
    configured: impl Iterator<Item = &'a HeaderName>,
    kind: ReplyKind,
    limit_headers: &LimitHeaderSettings,
) -> HeaderValue {
    let is_limit = kind != ReplyKind::Denial;
    let about_limits = is_limit.then(|| limit_headers.sent_headers()).into_iter().flatten();
    let retry_after = is_limit.then_some(RETRY_AFTER);
    // Pages may always read it.
    let configured = configured.filter(|name| **name != CONTENT_TYPE).cloned();
    exposed_headers(retry_after.into_iter().chain(about_limits).chain(configured))
}

pub(super) fn compile(raw: &raw::Cors, exposed: HeaderValue, at: At<'_>) -> Option<CorsSettings> {
    let origins_at = at.key("origins");
    let origins = raw.origins.as_ref()?;
    let origins = map_items(origins, origins_at, |raw, at| at.ok(parse::origin(&raw.0)));
    let allows_credentials = raw.credentials.unwrap_or(false);
    if allows_credentials && origins.contains(&AllowedOrigin::Any) {
        let error = ValueError::new("`credentials` has no meaning with the origin `*`");
        at.key("credentials").error(error.with_hint("list the origins: browsers accept no `*` with cookies"));
    }
    Some(CorsSettings { origins: origins.into(), allows_credentials, exposed })
}
