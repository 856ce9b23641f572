//! Calls of the global store, and errands between it and the regional store.

use std::time::Duration;

use parking_lot::Mutex;

use super::errands::{Errand, ErrandBatch, ErrandOutcome};
use super::{Allotted, BegunErrand, Region};
use crate::protocol::{self, InstanceInfo};
use crate::redis::{CallError, RedisClient, RunId, Script, Value};
use crate::settings::RegionSettings;
use crate::task::calls::{self, StoreCalls};
use weir_limiter::leases::{LeaseRequest, SharedCounter};
use weir_limiter::timestamp::Timestamp;

/// Number of groups of counters in the global store, whatever store each region has.
const GLOBAL_GROUPS: u16 = 4;
/// End of each key in the global store, which may be the store of a region, too.
const GLOBAL_SUFFIX: &str = ":global";
/// Time by which an errand that was not due is made later than it is due.
const DUE_MARGIN: Duration = Duration::from_millis(200);

/// Client and scripts of the global store.
pub(crate) struct GlobalCalls {
    client: RedisClient,
    prefix: Box<str>,
    pub(crate) region_name: Box<str>,
    script: Script,
    membership_script: Script,
    /// The last known generation of each group's data.
    generations: Mutex<Vec<Option<String>>>,
}

/// One call of the regional store on an errand.
#[derive(Default)]
struct ErrandCall<'e> {
    queries: Vec<&'e LeaseRequest>,
    /// What precedes each query.
    heads: Vec<String>,
}

/// What all errands of a batch have in common.
#[derive(Clone)]
pub(crate) struct ErrandContext {
    pub(crate) region: Region,
    pub(crate) instance: InstanceInfo,
    /// The last known generation of the group's data in the regional store.
    pub(crate) generation: Option<Box<str>>,
    /// A random number, for new generations.
    pub(crate) random: u64,
    /// Whether all regions have been connected for long.
    pub(crate) is_complete: bool,
    pub(crate) now: Timestamp,
}

impl GlobalCalls {
    /// Creates the client of an instance with this name.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub(crate) fn new(settings: &RegionSettings, instance: &str) -> Result<Self, rustls::Error> {
        Ok(Self {
            client: RedisClient::new(&settings.global, instance)?,
            prefix: settings.global.prefix.clone(),
            region_name: settings.name.clone(),
            script: Script::new(protocol::GLOBAL_SCRIPT),
            membership_script: Script::new(include_str!("../members.lua")),
            generations: Mutex::default(),
        })
    }

    /// Registers the region for the time `ttl`. Returns the secret of all regions, which is `secret` if there was none, and
    /// the number of regions.
    pub(crate) async fn register(
        &self,
        secret: [u64; 2],
        ttl: Duration,
    ) -> Result<([u64; 2], u32), CallError> {
        let keys = protocol::fleet_keys(&self.prefix).map(|key| key + GLOBAL_SUFFIX);
        let args = calls::registration(&self.region_name, secret, ttl, false);
        calls::register(&self.client, &self.membership_script, &keys, &args).await
    }

    /// Reports errands of one group, and returns the replies.
    async fn report(
        &self,
        group: u16,
        counters: Vec<SharedCounter>,
        reports: Vec<String>,
        random: u64,
    ) -> Result<Vec<Vec<i64>>, CallError> {
        let count = counters.len();
        let counters = counters.into_iter().map(|it| protocol::counter_key(&self.prefix, group, it));
        let generation = protocol::generation_key(&self.prefix, group);
        let keys = std::iter::once(generation).chain(counters);
        let keys: Vec<_> = keys.map(|key| key + GLOBAL_SUFFIX).collect();
        let known = self.generations.lock().get(usize::from(group)).cloned().flatten();
        let known = known.unwrap_or_else(|| "-".to_owned());
        let args = |run_id: &RunId| {
            let head = [known, run_id.to_string(), format!("{random:016x}")];
            head.into_iter().chain(reports).collect()
        };
        let value = self.client.call_known(&self.script, &keys, args).await?;
        let Some((generation, replies)) = parse_reply(value).filter(|(_, replies)| replies.len() == count)
        else {
            return Err(self.client.close_malformed(&keys[0], "allotments").await);
        };
        let mut generations = self.generations.lock();
        if generations.len() <= usize::from(group) {
            generations.resize(usize::from(group) + 1, None);
        }
        generations[usize::from(group)] = Some(generation);
        Ok(replies)
    }
}

fn parse_reply(value: Value) -> Option<(String, Vec<Vec<i64>>)> {
    let Value::Array(values) = value else { return None };
    let mut values = values.into_iter();
    let generation = calls::parse_text(values.next()?)?;
    Some((generation, values.map(calls::parse_numbers).collect::<Option<_>>()?))
}

/// Makes errands: begins them in the regional store, reports to the global store, and deposits what it has allotted.
///
/// # Errors
/// If a store has not replied. What was done until then takes effect: a report without a deposit is undone by the next one.
pub(crate) async fn make(
    store: &StoreCalls,
    global: &GlobalCalls,
    batch: &ErrandBatch,
    context: &ErrandContext,
) -> Result<Vec<ErrandOutcome>, CallError> {
    let mut outcomes = vec![ErrandOutcome::Done; batch.errands.len()];
    let mut call = ErrandCall::default();
    for errand in &batch.errands {
        call.add(errand, context.region.head(if errand.is_sent { 'e' } else { 'f' }, &errand.limit));
    }
    let begun = call.run(store, batch.group, context).await?;
    let mut reported = Vec::new();
    for (index, reply) in begun.iter().enumerate() {
        match (BegunErrand::decode(reply), reply.get(1..3)) {
            (Some(begun), _) => {
                outcomes[index] = ErrandOutcome::Failed;
                reported.push((index, begun));
            }
            // Another instance may make it, and may end before it does.
            (None, Some(&[parts, micros])) if parts > 0 => {
                let due = Duration::from_micros(u64::try_from(micros).unwrap_or_default());
                outcomes[index] = ErrandOutcome::Again(due + DUE_MARGIN);
            }
            (None, _) => {}
        }
    }
    let report = |group| report_group(global, batch, &reported, context, group);
    let replies: [_; GLOBAL_GROUPS as usize] =
        tokio::join!(report(0), report(1), report(2), report(3)).into();
    let mut deposits = ErrandCall::default();
    let mut error = None;
    for replies in replies {
        match replies {
            Ok(replies) => {
                for (index, number, allotted) in replies {
                    let errand = &batch.errands[index];
                    let head = context.region.head('d', &errand.limit) + &allotted.deposit(number);
                    deposits.add(errand, head);
                    let again = allotted.report_again_after();
                    outcomes[index] = again.map_or(ErrandOutcome::Done, ErrandOutcome::Again);
                }
            }
            Err(failed) => error = Some(failed),
        }
    }
    match error.filter(|_| deposits.heads.is_empty()) {
        Some(error) => return Err(error),
        None if deposits.heads.is_empty() => return Ok(outcomes),
        None => {}
    }
    deposits.run(store, batch.group, context).await?;
    Ok(outcomes)
}

/// Reports those errands whose counters are in one group of the global store. Returns for each that is not too late its
/// position in the batch, its number, and what is allotted.
async fn report_group(
    global: &GlobalCalls,
    batch: &ErrandBatch,
    begun: &[(usize, BegunErrand)],
    context: &ErrandContext,
    group: u16,
) -> Result<Vec<(usize, i64, Allotted)>, CallError> {
    let counter = |index: usize| batch.errands[index].query.counter;
    let is_of_group = |index: usize| protocol::group_index(counter(index), GLOBAL_GROUPS) == group;
    let of_group: Vec<_> = begun.iter().filter(|(index, _)| is_of_group(*index)).collect();
    if of_group.is_empty() {
        return Ok(Vec::new());
    }
    let report = |(index, begun): &&(usize, BegunErrand)| {
        context.region.report(&batch.errands[*index].limit, begun, context.is_complete)
    };
    let counters = of_group.iter().map(|(index, _)| counter(*index)).collect();
    let reports = of_group.iter().map(report).collect();
    let replies = global.report(group, counters, reports, context.random).await?;
    let allotted = of_group.iter().zip(&replies);
    Ok(allotted
        .filter_map(|((index, begun), reply)| Some((*index, begun.number, Allotted::decode(reply)?)))
        .collect())
}

impl<'e> ErrandCall<'e> {
    fn add(&mut self, errand: &'e Errand, head: String) {
        self.queries.push(&errand.query);
        self.heads.push(head);
    }

    async fn run(
        &self,
        store: &StoreCalls,
        group: u16,
        context: &ErrandContext,
    ) -> Result<Vec<Vec<i64>>, CallError> {
        let encode = |(head, query): (&String, &&LeaseRequest)| {
            format!("{head};{}", protocol::encode_request(query, context.instance, context.now))
        };
        let encoded = self.heads.iter().zip(&self.queries).map(encode).collect();
        let counters: Vec<_> = self.queries.iter().map(|it| it.counter).collect();
        store.call_regional_counters(group, &counters, encoded, context).await
    }
}
