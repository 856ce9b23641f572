//! Replies of the scripts.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;

use super::status::{DeadLetter, DeferredRuleStatus};
use super::stream::AppendOutcome;
use crate::redis::Value;

/// Time of the store, in microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StreamTime(pub(super) u64);

/// Calls that this instance has taken from a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// Position from which to inspect the calls of other consumers next; `None` if none were inspected.
    pub(super) inspected: Option<Box<str>>,
    /// Number of calls claimed from other consumers.
    pub(super) claimed: u64,
    /// Time until the next retry is due; `None` if none is waiting.
    pub(super) next_retry: Option<Duration>,
    pub(super) calls: Vec<TakenCall>,
}

/// A call that this instance has taken from a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TakenCall {
    /// ID of the entry.
    pub(super) id: Box<str>,
    /// Time since it was appended.
    pub(super) age: Duration,
    /// Failed attempts to send it.
    pub(super) attempts: u32,
    /// The encoded call.
    pub(super) text: Bytes,
}

/// Calls that this instance has taken, and that the store does not count as its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NotHeld {
    /// Calls that another instance has claimed, or that wait to be taken again.
    pub(super) lost: BTreeSet<Box<str>>,
    /// Calls that are not stored any more.
    pub(super) missing: BTreeSet<Box<str>>,
}

impl StreamTime {
    /// Returns the time since the entry with this ID was appended.
    pub(super) fn since_entry(self, id: &str) -> Option<Duration> {
        let millis: u64 = id.split_once('-')?.0.parse().ok()?;
        Some(Duration::from_micros(self.0).saturating_sub(Duration::from_millis(millis)))
    }
}

pub(super) fn append_reply(reply: Value) -> Option<(StreamTime, AppendOutcome)> {
    let [now, outcome] = array(reply)?.try_into().ok()?;
    let outcome = match &*text(outcome)? {
        "stored" => AppendOutcome::Stored,
        "full" => AppendOutcome::Full,
        "late" => AppendOutcome::Late,
        _ => return None,
    };
    Some((StreamTime(unsigned(&now)?), outcome))
}

pub(super) fn taken(reply: Value) -> Option<Taken> {
    let [now, inspected, claimed, next_retry, calls] = array(reply)?.try_into().ok()?;
    let now = StreamTime(unsigned(&now)?.saturating_mul(1000));
    let calls = array(calls)?.into_iter().map(|call| taken_call(call, now));
    Some(Taken {
        inspected: Some(text(inspected)?).filter(|position| !position.is_empty()).map(Into::into),
        claimed: unsigned(&claimed)?,
        next_retry: unsigned(&next_retry).map(Duration::from_millis),
        calls: calls.collect::<Option<_>>()?,
    })
}

fn taken_call(call: Value, now: StreamTime) -> Option<TakenCall> {
    let [id, attempts, Value::BulkString(encoded)] = <[Value; 3]>::try_from(array(call)?).ok()? else {
        return None;
    };
    let id = text(id)?;
    Some(TakenCall {
        age: now.since_entry(&id)?,
        id: id.into(),
        attempts: u32::try_from(unsigned(&attempts)?).unwrap_or(u32::MAX),
        text: encoded.into(),
    })
}

pub(super) fn status(reply: Value, rule: &str) -> Option<(StreamTime, DeferredRuleStatus)> {
    let [now, stored, held, retrying, dead, oldest, letters] = array(reply)?.try_into().ok()?;
    let now = StreamTime(unsigned(&now)?);
    let status = DeferredRuleStatus {
        rule: rule.into(),
        is_configured: true,
        stored: unsigned(&stored)?,
        held: unsigned(&held)?,
        retrying: unsigned(&retrying)?,
        oldest_age: now.since_entry(&text(oldest)?),
        dead: unsigned(&dead)?,
        dead_letters: array(letters)?.into_iter().map(dead_letter).collect::<Option<_>>()?,
    };
    Some((now, status))
}

fn dead_letter(letter: Value) -> Option<DeadLetter> {
    let [id, reason, attempts, status, Value::BulkString(call)] =
        <[Value; 5]>::try_from(array(letter)?).ok()?
    else {
        return None;
    };
    let call = String::from_utf8_lossy(&call);
    let call_id = call.lines().find_map(|line| u128::from_str_radix(line.strip_prefix("id: ")?, 16).ok());
    Some(DeadLetter {
        entry: text(id)?.into(),
        call: call_id.map(super::call::format_id).unwrap_or_default().into(),
        reason: text(reason)?.into(),
        attempts: text(attempts)?.parse().unwrap_or_default(),
        status: text(status)?.parse().ok(),
    })
}

pub(super) fn not_held(reply: Value) -> Option<NotHeld> {
    let [lost, missing] = array(reply)?.try_into().ok()?;
    Some(NotHeld { lost: names(lost)?.into_iter().collect(), missing: names(missing)?.into_iter().collect() })
}

pub(super) fn names(reply: Value) -> Option<Vec<Box<str>>> {
    array(reply)?.into_iter().map(|name| Some(text(name)?.into())).collect()
}

fn array(value: Value) -> Option<Vec<Value>> {
    if let Value::Array(values) = value { Some(values) } else { None }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

fn unsigned(value: &Value) -> Option<u64> {
    if let Value::Int(number) = value { u64::try_from(*number).ok() } else { None }
}
