//! Sends notifications by POST, with a connection for each: they are rare.

use std::time::Duration;

use http::Method;
use http::header::CONTENT_TYPE;
use tokio::time::timeout;

use weir_net::http_client::HttpClient;

/// Timeout of one notification, including the connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response. Only its status is used.
pub(super) const MAX_RESPONSE_SIZE: usize = 64 * 1024;

/// Sends one notification; returns why it was not accepted. Needs a Tokio runtime.
pub(super) async fn send(webhook: &mut HttpClient, body: Vec<u8>) -> Result<(), String> {
    let unreachable = |error: &dyn ToString| format!("cannot reach the webhook: {}", error.to_string());
    let request = webhook.request(Method::POST).header(CONTENT_TYPE, "application/json");
    let request = request.body(body.into()).map_err(|error| unreachable(&error))?;
    let response = timeout(REQUEST_TIMEOUT, webhook.send(request)).await;
    webhook.close();
    let response = response.map_err(|_| format!("no response within {REQUEST_TIMEOUT:?}"))?;
    match response.map_err(|error| unreachable(&error))?.status() {
        status if status.is_success() => Ok(()),
        status => Err(format!("the webhook responded with {status}")),
    }
}
