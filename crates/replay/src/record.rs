//! One request as an access log recorded it: numbers, and positions of texts in the block of the log that holds it.

use std::ops::Range;

use weir_limiter::timestamp::Timestamp;
use weir_policy::identify::recorded::RecordedAddress;
use weir_policy::rules::cost::UpstreamFailure;

/// Position of a text in a block; also a text that the log lacks, or that the request did not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextSpan {
    start: u32,
    length: u32,
}

impl TextSpan {
    /// The log does not record this.
    pub(super) const UNRECORDED: Self = Self { start: 0, length: u32::MAX };
    /// The log records that the request did not have this.
    pub(super) const NONE: Self = Self { start: 0, length: u32::MAX - 1 };

    /// Returns the span of `range`. Blocks are far smaller than 4 GiB.
    #[inline]
    pub(super) fn new(range: Range<usize>) -> Self {
        Self { start: range.start as u32, length: range.len() as u32 }
    }

    /// Returns the positions, if there is a text.
    #[inline]
    pub(super) fn range(self) -> Option<Range<usize>> {
        let start = self.start as usize;
        (self.length < Self::NONE.length).then(|| start..start + self.length as usize)
    }

    /// Returns the text in `block`, if there is one.
    #[inline]
    pub(super) fn text(self, block: &[u8]) -> Option<&[u8]> {
        block.get(self.range()?)
    }

    /// Returns the byte of `block` at its beginning; 0 if there is none.
    #[inline]
    pub(super) fn first_byte(self, block: &[u8]) -> u8 {
        block.get(self.start as usize).copied().unwrap_or_default()
    }

    /// Whether the log records this, be it absent.
    #[inline]
    pub(super) fn is_recorded(self) -> bool {
        self != Self::UNRECORDED
    }
}

/// How the request ended, where the status code does not say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RecordedEnd {
    #[default]
    Response,
    /// With a local reply, because the upstream failed.
    Failure(UpstreamFailure),
    /// Without a response.
    Abandoned,
}

impl RecordedEnd {
    /// Returns the end of a request with these response flags of Envoy, such as `UF,URX`.
    pub(super) fn from_flags(flags: &[u8], status: u16) -> Self {
        let has = |flag: &[u8]| flags.split(|byte| *byte == b',').any(|one| one == flag);
        if flags.len() < 2 {
            return if status == 0 { Self::Abandoned } else { Self::Response };
        }
        match () {
            () if status == 0 || has(b"DC") => Self::Abandoned,
            () if has(b"UF") => Self::Failure(UpstreamFailure::Connect),
            () if has(b"UC") || has(b"UR") => Self::Failure(UpstreamFailure::Reset),
            () if has(b"UT") => Self::Failure(UpstreamFailure::Timeout),
            () if has(b"UPE") => Self::Failure(UpstreamFailure::Malformed),
            () => Self::Response,
        }
    }
}

/// A request of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoggedRequest {
    /// Arrival.
    pub(super) start: Timestamp,
    /// End of the response; the same as `start` if the log has no duration.
    pub(super) end: Timestamp,
    pub(super) address: RecordedAddress,
    /// Whether the address is all that `forwarded_for` contains.
    pub(super) is_only_hop: bool,
    pub(super) method: TextSpan,
    /// The request target, including the query.
    pub(super) target: TextSpan,
    pub(super) host: TextSpan,
    pub(super) forwarded_for: TextSpan,
    pub(super) user_agent: TextSpan,
    pub(super) referer: TextSpan,
    pub(super) request_id: TextSpan,
    /// Positions of further headers and of fields of bodies in the block's list.
    pub(super) values: (u32, u32),
    /// 0 if there was no response.
    pub(super) status: u16,
    pub(super) recorded_end: RecordedEnd,
    /// Bytes of the request body, if the log records them.
    pub(super) received: Option<u64>,
    /// Bytes of the response body.
    pub(super) sent: u64,
    /// Units that the response stated as its cost, such as tokens.
    pub(super) cost: Option<u32>,
}

impl LoggedRequest {
    /// A request of which nothing is recorded.
    pub(super) const EMPTY: Self = Self {
        start: Timestamp::EPOCH,
        end: Timestamp::EPOCH,
        address: RecordedAddress::Unknown,
        is_only_hop: false,
        method: TextSpan::UNRECORDED,
        target: TextSpan::UNRECORDED,
        host: TextSpan::UNRECORDED,
        forwarded_for: TextSpan::UNRECORDED,
        user_agent: TextSpan::UNRECORDED,
        referer: TextSpan::UNRECORDED,
        request_id: TextSpan::UNRECORDED,
        values: (0, 0),
        status: 0,
        recorded_end: RecordedEnd::Response,
        received: None,
        sent: 0,
        cost: None,
    };
}

/// A header of a request, beside those that have a field of their own, or a field of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoggedValue {
    /// Number in [`CollectedNames`](super::collected::CollectedNames).
    pub(super) name: u32,
    /// The text of a header. Of a field, the JSON as logged.
    pub(super) value: TextSpan,
}

/// Why a line gives no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineFault {
    /// It is not in the format.
    Unreadable,
    /// It is the record of something that was not a valid request, such as a failed TLS handshake.
    NoRequest,
}

/// Whole lines of a log, and the requests in them.
#[derive(Debug, Default)]
pub(super) struct ParsedBlock {
    pub(super) data: Vec<u8>,
    /// In the order of the log.
    pub(super) requests: Vec<LoggedRequest>,
    /// The line of each request.
    pub(super) lines: Vec<LinePlace>,
    pub(super) values: Vec<LoggedValue>,
    /// Arrival of each request and its index, in order of arrival.
    pub(super) order: Vec<(Timestamp, u32)>,
    pub(super) counts: LineCounts,
    /// The first unreadable lines, with their numbers from 1.
    pub(super) examples: Vec<UnreadableLine>,
    /// The first lines whose time cannot be right.
    pub(super) implausible: Vec<UnreadableLine>,
    /// Number of the first line in `data`, from 1.
    pub(super) first_line: u64,
    /// Latest end of a request.
    pub(super) last_end: Timestamp,
}

/// Where a line is in its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinePlace {
    /// Number of lines before it in the block.
    pub(super) number: u32,
    /// Position of its first byte.
    pub(super) start: u32,
}

/// Numbers of lines of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LineCounts {
    /// All lines.
    pub lines: u64,
    /// Lines that are not in the format, or too long.
    pub unreadable: u64,
    /// Lines that record something other than a valid request.
    pub no_request: u64,
    /// Requests that were set aside because their time is far ahead of the lines around them.
    pub implausible_time: u64,
}

impl LineCounts {
    pub(super) fn add(&mut self, other: Self) {
        self.lines = self.lines.saturating_add(other.lines);
        self.unreadable = self.unreadable.saturating_add(other.unreadable);
        self.no_request = self.no_request.saturating_add(other.no_request);
        self.implausible_time = self.implausible_time.saturating_add(other.implausible_time);
    }
}

/// A line that cannot be read, or whose time cannot be right.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct UnreadableLine {
    /// Number of the line, from 1.
    pub line: u64,
    /// Its beginning.
    pub text: String,
}

impl UnreadableLine {
    /// Bytes that are shown.
    const MAX_LENGTH: usize = 120;

    /// Returns the line with this number, which begins at the beginning of `rest`.
    pub(super) fn new(line: u64, rest: &[u8]) -> Self {
        let shown = &rest[..rest.len().min(Self::MAX_LENGTH)];
        let shown = shown.split(|byte| *byte == b'\n').next().unwrap_or_default();
        Self { line, text: String::from_utf8_lossy(shown).escape_debug().to_string() }
    }
}

impl ParsedBlock {
    /// Removes the contents except for the bytes, which will be overwritten, and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.requests.clear();
        self.lines.clear();
        self.values.clear();
        self.order.clear();
        self.examples.clear();
        self.implausible.clear();
        self.counts = LineCounts::default();
        self.last_end = Timestamp::EPOCH;
        self.first_line = 0;
    }

    /// Returns the memory of its lists, in bytes.
    pub(super) const fn memory(&self) -> usize {
        self.data.capacity()
            + self.requests.capacity() * size_of::<LoggedRequest>()
            + self.lines.capacity() * size_of::<LinePlace>()
            + self.values.capacity() * size_of::<LoggedValue>()
            + self.order.capacity() * size_of::<(Timestamp, u32)>()
    }

    /// Removes the requests at the ascending positions `implausible`, counts them, and shows the first `max_shown`.
    pub(super) fn set_aside(&mut self, implausible: &[usize], max_shown: usize) {
        let shown = implausible.iter().take(max_shown).filter_map(|index| self.lines.get(*index));
        self.implausible.extend(shown.map(|place| {
            let rest = self.data.get(place.start as usize..).unwrap_or_default();
            UnreadableLine::new(self.first_line + u64::from(place.number), rest)
        }));
        self.counts.implausible_time += implausible.len() as u64;
        let is_kept = |index: usize| implausible.binary_search(&index).is_err();
        let (mut request, mut line) = (0.., 0..);
        self.requests.retain(|_| request.next().is_none_or(is_kept));
        self.lines.retain(|_| line.next().is_none_or(is_kept));
        self.sort();
    }

    /// Sorts the requests by arrival. Those that arrived at the same time keep the order of the log.
    pub(super) fn sort(&mut self) {
        self.last_end = self.requests.iter().map(|request| request.end).max().unwrap_or_default();
        self.order.clear();
        self.order.extend(self.requests.iter().zip(0..).map(|(request, index)| (request.start, index)));
        if !self.order.is_sorted() {
            self.order.sort_unstable();
        }
    }

    /// Returns the further headers of `request`, and the fields of its bodies.
    pub(super) fn values_of(&self, request: &LoggedRequest) -> &[LoggedValue] {
        let (start, end) = request.values;
        self.values.get(start as usize..end as usize).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_distinguish_absent_from_unrecorded() {
        let block = b"a GET";
        assert_eq!(TextSpan::new(2..5).text(block), Some(&b"GET"[..]));
        assert_eq!(TextSpan::new(3..3).text(block), Some(&b""[..]));
        assert_eq!((TextSpan::NONE.text(block), TextSpan::UNRECORDED.text(block)), (None, None));
        assert!(TextSpan::NONE.is_recorded() && !TextSpan::UNRECORDED.is_recorded());
        assert_eq!(TextSpan::new(4..9).text(block), None);
    }

    #[test]
    fn response_flags_state_how_the_upstream_failed() {
        use UpstreamFailure::{Connect, Malformed, Reset, Timeout};
        for (flags, status, end) in [
            ("-", 200, RecordedEnd::Response),
            ("RL", 429, RecordedEnd::Response),
            ("UF,URX", 503, RecordedEnd::Failure(Connect)),
            ("UC", 503, RecordedEnd::Failure(Reset)),
            ("UT", 504, RecordedEnd::Failure(Timeout)),
            ("UPE", 502, RecordedEnd::Failure(Malformed)),
            ("DC", 200, RecordedEnd::Abandoned),
            ("-", 0, RecordedEnd::Abandoned),
        ] {
            assert_eq!(RecordedEnd::from_flags(flags.as_bytes(), status), end, "{flags} {status}");
        }
    }

    #[test]
    fn sorting_keeps_the_order_of_simultaneous_requests() {
        let at = |second| LoggedRequest {
            start: Timestamp::from_secs(second),
            end: Timestamp::from_secs(second + 2),
            ..LoggedRequest::EMPTY
        };
        let mut block = ParsedBlock { requests: vec![at(3), at(1), at(3), at(2)], ..ParsedBlock::default() };
        block.sort();
        assert_eq!(block.order.iter().map(|(_, index)| *index).collect::<Vec<_>>(), [1, 3, 0, 2]);
        assert_eq!(block.last_end, Timestamp::from_secs(5));
    }
}
