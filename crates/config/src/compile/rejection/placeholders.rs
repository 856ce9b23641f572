//! Placeholders in the body and the headers of a local reply.

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue};
use serde_json::Value;

use crate::at::At;
use crate::diagnostic::ValueError;
use crate::parse::nearest_name;
use crate::quoting::quoted;
use crate::raw;
use weir_policy::response::dynamic_reply::ReplyTemplates;
use weir_policy::response::rejection::RejectionResponse;
use weir_policy::response::template::{Escaping, Placeholder, Syntax, Template, TemplateError, misspellings};

/// To which requests a reply is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyKind {
    /// Those that a limit rejects.
    Limit,
    /// The same, and those whose key is missing.
    LimitOrDenial,
    /// Those that are rejected without a limit.
    Denial,
}

/// Compiles the placeholders of one reply.
pub(super) struct TemplateContext<'a> {
    rule: &'a str,
    kind: ReplyKind,
    has_cors: bool,
    /// Whether `{retry_after}` has a value.
    has_retry_after: bool,
    headers: Vec<(HeaderName, Template)>,
    body: Option<Template>,
}

impl<'a> TemplateContext<'a> {
    pub(super) fn new(rule: &'a str, kind: ReplyKind, raw: &raw::OnLimit) -> Self {
        let is_retry_after = |(name, value): (&String, &raw::Secret<String>)| {
            name.eq_ignore_ascii_case(RETRY_AFTER.as_str()) && is_number(value.expose())
        };
        let has_retry_after = kind != ReplyKind::Denial || raw.headers.iter().flatten().any(is_retry_after);
        let has_cors = raw.cors.is_some();
        Self { rule, kind, has_cors, has_retry_after, headers: Vec::new(), body: None }
    }

    pub(super) const fn kind(&self) -> ReplyKind {
        self.kind
    }

    /// Returns the value of a header; `None` if it has placeholders.
    pub(super) fn header(
        &mut self,
        name: &HeaderName,
        value: &str,
    ) -> Result<Option<HeaderValue>, ValueError> {
        // The value is not quoted, because it may be a secret and problems are logged.
        let invalid = || ValueError::new("a header value must be one line of visible ASCII");
        HeaderValue::from_str(value).map_err(|_| invalid())?;
        if *name == RETRY_AFTER {
            check_retry_after(value)?;
        }
        let template = self.parse(value, Escaping::Header)?;
        if let Some(fixed) = template.fixed_text() {
            return HeaderValue::from_bytes(fixed).map(Some).map_err(|_| invalid());
        }
        if *name == CONTENT_TYPE {
            return Err(ValueError::new("the content type cannot depend on the request"));
        }
        self.headers.push((name.clone(), template));
        Ok(None)
    }

    /// Compiles the body, whose content type is in the headers of `rejection`.
    pub(super) fn set_body(&mut self, raw: &raw::BodyContent, rejection: &mut RejectionResponse, at: At<'_>) {
        let content_type = rejection.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let escaping = escaping_of(content_type.unwrap_or_default());
        let template = if let Some(text) = &raw.text {
            at.key("text").ok(self.parse(text, escaping.unwrap_or(Escaping::Text)))
        } else if let Some(json) = &raw.json {
            let text = json.0.to_string();
            if !self.check_json(&json.0, at.key("json")) {
                return;
            }
            at.key("json").ok(self.parse(&text, Escaping::Json))
        } else {
            // A file may have any content.
            let text = std::str::from_utf8(&rejection.body).ok().zip(escaping).filter(|_| raw.file.is_some());
            text.and_then(|(text, escaping)| self.parse_file(text, escaping, at.key("file")))
        };
        let Some(template) = template else { return };
        match template.fixed_text() {
            Some(text) => rejection.body = text.to_vec().into(),
            None => self.body = Some(template),
        }
    }

    /// Returns what has placeholders, if anything has.
    pub(super) fn finish(self) -> Option<Box<ReplyTemplates>> {
        let templates = ReplyTemplates { headers: self.headers.into(), body: self.body };
        (!templates.is_empty()).then(|| Box::new(templates))
    }

    fn parse(&self, text: &str, escaping: Escaping) -> Result<Template, ValueError> {
        let template = Template::parse(text, Syntax::Strict, escaping, Some(self.rule)).map_err(describe)?;
        self.check_values(&template).map(|()| template)
    }

    fn parse_file(&self, text: &str, escaping: Escaping, at: At<'_>) -> Option<Template> {
        let names = || Placeholder::ALL.into_iter().map(Placeholder::name);
        let nearest = |name: &str| nearest_name(name, names().collect::<Vec<_>>());
        for (name, meant) in misspellings(text, nearest).take(3) {
            let note = ValueError::new(format!("the file has `{{{name}}}`, which is sent as it is"));
            at.note(note.with_hint(format!("did you mean `{{{meant}}}`?")));
        }
        let template = Template::parse(text, Syntax::Lenient, escaping, Some(self.rule)).ok()?;
        // Of a value that cannot be known, the placeholder is text.
        self.check_values(&template).is_ok().then_some(template)
    }

    /// Reports the placeholders of each text in a JSON value at its place. Returns whether all are valid.
    fn check_json(&self, value: &Value, at: At<'_>) -> bool {
        match value {
            Value::String(text) => at.ok(self.parse(text, Escaping::Json)).is_some(),
            Value::Array(items) => {
                let check = |(index, item)| self.check_json(item, at.item(index));
                // Every problem is reported, so nothing ends at the first.
                items.iter().enumerate().map(check).filter(|is_valid| !is_valid).count() == 0
            }
            Value::Object(map) => {
                let check = |(key, value): (&String, &Value)| {
                    let is_key_valid = self.parse(key, Escaping::Json);
                    let is_key_valid = is_key_valid.map_err(|error| at.key(key).key_error(error));
                    self.check_json(value, at.key(key)) && is_key_valid.is_ok()
                };
                map.iter().map(check).filter(|is_valid| !is_valid).count() == 0
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => true,
        }
    }

    /// Checks that every placeholder has a value in this reply.
    fn check_values(&self, template: &Template) -> Result<(), ValueError> {
        if template.uses(Placeholder::Origin) && !self.has_cors {
            let error = ValueError::new("`{origin}` needs `cors`, which says whose origin may be repeated");
            return Err(error.with_hint("add `cors: { origins: [https://app.example] }`"));
        }
        if template.uses(Placeholder::RetryAfter) && !self.has_retry_after {
            let error = ValueError::new("`{retry_after}` has no value with `action: deny`");
            return Err(error.with_hint("set the header `retry-after` to a number of seconds"));
        }
        Ok(())
    }
}

/// Describes an invalid placeholder.
pub(in crate::compile) fn describe(error: TemplateError) -> ValueError {
    let described = ValueError::new(error.to_string());
    match error {
        TemplateError::Unknown(name) => {
            let known: Vec<&str> = Placeholder::ALL.into_iter().map(Placeholder::name).collect();
            let literal = format!("for the text, write `{{{{{name}}}}}`");
            match nearest_name(&name.replace(['.', '-'], "_"), known.iter().copied()) {
                Some(meant) => described.with_hint(format!("did you mean `{{{meant}}}`? {literal}")),
                None => {
                    let known: Vec<_> = known.iter().map(|name| format!("`{{{name}}}`")).collect();
                    described.with_hint(format!("known: {}; {literal}", known.join(", ")))
                }
            }
        }
        TemplateError::Spaces(known) => described.with_hint(format!("write `{{{}}}`", known.name())),
        TemplateError::Unrendered(_) => {
            described.with_hint("render the template first, or put the text in a `file`")
        }
    }
}

/// Returns how values are escaped in a body of this type; `None` if it is unknown.
fn escaping_of(content_type: &str) -> Option<Escaping> {
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is = |part: &str| media_type.contains(part);
    if is("json") || is("javascript") {
        Some(Escaping::Json)
    } else if is("html") || is("xml") {
        Some(Escaping::Markup)
    } else {
        media_type.starts_with("text/").then_some(Escaping::Text)
    }
}

/// Whether a value has one of Envoy's command operators, such as `%REQ(X-REQUEST-ID)%` or `%PROTOCOL%`.
pub(super) fn has_command_operator(value: &[u8]) -> bool {
    value.split(|byte| *byte == b'%').skip(1).any(|part| {
        let name = part.split(|byte| *byte == b'(').next().unwrap_or_default();
        name.len() > 2 && name.iter().all(|byte| byte.is_ascii_uppercase() || *byte == b'_')
    })
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Checks `retry-after`: a number of seconds, or a date (RFC 9110 section 10.2.3).
fn check_retry_after(value: &str) -> Result<(), ValueError> {
    if is_number(value) || httpdate::parse_http_date(value).is_ok() {
        return Ok(());
    }
    let error = ValueError::new(format!("expected whole seconds or an HTTP date, got {}", quoted(value)));
    Err(match crate::parse::duration(value) {
        Ok(duration) => error.with_hint(format!("write `\"{}\"`", duration.as_secs().max(1))),
        Err(_) => error,
    })
}
