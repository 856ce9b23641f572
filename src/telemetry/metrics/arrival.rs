//! What comes of connections before HTTP.

use crate::tls::SessionStart;

/// The label values of TLS handshakes, those that fail by how they do.
pub(super) fn handshake_labels(
    failures: impl IntoIterator<Item = &'static str>,
) -> impl Iterator<Item = &'static str> {
    ["full", "resumed"].into_iter().chain(failures)
}

/// Where among them a handshake is counted; failures by their position.
pub(super) fn handshake_index(handshake: Result<SessionStart, usize>) -> usize {
    handshake.map_or_else(|failure| 2 + failure, |start| start as usize)
}

/// What came of a connection's beginning where a proxy in front may say who connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preamble {
    /// A line, version 1 of the PROXY protocol.
    V1,
    /// Octets, version 2.
    V2,
    /// There was none.
    Absent,
    /// What came was broken.
    Malformed,
    /// The peer is not one whose word is taken.
    Untrusted,
    /// It did not come to its end.
    Unfinished,
}

impl Preamble {
    /// The label values, in the order of declaration.
    pub(super) const LABELS: [&'static str; 6] =
        ["v1", "v2", "absent", "malformed", "untrusted", "unfinished"];
}

/// The label values of [`LoadShed`](crate::overload::LoadShed), in the order of declaration: the keys of the configuration.
pub(super) const LOAD_SHED: [&str; 4] = ["connections", "connections_per_client", "requests", "memory"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::client::Reason;
    use crate::tls::server::Failure;

    #[test]
    fn every_failure_has_its_label() {
        let labels: Vec<_> = handshake_labels(Failure::ALL.map(Failure::as_str)).collect();
        for failure in Failure::ALL {
            assert_eq!(labels[handshake_index(Err(failure as usize))], failure.as_str());
        }
        let labels: Vec<_> = handshake_labels(Reason::ALL.map(Reason::as_str)).collect();
        for reason in Reason::ALL {
            assert_eq!(labels[handshake_index(Err(reason as usize))], reason.as_str());
        }
        assert_eq!(labels[handshake_index(Ok(SessionStart::Resumed))], "resumed");
        assert_eq!(Preamble::LABELS[Preamble::Unfinished as usize], "unfinished");
    }
}
