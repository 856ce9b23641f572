//! `GET /`: the live page, one static document with its style and script inside.
//!
//! The page is the same for every instance; its data comes from `/events`. A strict Content-Security-Policy allows
//! exactly this style and this script, by their hashes, and connections to this port only. So text of clients that
//! the page shows, such as keys, cannot load or run anything.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_SECURITY_POLICY, REFERRER_POLICY, USER_AGENT, VARY};
use http::{HeaderMap, HeaderValue};

use super::AdminState;
use super::query::Query;
use super::response::{self, FullResponse};

const TEMPLATE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");

/// The files share one scope, in this order.
const SCRIPT: &str = concat!(
    include_str!("page/format.js"),
    include_str!("page/history.js"),
    include_str!("page/plot.js"),
    include_str!("page/access.js"),
    include_str!("page/stream.js"),
    include_str!("page/commands.js"),
    include_str!("page/keys.js"),
    include_str!("page/rules.js"),
    include_str!("page/panels.js"),
    include_str!("page/page.js"),
);

/// Places of the template that are replaced.
const STYLE_PLACE: &str = "/*style*/";
const SCRIPT_PLACE: &str = "/*script*/";

/// Programs that show a response in a terminal and accept every type.
const TERMINAL_CLIENTS: [&str; 3] = ["curl/", "Wget/", "HTTPie/"];

/// The page as sent.
struct LivePage {
    document: Bytes,
    policy: HeaderValue,
}

static LIVE_PAGE: LazyLock<LivePage> = LazyLock::new(|| LivePage {
    document: TEMPLATE.replacen(STYLE_PLACE, STYLE, 1).replacen(SCRIPT_PLACE, SCRIPT, 1).into(),
    policy: content_security_policy(),
});

/// `GET /`
pub(super) fn page(_: &AdminState, _: &Query<'_>) -> FullResponse {
    let mut response = response::html(LIVE_PAGE.document.clone());
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, LIVE_PAGE.policy.clone());
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(VARY, HeaderValue::from_static("accept, user-agent"));
    response
}

/// Returns whether a client shows text rather than a page: it prefers `text/plain`, or is a command-line program
/// without a preference.
pub(super) fn prefers_text(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let accepted = text(ACCEPT);
    if accepted.contains("text/html") {
        return false;
    }
    accepted.contains("text/plain")
        || TERMINAL_CLIENTS.iter().any(|client| text(USER_AGENT).starts_with(client))
}

fn content_security_policy() -> HeaderValue {
    let hash = |text: &str| BASE64_STANDARD.encode(digest(&SHA256, text.as_bytes()));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
        hash(SCRIPT),
        hash(STYLE)
    );
    // Letters and digits only, so the conversion always succeeds; the fallback allows nothing.
    HeaderValue::from_str(&policy).unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_contains_its_style_and_script_and_nothing_from_outside() {
        let document = std::str::from_utf8(&LIVE_PAGE.document).unwrap();
        assert!(document.contains(STYLE) && document.contains(SCRIPT));
        assert!(!document.contains(STYLE_PLACE) && !document.contains(SCRIPT_PLACE));
        let outside = ["src=", "@import", "url(", "http://", "https://"];
        let without_names = document.replace("http://www.w3.org/2000/svg", "");
        for reference in outside {
            assert!(!without_names.contains(reference), "{reference}");
        }
    }

    #[test]
    fn script_uses_no_markup_of_strings_and_no_inline_handlers() {
        for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "</script"] {
            assert!(!SCRIPT.contains(word), "{word}");
        }
        let inline = regex::Regex::new(r"\s(style|on[a-z]+)=").unwrap();
        assert_eq!(inline.find(TEMPLATE), None, "an inline style or handler");
        assert!(!STYLE.contains("</style"));
    }

    #[test]
    fn policy_allows_no_inline_code_without_its_hash() {
        let policy = content_security_policy();
        let policy = policy.to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
    }

    #[test]
    fn text_is_preferred_by_terminal_clients_and_on_request() {
        let prefers = |pairs: &[(http::HeaderName, &'static str)]| {
            let pairs = pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            prefers_text(&pairs.collect())
        };
        assert!(prefers(&[(ACCEPT, "text/plain")]));
        assert!(prefers(&[(ACCEPT, "*/*"), (USER_AGENT, "curl/8.5.0")]));
        assert!(!prefers(&[(ACCEPT, "text/html"), (USER_AGENT, "curl/8.5.0")]));
        assert!(!prefers(&[
            (ACCEPT, "text/html,application/xhtml+xml,*/*;q=0.8"),
            (USER_AGENT, "Mozilla/5.0")
        ]));
        assert!(!prefers(&[]));
    }
}
