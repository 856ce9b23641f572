//! Settings of both ends (RFC 9113 section 6.5).

use super::error::Reason;
use super::frame::{FrameKind, put_frame};
use super::head::AcceptedOrigins;

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;
const ENABLE_CONNECT_PROTOCOL: u16 = 8;

/// Flow-control windows before any setting, in bytes.
pub(super) const DEFAULT_WINDOW: u32 = 65_535;
/// Maximum size of a flow-control window, in bytes.
pub(super) const MAX_WINDOW: u32 = 0x7fff_ffff;

/// Window of a connection, in bytes: more than its streams ever use, because their own windows limit them.
pub(super) const CONNECTION_WINDOW: u32 = 1 << 30;

/// Maximum streams that are opened before the peer has stated its own.
const ASSUMED_MAX_STREAMS: u32 = 100;

/// Limits of this end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Http2Settings {
    /// Maximum streams that the peer may have open.
    pub max_streams: u32,
    /// Maximum size of a header section, in bytes, with 32 bytes for each field (RFC 9113 section 6.5.2).
    pub max_header_list: u32,
    /// Bytes that the peer may send on any stream before they have been read.
    pub stream_window: u32,
    /// The same for a stream whose data is read, while there is budget.
    pub max_stream_window: u32,
    /// Budget of all streams together, in bytes, for windows larger than `stream_window`. So at most `max_streams` times
    /// `stream_window` and this are held.
    pub shared_window: u32,
    /// Whether extended CONNECT is allowed (RFC 8441). For servers.
    pub connect_protocol: bool,
    /// Schemes and authorities that requests may have. For servers.
    pub origins: AcceptedOrigins,
    /// Maximum streams that are reset as soon as they are opened; more close the connection (CVE-2023-44487).
    pub max_premature_resets: u32,
    /// Maximum streams that are reset for errors of the peer; more close the connection (CVE-2025-8671).
    pub max_error_resets: u32,
}

impl Http2Settings {
    /// Appends the first SETTINGS frame of a server, or of a client.
    pub(super) fn put(&self, is_server: bool, out: &mut Vec<u8>) {
        let mut payload = Vec::with_capacity(6 * 4);
        let mut put = |id: u16, value: u32| {
            payload.extend_from_slice(&id.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        };
        if is_server {
            put(MAX_CONCURRENT_STREAMS, self.max_streams);
            if self.connect_protocol {
                put(ENABLE_CONNECT_PROTOCOL, 1);
            }
        } else {
            put(ENABLE_PUSH, 0);
        }
        put(INITIAL_WINDOW_SIZE, self.stream_window);
        put(MAX_HEADER_LIST_SIZE, self.max_header_list);
        put_frame(out, FrameKind::Settings, 0, 0, &payload);
        let extra = self.first_connection_window(is_server).saturating_sub(DEFAULT_WINDOW);
        if extra > 0 {
            put_frame(out, FrameKind::WindowUpdate, 0, 0, &extra.to_be_bytes());
        }
    }

    /// Returns the window of the connection until the peer has acknowledged the settings, in bytes. A client may fill the
    /// default windows of its streams before.
    pub(super) fn first_connection_window(&self, is_server: bool) -> u32 {
        if is_server {
            self.shared_window.clamp(DEFAULT_WINDOW, CONNECTION_WINDOW)
        } else {
            CONNECTION_WINDOW
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PeerSettings {
    /// Maximum size of its table for header compression, in bytes.
    pub(super) header_table: u32,
    /// The smallest such size in its last SETTINGS frame.
    pub(super) smallest_header_table: u32,
    /// Maximum streams that may be open.
    pub(super) max_streams: u32,
    /// Initial window of a stream, in bytes.
    pub(super) stream_window: u32,
    /// Maximum size of a frame's payload, in bytes.
    pub(super) max_frame_size: usize,
    /// Whether extended CONNECT is allowed.
    pub(super) connect_protocol: bool,
}

impl PeerSettings {
    /// The values before the first SETTINGS frame.
    pub(super) const fn new() -> Self {
        Self {
            header_table: 4096,
            smallest_header_table: 4096,
            max_streams: ASSUMED_MAX_STREAMS,
            stream_window: DEFAULT_WINDOW,
            max_frame_size: super::frame::MAX_FRAME_SIZE,
            connect_protocol: false,
        }
    }

    /// Applies the payload of a SETTINGS frame. `from_client`: the peer is a client.
    ///
    /// # Errors
    /// The error code with which the connection ends.
    pub(super) fn apply(&mut self, payload: &[u8], from_client: bool) -> Result<(), Reason> {
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err(Reason::FRAME_SIZE_ERROR);
        }
        self.smallest_header_table = self.header_table;
        for &[a, b, c, d, e, f] in settings {
            let value = u32::from_be_bytes([c, d, e, f]);
            match u16::from_be_bytes([a, b]) {
                HEADER_TABLE_SIZE => {
                    self.header_table = value;
                    self.smallest_header_table = self.smallest_header_table.min(value);
                }
                // Servers do not accept pushed responses (RFC 9113 section 6.5.2).
                ENABLE_PUSH if value > u32::from(from_client) => return Err(Reason::PROTOCOL_ERROR),
                MAX_CONCURRENT_STREAMS => self.max_streams = value,
                INITIAL_WINDOW_SIZE if value > MAX_WINDOW => return Err(Reason::FLOW_CONTROL_ERROR),
                INITIAL_WINDOW_SIZE => self.stream_window = value,
                MAX_FRAME_SIZE => match value {
                    0x4000..=0xff_ffff => self.max_frame_size = value as usize,
                    _ => return Err(Reason::PROTOCOL_ERROR),
                },
                ENABLE_CONNECT_PROTOCOL if value > 1 => return Err(Reason::PROTOCOL_ERROR),
                ENABLE_CONNECT_PROTOCOL => self.connect_protocol = value == 1,
                // Others are advisory or unknown, and are ignored.
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(settings: &[(u16, u32)]) -> Result<PeerSettings, Reason> {
        let mut payload = Vec::new();
        for (id, value) in settings {
            payload.extend_from_slice(&id.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        let mut peer = PeerSettings::new();
        peer.apply(&payload, true).map(|()| peer)
    }

    #[test]
    fn last_value_of_a_setting_counts_and_unknown_ones_are_ignored() {
        let peer = applied(&[(3, 7), (99, 1), (3, 8), (5, 0x4000), (4, 0), (8, 1)]).unwrap();
        assert_eq!((peer.max_streams, peer.max_frame_size, peer.stream_window), (8, 0x4000, 0));
        assert!(peer.connect_protocol);
    }

    #[test]
    fn values_out_of_range_are_errors() {
        let error = |id, value| applied(&[(id, value)]).err();
        assert_eq!(error(2, 2), Some(Reason::PROTOCOL_ERROR));
        assert_eq!(error(4, 0x8000_0000), Some(Reason::FLOW_CONTROL_ERROR));
        assert_eq!(
            (error(5, 0x3fff), error(5, 0x100_0000)),
            (Some(Reason::PROTOCOL_ERROR), Some(Reason::PROTOCOL_ERROR))
        );
        assert_eq!(error(8, 2), Some(Reason::PROTOCOL_ERROR));
        assert_eq!(PeerSettings::new().apply(&[0; 7], true), Err(Reason::FRAME_SIZE_ERROR));
    }
}
