//! Parts of a rule's local reply that depend on the request: placeholders and CORS headers.

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderName, StatusCode};

use super::cors::CorsSettings;
use super::rejection::RejectionResponse;
use super::request_details::RequestDetails;
use super::template::Template;
use weir_http::headers::Headers;

/// Configured headers and a body with placeholders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplyTemplates {
    /// Headers whose values have placeholders.
    pub headers: Box<[(HeaderName, Template)]>,
    /// The body, if it has placeholders.
    pub body: Option<Template>,
}

/// Which parts of a reply the rule configures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfiguredParts {
    /// Neither headers nor the body.
    None,
    /// The headers; the body is a stored response, a file in its place, or that of another service.
    Headers,
    /// Headers and body.
    All,
}

/// A local reply of a rule.
#[derive(Clone, Debug)]
pub struct ReplyDraft {
    pub status: StatusCode,
    pub headers: Headers,
    pub body: Bytes,
}

impl RejectionResponse {
    /// Whether the reply depends on more of the request than its limits.
    pub fn is_dynamic(&self) -> bool {
        self.templates.is_some()
            || self.cors.is_some()
            || self.denied.as_deref().is_some_and(Self::is_dynamic)
    }

    /// Completes a reply for its request. The reply to a CORS preflight becomes one that allows the request, if its
    /// origin is allowed.
    pub fn complete(
        &self,
        request: &RequestDetails,
        parts: ConfiguredParts,
        mut draft: ReplyDraft,
    ) -> ReplyDraft {
        let cors = self.cors.as_deref();
        if let Some(headers) = cors.and_then(|cors| cors.preflight_headers(request)) {
            return ReplyDraft { status: StatusCode::NO_CONTENT, headers, body: Bytes::new() };
        }
        if let Some(templates) = self.templates.as_deref().filter(|_| parts != ConfiguredParts::None) {
            let origin = cors.and_then(|cors| cors.allowed_origin(request)).unwrap_or_default();
            templates.fill(request, parts, origin, &mut draft);
        }
        if let Some(cors) = cors {
            CorsSettings::write(cors, request, &mut draft.headers);
        }
        draft
    }
}

impl ReplyTemplates {
    /// Whether nothing has placeholders.
    pub fn is_empty(&self) -> bool {
        self.headers.is_empty() && self.body.is_none()
    }

    fn fill(&self, request: &RequestDetails, parts: ConfiguredParts, origin: &str, draft: &mut ReplyDraft) {
        let retry_after = retry_after(&draft.headers);
        for (name, template) in &self.headers {
            let value = template.expand(request, &retry_after, origin);
            // A header that consists of a value which the request lacks is left out.
            if !value.trim_ascii().is_empty() {
                draft.headers.set_text(name, value.trim_ascii().to_vec());
            }
        }
        if let Some(body) = self.body.as_ref().filter(|_| parts == ConfiguredParts::All) {
            draft.body = body.expand(request, &retry_after, origin).into();
        }
    }
}

/// Returns the seconds in `retry-after`; `0` if it has none.
fn retry_after(headers: &Headers) -> String {
    let value = headers.get(&RETRY_AFTER).and_then(|value| std::str::from_utf8(value).ok());
    let seconds = value.filter(|value| !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()));
    seconds.unwrap_or("0").to_owned()
}
