//! Reads the PROXY protocol header that a proxy in front may send before anything else.

use std::net::SocketAddr;

use tokio::io::AsyncReadExt;

use super::proxy_protocol::{MAX_HEADER_LENGTH, ParseOutcome, Version, parse};
use super::{AcceptedConnection, ProxyProtocol};
use crate::transport::Transport;

/// Bytes per read: enough for a header and what usually follows it.
const READ_SIZE: usize = 1024;

/// How a connection began, on a listener that accepts the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProtocolOutcome {
    /// With a version 1 header (text).
    V1,
    /// With a version 2 header (binary).
    V2,
    /// Without a header.
    Absent,
    /// With a malformed header.
    Malformed,
    /// The peer is not a trusted proxy.
    Untrusted,
    /// The header was incomplete.
    Incomplete,
}

impl ProxyProtocolOutcome {
    /// Label values of metrics, in order of declaration.
    pub const LABELS: [&'static str; 6] = ["v1", "v2", "absent", "malformed", "untrusted", "unfinished"];
}

/// Reads the PROXY protocol header of a connection. Returns the connection with the source address of the header as its
/// peer, or `None` if the connection is to be closed.
pub async fn read(
    accepted: AcceptedConnection,
    mode: ProxyProtocol,
    is_trusted: bool,
) -> (ProxyProtocolOutcome, Option<AcceptedConnection>) {
    if !is_trusted {
        // A header from an untrusted peer is left in the stream, where it will be rejected as malformed HTTP.
        let kept = (mode != ProxyProtocol::Required).then_some(accepted);
        return (ProxyProtocolOutcome::Untrusted, kept);
    }
    let AcceptedConnection { mut stream, peer } = accepted;
    let mut bytes = Vec::new();
    loop {
        match parse(&bytes) {
            ParseOutcome::Complete { header, length } => {
                let outcome = match header.version {
                    Version::V1 => ProxyProtocolOutcome::V1,
                    Version::V2 => ProxyProtocolOutcome::V2,
                };
                let rest = bytes.split_off(length);
                return (outcome, Some(with_prefix(stream, rest, header.source.unwrap_or(peer))));
            }
            ParseOutcome::Absent if mode == ProxyProtocol::Optional => {
                return (ProxyProtocolOutcome::Absent, Some(with_prefix(stream, bytes, peer)));
            }
            ParseOutcome::Absent => return (ProxyProtocolOutcome::Absent, None),
            ParseOutcome::Malformed => return (ProxyProtocolOutcome::Malformed, None),
            ParseOutcome::Partial if bytes.len() > MAX_HEADER_LENGTH => {
                return (ProxyProtocolOutcome::Malformed, None);
            }
            ParseOutcome::Partial => {}
        }
        bytes.reserve(READ_SIZE);
        match stream.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return (ProxyProtocolOutcome::Incomplete, None),
            Ok(_) => {}
        }
    }
}

fn with_prefix(stream: Transport, prefix: Vec<u8>, peer: SocketAddr) -> AcceptedConnection {
    AcceptedConnection { stream: Transport::with_prefix(prefix, stream), peer }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_have_their_labels() {
        assert_eq!(ProxyProtocolOutcome::LABELS[ProxyProtocolOutcome::Incomplete as usize], "unfinished");
    }
}
