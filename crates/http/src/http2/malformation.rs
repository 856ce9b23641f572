//! What is wrong with a malformed message (RFC 9113 section 8.1.1), and counts of streams that were reset for it.

/// What is wrong with a stream that is reset because its peer has violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Malformation {
    /// Name of a field: not a token in lower case.
    FieldName,
    /// Value of a field: a character that is not allowed.
    FieldValue,
    /// A pseudo-header is unknown, missing, repeated, or after another field.
    PseudoHeaders,
    /// Value of `:method`.
    Method,
    /// Value of `:scheme`.
    Scheme,
    /// Value of `:authority`.
    Authority,
    /// Value of `:path`.
    Path,
    /// Value of `:protocol`, or a protocol that was not offered.
    Protocol,
    /// Value of `:status`, or an interim response that ends the stream.
    Status,
    /// A field of connections, such as `connection` or `transfer-encoding`.
    ConnectionField,
    /// `content-length` is not a number, or not the length of the content.
    ContentLength,
    /// Trailers that do not end the stream.
    Trailers,
    /// DATA before the head of the response.
    Data,
    /// A frame on a stream whose peer has ended it.
    StreamClosed,
    /// More data than the window, or a window that is too large.
    FlowControl,
    /// PRIORITY of a wrong size, or a stream that depends on itself.
    Priority,
    /// A header section that is larger than the maximum. A request gets 431.
    HeaderSize,
}

impl Malformation {
    /// All values, in their order.
    pub const ALL: [Self; 17] = [
        Self::FieldName,
        Self::FieldValue,
        Self::PseudoHeaders,
        Self::Method,
        Self::Scheme,
        Self::Authority,
        Self::Path,
        Self::Protocol,
        Self::Status,
        Self::ConnectionField,
        Self::ContentLength,
        Self::Trailers,
        Self::Data,
        Self::StreamClosed,
        Self::FlowControl,
        Self::Priority,
        Self::HeaderSize,
    ];

    /// Returns its name in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FieldName => "field_name",
            Self::FieldValue => "field_value",
            Self::PseudoHeaders => "pseudo_headers",
            Self::Method => "method",
            Self::Scheme => "scheme",
            Self::Authority => "authority",
            Self::Path => "path",
            Self::Protocol => "protocol",
            Self::Status => "status",
            Self::ConnectionField => "connection_field",
            Self::ContentLength => "content_length",
            Self::Trailers => "trailers",
            Self::Data => "data",
            Self::StreamClosed => "stream_closed",
            Self::FlowControl => "flow_control",
            Self::Priority => "priority",
            Self::HeaderSize => "header_size",
        }
    }
}

/// Streams of a connection that were reset as malformed, or rejected with 431, and that its owner has not counted yet.
#[derive(Debug, Default)]
pub struct MalformedStreams {
    /// At most one entry for each value. Without memory while there are none.
    counts: Vec<(Malformation, u32)>,
}

impl MalformedStreams {
    /// Counts a stream.
    pub fn record(&mut self, what: Malformation) {
        match self.counts.iter_mut().find(|(counted, _)| *counted == what) {
            Some((_, count)) => *count = count.saturating_add(1),
            None => self.counts.push((what, 1)),
        }
    }

    /// Returns the streams since the last call, by what was wrong with them; `None` if there are none.
    pub(super) fn take(&mut self) -> Option<Self> {
        (!self.counts.is_empty()).then(|| std::mem::take(self))
    }

    /// Returns the number of streams for each value that has occurred.
    pub fn counts(&self) -> impl Iterator<Item = (Malformation, u32)> {
        self.counts.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_counted_by_what_was_wrong_with_them() {
        let mut streams = MalformedStreams::default();
        assert!(streams.take().is_none());
        for what in [Malformation::Path, Malformation::Trailers, Malformation::Path] {
            streams.record(what);
        }
        let taken: Vec<_> = streams.take().unwrap().counts().collect();
        assert_eq!(taken, [(Malformation::Path, 2), (Malformation::Trailers, 1)]);
        assert!(streams.take().is_none(), "each is taken once");
    }

    #[test]
    fn every_value_has_its_place_and_a_name_of_its_own() {
        for (index, what) in Malformation::ALL.into_iter().enumerate() {
            assert_eq!(what as usize, index);
            let same = Malformation::ALL.iter().filter(|other| other.as_str() == what.as_str());
            assert_eq!(same.count(), 1, "{what:?}");
        }
    }
}
