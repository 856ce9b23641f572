//! What comes of connections before HTTP.

use crate::tls::client::Reason;
use crate::tls::server::Failure;

/// How a TLS handshake ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// In a new session.
    Full,
    /// In one that goes on.
    Resumed,
    /// In none.
    Failed(Failure),
}

impl Handshake {
    /// The label values, by index.
    pub(super) const LABELS: [&'static str; 2 + Failure::ALL.len()] = {
        let mut labels = ["full", "resumed", "", "", "", "", "", "", "", ""];
        let mut index = 0;
        while index < Failure::ALL.len() {
            labels[2 + index] = Failure::ALL[index].as_str();
            index += 1;
        }
        labels
    };

    pub(super) const fn index(self) -> usize {
        match self {
            Self::Full => 0,
            Self::Resumed => 1,
            Self::Failed(failure) => 2 + failure as usize,
        }
    }
}

/// How a TLS handshake with an upstream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamHandshake {
    /// In a new session.
    Full,
    /// In one that goes on.
    Resumed,
    /// In none.
    Failed(Reason),
}

impl UpstreamHandshake {
    /// How many there are.
    pub(super) const COUNT: usize = 2 + Reason::ALL.len();

    /// The label values, by index.
    pub(super) fn labels() -> impl Iterator<Item = &'static str> {
        ["full", "resumed"].into_iter().chain(Reason::ALL.map(Reason::as_str))
    }

    pub(super) const fn index(self) -> usize {
        match self {
            Self::Full => 0,
            Self::Resumed => 1,
            Self::Failed(reason) => 2 + reason as usize,
        }
    }
}

impl From<Reason> for UpstreamHandshake {
    fn from(reason: Reason) -> Self {
        Self::Failed(reason)
    }
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

    #[test]
    fn every_failure_has_its_label() {
        for failure in Failure::ALL {
            assert_eq!(Handshake::LABELS[Handshake::Failed(failure).index()], failure.as_str());
        }
        let labels: Vec<_> = UpstreamHandshake::labels().collect();
        assert_eq!(labels.len(), UpstreamHandshake::COUNT);
        for reason in Reason::ALL {
            assert_eq!(labels[UpstreamHandshake::from(reason).index()], reason.as_str());
        }
        assert_eq!(Preamble::LABELS[Preamble::Unfinished as usize], "unfinished");
    }
}
