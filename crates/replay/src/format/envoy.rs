//! Envoy's default format, which is also Weir's own text format. Istio's variant has more fields behind the response
//! flags.
//!
//! ```text
//! [START] "METHOD PATH PROTOCOL" STATUS FLAGS RECEIVED SENT DURATION UPSTREAM_TIME "X-FORWARDED-FOR" "USER-AGENT"
//! "X-REQUEST-ID" "AUTHORITY" "UPSTREAM" ...
//! ```

use std::ops::Range;
use std::time::Duration;

use super::clear_absent;
use super::scan::{LineCursor, number};
use super::time::TimeParser;
use crate::record::{LoggedRequest, RecordedEnd};

/// Reads the fields of a line into `request`; returns the position of its request line.
#[inline]
pub(super) fn fields(
    cursor: &mut LineCursor<'_>,
    times: &mut TimeParser,
    request: &mut LoggedRequest,
) -> Option<Range<usize>> {
    let block = cursor.block;
    cursor.skip(b'[')?;
    request.start = times.rfc3339(&block[cursor.until(b']')?])?;
    cursor.skip(b' ')?;
    let request_text = cursor.quoted()?;
    request.status = status(cursor.word()?)?;
    let flags = cursor.word()?;
    request.recorded_end = RecordedEnd::from_flags(flags, request.status);
    let mut word = cursor.word()?;
    if number(word).is_none() {
        // Istio: details of the response, details of the connection, reason of a transport failure.
        cursor.word()?;
        cursor.quoted()?;
        word = cursor.word()?;
    }
    request.received = Some(number(word)?);
    request.sent = number(cursor.word()?)?;
    // A request that has not ended has no duration.
    let millis = match cursor.word()? {
        b"-" => 0,
        millis => number(millis)?,
    };
    request.end = request.start.saturating_add(Duration::from_millis(millis));
    cursor.word()?;
    request.forwarded_for = clear_absent(block, cursor.quoted()?);
    request.user_agent = clear_absent(block, cursor.quoted()?);
    request.request_id = clear_absent(block, cursor.quoted()?);
    request.host = clear_absent(block, cursor.quoted()?);
    Some(request_text)
}

/// Parses a status code; 0 stands for no response.
pub(super) fn status(text: &[u8]) -> Option<u16> {
    u16::try_from(number(text)?).ok().filter(|status| *status < 1000)
}
