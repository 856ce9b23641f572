//! How questions and grants are written in a call of the store's script.

use std::fmt::Write as _;
use std::time::Duration;

use crate::limiter::claims::{Grant, Kind, Question, SharedCounter};
use crate::limiter::quota::Ban;
use crate::limiter::timestamp::Timestamp;

/// What the store runs.
pub const SCRIPT: &str = include_str!("script.lua");

/// Version of the keys and of what they hold. Another version counts for itself.
const VERSION: u32 = 1;

/// Counters are spread over so many groups: the keys of one are in one slot of a cluster, and go into one call.
pub const GROUPS: u16 = 16;

/// The group of a counter.
pub fn group(counter: SharedCounter) -> u16 {
    (counter.name() % u128::from(GROUPS)) as u16
}

/// The key of a group's generation.
pub fn generation_key(prefix: &str, group: u16) -> String {
    format!("{prefix}:{VERSION}:{{{prefix}.{group}}}:generation")
}

/// The key of a counter.
pub fn counter_key(prefix: &str, counter: SharedCounter) -> String {
    format!("{prefix}:{VERSION}:{{{prefix}.{}}}:{:032x}", group(counter), counter.name())
}

/// The key of the bans that are remembered beside a counter.
pub fn ban_key(prefix: &str, counter: SharedCounter) -> String {
    format!("{}:ban", counter_key(prefix, counter))
}

/// A question about a ban as the script reads it. One that `began` so long ago begins there, unless one runs.
pub fn encode_ban(Ban { first, most }: Ban, began: Option<Duration>) -> String {
    let ago = began.map_or_else(|| "-1".to_owned(), |ago| micros(ago).to_string());
    format!("x {} {} {ago}", micros(first), micros(most))
}

/// The keys of the fleet's secret and of its instances.
pub fn fleet_keys(prefix: &str) -> [String; 2] {
    ["secret", "instances"].map(|name| format!("{prefix}:{VERSION}:{{{prefix}.fleet}}:{name}"))
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// A number of its own.
    pub instance: u32,
    /// Its weight under contention.
    pub weight: f64,
    /// How far the store's clock is ahead of the time of limits, in nanoseconds.
    pub ahead: i64,
}

/// A question as the script reads it.
pub fn encode(question: &Question, asker: Asker, now: Timestamp) -> String {
    let Question { sharing, needed, wanted, demanded, owed, .. } = *question;
    let (returned, granted_at) = question.returned;
    let [valid, elapsed, period] = [question.valid, question.elapsed, question.period].map(micros);
    let (priority, fair, weight) = (sharing.priority, u8::from(sharing.is_max_min), asker.weight);
    let demand = format!("{needed} {wanted} {demanded} {elapsed} {returned} {granted_at} {owed} {period}");
    match question.kind {
        Kind::Bucket { interval, burst } => {
            format!("b {interval} {burst} {valid} {priority} {fair} {weight} {demand}")
        }
        Kind::Window { count, quota } => {
            let mut text = format!("w {count} {valid} {priority} {weight} {demand}");
            let there = offset(now, asker.ahead);
            for mark in Question::marks(&quota, there) {
                // The last mark of all is beyond what a double can tell apart.
                let _ = write!(text, " {}", (mark.as_nanos() / 1000).min(1 << 52));
            }
            text
        }
        Kind::Sliding { count, length, parts } => {
            format!("s {count} {} {parts} {valid} {priority} {weight} {demand}", micros(length))
        }
        Kind::Refill { count, every, burst } => {
            format!("r {count} {} {burst} {valid} {priority} {weight} {demand}", micros(every))
        }
        Kind::Permits { count, used, held } => {
            let (instance, sent) = (asker.instance, now.as_nanos() / 1000);
            format!("p {count} {valid} {instance} {used} {wanted} {held} {sent}")
        }
    }
}

/// What the script has replied to one question, at this time of the store's in microseconds; `None` where that cannot be.
pub fn decode(reply: &[i64], at: u64) -> Option<Grant> {
    let &[granted, valid, wait, spread, pause, remaining] = reply else { return None };
    let micros = |number: i64| Some(Duration::from_micros(u64::try_from(number).ok()?));
    Some(Grant {
        granted: u32::try_from(granted).ok()?,
        valid: micros(valid)?,
        at,
        wait: micros(wait)?,
        spread: micros(spread)?,
        pause: micros(pause)?,
        remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
    })
}

fn offset(now: Timestamp, ahead: i64) -> Timestamp {
    Timestamp::from_nanos(now.as_nanos().saturating_add_signed(ahead))
}

fn micros(duration: Duration) -> u128 {
    duration.as_micros()
}
