//! Calls of the scripts in the store. A reply without its form closes the connection, and is an error.

use std::time::Duration;

use crate::feedback;
use crate::protocol;
use crate::redis::{CallError, RedisClient, Script, ScriptCall, Value};
use crate::regions::calls::ErrandContext;
use crate::scheduler::{BatchReply, CounterCall, LeaseBatch};
use crate::settings::StoreSettings;
use weir_limiter::feedback::sharing::SharedKeyState;
use weir_limiter::leases::SharedCounter;

/// Client and scripts of the store.
pub(crate) struct StoreCalls {
    client: RedisClient,
    prefix: Box<str>,
    lease_script: Script,
    membership_script: Script,
    feedback_script: Script,
}

impl StoreCalls {
    /// Creates the client of an instance with this name.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub(super) fn new(settings: &StoreSettings, instance: &str) -> Result<Self, rustls::Error> {
        Ok(Self {
            client: RedisClient::new(settings, instance)?,
            prefix: settings.prefix.clone(),
            lease_script: Script::new(protocol::SCRIPT),
            membership_script: Script::new(include_str!("../members.lua")),
            feedback_script: Script::new(feedback::SCRIPT),
        })
    }

    pub(super) async fn request_leases(
        &self,
        batch: &LeaseBatch,
        new_generation: String,
    ) -> Result<BatchReply, CallError> {
        self.call_counters(&batch.call(&self.prefix), new_generation).await
    }

    /// Makes errands of the regional store: encoded questions about counters of one group.
    pub(crate) async fn call_regional_counters(
        &self,
        group: u16,
        counters: &[SharedCounter],
        encoded: Vec<String>,
        context: &ErrandContext,
    ) -> Result<Vec<Vec<i64>>, CallError> {
        let keys = protocol::regional_keys(&self.prefix, group, counters);
        let generation = context.generation.as_deref();
        let call = CounterCall { keys, generation, renewal: None, encoded: &encoded };
        Ok(self.call_counters(&call, format!("{:016x}", context.random)).await?.grants)
    }

    async fn call_counters(
        &self,
        counters: &CounterCall<'_>,
        new_generation: String,
    ) -> Result<BatchReply, CallError> {
        let keys = &counters.keys;
        let args = |run_id: &_| counters.arguments(run_id, new_generation);
        let value = self.client.call_known(&self.lease_script, keys, args).await?;
        match parse_reply(value).filter(|reply| reply.fits(counters.encoded.len())) {
            Some(reply) => Ok(reply),
            None => Err(self.client.close_malformed(&keys[0], "grants").await),
        }
    }

    pub(super) async fn register(
        &self,
        instance: &str,
        secret: [u64; 2],
        is_secret_of_regions: bool,
        ttl: Duration,
    ) -> Result<([u64; 2], u32), CallError> {
        let keys = protocol::fleet_keys(&self.prefix);
        let args = registration(instance, secret, ttl, is_secret_of_regions);
        register(&self.client, &self.membership_script, &keys, &args).await
    }

    pub(super) async fn exchange_feedback(
        &self,
        rule: &str,
        states: &[SharedKeyState],
    ) -> Result<Vec<SharedKeyState>, CallError> {
        let keys = [feedback::rule_key(&self.prefix, rule)];
        let call = ScriptCall { script: &self.feedback_script, keys: &keys, args: &feedback::encode(states) };
        let (value, _) = self.client.call(call).await?;
        match feedback::decode(value) {
            Some(states) => Ok(states),
            None => Err(self.client.close_malformed(&keys[0], "state of a provider").await),
        }
    }
}

/// Returns the arguments that register an instance or a region. With `replaces`, the secret replaces another one.
pub(crate) fn registration(
    name: &str,
    [first, second]: [u64; 2],
    ttl: Duration,
    replaces: bool,
) -> [Vec<u8>; 4] {
    let secret = format!("{first:016x}{second:016x}");
    let (ttl, replaces) = (ttl.as_millis().to_string(), u8::from(replaces).to_string());
    [secret.into_bytes(), name.as_bytes().to_vec(), ttl.into_bytes(), replaces.into_bytes()]
}

/// Registers an instance or a region; returns the secret of all, and their number.
pub(crate) async fn register(
    client: &RedisClient,
    script: &Script,
    keys: &[String],
    args: &[Vec<u8>],
) -> Result<([u64; 2], u32), CallError> {
    let (value, _) = client.call(ScriptCall { script, keys, args }).await?;
    match parse_fleet(value) {
        Some(fleet) => Ok(fleet),
        None => Err(client.close_malformed(&keys[0], "secret of the fleet").await),
    }
}

fn parse_reply(value: Value) -> Option<BatchReply> {
    let Value::Array(values) = value else { return None };
    let mut values = values.into_iter();
    let generation = parse_text(values.next()?)?.into();
    let store_time = parse_text(values.next()?)?.parse().ok()?;
    let Value::Int(part) = values.next()? else { return None };
    let grants = values.map(parse_numbers).collect::<Option<Vec<_>>>()?;
    Some(BatchReply { generation, store_time, part, grants })
}

pub(crate) fn parse_numbers(value: Value) -> Option<Vec<i64>> {
    let Value::Array(list) = value else { return None };
    let number = |value| if let Value::Int(number) = value { Some(number) } else { None };
    list.into_iter().map(number).collect()
}

pub(crate) fn parse_text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

fn parse_fleet(value: Value) -> Option<([u64; 2], u32)> {
    let Value::Array(values) = value else { return None };
    let [secret, Value::Int(instances)] = <[Value; 2]>::try_from(values).ok()? else { return None };
    let secret = parse_text(secret)?;
    let word = |range| u64::from_str_radix(secret.get(range)?, 16).ok();
    Some(([word(0..16)?, word(16..32)?], u32::try_from(instances).unwrap_or(u32::MAX)))
}
