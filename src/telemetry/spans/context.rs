//! The fields that lead a trace from service to service: W3C Trace Context, and B3 in one field or in several.
//!
//! Of a request that has both, W3C's count. What does not follow the grammar is as good as absent, as both
//! descriptions have it: <https://www.w3.org/TR/trace-context/>, <https://github.com/openzipkin/b3-propagation>.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::limiter::percent::Percent;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const B3: HeaderName = HeaderName::from_static("b3");
const B3_TRACE: HeaderName = HeaderName::from_static("x-b3-traceid");
const B3_SPAN: HeaderName = HeaderName::from_static("x-b3-spanid");
const B3_PARENT: HeaderName = HeaderName::from_static("x-b3-parentspanid");
const B3_SAMPLED: HeaderName = HeaderName::from_static("x-b3-sampled");
const B3_FLAGS: HeaderName = HeaderName::from_static("x-b3-flags");

/// The flag that says that the trace is kept.
const SAMPLED: u8 = 1;
/// Flags of W3C that we know and pass on: sampled, and that the trace's number is random.
const KNOWN_FLAGS: u8 = 3;

/// What the fields of a request say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Incoming {
    trace: Option<u128>,
    parent: Option<u64>,
    /// Whether the trace is kept; `None` where that is left to us.
    decision: Option<bool>,
    flags: u8,
    w3c: bool,
    b3: Option<Form>,
}

/// How B3 came, and is to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// In one field.
    Single,
    /// In several.
    Several,
}

/// The place of one request in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    incoming: Incoming,
    /// The trace.
    pub trace: u128,
    pub(super) span: u64,
    /// Whether the request has a span.
    pub sampled: bool,
    pub(super) tracestate: Option<Box<str>>,
}

impl Incoming {
    /// What `headers` say.
    pub fn of(headers: &HeaderMap) -> (Self, Option<Box<str>>) {
        let b3 = Self::single(headers).or_else(|| Self::several(headers));
        let Some(w3c) = only(headers, &TRACEPARENT).and_then(traceparent) else {
            return (b3.unwrap_or_default(), None);
        };
        let state =
            headers.get_all(TRACESTATE).iter().map(HeaderValue::to_str).collect::<Result<Vec<_>, _>>();
        let state = state.ok().filter(|lines| !lines.is_empty()).map(|lines| lines.join(",").into());
        (Self { b3: b3.and_then(|b3| b3.b3), ..w3c }, state)
    }

    /// `b3: TRACE-SPAN-DECISION-PARENT`, of which the last two may be absent, or the decision alone.
    fn single(headers: &HeaderMap) -> Option<Self> {
        let text = only(headers, &B3)?;
        let form = Self { b3: Some(Form::Single), ..Self::default() };
        if let Some(decision) = decision(text) {
            return Some(Self { decision: Some(decision), ..form });
        }
        let mut parts = text.split('-');
        let (trace, span) = (trace_of(parts.next()?)?, span_of(parts.next()?)?);
        let decision = match parts.next() {
            Some(text) => Some(decision(text)?),
            None => None,
        };
        if parts.next().is_some_and(|parent| span_of(parent).is_none()) || parts.next().is_some() {
            return None;
        }
        Some(Self { trace: Some(trace), parent: Some(span), decision, ..form })
    }

    fn several(headers: &HeaderMap) -> Option<Self> {
        let is_debug = only(headers, &B3_FLAGS) == Some("1");
        let decision = if is_debug { Some(true) } else { only(headers, &B3_SAMPLED).and_then(decision) };
        let ids = only(headers, &B3_TRACE).and_then(trace_of).zip(only(headers, &B3_SPAN).and_then(span_of));
        if ids.is_none() && decision.is_none() {
            return None;
        }
        let (trace, parent) = ids.unzip();
        Some(Self { trace, parent, decision, b3: Some(Form::Several), ..Self::default() })
    }
}

impl Context {
    /// The place after `incoming`; `None` where it has been decided that there is no span.
    pub fn new(
        (incoming, tracestate): (Incoming, Option<Box<str>>),
        share: Percent,
        (random_trace, random_span): (u128, u64),
    ) -> Option<Self> {
        if incoming.decision == Some(false) {
            return None;
        }
        // Neither may be zero.
        let (trace, span) = (incoming.trace.unwrap_or(random_trace).max(1), random_span.max(1));
        // By the trace's number, so that whoever else has to decide about it and goes by that decides alike.
        let sampled =
            incoming.decision.unwrap_or_else(|| share.includes((trace as u64).wrapping_mul(SPREAD)));
        Some(Self { incoming, trace, span, sampled, tracestate })
    }

    /// The span before ours.
    pub const fn parent(&self) -> Option<u64> {
        self.incoming.parent
    }

    /// Has `headers` lead from our span: by W3C's fields, and by those of B3 where a request had those.
    pub fn write(&self, headers: &mut HeaderMap) {
        let Self { trace, span, sampled, incoming, .. } = self;
        let flags = incoming.flags & KNOWN_FLAGS & !SAMPLED | u8::from(*sampled);
        insert(headers, TRACEPARENT, &format!("00-{trace:032x}-{span:016x}-{flags:02x}"));
        if !incoming.w3c {
            // It speaks of another trace, or of none (W3C Trace Context, section 3.3.1).
            headers.remove(TRACESTATE);
        }
        let decision = u8::from(*sampled);
        match incoming.b3 {
            None => {}
            Some(Form::Single) => {
                let parent = incoming.parent.map_or_else(String::new, |parent| format!("-{parent:016x}"));
                insert(headers, B3, &format!("{trace:032x}-{span:016x}-{decision}{parent}"));
            }
            Some(Form::Several) => {
                insert(headers, B3_TRACE, &format!("{trace:032x}"));
                insert(headers, B3_SPAN, &format!("{span:016x}"));
                // A debugged trace is kept by its flag, and then has no other decision.
                if !headers.contains_key(B3_FLAGS) {
                    insert(headers, B3_SAMPLED, &decision.to_string());
                }
                match incoming.parent {
                    Some(parent) => insert(headers, B3_PARENT, &format!("{parent:016x}")),
                    None => drop(headers.remove(B3_PARENT)),
                }
            }
        }
    }
}

/// An odd number that spreads small differences over all bits (Knuth's multiplicative hashing): not everybody's
/// numbers of traces are random in all of them.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

fn insert(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}

/// The one value of a field; `None` where there are several.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let (value, another) = (values.next()?, values.next());
    value.to_str().ok().map(str::trim).filter(|_| another.is_none())
}

/// `00-TRACE-PARENT-FLAGS`; later versions may go on behind that.
fn traceparent(text: &str) -> Option<Incoming> {
    let (known, rest) = text.split_at_checked(55)?;
    let mut parts = known.split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_right = [version.len(), trace.len(), parent.len(), flags.len()] == [2, 32, 16, 2];
    let goes_on = if version == "00" { rest.is_empty() } else { rest.is_empty() || rest.starts_with('-') };
    if !is_right || !goes_on || version == "ff" || !is_lower(version) || !is_lower(known) {
        return None;
    }
    let flags = u8::from_str_radix(flags, 16).ok()?;
    Some(Incoming {
        trace: Some(trace_of(trace)?),
        parent: Some(span_of(parent)?),
        decision: Some(flags & SAMPLED == SAMPLED),
        flags,
        w3c: true,
        b3: None,
    })
}

fn is_lower(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'))
}

/// 32 hexadecimal digits, or in B3 16, not all of them zero.
fn trace_of(text: &str) -> Option<u128> {
    let fits = matches!(text.len(), 16 | 32) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u128::from_str_radix(text, 16).ok().filter(|number| fits && *number != 0)
}

/// 16 hexadecimal digits, not all of them zero.
fn span_of(text: &str) -> Option<u64> {
    let fits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|number| fits && *number != 0)
}

/// B3's; older senders write words.
fn decision(text: &str) -> Option<bool> {
    match text {
        "1" | "d" | "true" | "True" => Some(true),
        "0" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
