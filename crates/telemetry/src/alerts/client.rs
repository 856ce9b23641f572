//! Sends notifications by POST over HTTP/1.1, with a connection for each: they are rare.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::Full;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::settings::AlertSettings;
use crate::metrics::VERSION;
use weir_net::tls::AlpnProtocol;
use weir_net::tls::client::TlsClient;
use weir_net::transport::Transport;

/// Timeout of one notification, including the connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a notification was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WebhookError {
    /// Connecting failed, or the connection broke.
    #[error("cannot reach the webhook: {0}")]
    Unreachable(String),
    /// No response in time.
    #[error("no response within {0:?}")]
    Timeout(Duration),
    /// A status code other than 2xx.
    #[error("the webhook responded with {0}")]
    Status(StatusCode),
}

/// Client of one webhook.
#[derive(Debug)]
pub(super) struct WebhookClient {
    settings: Arc<AlertSettings>,
    tls: Option<TlsClient>,
}

impl WebhookClient {
    /// Creates a client.
    ///
    /// # Errors
    /// Returns an error if TLS cannot be set up.
    pub(super) fn new(settings: Arc<AlertSettings>) -> io::Result<Self> {
        let tls = settings.tls.clone().map(TlsClient::new).transpose().map_err(io::Error::other)?;
        Ok(Self { settings, tls })
    }

    pub(super) fn settings(&self) -> &AlertSettings {
        &self.settings
    }

    /// Sends one notification. Needs a Tokio runtime.
    pub(super) async fn send(&self, body: Vec<u8>) -> Result<(), WebhookError> {
        timeout(REQUEST_TIMEOUT, self.exchange(body.into()))
            .await
            .unwrap_or(Err(WebhookError::Timeout(REQUEST_TIMEOUT)))
    }

    async fn exchange(&self, body: Bytes) -> Result<(), WebhookError> {
        let url = &self.settings.webhook;
        let stream =
            Transport::connect_tcp((&*url.host, url.port)).await.map_err(|error| unreachable(&error))?;
        let stream = match &self.tls {
            None => stream,
            Some(tls) => {
                let secured = tls.connect(stream, &url.host, AlpnProtocol::Http1).await;
                secured.map_err(|error| unreachable(&error))?.0.into()
            }
        };
        let connected = handshake(TokioIo::new(stream)).await;
        let (mut connection, driver) = connected.map_err(|error| unreachable(&error))?;
        let mut request = Request::post(&*url.target)
            .header(HOST, url.authority())
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, format!("weir/{VERSION}"))
            .body(Full::new(body))
            .map_err(|error| unreachable(&error))?;
        request.headers_mut().extend(self.settings.headers.clone());
        // Ends with the connection, which is closed when the sender is dropped below.
        drop(tokio::spawn(driver));
        let response = connection.send_request(request).await.map_err(|error| unreachable(&error))?;
        // The status is enough: the rest of the response is not read.
        match response.status() {
            status if status.is_success() => Ok(()),
            status => Err(WebhookError::Status(status)),
        }
    }
}

fn unreachable(error: &impl ToString) -> WebhookError {
    WebhookError::Unreachable(error.to_string())
}
