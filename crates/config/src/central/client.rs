//! A single exchange with the server: a conditional GET over HTTP/1.1, on a persistent connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::header::{
    ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED,
    TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use tokio::time::timeout;

use super::document::{FetchedDocument, Validators};
use super::envelope;
use super::settings::CentralSettings;
use weir_net::http_client::{HttpClient, HttpClientError, HttpRequest, HttpResponse, read_body};
use weir_telemetry::metrics::FetchOutcome;

/// Maximum size of a document in bytes, the same as of a configuration file.
pub(super) const MAX_DOCUMENT_SIZE: usize = 1 << 20;

/// Maximum size of a body. An envelope may surround the document, in which a line break takes two bytes.
const MAX_BODY_SIZE: usize = 2 * MAX_DOCUMENT_SIZE + 4096;

/// Maximum length of a validator. A longer one is not sent back, so the document is fetched again each time.
const MAX_VALIDATOR_LEN: usize = 1024;

const PREFER: &str = "prefer";

/// Why no document was received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// Connecting failed, or the connection broke.
    #[error("cannot reach the server: {0}")]
    Unreachable(String),
    /// No complete response in time.
    #[error("no response within {0:?}")]
    Timeout(Duration),
    /// A status code other than 200 and 304.
    #[error("the server responded with {0}{1}")]
    Status(StatusCode, &'static str),
    /// A response that is not a document.
    #[error("{0}")]
    InvalidResponse(String),
}

impl FetchError {
    pub(super) fn outcome(&self) -> FetchOutcome {
        match self {
            Self::Unreachable(_) => FetchOutcome::Unreachable,
            Self::Timeout(_) => FetchOutcome::TimedOut,
            Self::Status(..) => FetchOutcome::BadStatus,
            Self::InvalidResponse(_) => FetchOutcome::InvalidDocument,
        }
    }
}

/// A successful response.
#[derive(Debug)]
pub(super) enum FetchResult {
    /// The current document.
    Document(FetchedDocument),
    /// The document is unchanged from the one with the given validators.
    NotModified,
}

/// A client for one server.
#[derive(Debug)]
pub(super) struct FetchClient {
    settings: Arc<CentralSettings>,
    client: HttpClient,
}

impl FetchClient {
    /// Creates a client without a connection.
    ///
    /// # Errors
    /// Returns an error if TLS cannot be set up.
    pub(super) fn new(settings: Arc<CentralSettings>) -> io::Result<Self> {
        let client = HttpClient::new(settings.server.clone(), MAX_BODY_SIZE)?;
        Ok(Self { settings, client })
    }

    pub(super) fn settings(&self) -> &CentralSettings {
        &self.settings
    }

    /// Fetches the document if it differs from `known`; the server may hold the request for `wait`. Needs a
    /// runtime. Dropping the future drops the connection.
    pub(super) async fn fetch(
        &mut self,
        known: &Validators,
        wait: Option<Duration>,
    ) -> Result<FetchResult, FetchError> {
        let limit = self.settings.timeout + wait.unwrap_or_default();
        let request = self.build_request(known, wait)?;
        let exchange = async {
            let response = self.client.send(request).await;
            self.read_response(response.map_err(|error| FetchError::Unreachable(error.to_string()))?).await
        };
        let fetched = timeout(limit, exchange).await.unwrap_or(Err(FetchError::Timeout(limit)));
        if fetched.is_err() {
            self.client.close();
        }
        fetched
    }

    fn build_request(&self, known: &Validators, wait: Option<Duration>) -> Result<HttpRequest, FetchError> {
        let accepted = "application/yaml, application/json;q=0.9, */*;q=0.8";
        let mut request = self.client.request(Method::GET).header(ACCEPT, accepted);
        match (&known.etag, &known.last_modified) {
            (Some(etag), _) => request = request.header(IF_NONE_MATCH, &**etag),
            (None, Some(modified)) => request = request.header(IF_MODIFIED_SINCE, &**modified),
            (None, None) => {}
        }
        if let Some(wait) = wait {
            request = request.header(PREFER, format!("wait={}", wait.as_secs()));
        }
        request.body(Default::default()).map_err(|error| FetchError::InvalidResponse(error.to_string()))
    }

    async fn read_response(&self, response: HttpResponse) -> Result<FetchResult, FetchError> {
        let (head, body) = response.into_parts();
        match head.status {
            StatusCode::OK => {}
            StatusCode::NOT_MODIFIED => return Ok(FetchResult::NotModified),
            other => return Err(FetchError::Status(other, status_hint(other))),
        }
        if let Some(coding) = head.headers.get(CONTENT_ENCODING).filter(|coding| *coding != "identity") {
            let text = format!("unexpected content coding of the document: {coding:?}");
            return Err(FetchError::InvalidResponse(text));
        }
        let has_framing =
            [CONTENT_LENGTH, TRANSFER_ENCODING].iter().any(|name| head.headers.contains_key(name));
        if !has_framing {
            let text =
                "the response has neither Content-Length nor chunked framing: truncation would go unnoticed";
            return Err(FetchError::InvalidResponse(text.to_owned()));
        }
        let body = read_body(body, MAX_BODY_SIZE).await.map_err(|error| body_error(&error))?;
        self.parse_document(&head.headers, &body).map(FetchResult::Document)
    }

    fn parse_document(&self, headers: &HeaderMap, body: &[u8]) -> Result<FetchedDocument, FetchError> {
        let Ok(body) = std::str::from_utf8(body) else {
            return Err(FetchError::InvalidResponse("the document is not UTF-8 text".to_owned()));
        };
        let text = |name: HeaderName| -> Option<Box<str>> {
            let value = headers.get(name)?.to_str().ok().filter(|value| value.len() <= MAX_VALIDATOR_LEN)?;
            Some(value.into())
        };
        let (mut etag, last_modified) = (text(ETAG), text(LAST_MODIFIED));
        let content = match envelope::parse(body) {
            None => body.to_owned(),
            Some(opened) => {
                etag = etag.or(Some(opened.etag));
                opened.text
            }
        };
        if content.len() > MAX_DOCUMENT_SIZE {
            return Err(too_large());
        }
        let (text, url) = (content.into(), self.settings.server.url.without_query().into());
        Ok(FetchedDocument { text, url, validators: Validators { etag, last_modified } })
    }
}

fn body_error(error: &HttpClientError) -> FetchError {
    match error {
        HttpClientError::TooLong => too_large(),
        HttpClientError::Connect(_) | HttpClientError::Http(_) => {
            FetchError::InvalidResponse(format!("the response is incomplete: {error}"))
        }
    }
}

fn too_large() -> FetchError {
    FetchError::InvalidResponse("the document is larger than 1 MiB".to_owned())
}

/// Returns a hint on a status code, for operators.
fn status_hint(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "; check the credentials in `config.headers`",
        status if status.is_redirection() => "; redirects are not followed",
        _ => "",
    }
}
