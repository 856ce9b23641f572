//! Streams of deferred calls in the store: keys, scripts and their replies.
//!
//! All keys of a rule are in one slot of a Redis Cluster. Each operation is one script, so it happens as a whole or not at
//! all.

use std::time::Duration;

use super::parse::{self, NotHeld, StreamTime, Taken};
use super::status::DeferredRuleStatus;
use crate::redis::{CallError, RedisClient, Script, ScriptCall, Value};
use crate::settings::StoreSettings;
use weir_policy::rules::deferral::Deferral;
use weir_telemetry::metrics::DeadReason;

/// Version of the keys. Instances with different versions use different streams.
const VERSION: u32 = 1;
/// Consumer group of all instances.
const GROUP: &str = "weir";
/// Time after which a call that its instance has not confirmed is claimed by another one.
pub(super) const CLAIM_AFTER: Duration = Duration::from_secs(5);
/// Maximum number of dead letters in a report.
const REPORTED_DEAD_LETTERS: usize = 10;
/// Maximum number of dead letters that one call moves back.
pub(super) const MAX_REQUEUED: usize = 1000;

/// A connection to the store for the streams of all rules.
#[derive(Debug)]
pub(super) struct CallStreams {
    client: RedisClient,
    prefix: Box<str>,
    consumer: Box<str>,
    scripts: Scripts,
}

#[derive(Debug)]
struct Scripts {
    append: Script,
    take: Script,
    settle: Script,
    keep: Script,
    status: Script,
    requeue: Script,
    registry: Script,
}

/// Result of appending a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AppendOutcome {
    /// The call is stored.
    Stored,
    /// The stream holds its maximum number of calls.
    Full,
    /// The store executed the call after the instance stopped waiting, and stored nothing.
    Late,
}

/// How an attempt to send a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallSettlement {
    /// It is removed.
    Sent,
    /// It is sent again after this pause; so many attempts have failed.
    Retry { pause: Duration, attempts: u32 },
    /// It goes to the dead-letter stream.
    Dead { reason: DeadReason, attempts: u32, status: Option<u16>, max_dead: u64 },
}

impl CallStreams {
    /// Creates a connection for which a call may take `timeout`. It connects on the first call.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub(super) fn new(
        settings: &StoreSettings,
        consumer: &str,
        timeout: Duration,
    ) -> Result<Self, rustls::Error> {
        let settings = StoreSettings { timeout, ..settings.clone() };
        Ok(Self {
            client: RedisClient::new(&settings, consumer)?,
            prefix: settings.prefix,
            consumer: consumer.into(),
            scripts: Scripts {
                append: Script::new(include_str!("append.lua")),
                take: Script::new(include_str!("take.lua")),
                settle: Script::new(include_str!("settle.lua")),
                keep: Script::new(include_str!("keep.lua")),
                status: Script::new(include_str!("status.lua")),
                requeue: Script::new(include_str!("requeue.lua")),
                registry: Script::new(include_str!("registry.lua")),
            },
        })
    }

    /// Appends an encoded call. Nothing is appended after `deadline`, in the time of the store.
    pub(super) async fn append(
        &self,
        rule: &str,
        call: Vec<u8>,
        deferral: &Deferral,
        deadline: Option<StreamTime>,
    ) -> Result<(StreamTime, AppendOutcome), CallError> {
        let deadline = deadline.map_or(0, |deadline| deadline.0);
        let args = [call, number(&deferral.max_stored), number(&deadline)];
        let reply = self.call(&self.scripts.append, &self.keys(rule, ["calls"]), &args).await?;
        parse::append_reply(reply).ok_or_else(malformed)
    }

    /// Takes at most `count` calls to be sent; none after the one with which they exceed `max_bytes`. `inspected` is the position from which the calls of other consumers are
    /// inspected.
    pub(super) async fn take(
        &self,
        rule: &str,
        count: usize,
        max_bytes: usize,
        inspected: Option<&str>,
    ) -> Result<Taken, CallError> {
        let args = [
            GROUP.as_bytes().to_vec(),
            self.consumer.as_bytes().to_vec(),
            number(&count),
            inspected.unwrap_or_default().as_bytes().to_vec(),
            number(&CLAIM_AFTER.as_millis()),
            number(&max_bytes),
        ];
        let keys = self.keys(rule, ["calls", "retries", "attempts"]);
        let reply = self.call(&self.scripts.take, &keys, &args).await?;
        parse::taken(reply).ok_or_else(malformed)
    }

    /// Settles a call after an attempt. Returns whether this instance still held it.
    pub(super) async fn settle(
        &self,
        rule: &str,
        id: &str,
        settlement: &CallSettlement,
    ) -> Result<bool, CallError> {
        let mut args = vec![
            GROUP.as_bytes().to_vec(),
            self.consumer.as_bytes().to_vec(),
            id.as_bytes().to_vec(),
            settlement.as_str().as_bytes().to_vec(),
        ];
        match settlement {
            CallSettlement::Sent => {}
            CallSettlement::Retry { pause, attempts } => {
                args.extend([number(&pause.as_millis()), number(attempts)]);
            }
            CallSettlement::Dead { reason, attempts, status, max_dead } => {
                let status = status.as_ref().map_or_else(Vec::new, number);
                args.extend([
                    reason.as_str().as_bytes().to_vec(),
                    number(attempts),
                    status,
                    number(max_dead),
                ]);
            }
        }
        let keys = self.keys(rule, ["calls", "retries", "attempts", "dead"]);
        let reply = self.call(&self.scripts.settle, &keys, &args).await?;
        Ok(reply == Value::Int(1))
    }

    /// Confirms that this instance holds calls, so that no other one claims them. Returns those that it does not hold.
    pub(super) async fn keep(
        &self,
        rule: &str,
        ids: impl Iterator<Item = &str>,
    ) -> Result<NotHeld, CallError> {
        let mut args = vec![GROUP.as_bytes().to_vec(), self.consumer.as_bytes().to_vec()];
        args.extend(ids.map(|id| id.as_bytes().to_vec()));
        if args.len() == 2 {
            return Ok(NotHeld::default());
        }
        let reply = self.call(&self.scripts.keep, &self.keys(rule, ["calls"]), &args).await?;
        parse::not_held(reply).ok_or_else(malformed)
    }

    /// Returns the state of a rule's calls, and the time of the store.
    pub(super) async fn status(&self, rule: &str) -> Result<(StreamTime, DeferredRuleStatus), CallError> {
        let args = [GROUP.as_bytes().to_vec(), number(&REPORTED_DEAD_LETTERS)];
        let keys = self.keys(rule, ["calls", "retries", "dead"]);
        let reply = self.call(&self.scripts.status, &keys, &args).await?;
        parse::status(reply, rule).ok_or_else(malformed)
    }

    /// Moves dead letters back to the calls: the one with this ID, or the oldest ones. Returns their number.
    pub(super) async fn requeue(&self, rule: &str, id: Option<&str>) -> Result<u64, CallError> {
        let [first, last] = [id.unwrap_or("-"), id.unwrap_or("+")].map(|id| id.as_bytes().to_vec());
        let args = [first, last, number(&MAX_REQUEUED)];
        let reply = self.call(&self.scripts.requeue, &self.keys(rule, ["calls", "dead"]), &args).await?;
        match reply {
            Value::Int(count) => u64::try_from(count).map_err(|_| malformed()),
            _ => Err(malformed()),
        }
    }

    /// Registers rules that store calls. Returns the names of all rules that ever did.
    pub(super) async fn register(&self, rules: &[Box<str>]) -> Result<Vec<Box<str>>, CallError> {
        let key = format!("{0}:{VERSION}:{{{0}.deferred}}:rules", self.prefix);
        let args: Vec<_> = rules.iter().map(|rule| rule.as_bytes().to_vec()).collect();
        let reply = self.call(&self.scripts.registry, &[key], &args).await?;
        parse::names(reply).ok_or_else(malformed)
    }

    async fn call(&self, script: &Script, keys: &[String], args: &[Vec<u8>]) -> Result<Value, CallError> {
        self.client.call(ScriptCall { script, keys, args }).await.map(|(value, _)| value)
    }

    fn keys<const N: usize>(&self, rule: &str, names: [&str; N]) -> [String; N] {
        let prefix = &self.prefix;
        names.map(|name| format!("{prefix}:{VERSION}:{{{prefix}.deferred.{rule}}}:{name}"))
    }
}

impl CallSettlement {
    const fn as_str(&self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Retry { .. } => "retry",
            Self::Dead { .. } => "dead",
        }
    }
}

fn number(number: &impl ToString) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn malformed() -> CallError {
    CallError::Other("malformed reply of a script for deferred calls".to_owned())
}
