//! The combined and the common log format of nginx, Apache and others. A third quoted field is `X-Forwarded-For`, as in
//! nginx's sample configuration. A host may precede the client's address, as in Apache's `vhost_combined`.
//!
//! ```text
//! ADDRESS - USER [TIME] "METHOD PATH PROTOCOL" STATUS SENT "REFERER" "USER-AGENT" "X-FORWARDED-FOR"
//! ```

use std::ops::Range;

use super::clear_absent;
use super::envoy::status;
use super::scan::{LineCursor, address, number};
use super::time::TimeParser;
use crate::record::{LoggedRequest, TextSpan};
use weir_policy::identify::recorded::RecordedAddress;

/// Reads the fields of a line into `request`; returns the position of its request line.
#[inline]
pub(super) fn fields(
    cursor: &mut LineCursor<'_>,
    times: &mut TimeParser,
    request: &mut LoggedRequest,
) -> Option<Range<usize>> {
    let block = cursor.block;
    let start = cursor.at;
    let first = cursor.word()?;
    let mut peer = address(first);
    if peer.is_none() && first != b"-" {
        let behind = *cursor;
        peer = cursor.word().and_then(address);
        if peer.is_some() {
            request.host = TextSpan::new(start..start + first.len());
        } else {
            // A host name in place of the address.
            *cursor = behind;
        }
    }
    request.address = peer.map_or(RecordedAddress::Unknown, RecordedAddress::Peer);
    cursor.until(b'[')?;
    request.start = times.common(&block[cursor.until(b']')?])?;
    request.end = request.start;
    cursor.skip(b' ')?;
    let request_text = cursor.quoted()?;
    request.status = status(cursor.word()?)?;
    request.sent = match cursor.word()? {
        b"-" => 0,
        sent => number(sent)?,
    };
    let Some(referer) = cursor.quoted() else { return Some(request_text) };
    request.referer = clear_absent(block, referer);
    request.user_agent = clear_absent(block, cursor.quoted()?);
    if let Some(forwarded_for) = cursor.quoted() {
        let hops = &block[forwarded_for.clone()];
        let is_list = hops.split(|byte| *byte == b',').next_back().and_then(address).is_some();
        if is_list || hops == b"-" {
            request.forwarded_for = clear_absent(block, forwarded_for);
        }
    }
    Some(request_text)
}
