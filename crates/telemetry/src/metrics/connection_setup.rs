//! Label values for connections before HTTP: TLS handshakes, load shedding.

use weir_net::tls::SessionStart;

/// Returns the label values of TLS handshakes, with these failures.
pub(super) fn handshake_labels(
    failures: impl IntoIterator<Item = &'static str>,
) -> impl Iterator<Item = &'static str> {
    ["full", "resumed"].into_iter().chain(failures)
}

/// Returns the index of a handshake's result among the label values; failures are given by position.
pub(super) fn handshake_index(result: Result<SessionStart, usize>) -> usize {
    result.map_or_else(|failure| 2 + failure, |start| start as usize)
}

/// Label values of [`LoadShed`](weir_net::overload::LoadShed), in order of declaration; the same as the configuration
/// keys.
pub(super) const LOAD_SHED_LABELS: [&str; 6] =
    ["connections", "connections_per_client", "requests", "memory", "unsent", "waiting"];

#[cfg(test)]
mod tests {
    use super::*;
    use weir_net::tls::client::ClientHandshakeErrorKind;
    use weir_net::tls::server::ServerHandshakeError;

    #[test]
    fn tls_handshake_failures_have_their_labels() {
        let labels: Vec<_> =
            handshake_labels(ServerHandshakeError::ALL.map(ServerHandshakeError::as_str)).collect();
        for failure in ServerHandshakeError::ALL {
            assert_eq!(labels[handshake_index(Err(failure as usize))], failure.as_str());
        }
        let labels: Vec<_> =
            handshake_labels(ClientHandshakeErrorKind::ALL.map(ClientHandshakeErrorKind::as_str)).collect();
        for reason in ClientHandshakeErrorKind::ALL {
            assert_eq!(labels[handshake_index(Err(reason as usize))], reason.as_str());
        }
        assert_eq!(labels[handshake_index(Ok(SessionStart::Resumed))], "resumed");
    }
}
