//! A single exchange with the server: a conditional GET over HTTP/1.1, on a persistent connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, CONTENT_ENCODING, ETAG, HOST, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, TRANSFER_ENCODING,
    USER_AGENT,
};
use http::{HeaderMap, HeaderName, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::bounded_stream::{BoundedStream, ReadAllowance};
use super::document::{FetchedDocument, Validators};
use super::envelope;
use super::settings::CentralSettings;
use weir_net::tls::AlpnProtocol;
use weir_net::tls::client::TlsClient as Tls;
use weir_net::transport::Transport;
use weir_telemetry::metrics::{FetchOutcome, VERSION};

/// Maximum size of a document in bytes, the same as of a configuration file.
pub(super) const MAX_DOCUMENT_SIZE: usize = 1 << 20;

/// Maximum size of a body. An envelope may surround the document, in which a line break takes two bytes.
const MAX_BODY_SIZE: usize = 2 * MAX_DOCUMENT_SIZE + 4096;

/// Maximum bytes that are read for one exchange: a body with its framing, a header section, and interim responses.
const MAX_READ: usize = 2 * MAX_BODY_SIZE;

/// Maximum length of a validator. A longer one is not sent back, so the document is fetched again each time.
const MAX_VALIDATOR_LEN: usize = 1024;

/// Time without a byte after which TCP keep-alive probes the server.
const TCP_KEEPALIVE_IDLE: Duration = Duration::from_secs(15);

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
    tls: Option<Tls>,
    connection: Option<SendRequest<Empty<Bytes>>>,
    /// What may still be read of the connection.
    allowance: ReadAllowance,
}

impl FetchClient {
    /// Creates a client without a connection.
    ///
    /// # Errors
    /// Returns an error if TLS cannot be set up.
    pub(super) fn new(settings: Arc<CentralSettings>) -> io::Result<Self> {
        let tls = settings.tls.clone().map(Tls::new).transpose().map_err(io::Error::other)?;
        Ok(Self { settings, tls, connection: None, allowance: ReadAllowance::default() })
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
        let idle = self.connection.take().filter(|kept| !kept.is_closed());
        let exchange = async {
            if let Some(idle) = idle
                && let Ok(done) = self.exchange(idle, known, wait).await
            {
                return Ok(done);
            }
            // An idle connection may have been closed meanwhile, which is not a failure of the server.
            let fresh = self.connect().await?;
            self.exchange(fresh, known, wait).await
        };
        let (fetched, connection) =
            timeout(limit, exchange).await.unwrap_or(Err(FetchError::Timeout(limit)))?;
        self.connection = connection;
        fetched
    }

    /// Returns the outcome, and the connection if it can be reused; an error if the connection broke before a
    /// response.
    async fn exchange(
        &self,
        mut connection: SendRequest<Empty<Bytes>>,
        known: &Validators,
        wait: Option<Duration>,
    ) -> Result<(Result<FetchResult, FetchError>, Option<SendRequest<Empty<Bytes>>>), FetchError> {
        let request = self.build_request(known, wait)?;
        self.allowance.renew(MAX_READ);
        connection.ready().await.map_err(|error| connection_error(&error))?;
        let response = connection.send_request(request).await.map_err(|error| connection_error(&error))?;
        let fetched = self.read_response(response).await;
        let is_reusable = fetched.is_ok();
        Ok((fetched, Some(connection).filter(|_| is_reusable)))
    }

    fn build_request(
        &self,
        known: &Validators,
        wait: Option<Duration>,
    ) -> Result<Request<Empty<Bytes>>, FetchError> {
        let CentralSettings { url, headers, .. } = &*self.settings;
        let mut request = Request::get(&*url.target)
            .header(HOST, url.authority())
            .header(USER_AGENT, format!("weir/{VERSION}"))
            .header(ACCEPT, "application/yaml, application/json;q=0.9, */*;q=0.8");
        match (&known.etag, &known.last_modified) {
            (Some(etag), _) => request = request.header(IF_NONE_MATCH, &**etag),
            (None, Some(modified)) => request = request.header(IF_MODIFIED_SINCE, &**modified),
            (None, None) => {}
        }
        if let Some(wait) = wait {
            request = request.header(PREFER, format!("wait={}", wait.as_secs()));
        }
        let mut request =
            request.body(Empty::new()).map_err(|error| FetchError::InvalidResponse(error.to_string()))?;
        request.headers_mut().extend(headers.clone());
        Ok(request)
    }

    async fn connect(&self) -> Result<SendRequest<Empty<Bytes>>, FetchError> {
        let url = &self.settings.url;
        let unreachable = |error: io::Error| FetchError::Unreachable(error.to_string());
        let stream = Transport::connect_tcp((&*url.host, url.port)).await.map_err(unreachable)?;
        // A connection lost without notice would otherwise be noticed only after the server's long-poll time.
        stream.set_tcp_keepalive(TCP_KEEPALIVE_IDLE);
        let stream = match &self.tls {
            None => stream,
            Some(tls) => {
                let secured = tls.connect(stream, &url.host, AlpnProtocol::Http1).await;
                secured.map_err(|failure| FetchError::Unreachable(failure.to_string()))?.0.into()
            }
        };
        // The allowance is shared with the connection before, which is closed by now.
        let stream = BoundedStream::new(stream, &self.allowance);
        let (connection, driver) =
            handshake(TokioIo::new(stream)).await.map_err(|error| connection_error(&error))?;
        drop(tokio::spawn(driver));
        Ok(connection)
    }

    async fn read_response(&self, response: Response<Incoming>) -> Result<FetchResult, FetchError> {
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
        let has_framing = body.size_hint().exact().is_some() || head.headers.contains_key(TRANSFER_ENCODING);
        if !has_framing {
            let text =
                "the response has neither Content-Length nor chunked framing: truncation would go unnoticed";
            return Err(FetchError::InvalidResponse(text.to_owned()));
        }
        let body = Limited::new(body, MAX_BODY_SIZE).collect().await.map_err(|error| body_error(&*error))?;
        self.parse_document(&head.headers, &body.to_bytes()).map(FetchResult::Document)
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
        let validators = Validators { etag, last_modified };
        Ok(FetchedDocument { text: content.into(), url: self.settings.url.to_string().into(), validators })
    }
}

fn connection_error(error: &hyper::Error) -> FetchError {
    use std::error::Error as _;
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    FetchError::Unreachable(format!("{error}{cause}"))
}

fn body_error(error: &(dyn std::error::Error + Send + Sync + 'static)) -> FetchError {
    if error.is::<LengthLimitError>() {
        return too_large();
    }
    FetchError::InvalidResponse(format!("the response is incomplete: {error}"))
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
