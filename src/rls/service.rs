//! The service: a question in, an answer and what there is to count out.
//!
//! First every descriptor is looked up, then all counters are counted on at one moment, then the answer is
//! made from what they read. Nothing is asked before it is counted, so two requests cannot both take the last
//! hit. Where native rules have the domain too, their checks are decided at that same moment.

use std::collections::HashSet;
use std::sync::Arc;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use super::answer::{self, Answer, Code, CurrentLimit, Status, Undecided};
use super::matching::{self, Met};
use super::native::{self, Native};
use super::request::Request;
use super::rules::{Level, Rate, Rule, Rules};
use super::settings::{Counting, Settings, Smoothing};
use super::stats::{Crossing, DescriptorStats, Stats, near_threshold};
use super::windows::Windows;
use crate::engine::Policy;
use crate::limiter::decision::Verdict;
use crate::limiter::tally::{self, Tallied, Tally};
use crate::limiter::timestamp::Timestamp;
use crate::limiter::{Limiter, Ruling};

/// What decides: the rules in force, the settings, and where is counted. To be made anew for each generation.
#[derive(Clone, Debug)]
pub struct Service {
    /// `None` until rules have been loaded.
    pub rules: Option<Arc<Rules>>,
    /// How it behaves.
    pub settings: Arc<Settings>,
    /// Which meters of the limiter it counts on.
    pub windows: Windows,
    /// The rules of the configuration, some of which may be for domains of Envoy's.
    pub native: Option<Arc<Policy>>,
}

/// What becomes of one descriptor.
#[derive(Debug)]
enum Case<'r> {
    Unlimited,
    NoLimit,
    Counted(Counted<'r>),
}

/// Of all descriptors; most requests have one.
type Cases<'r> = SmallVec<[Case<'r>; 1]>;

/// A descriptor that is held against a limit.
#[derive(Debug)]
struct Counted<'r> {
    /// `None` for a limit that came with the request.
    rule: Option<&'r Rule>,
    rate: Rate,
    stat_key: Arc<str>,
    hits: u64,
}

impl Counted<'_> {
    fn is_shadow(&self) -> bool {
        self.rule.is_some_and(|rule| rule.shadow_mode)
    }

    fn is_quota(&self, settings: &Settings) -> bool {
        settings.quota_mode || self.rule.is_some_and(|rule| rule.quota_mode)
    }
}

impl Service {
    /// Decides one request and counts it.
    ///
    /// # Errors
    /// [`Undecided`] where the request cannot be answered; nothing is counted then.
    pub fn decide(&self, request: &Request, limiter: &Limiter, now: Timestamp) -> Result<Answer, Undecided> {
        self.decide_at(request, limiter, (now, now))
    }

    /// The same where the wall clock does not say `now` but `civil`.
    ///
    /// # Errors
    /// As [`Service::decide`].
    pub fn decide_at(
        &self,
        request: &Request,
        limiter: &Limiter,
        (now, civil): (Timestamp, Timestamp),
    ) -> Result<Answer, Undecided> {
        if request.domain.is_empty() {
            return Err(Undecided::NoDomain);
        }
        if request.descriptors.is_empty() {
            return Err(Undecided::NoDescriptors);
        }
        request.check_size()?;
        let native = self.native.as_deref();
        let native = native.and_then(|policy| Native::ask(policy, request, self.settings.shadow_mode, civil));
        let domain = match (&self.rules, &native) {
            (Some(rules), _) => rules.domain(&request.domain),
            (None, Some(_)) => None,
            (None, None) => return Err(Undecided::NoRules),
        };
        if domain.is_none() && native.is_none() {
            return Ok(self.without_domain(request));
        }
        let (cases, tallies) = self.cases(domain, request, limiter)?;
        let Some(native) = native else {
            let read = limiter.tally(&tallies, |read| self.which_count(request, &cases, read, false), now);
            let is_refused = self.is_refused(&cases, &read);
            return Ok(self.answer(request, (&cases, &read), is_refused, None, now));
        };
        native.give_back(request, limiter, now);
        let mut is_refused = false;
        let rule = |verdicts: &[Verdict], read: &[Tallied]| {
            let by_native = native.is_denied() || native.is_over(request, verdicts);
            is_refused = by_native || self.is_refused(&cases, read);
            Ruling {
                passes: !is_refused || self.settings.shadow_mode,
                counting: self.which_count(request, &cases, read, by_native),
            }
        };
        let (decision, read) = limiter.check_and_tally((&native.checks[..], &tallies), rule, now);
        Ok(self.answer(request, (&cases, &read), is_refused, Some((&native, decision.verdicts())), now))
    }

    /// An unknown domain has no limits.
    fn without_domain(&self, request: &Request) -> Answer {
        let statuses = vec![Status::default(); request.descriptors.len()];
        let stats = Stats { domain_not_found: request.descriptors.len() as u64, ..Stats::default() };
        Answer { statuses, stats, metadata: self.metadata(request, &[], &[]), ..Answer::default() }
    }

    /// What every descriptor meets, and the counters of those that meet a limit, in their order.
    fn cases<'r>(
        &self,
        domain: Option<&'r Level>,
        request: &Request,
        limiter: &Limiter,
    ) -> Result<(Cases<'r>, SmallVec<[Tally; 4]>), Undecided> {
        let mut met: SmallVec<[Met<'r>; 4]> = SmallVec::new();
        for (index, descriptor) in request.descriptors.iter().enumerate() {
            met.push(match descriptor.limit {
                None => domain.map_or(Met::Nothing, |level| matching::meet(level, &descriptor.entries)),
                Some(limit) => {
                    let unit = limit.unit.ok_or(Undecided::NoUnit(index))?;
                    Met::Override(Rate { requests_per_unit: limit.requests_per_unit, unit })
                }
            });
        }
        let replaced = replaced(&met);
        let smoothing = self.settings.smoothing_of(&request.domain);
        let mut tallies = SmallVec::new();
        let cases = met.iter().zip(&request.descriptors).map(|(met, descriptor)| {
            let hits = request.hits(descriptor);
            let (path, counted): (&[_], _) = match met {
                Met::Nothing => return Case::NoLimit,
                Met::Rule { rule, path } => {
                    let Some(rate) = rule.rate else { return Case::Unlimited };
                    if replaced.contains(&*rule.name) {
                        return Case::NoLimit;
                    }
                    let stat_key = matching::stat_key(&request.domain, &descriptor.entries, rule, path);
                    (path, Counted { rule: Some(*rule), rate, stat_key, hits: hits.counted() })
                }
                Met::Override(rate) => {
                    let stat_key = matching::override_stat_key(&request.domain, descriptor);
                    (&[], Counted { rule: None, rate: *rate, stat_key, hits: hits.counted() })
                }
            };
            let hasher = limiter.hasher();
            tallies.push(Tally {
                meter: self.windows.of_unit(counted.rate.unit, smoothing),
                key: matching::counter_key(&request.domain, &descriptor.entries, path, hasher),
                amount: hits.amount(),
                limit: counted.rate.requests_per_unit,
            });
            Case::Counted(counted)
        });
        let cases = cases.collect();
        Ok((cases, tallies))
    }

    /// Which descriptors count of a request that native rules may have `refused` already.
    fn which_count(
        &self,
        request: &Request,
        cases: &[Case<'_>],
        read: &[Tallied],
        refused: bool,
    ) -> tally::Counting {
        let is_any_over = read.iter().any(|read| read.is_over);
        let is_smooth = self.settings.smoothing_of(&request.domain) == Smoothing::Gcra;
        match self.settings.counting_of(&request.domain) {
            // Where time gives back evenly, whoever counted what is over would be refused for ever by asking on.
            Counting::Everything | Counting::OnlyOver if is_smooth => tally::Counting::Within,
            Counting::Everything => tally::Counting::All,
            Counting::OnlyOver if is_any_over => tally::Counting::Over,
            Counting::OnlyOver => tally::Counting::All,
            Counting::AllOrNothing if refused || self.is_refused(cases, read) => tally::Counting::Nothing,
            // What is over and refuses nobody is not charged either, as anywhere in this program.
            Counting::AllOrNothing => tally::Counting::Within,
        }
    }

    /// Whether the limits, taken together, refuse: one that is no quota, or all quotas.
    fn is_refused(&self, cases: &[Case<'_>], read: &[Tallied]) -> bool {
        let (mut quotas, mut quotas_over) = (0_usize, 0_usize);
        for (counted, read) in counted(cases).zip(read) {
            let is_over = read.is_over && !counted.is_shadow();
            if counted.is_quota(&self.settings) {
                quotas += 1;
                quotas_over += usize::from(is_over);
            } else if is_over {
                return true;
            }
        }
        quotas > 0 && quotas == quotas_over
    }

    /// What is answered to a request that is `refused` or not.
    fn answer(
        &self,
        request: &Request,
        (cases, read): (&[Case<'_>], &[Tallied]),
        refused: bool,
        native: Option<(&Native<'_>, &[Verdict])>,
        now: Timestamp,
    ) -> Answer {
        let shadow = self.settings.shadow_mode;
        let mut stats = Stats { global_shadow_mode: refused && shadow, ..Stats::default() };
        let overall = if refused && !shadow { Code::OverLimit } else { Code::Ok };
        let mut readings = read.iter();
        let mut statuses: Vec<Status> = cases
            .iter()
            .map(|case| match case {
                Case::NoLimit => Status::default(),
                Case::Unlimited => Status { limit_remaining: u32::MAX, ..Status::default() },
                Case::Counted(counted) => {
                    let read = readings.next().copied().unwrap_or(NOTHING_READ);
                    stats.descriptors.push(counted.stats(read, self.settings.near_limit_ratio));
                    counted.status(read, now)
                }
            })
            .collect();
        let is_quota = |index: usize| matches!(&cases[index], Case::Counted(counted) if counted.is_quota(&self.settings));
        let mut refuses: SmallVec<[bool; 4]> =
            statuses.iter().enumerate().map(|(index, status)| status.is_over() && !is_quota(index)).collect();
        let metadata = self.metadata(request, cases, &statuses);
        if let Some((native, verdicts)) = native {
            stats.rules = native.outcomes(verdicts, refused && !shadow);
            for (index, status) in native.statuses(request, verdicts, now).enumerate() {
                refuses[index] |= status.is_over();
                statuses[index].worsen(status);
            }
        }
        let names = self.settings.headers.as_ref();
        let headers = names.map(|names| answer::headers(names, &statuses, |index| refuses[index]));
        Answer { overall, statuses, headers: headers.unwrap_or_default(), metadata, stats }
    }

    fn metadata(
        &self,
        request: &Request,
        cases: &[Case<'_>],
        statuses: &[Status],
    ) -> Option<serde_json::Map<String, serde_json::Value>> {
        let passed = cases.iter().zip(statuses).filter(|(_, status)| status.code == Code::Ok);
        let said = passed.filter_map(|(case, _)| match case {
            Case::Counted(counted) => counted.rule?.metadata.as_ref(),
            Case::Unlimited | Case::NoLimit => None,
        });
        self.settings.dynamic_metadata.then(|| answer::metadata(request, said))
    }
}

/// Of a limit that has just been removed, which limits nothing.
const NOTHING_READ: Tallied = Tallied { before: 0, after: 0, is_over: false, reset: None };

impl Counted<'_> {
    fn status(&self, read: Tallied, now: Timestamp) -> Status {
        let Rate { requests_per_unit, unit } = self.rate;
        let name = self.rule.map_or_else(|| Arc::from(""), |rule| Arc::clone(&rule.name));
        let left = u64::from(requests_per_unit).saturating_sub(read.after);
        let is_refused = read.is_over && !self.is_shadow();
        Status {
            code: if is_refused { Code::OverLimit } else { Code::Ok },
            current_limit: Some(CurrentLimit { requests_per_unit, unit: Some(unit), name }),
            limit_remaining: u32::try_from(left).unwrap_or(u32::MAX),
            duration_until_reset: Some(
                read.reset.map_or_else(|| unit.until_reset(now), native::whole_seconds),
            ),
        }
    }

    fn stats(&self, read: Tallied, near_limit_ratio: f32) -> DescriptorStats {
        let limit = self.rate.requests_per_unit;
        let near = near_threshold(limit, near_limit_ratio);
        let Tallied { before, after, is_over, .. } = read;
        let crossing = Crossing { before, after, hits: self.hits, limit, near };
        DescriptorStats {
            key: Arc::clone(&self.stat_key),
            has_values: !self.rule.is_some_and(|rule| Arc::ptr_eq(&rule.stat_key, &self.stat_key)),
            total_hits: self.hits,
            over_limit: if is_over { crossing.over() } else { 0 },
            near_limit: crossing.near(),
            within_limit: if is_over { 0 } else { self.hits },
            shadow_mode: if is_over && self.is_shadow() { self.hits } else { 0 },
        }
    }
}

fn counted<'a, 'r>(cases: &'a [Case<'r>]) -> impl Iterator<Item = &'a Counted<'r>> {
    cases.iter().filter_map(|case| match case {
        Case::Counted(counted) => Some(counted),
        Case::Unlimited | Case::NoLimit => None,
    })
}

/// The names that limits which apply replace, their own being of no account. All are names of the configuration.
fn replaced<'r>(met: &[Met<'r>]) -> HashSet<&'r str, FixedState> {
    let rules = met.iter().filter_map(|met| match met {
        Met::Rule { rule, .. } => Some(*rule),
        Met::Nothing | Met::Override(_) => None,
    });
    rules.flat_map(|rule| rule.replaces.iter().map(|name| &**name)).collect()
}
