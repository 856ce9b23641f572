//! Sends notifications by POST, with a connection for each: they are rare.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use tokio::time::timeout;

use super::settings::AlertSettings;
use weir_net::http_client::HttpClient;

/// Timeout of one notification, including the connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response. Only its status is used.
const MAX_RESPONSE_SIZE: usize = 64 * 1024;

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
    client: HttpClient,
}

impl WebhookClient {
    /// Creates a client.
    ///
    /// # Errors
    /// Returns an error if TLS cannot be set up.
    pub(super) fn new(settings: Arc<AlertSettings>) -> io::Result<Self> {
        let client = HttpClient::new(settings.webhook.clone(), MAX_RESPONSE_SIZE)?;
        Ok(Self { settings, client })
    }

    pub(super) fn settings(&self) -> &Arc<AlertSettings> {
        &self.settings
    }

    /// Sends one notification. Needs a Tokio runtime.
    pub(super) async fn send(&mut self, body: Vec<u8>) -> Result<(), WebhookError> {
        let request = self.client.request(Method::POST).header(CONTENT_TYPE, "application/json");
        let request = request.body(body.into()).map_err(|error| unreachable(&error))?;
        let response = timeout(REQUEST_TIMEOUT, self.client.send(request)).await;
        self.client.close();
        let response = response.map_err(|_| WebhookError::Timeout(REQUEST_TIMEOUT))?;
        match response.map_err(|error| unreachable(&error))?.status() {
            status if status.is_success() => Ok(()),
            status => Err(WebhookError::Status(status)),
        }
    }
}

fn unreachable(error: &impl ToString) -> WebhookError {
    WebhookError::Unreachable(error.to_string())
}
