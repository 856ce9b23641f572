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
use super::sharing::{Rejected, Sharing, Short, Shortage, Supply};
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
    /// How the limits of documents are shared with other instances; `None` where each counts for itself.
    pub sharing: Option<Arc<Sharing>>,
    /// The rules of the configuration, some of which may be for domains of Envoy's.
    pub native: Option<Arc<Policy>>,
}

/// A request takes units out of a reserve at most so often before it is over: others may be quicker.
const MAX_ATTEMPTS: usize = 4;

/// One attempt to decide a request.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// The time of limits.
    pub now: Timestamp,
    /// The time on the wall.
    pub civil: Timestamp,
    /// Whether there was none before: what is given back is given back once.
    pub is_first: bool,
}

/// A request with all that it meets.
struct Trial<'r> {
    service: &'r Service,
    request: &'r Request,
    cases: Cases<'r>,
    tallies: SmallVec<[Tally; 4]>,
    native: Option<Native<'r>>,
    rejected: Rejected,
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
    /// Of the limit, what holds here: less where it is divided while the store is away.
    here: u32,
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

    /// The same where the wall clock does not say `now` but `civil`. What instances share is decided by what has been granted
    /// to this one before.
    ///
    /// # Errors
    /// As [`Service::decide`].
    pub fn decide_at(
        &self,
        request: &Request,
        limiter: &Limiter,
        (now, civil): (Timestamp, Timestamp),
    ) -> Result<Answer, Undecided> {
        let attempt = Attempt { now, civil, is_first: true };
        let decided = self.decide_supplied(request, limiter, attempt, |_| Supply::Rejected)?;
        Ok(decided.unwrap_or_default())
    }

    /// The same where `supply` gets units for counters that are short. `None` if it has asked the store, which has not responded
    /// yet; then nothing is counted, and the request is to be decided again.
    ///
    /// # Errors
    /// As [`Service::decide`].
    pub fn decide_supplied(
        &self,
        request: &Request,
        limiter: &Limiter,
        Attempt { now, civil, is_first }: Attempt,
        mut supply: impl FnMut(Short<'_>) -> Supply,
    ) -> Result<Option<Answer>, Undecided> {
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
            return Ok(Some(self.without_domain(request)));
        }
        let (cases, tallies) = self.cases(domain, request, limiter)?;
        if let Some(native) = native.as_ref().filter(|_| is_first) {
            native.give_back(request, limiter, now);
        }
        let mut trial =
            Trial { service: self, request, cases, tallies, native, rejected: Rejected::default() };
        for _ in 0..MAX_ATTEMPTS {
            match trial.decide(limiter, now, true) {
                Ok(answer) => return Ok(Some(answer)),
                Err(shortage) if trial.resupply(&shortage, &mut supply) => return Ok(None),
                Err(_) => {}
            }
        }
        Ok(trial.decide(limiter, now, false).ok())
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
                    let (hits, here) = (hits.counted(), rate.requests_per_unit);
                    (path, Counted { rule: Some(*rule), rate, stat_key, hits, here })
                }
                Met::Override(rate) => {
                    let stat_key = matching::override_stat_key(&request.domain, descriptor);
                    let (hits, here) = (hits.counted(), rate.requests_per_unit);
                    (&[], Counted { rule: None, rate: *rate, stat_key, hits, here })
                }
            };
            let unit = counted.rate.unit;
            let (windows, hasher, apart): (_, _, &[u8]) = match &self.sharing {
                Some(sharing) => (sharing.windows, sharing.hasher(), &[unit as u8, smoothing as u8]),
                None => (self.windows, limiter.hasher(), &[]),
            };
            tallies.push(Tally {
                meter: windows.of_unit(unit, smoothing),
                key: matching::counter_key(&request.domain, &descriptor.entries, path, (hasher, apart)),
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

impl Trial<'_> {
    /// Decides and counts; or, where counters are short that may yet get units, does neither.
    fn decide(&self, limiter: &Limiter, now: Timestamp, may_supply: bool) -> Result<Answer, Shortage> {
        let Self { service, request, cases, tallies, .. } = self;
        let (mut shortage, mut refused) = (Shortage::default(), false);
        let mut rule = |verdicts: &[Verdict], read: &[Tallied]| {
            if may_supply {
                shortage = Shortage::of(verdicts, read, &self.rejected);
            }
            if !shortage.is_empty() {
                return Ruling { passes: false, counting: tally::Counting::Nothing };
            }
            let native = self.native.as_ref();
            let by_native = native.is_some_and(|it| it.is_denied() || it.is_over(request, verdicts));
            refused = by_native || service.is_refused(cases, read);
            Ruling {
                passes: !refused || service.settings.shadow_mode,
                counting: service.which_count(request, cases, read, by_native),
            }
        };
        let Some(native) = &self.native else {
            let read = limiter.tally(tallies, |read| rule(&[], read).counting, now);
            if !shortage.is_empty() {
                return Err(shortage);
            }
            let refused = service.is_refused(cases, &read);
            return Ok(service.answer(request, (cases, &read), refused, None, now));
        };
        let (decision, read) = limiter.check_and_tally((&native.checks[..], tallies), rule, now);
        if !shortage.is_empty() {
            return Err(shortage);
        }
        Ok(service.answer(request, (cases, &read), refused, Some((native, decision.verdicts())), now))
    }

    /// Gets units for all that is short; whether the store has been asked for some.
    fn resupply(&mut self, shortage: &Shortage, supply: &mut impl FnMut(Short<'_>) -> Supply) -> bool {
        let mut asked = false;
        for &position in &shortage.tallies {
            let Some(sharing) = &self.service.sharing else { continue };
            match supply(Short::Tally(&self.tallies[position], sharing.limit.wait)) {
                Supply::There => {}
                Supply::Asked => asked = true,
                Supply::Rejected => self.rejected.tallies.push(position),
                Supply::Away if self.go_without_store(position, sharing) => {}
                Supply::Away => self.rejected.tallies.push(position),
            }
        }
        for &position in &shortage.checks {
            let Some(native) = &mut self.native else { continue };
            match supply(Short::Check(&native.checks[position], native.wait(position))) {
                Supply::There => {}
                Supply::Asked => asked = true,
                Supply::Away if native.go_without_store(position) => {}
                Supply::Away | Supply::Rejected => self.rejected.checks.push(position),
            }
        }
        asked
    }

    /// Has a document's limit counted here while the store is away; whether anything may pass then.
    fn go_without_store(&mut self, position: usize, sharing: &Sharing) -> bool {
        let smoothing = self.service.settings.smoothing_of(&self.request.domain);
        let mut counted = self.cases.iter_mut().filter_map(|case| match case {
            Case::Counted(counted) => Some(counted),
            Case::Unlimited | Case::NoLimit => None,
        });
        let Some(counted) = counted.nth(position) else { return false };
        let unit = counted.rate.unit;
        let away = sharing.away(&self.tallies[position], self.service.windows, unit, smoothing);
        let Some(away) = away else { return false };
        counted.here = counted.here.min(away.limit);
        self.tallies[position] = away;
        true
    }
}

/// Of a limit that has just been removed, which limits nothing.
const NOTHING_READ: Tallied = Tallied { before: 0, after: 0, is_over: false, reset: None, is_short: false };

impl Counted<'_> {
    fn status(&self, read: Tallied, now: Timestamp) -> Status {
        let Rate { requests_per_unit, unit } = self.rate;
        let name = self.rule.map_or_else(|| Arc::from(""), |rule| Arc::clone(&rule.name));
        let left = u64::from(self.here).saturating_sub(read.after);
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
