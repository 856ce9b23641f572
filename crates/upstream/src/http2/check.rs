//! Health check over HTTP/2, on a connection of its own. With `h2`, because checks run on any thread, and connections of
//! [`weir_http::http2`] belong to one.

use std::io;
use std::pin::pin;

use http::header::USER_AGENT;
use http::{Request, Version};

use weir_net::transport::Transport;

/// Sends a GET request for `uri` with User-Agent `agent`; returns the status code.
///
/// # Errors
/// [`io::Error`] if no response arrived, or it was malformed.
pub(crate) async fn check(stream: Transport, uri: &str, agent: &str) -> io::Result<u16> {
    let request = Request::get(uri).version(Version::HTTP_2).header(USER_AGENT, agent);
    let request = request.body(()).map_err(io::Error::other)?;
    let (sender, connection) =
        h2::client::Builder::new().enable_push(false).handshake(stream).await.map_err(into_io)?;
    let _: &h2::client::SendRequest<bytes::Bytes> = &sender;
    let exchange = async {
        let (response, _) = sender.ready().await?.send_request(request, true)?;
        response.await
    };
    let (mut exchange, mut connection) = (pin!(exchange), pin!(connection));
    let response = tokio::select! {
        biased;
        response = &mut exchange => response,
        ended = &mut connection => match ended {
            // The last frames received may contain the response.
            Ok(()) => exchange.await,
            Err(error) => Err(error),
        },
    };
    response.map(|response| response.status().as_u16()).map_err(into_io)
}

fn into_io(error: h2::Error) -> io::Error {
    match error.is_io() {
        true => error.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()),
        false => io::Error::other(error),
    }
}
