//! Changes to the head of a request that an upstream's settings demand.

use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, request};

use weir_policy::response::request_details::RequestDetails;
use weir_policy::response::template::Template;
use weir_upstream::settings::{HeadRewrite, HeaderText};

/// Changes `Host`, the path of a request in origin-form, and other headers. `details` are required for values with
/// placeholders.
pub(in crate::proxy) fn rewrite_head(
    head: &mut request::Parts,
    rewrite: &HeadRewrite,
    details: Option<&RequestDetails>,
) {
    if let Some(host) = &rewrite.host {
        head.headers.insert(HOST, host.clone());
    }
    if let Some(prefix) = &rewrite.strip_prefix
        && let Some(target) = stripped(&head.uri, prefix)
    {
        head.uri = target;
    }
    for name in &rewrite.headers.remove {
        head.headers.remove(name);
    }
    for (name, text) in &rewrite.headers.set {
        match text {
            HeaderText::Fixed(value) => drop(head.headers.insert(name, value.clone())),
            HeaderText::Template(template) => set_expanded(&mut head.headers, name, template, details),
        }
    }
}

/// Sets a header to the text for a request. One that consists of a value which the request lacks is removed.
fn set_expanded(
    headers: &mut HeaderMap,
    name: &HeaderName,
    template: &Template,
    details: Option<&RequestDetails>,
) {
    let text = details.map(|details| template.expand(details, "", "")).unwrap_or_default();
    match HeaderValue::from_bytes(text.trim_ascii()) {
        Ok(value) if !value.is_empty() => drop(headers.insert(name, value)),
        _ => drop(headers.remove(name)),
    }
}

/// Returns the target without the prefix of its path; `None` if it does not have it.
fn stripped(target: &Uri, prefix: &str) -> Option<Uri> {
    let rest = target.path_and_query()?.as_str().strip_prefix(prefix)?;
    match rest.as_bytes().first() {
        Some(b'/') => Uri::try_from(rest).ok(),
        Some(b'?') => Uri::try_from(format!("/{rest}")).ok(),
        None => Some(Uri::from_static("/")),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_is_removed_from_whole_segments() {
        for (target, expected) in [
            ("/stripe/v1/charges?limit=1", Some("/v1/charges?limit=1")),
            ("/stripe", Some("/")),
            ("/stripe/", Some("/")),
            ("/stripe?a=/b", Some("/?a=/b")),
            ("/stripe//x", Some("//x")),
            ("/stripes/v1", None),
            ("/v1/stripe/x", None),
            ("/%73tripe/v1", None),
            ("*", None),
        ] {
            let target = Uri::try_from(target).unwrap();
            let rest = stripped(&target, "/stripe");
            let text = rest.as_ref().and_then(Uri::path_and_query).map(|target| target.as_str());
            assert_eq!(text, expected, "{target}");
        }
    }
}
