//! Decides requests of the rate limit service, and computes the values for statistics.
//!
//! First all descriptors are looked up, then all counters are checked and incremented atomically, and the response is
//! built from their values. So two requests cannot both take the last hit. If native rules have the domain, their
//! checks are part of the same atomic decision.

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
use crate::limiter::timestamp::Timestamp;
use crate::limiter::unconditional_count::{self, CountOperation, CountResult};
use crate::limiter::{JointOutcome, Limiter};

/// The rules, settings and limit handles that decide; created anew for each generation.
#[derive(Clone, Debug)]
pub struct Service {
    /// Rules of documents; `None` before any have been loaded.
    pub rules: Option<Arc<Rules>>,
    /// Settings of the service.
    pub settings: Arc<Settings>,
    /// Limit handles for this instance's counters.
    pub windows: Windows,
    /// How instances share the limits of documents; `None` to count per instance.
    pub sharing: Option<Arc<Sharing>>,
    /// The rules of the configuration, some of which may be for domains of the rate limit service.
    pub native: Option<Arc<Policy>>,
}

/// Maximum attempts of a request to take units of a reserve before it is over; other requests may take them first.
const MAX_ATTEMPTS: usize = 4;

/// Parameters of one attempt to decide a request.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// Time of the limits.
    pub now: Timestamp,
    /// Wall-clock time.
    pub civil: Timestamp,
    /// Whether this is the first attempt, which is the only one that applies refunds.
    pub is_first: bool,
}

/// A request with everything that was looked up for it.
struct Trial<'r> {
    service: &'r Service,
    request: &'r Request,
    cases: Cases<'r>,
    tallies: SmallVec<[CountOperation; 4]>,
    native: Option<Native<'r>>,
    rejected: Rejected,
}

/// Result of the lookup for one descriptor.
#[derive(Debug)]
enum Case<'r> {
    Unlimited,
    NoLimit,
    Counted(Counted<'r>),
}

/// Results for all descriptors; most requests have one.
type Cases<'r> = SmallVec<[Case<'r>; 1]>;

/// A descriptor with a limit.
#[derive(Debug)]
struct Counted<'r> {
    /// The rule; `None` for a limit that came with the request.
    rule: Option<&'r Rule>,
    rate: Rate,
    stat_key: Arc<str>,
    hits: u64,
    /// The limit that applies here, which is less if it is divided while the store is unreachable.
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
    /// Decides and counts one request.
    ///
    /// # Errors
    /// [`Undecided`] if there is no response; nothing is counted then.
    pub fn decide(&self, request: &Request, limiter: &Limiter, now: Timestamp) -> Result<Answer, Undecided> {
        self.decide_at(request, limiter, (now, now))
    }

    /// Decides like [`Self::decide`], with the wall-clock time `civil`. Shared limits are decided by the units that
    /// this instance has already been granted.
    ///
    /// # Errors
    /// As [`Service::decide`].
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

    /// Decides like [`Self::decide_at`]. `supply` gets units for counters that are out of units. `None` if it queries
    /// the store and must wait: then nothing is counted, and the request must be decided again.
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

    /// Returns the response for an unknown domain, which has no limits.
    fn without_domain(&self, request: &Request) -> Answer {
        let statuses = vec![Status::default(); request.descriptors.len()];
        let stats = Stats { domain_not_found: request.descriptors.len() as u64, ..Stats::default() };
        Answer { statuses, stats, metadata: self.metadata(request, &[], &[]), ..Answer::default() }
    }

    /// Looks up all descriptors, and returns the counters of those with a limit, in order.
    fn cases<'r>(
        &self,
        domain: Option<&'r Level>,
        request: &Request,
        limiter: &Limiter,
    ) -> Result<(Cases<'r>, SmallVec<[CountOperation; 4]>), Undecided> {
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
            tallies.push(CountOperation {
                handle: windows.of_unit(unit, smoothing),
                key: matching::counter_key(&request.domain, &descriptor.entries, path, (hasher, apart)),
                amount: hits.amount(),
                limit: counted.rate.requests_per_unit,
            });
            Case::Counted(counted)
        });
        let cases = cases.collect();
        Ok((cases, tallies))
    }

    /// Returns which descriptors count, given whether native rules have `refused` the request.
    fn which_count(
        &self,
        request: &Request,
        cases: &[Case<'_>],
        read: &[CountResult],
        refused: bool,
    ) -> unconditional_count::CountSelection {
        let is_any_over = read.iter().any(|read| read.is_over);
        let is_smooth = self.settings.smoothing_of(&request.domain) == Smoothing::Gcra;
        match self.settings.counting_of(&request.domain) {
            // With GCRA, counting exceeded limits would reject a client for as long as it continues to send requests.
            Counting::Everything | Counting::OnlyOver if is_smooth => {
                unconditional_count::CountSelection::Within
            }
            Counting::Everything => unconditional_count::CountSelection::All,
            Counting::OnlyOver if is_any_over => unconditional_count::CountSelection::Over,
            Counting::OnlyOver => unconditional_count::CountSelection::All,
            Counting::AllOrNothing if refused || self.is_refused(cases, read) => {
                unconditional_count::CountSelection::Nothing
            }
            // Exceeded limits that do not reject the request are not charged either, as everywhere in Weir.
            Counting::AllOrNothing => unconditional_count::CountSelection::Within,
        }
    }

    /// Returns whether the limits together reject: one that is not a quota, or all quotas.
    fn is_refused(&self, cases: &[Case<'_>], read: &[CountResult]) -> bool {
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

    /// Builds the response to a request, given whether it is `refused`.
    fn answer(
        &self,
        request: &Request,
        (cases, read): (&[Case<'_>], &[CountResult]),
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
    /// Decides and counts. If counters are out of units and may get some, does neither and returns them.
    fn decide(&self, limiter: &Limiter, now: Timestamp, may_supply: bool) -> Result<Answer, Shortage> {
        let Self { service, request, cases, tallies, .. } = self;
        let (mut shortage, mut refused) = (Shortage::default(), false);
        let mut rule = |verdicts: &[Verdict], read: &[CountResult]| {
            if may_supply {
                shortage = Shortage::of(verdicts, read, &self.rejected);
            }
            if !shortage.is_empty() {
                return JointOutcome {
                    passes: false,
                    count_selection: unconditional_count::CountSelection::Nothing,
                };
            }
            let native = self.native.as_ref();
            let by_native = native.is_some_and(|it| it.is_denied() || it.is_over(request, verdicts));
            refused = by_native || service.is_refused(cases, read);
            JointOutcome {
                passes: !refused || service.settings.shadow_mode,
                count_selection: service.which_count(request, cases, read, by_native),
            }
        };
        let Some(native) = &self.native else {
            let read = limiter.count_unconditionally(tallies, |read| rule(&[], read).count_selection, now);
            if !shortage.is_empty() {
                return Err(shortage);
            }
            let refused = service.is_refused(cases, &read);
            return Ok(service.answer(request, (cases, &read), refused, None, now));
        };
        let (decision, read) = limiter.check_and_count((&native.checks[..], tallies), rule, now);
        if !shortage.is_empty() {
            return Err(shortage);
        }
        Ok(service.answer(request, (cases, &read), refused, Some((native, decision.verdicts())), now))
    }

    /// Gets units for all counters that are out of units; returns whether the store is being queried.
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

    /// Replaces a document's limit by the one for an unreachable store; returns false if it rejects everything.
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

/// Reading of a limit that has just been removed, which limits nothing.
const NOTHING_READ: CountResult =
    CountResult { before: 0, after: 0, is_over: false, reset: None, needs_lease: false };

impl Counted<'_> {
    fn status(&self, read: CountResult, now: Timestamp) -> Status {
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

    fn stats(&self, read: CountResult, near_limit_ratio: f32) -> DescriptorStats {
        let limit = self.rate.requests_per_unit;
        let near = near_threshold(limit, near_limit_ratio);
        let CountResult { before, after, is_over, .. } = read;
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

/// Returns the names that the rules found replace, even a rule that is replaced itself. Clients cannot choose these
/// names.
fn replaced<'r>(met: &[Met<'r>]) -> HashSet<&'r str, FixedState> {
    let rules = met.iter().filter_map(|met| match met {
        Met::Rule { rule, .. } => Some(*rule),
        Met::Nothing | Met::Override(_) => None,
    });
    rules.flat_map(|rule| rule.replaces.iter().map(|name| &**name)).collect()
}
