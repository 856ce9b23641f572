//! The headers about limits that responses have (`ratelimit_headers`, `ietf_headers`, `header_names`).

use http::HeaderName;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, RETRY_AFTER, TRANSFER_ENCODING};

use super::matching::parse_header_name;
use crate::at::At;
use crate::diagnostic::{Diagnostics, ValueError};
use crate::raw;
use weir_policy::response::ietf::{RATELIMIT, RATELIMIT_POLICY};
use weir_policy::response::{FIXED_HEADERS, LimitHeaderNames, LimitHeaderSettings, Visibility};

/// Headers with another meaning.
const TAKEN: [HeaderName; 6] =
    [CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, RETRY_AFTER, TRANSFER_ENCODING];

pub(super) fn compile(raw: &raw::Root, report: &Diagnostics<'_>) -> LimitHeaderSettings {
    let error = ValueError::new("expected one of full, limited, off, got true").with_suggestion(Some("full"));
    let ratelimit_headers = match &raw.ratelimit_headers {
        None => Visibility::Full,
        Some(raw) => *report.section("ratelimit_headers").unless_off(raw, error).unwrap_or(&Visibility::Off),
    };
    let names = raw.header_names.as_ref();
    let at = report.section("header_names");
    if names.is_some() && ratelimit_headers == Visibility::Off {
        at.note("not used, because `ratelimit_headers` is `off`");
    }
    LimitHeaderSettings {
        ratelimit_headers,
        ietf_headers: raw.ietf_headers.unwrap_or(false),
        names: names.map_or_else(LimitHeaderNames::default, |names| compile_names(names, at)),
    }
}

fn compile_names(raw: &raw::HeaderNames, at: At<'_>) -> LimitHeaderNames {
    let default = LimitHeaderNames::default();
    let mut used: Vec<HeaderName> = Vec::with_capacity(3);
    let mut name = |key: &str, given: &Option<String>, default: HeaderName| {
        let parsed = given.as_ref().and_then(|given| at.key(key).ok(parse_name(given)));
        let name = parsed.unwrap_or(default);
        if used.contains(&name) {
            at.key(key).error(format!("header `{name}` has another meaning here already"));
        }
        used.push(name.clone());
        name
    };
    LimitHeaderNames {
        limit: name("limit", &raw.limit, default.limit),
        remaining: name("remaining", &raw.remaining, default.remaining),
        reset: name("reset", &raw.reset, default.reset),
        form: raw.form.unwrap_or_default(),
    }
}

fn parse_name(text: &str) -> Result<HeaderName, ValueError> {
    let name = parse_header_name(text)?;
    if TAKEN.contains(&name) || FIXED_HEADERS.contains(&name) {
        let error = ValueError::new(format!("header `{name}` has another meaning"));
        let is_ietf = [RATELIMIT, RATELIMIT_POLICY].contains(&name);
        return Err(if is_ietf { error.with_hint("`ietf_headers: true` sends it") } else { error });
    }
    Ok(name)
}
