//! The local reply of a rule that rejects a request (`on_limit`).

mod cors;
pub(super) mod placeholders;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST, PROXY_AUTHORIZATION, RETRY_AFTER,
    TE, TRAILER, TRANSFER_ENCODING, UPGRADE, WARNING,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use self::placeholders::{ReplyKind, TemplateContext};
use super::context::CompileContext;
use super::matching::{parse_header_name, parse_method};
use super::{given_keys, map_items};
use crate::at::At;
use crate::data_files::DataFiles;
use crate::data_files::response_body::{RESPONSE_BODY, media_type};
use crate::diagnostic::ValueError;
use crate::{defaults, parse, raw};
use weir_policy::response::cors::CORS_HEADERS;
use weir_policy::response::fallback::{DEGRADED, FallbackCacheSettings};
use weir_policy::response::problem::{self, PROBLEM_JSON, ProblemReply};
use weir_policy::response::rejection::{DegradedResponse, RejectionResponse, X_ENVOY_RATELIMITED};
use weir_policy::rules::rule::OnMissing;

/// Headers that Weir sets itself, and hop-by-hop headers.
const RESERVED_HEADERS: [HeaderName; 8] = [
    CONNECTION,
    CONTENT_LENGTH,
    HeaderName::from_static("keep-alive"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    X_ENVOY_RATELIMITED,
];

/// Compiles the local reply of the rule `name` at `at`.
pub(super) fn compile(
    rule: &raw::Rule,
    name: &str,
    at: At<'_>,
    context: &mut CompileContext<'_>,
) -> RejectionResponse {
    let Some(raw) = rule.on_limit.as_deref() else { return RejectionResponse::default() };
    let at = at.key("on_limit");
    if raw.action == Some(raw::LimitAction::Close) {
        check_unsent_reply(raw, at);
    }
    if rule.action == Some(raw::Action::Deny) {
        let context = ReplyContext { rule: name, kind: ReplyKind::Denial, context };
        let denied = compile_reply(raw, context, at);
        // Its CORS headers also apply to ambiguous requests.
        let cors = denied.cors.clone();
        return RejectionResponse { denied: Some(Box::new(denied)), cors, ..RejectionResponse::default() };
    }
    let denies_missing = rule.on_missing == Some(OnMissing::Deny);
    let kind = if denies_missing { ReplyKind::LimitOrDenial } else { ReplyKind::Limit };
    let mut rejection = compile_reply(raw, ReplyContext { rule: name, kind, context }, at);
    if denies_missing {
        rejection.denied = Some(Box::new(reply_to_missing_key(raw, &rejection)));
    }
    rejection
}

/// Reports what describes a response of a rule that closes the connection instead.
fn check_unsent_reply(raw: &raw::OnLimit, at: At<'_>) {
    let keys = [
        ("status", raw.status.is_some()),
        ("body", raw.body.is_some()),
        ("headers", raw.headers.is_some()),
        ("cors", raw.cors.is_some()),
        ("fallback", raw.fallback.is_some()),
    ];
    for key in given_keys(keys) {
        let condition = ValueError::new("with `action: close`");
        at.inapplicable_key(key, condition.with_hint("the connection is closed without a response"));
    }
}

/// Returns the reply to a request whose key is missing: that of a rejection, with other defaults.
fn reply_to_missing_key(raw: &raw::OnLimit, rejection: &RejectionResponse) -> RejectionResponse {
    let default = RejectionResponse::denied();
    let mut denied = RejectionResponse { cached_fallback: None, degraded: None, ..rejection.clone() };
    if raw.status.is_none() {
        denied.status = default.status;
    }
    match &raw.body {
        Some(body) if body.content().is_none_or(|content| content.fallback.is_none()) => {}
        _ => denied.body = default.body,
    }
    if denied.problem.take().is_some() {
        denied.body = problem::about_blank(denied.status);
    }
    denied
}

/// What the compilation of a reply needs of its rule and of the rest of the configuration.
struct ReplyContext<'a, 'f> {
    /// Name of the rule.
    rule: &'a str,
    kind: ReplyKind,
    context: &'a mut CompileContext<'f>,
}

fn compile_reply(raw: &raw::OnLimit, reply: ReplyContext<'_, '_>, at: At<'_>) -> RejectionResponse {
    let ReplyContext { rule, kind, context } = reply;
    let mut rejection = match kind {
        ReplyKind::Denial => RejectionResponse::denied(),
        ReplyKind::Limit | ReplyKind::LimitOrDenial => RejectionResponse::default(),
    };
    rejection.status = status_code(raw.status, rejection.status.as_u16());
    rejection.closes = raw.action == Some(raw::LimitAction::Close);
    match &raw.body {
        Some(raw::Body::Format(raw::BodyFormat::Problem)) => set_problem(rule, kind, &mut rejection),
        Some(raw::Body::Content(body)) => {
            set_body(body, kind, &mut rejection, at.key("body"), context.files);
        }
        None => {}
    }
    if let Some(fallback) = &raw.fallback
        && kind != ReplyKind::Denial
    {
        set_fallback(fallback, &mut rejection, at.key("fallback"), context.files);
    }
    let mut templates = TemplateContext::new(rule, kind, raw);
    set_headers(raw, &mut templates, &mut rejection, at.key("headers"));
    if let Some(body) = raw.body.as_ref().and_then(raw::Body::content) {
        templates.set_body(body, &mut rejection, at.key("body"));
    }
    rejection.templates = templates.finish();
    if let Some(cors) = &raw.cors {
        let names = rejection.headers.keys().chain(
            rejection.templates.iter().flat_map(|templates| templates.headers.iter().map(|(name, _)| name)),
        );
        let exposed = cors::exposed(names, kind, &context.limit_headers);
        rejection.cors = cors::compile(cors, exposed, at.key("cors")).map(Box::new);
    }
    rejection
}

fn set_headers(
    raw: &raw::OnLimit,
    templates: &mut TemplateContext<'_>,
    rejection: &mut RejectionResponse,
    at: At<'_>,
) {
    for (name, value) in raw.headers.iter().flatten() {
        let at = at.key(name);
        let Some(name) = at.ok(parse_reply_header_name(name, raw, templates.kind())) else {
            continue;
        };
        match templates.header(&name, value.expose()) {
            Ok(Some(value)) => {
                if placeholders::has_command_operator(value.as_bytes()) {
                    let note =
                        ValueError::new("operators such as `%REQ(X-REQUEST-ID)%` are sent as they are");
                    at.note(note.with_hint("write a placeholder such as `{request_id}`"));
                }
                if let Some(degraded) = &mut rejection.degraded {
                    degraded.headers.insert(&name, value.clone());
                }
                rejection.headers.insert(name, value);
            }
            Ok(None) => {}
            Err(error) => at.error(error),
        }
    }
}

/// Parses the name of a header that the configuration may set.
fn parse_reply_header_name(
    text: &str,
    raw: &raw::OnLimit,
    kind: ReplyKind,
) -> Result<HeaderName, ValueError> {
    let name = parse_header_name(text)?;
    if name == RETRY_AFTER && kind != ReplyKind::Denial {
        let error = ValueError::new(format!("`{name}` is set by Weir itself"));
        return Err(error.with_hint("the time until the limit has room; it can be set with `action: deny`"));
    }
    if RESERVED_HEADERS.contains(&name) {
        return Err(ValueError::new(format!("`{name}` is set by Weir itself")));
    }
    if raw.cors.is_some() && CORS_HEADERS.contains(&name) {
        let error = ValueError::new(format!("both `cors` and the header `{name}`, expected one of them"));
        return Err(error.with_hint("remove the header"));
    }
    Ok(name)
}

/// The schema admits only numbers that are valid status codes.
pub(super) fn status_code(raw: Option<u16>, default: u16) -> StatusCode {
    StatusCode::from_u16(raw.unwrap_or(default)).unwrap_or(StatusCode::TOO_MANY_REQUESTS)
}

/// Sets the body to problem details.
fn set_problem(rule: &str, kind: ReplyKind, rejection: &mut RejectionResponse) {
    rejection.headers.insert(CONTENT_TYPE, PROBLEM_JSON);
    rejection.body = match kind {
        ReplyKind::Denial => problem::about_blank(rejection.status),
        ReplyKind::Limit | ReplyKind::LimitOrDenial => {
            rejection.problem = Some(Box::new(ProblemReply::new(rule)));
            problem::quota_exceeded(rule, rejection.status)
        }
    };
}

fn set_body(
    raw: &raw::BodyContent,
    kind: ReplyKind,
    rejection: &mut RejectionResponse,
    at: At<'_>,
    files: &mut DataFiles,
) {
    if let Some(text) = &raw.text {
        rejection.body = Bytes::copy_from_slice(text.as_bytes());
    } else if let Some(json) = &raw.json {
        rejection.body = Bytes::from(json.0.to_string());
        rejection.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    } else if let Some(name) = &raw.file {
        if let Some(content) = at.key("file").load(files, name, &RESPONSE_BODY) {
            rejection.body = Bytes::clone(&content);
            rejection.headers.insert(CONTENT_TYPE, media_type(name));
        }
    } else if let Some(name) = &raw.fallback {
        if kind == ReplyKind::Denial {
            let condition = ValueError::new("with `action: deny`").with_hint("use `file`");
            at.inapplicable_key("fallback", condition);
            return;
        }
        rejection.degraded = load_degraded_response(name, None, None, at.key("fallback"), files);
    }
}

/// Loads a file that replaces the upstream's response. By default it is sent only for safe methods: any other
/// request has not been performed, and a success response would claim that it was.
fn load_degraded_response(
    name: &str,
    status: Option<u16>,
    methods: Option<Box<[Method]>>,
    at: At<'_>,
    files: &mut DataFiles,
) -> Option<Box<DegradedResponse>> {
    let content = at.load(files, name, &RESPONSE_BODY)?;
    Some(Box::new(DegradedResponse {
        status: status_code(status, defaults::FALLBACK_STATUS),
        body: Bytes::clone(&content),
        headers: HeaderMap::from_iter([(CONTENT_TYPE, media_type(name)), (WARNING, DEGRADED)]),
        methods: methods.unwrap_or_else(|| Box::new(defaults::FALLBACK_METHODS)),
    }))
}

fn set_fallback(raw: &raw::Fallback, rejection: &mut RejectionResponse, at: At<'_>, files: &mut DataFiles) {
    rejection.cached_fallback =
        raw.cached.as_ref().and_then(|cached| compile_cache(raw, cached, at.single_item()));
    if raw.cached.is_none() {
        let keys = [
            ("largest", raw.largest.is_some()),
            ("max_age", raw.max_age.is_some()),
            ("ignore_headers", raw.ignore_headers.is_some()),
        ];
        for key in given_keys(keys) {
            at.inapplicable_key(key, "without `cached`");
        }
    }
    let methods = raw.methods.as_ref().map(|methods| {
        map_items(methods, at.key("methods"), |raw, at| at.ok(parse_method(&raw.0))).into_boxed_slice()
    });
    match &raw.file {
        Some(name) => {
            rejection.degraded = load_degraded_response(name, raw.status, methods, at.key("file"), files);
        }
        None => {
            let keys = [("status", raw.status.is_some()), ("methods", raw.methods.is_some())];
            let mut given = given_keys(keys).peekable();
            if given.peek().is_none() && raw.cached.is_none() && !at.key("cached").is_reported() {
                at.error("missing, expected `cached` or `file`");
                return;
            }
            for key in given {
                at.inapplicable_key(key, "without `file`");
            }
        }
    }
}

fn compile_cache(raw: &raw::Fallback, cached: &raw::Size, at: At<'_>) -> Option<FallbackCacheSettings> {
    let budget = at.key("cached").ok(parse::size(&cached.0))?;
    let max_allowed_size = budget / defaults::MIN_CACHED_RESPONSES;
    let max_size = match &raw.largest {
        Some(largest) => at.key("largest").ok(parse::size(&largest.0))?,
        None => max_allowed_size.min(defaults::MAX_CACHED_SIZE),
    };
    if max_size > max_allowed_size {
        let error =
            ValueError::new(format!("more than a quarter of `cached`, got {max_size} bytes of {budget}"));
        at.key("largest").error(error.with_hint("the cache would hold too few responses"));
    }
    let max_age = match &raw.max_age {
        Some(max_age) => at.key("max_age").ok(parse::duration(&max_age.0))?,
        None => defaults::MAX_CACHED_AGE,
    };
    let ignored = match &raw.ignore_headers {
        Some(names) => {
            map_items(names, at.key("ignore_headers"), |name, at| at.ok(parse_ignored_header(name))).into()
        }
        None => Arc::default(),
    };
    Some(FallbackCacheSettings { budget, max_size, max_age, ignored })
}

/// Parses a header in which stored responses may differ without being distinguished. Rejects headers that are
/// specific to a client or host, and `connection`, which removes other headers.
fn parse_ignored_header(text: &str) -> Result<HeaderName, ValueError> {
    let name = parse_header_name(text)?;
    if matches!(name, AUTHORIZATION | CONNECTION | COOKIE | HOST | PROXY_AUTHORIZATION) {
        let error = ValueError::new(format!("`{name}` cannot be ignored, because responses depend on it"));
        return Err(error.with_hint("remove it from the list"));
    }
    Ok(name)
}
