//! Reading what a proxy in front of us says before anything else.

use std::net::SocketAddr;

use tokio::io::AsyncReadExt;

use super::proxy_protocol::{Beginning, LONGEST, Version, parse};
use super::{Accepted, ProxyProtocol};
use crate::telemetry::metrics::Preamble;
use crate::transport::Transport;

/// How much is read at once: a header and what usually follows.
const PIECE: usize = 1024;

/// Reads the preamble of a connection. The connection comes back unless it is to be closed, and with the peer that
/// the preamble names.
pub async fn read(accepted: Accepted, mode: ProxyProtocol, is_trusted: bool) -> (Preamble, Option<Accepted>) {
    if !is_trusted {
        // Without trust it is what it looks like: bytes that are no HTTP.
        let kept = (mode != ProxyProtocol::Required).then_some(accepted);
        return (Preamble::Untrusted, kept);
    }
    let Accepted { mut stream, peer } = accepted;
    let mut bytes = Vec::new();
    loop {
        match parse(&bytes) {
            Beginning::Header { header, length } => {
                let outcome = match header.version {
                    Version::One => Preamble::V1,
                    Version::Two => Preamble::V2,
                };
                let rest = bytes.split_off(length);
                return (outcome, Some(arrived(stream, rest, header.source.unwrap_or(peer))));
            }
            Beginning::Absent if mode == ProxyProtocol::Optional => {
                return (Preamble::Absent, Some(arrived(stream, bytes, peer)));
            }
            Beginning::Absent => return (Preamble::Absent, None),
            Beginning::Malformed => return (Preamble::Malformed, None),
            Beginning::Partial if bytes.len() > LONGEST => return (Preamble::Malformed, None),
            Beginning::Partial => {}
        }
        bytes.reserve(PIECE);
        match stream.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return (Preamble::Unfinished, None),
            Ok(_) => {}
        }
    }
}

fn arrived(stream: Transport, rest: Vec<u8>, peer: SocketAddr) -> Accepted {
    Accepted { stream: Transport::rewound(rest, stream), peer }
}
