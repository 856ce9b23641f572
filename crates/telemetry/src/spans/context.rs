//! Trace context headers: W3C Trace Context, and B3 in one header or in several.
//!
//! If a request has both, W3C takes precedence. Malformed headers count as absent, as both specifications require:
//! <https://www.w3.org/TR/trace-context/>, <https://github.com/openzipkin/b3-propagation>.

use http::{HeaderMap, HeaderName, HeaderValue};

use weir_limiter::percent::Percent;

/// Name of the header with the trace context (W3C).
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const B3: HeaderName = HeaderName::from_static("b3");
const B3_TRACE: HeaderName = HeaderName::from_static("x-b3-traceid");
const B3_SPAN: HeaderName = HeaderName::from_static("x-b3-spanid");
const B3_PARENT: HeaderName = HeaderName::from_static("x-b3-parentspanid");
const B3_SAMPLED: HeaderName = HeaderName::from_static("x-b3-sampled");
const B3_FLAGS: HeaderName = HeaderName::from_static("x-b3-flags");

/// Length of a `traceparent`, in bytes.
const TRACEPARENT_LENGTH: usize = 55;
/// W3C flag: the trace is sampled.
const SAMPLED: u8 = 1;
/// W3C flags that are passed on: sampled, and random trace ID.
const KNOWN_FLAGS: u8 = 3;

/// Trace context of an incoming request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IncomingTrace {
    trace_id: Option<u128>,
    parent_span_id: Option<u64>,
    /// Sampling decision; `None` if it is left to this hop.
    sampling_decision: Option<bool>,
    flags: u8,
    is_w3c: bool,
    b3_format: Option<B3Format>,
}

/// Form of B3 headers, the same for the forwarded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum B3Format {
    /// One header.
    Single,
    /// Several headers.
    Multi,
}

/// Trace context of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// What the request's headers say; `None` if it has no headers of a trace, so that this context starts one. Boxed,
    /// because most requests have none.
    incoming: Option<Box<IncomingTrace>>,
    /// Trace ID.
    pub trace_id: u128,
    pub(super) span_id: u64,
    /// Whether the request gets a span.
    pub is_sampled: bool,
    pub(super) tracestate: Option<Box<str>>,
}

impl IncomingTrace {
    /// Reads the trace context and `tracestate` from `headers`.
    pub fn from_headers(headers: &HeaderMap) -> (Self, Option<Box<str>>) {
        let b3 = Self::from_single_b3(headers).or_else(|| Self::from_multi_b3(headers));
        let Some(w3c) = single_value(headers, &TRACEPARENT).and_then(parse_traceparent) else {
            return (b3.unwrap_or_default(), None);
        };
        let state =
            headers.get_all(TRACESTATE).iter().map(HeaderValue::to_str).collect::<Result<Vec<_>, _>>();
        let state = state.ok().filter(|lines| !lines.is_empty()).map(|lines| lines.join(",").into());
        (Self { b3_format: b3.and_then(|b3| b3.b3_format), ..w3c }, state)
    }

    /// Reads `b3: TRACE-SPAN-DECISION-PARENT`, of which the last two may be absent, or a decision alone.
    fn from_single_b3(headers: &HeaderMap) -> Option<Self> {
        let text = single_value(headers, &B3)?;
        let empty = Self { b3_format: Some(B3Format::Single), ..Self::default() };
        if let Some(decision) = parse_sampling_decision(text) {
            return Some(Self { sampling_decision: Some(decision), ..empty });
        }
        let mut parts = text.split('-');
        let (trace, span) = (parse_trace_id(parts.next()?)?, parse_span_id(parts.next()?)?);
        let decision = match parts.next() {
            Some(text) => Some(parse_sampling_decision(text)?),
            None => None,
        };
        if parts.next().is_some_and(|parent| parse_span_id(parent).is_none()) || parts.next().is_some() {
            return None;
        }
        Some(Self { trace_id: Some(trace), parent_span_id: Some(span), sampling_decision: decision, ..empty })
    }

    fn from_multi_b3(headers: &HeaderMap) -> Option<Self> {
        let is_debug = single_value(headers, &B3_FLAGS) == Some("1");
        let decision = if is_debug {
            Some(true)
        } else {
            single_value(headers, &B3_SAMPLED).and_then(parse_sampling_decision)
        };
        let ids = single_value(headers, &B3_TRACE)
            .and_then(parse_trace_id)
            .zip(single_value(headers, &B3_SPAN).and_then(parse_span_id));
        if ids.is_none() && decision.is_none() {
            return None;
        }
        let (trace, parent) = ids.unzip();
        Some(Self {
            trace_id: trace,
            parent_span_id: parent,
            sampling_decision: decision,
            b3_format: Some(B3Format::Multi),
            ..Self::default()
        })
    }
}

impl TraceContext {
    /// Creates the context after `incoming`; `None` if it was decided not to sample.
    pub fn new(
        incoming: IncomingTrace,
        tracestate: Option<Box<str>>,
        sampling_ratio: Percent,
        random_trace: u128,
        random_span: u64,
    ) -> Option<Self> {
        if incoming.sampling_decision == Some(false) {
            return None;
        }
        // An ID of zero is invalid.
        let (trace, span) = (incoming.trace_id.unwrap_or(random_trace).max(1), random_span.max(1));
        let is_sampled = incoming.sampling_decision.unwrap_or_else(|| is_in_sample(trace, sampling_ratio));
        Some(Self {
            incoming: Some(Box::new(incoming)),
            trace_id: trace,
            span_id: span,
            is_sampled,
            tracestate,
        })
    }

    /// Creates the context of a request without headers of a trace.
    pub fn start(sampling_ratio: Percent, random_trace: u128, random_span: u64) -> Self {
        let (trace_id, span_id) = (random_trace.max(1), random_span.max(1));
        let is_sampled = is_in_sample(trace_id, sampling_ratio);
        Self { incoming: None, trace_id, span_id, is_sampled, tracestate: None }
    }

    /// Returns the ID of the parent span.
    pub fn parent_span_id(&self) -> Option<u64> {
        self.incoming.as_ref()?.parent_span_id
    }

    /// Whether the request has no headers of a trace, so that `traceparent` is all that the upstream needs.
    pub const fn starts_trace(&self) -> bool {
        self.incoming.is_none()
    }

    /// Returns the value of `traceparent` for the upstream.
    pub fn traceparent(&self) -> [u8; TRACEPARENT_LENGTH] {
        let flags = self.incoming.as_ref().map_or(0, |incoming| incoming.flags);
        let flags = flags & KNOWN_FLAGS & !SAMPLED | u8::from(self.is_sampled);
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        text[3..19].copy_from_slice(&hex_digits((self.trace_id >> 64) as u64));
        text[19..35].copy_from_slice(&hex_digits(self.trace_id as u64));
        text[36..52].copy_from_slice(&hex_digits(self.span_id));
        text[54] = b'0' + flags;
        text
    }

    /// Replaces the trace context in `headers` by this span's: W3C always, B3 in the form that the request had.
    pub fn write_headers(&self, headers: &mut HeaderMap) {
        let Self { trace_id: trace, span_id: span, is_sampled: sampled, .. } = self;
        let incoming = self.incoming.as_deref().cloned().unwrap_or_default();
        if let Ok(value) = HeaderValue::from_bytes(&self.traceparent()) {
            headers.insert(TRACEPARENT, value);
        }
        if !incoming.is_w3c {
            // It belongs to another trace or to none (W3C Trace Context, section 3.3.1).
            headers.remove(TRACESTATE);
        }
        let decision = u8::from(*sampled);
        match incoming.b3_format {
            None => {}
            Some(B3Format::Single) => {
                let parent =
                    incoming.parent_span_id.map_or_else(String::new, |parent| format!("-{parent:016x}"));
                insert(headers, B3, &format!("{trace:032x}-{span:016x}-{decision}{parent}"));
            }
            Some(B3Format::Multi) => {
                insert(headers, B3_TRACE, &format!("{trace:032x}"));
                insert(headers, B3_SPAN, &format!("{span:016x}"));
                // The debug flag implies sampling, and excludes `x-b3-sampled`.
                if !headers.contains_key(B3_FLAGS) {
                    insert(headers, B3_SAMPLED, &decision.to_string());
                }
                match incoming.parent_span_id {
                    Some(parent) => insert(headers, B3_PARENT, &format!("{parent:016x}")),
                    None => drop(headers.remove(B3_PARENT)),
                }
            }
        }
    }
}

/// An odd multiplier that spreads small differences over all bits (Knuth's multiplicative hashing), because some
/// systems generate trace IDs that are not fully random.
const HASH_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Whether a new trace is sampled. Derived from its ID, so that all hops with this method make the same decision.
fn is_in_sample(trace: u128, ratio: Percent) -> bool {
    ratio.includes((trace as u64).wrapping_mul(HASH_MULTIPLIER))
}

/// Returns a number as 16 hexadecimal digits.
fn hex_digits(number: u64) -> [u8; 16] {
    let mut text = [0; 16];
    for (digits, half) in text.chunks_exact_mut(8).zip([number >> 32, number & 0xffff_ffff]) {
        // One digit in each byte.
        let half = (half | half << 16) & 0x0000_ffff_0000_ffff;
        let half = (half | half << 8) & 0x00ff_00ff_00ff_00ff;
        let half = (half | half << 4) & 0x0f0f_0f0f_0f0f_0f0f;
        // One in each byte whose digit is a letter: with 6 more it exceeds four bits.
        let letters = ((half + 0x0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101;
        let text = half + 0x3030_3030_3030_3030 + letters * u64::from(b'a' - b'9' - 1);
        digits.copy_from_slice(&text.to_be_bytes());
    }
    text
}

/// Whether a request has headers of a trace, valid or not. Names that only resemble them may count.
pub(super) fn has_trace_headers(headers: &HeaderMap) -> bool {
    headers
        .keys()
        .map(HeaderName::as_str)
        .any(|name| name.starts_with("trace") || name.starts_with("x-b3-") || name == B3.as_str())
}

fn insert(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}

/// Returns the value of a header; `None` if there are several.
fn single_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let (value, another) = (values.next()?, values.next());
    value.to_str().ok().map(str::trim).filter(|_| another.is_none())
}

/// Parses `00-TRACE-PARENT-FLAGS`. Later versions may append further fields.
fn parse_traceparent(text: &str) -> Option<IncomingTrace> {
    let (known, rest) = text.split_at_checked(55)?;
    let mut parts = known.split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let has_valid_lengths = [version.len(), trace.len(), parent.len(), flags.len()] == [2, 32, 16, 2];
    let has_valid_remainder =
        if version == "00" { rest.is_empty() } else { rest.is_empty() || rest.starts_with('-') };
    if !has_valid_lengths
        || !has_valid_remainder
        || version == "ff"
        || !is_lower_hex(version)
        || !is_lower_hex(known)
    {
        return None;
    }
    let flags = u8::from_str_radix(flags, 16).ok()?;
    Some(IncomingTrace {
        trace_id: Some(parse_trace_id(trace)?),
        parent_span_id: Some(parse_span_id(parent)?),
        sampling_decision: Some(flags & SAMPLED == SAMPLED),
        flags,
        is_w3c: true,
        ..IncomingTrace::default()
    })
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'))
}

/// Parses a trace ID: 32 hexadecimal digits, or 16 in B3, not all zero.
fn parse_trace_id(text: &str) -> Option<u128> {
    let is_hex = matches!(text.len(), 16 | 32) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u128::from_str_radix(text, 16).ok().filter(|number| is_hex && *number != 0)
}

/// Parses a span ID: 16 hexadecimal digits, not all zero.
fn parse_span_id(text: &str) -> Option<u64> {
    let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|number| is_hex && *number != 0)
}

/// Parses a B3 sampling decision; older senders use words.
fn parse_sampling_decision(text: &str) -> Option<bool> {
    match text {
        "1" | "d" | "true" | "True" => Some(true),
        "0" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
