//! Model of `parts.lua`: the parts that instances may spend without the store, and what is held back for them.

use super::Call;
use super::request::SECOND;

/// The number that stands for all of a limit.
const WHOLE: f64 = 1_048_576.0;
/// Part that is divided equally.
const EQUAL: f64 = 1.0 / 16.0;
/// Maximum time for which what was lost may matter.
const MAX_LOSS: f64 = 2.0 * 86_400.0 * 1e6;
/// Minimum time after which instances ask again while parts are held back.
const HELD_POLL: f64 = 250_000.0;

/// Parts of a group.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    quiet_until: f64,
    saved: f64,
    holders: Vec<Holder>,
}

#[derive(Clone, Debug)]
struct Holder {
    id: f64,
    part: f64,
    renewed: f64,
    valid: f64,
    absent: f64,
    earlier: f64,
    ended: f64,
    demand: f64,
    sent: f64,
}

fn longest(holders: &[Holder]) -> f64 {
    holders.iter().map(|it| it.valid).fold(0.0, f64::max)
}

impl Call<'_> {
    /// Returns the holders that were heard of since the store has lost data, and not too long ago.
    fn holders(&self) -> Vec<Holder> {
        let Some(parts) = self.model.parts.get(self.group) else { return Vec::new() };
        let known =
            |it: &&Holder| it.renewed >= self.generation_start && self.now < it.renewed + 2.0 * it.valid;
        let cool = |it: &Holder| {
            let earlier = if self.now >= it.ended + it.valid { 0.0 } else { it.earlier };
            Holder { earlier, ..it.clone() }
        };
        parts.holders.iter().filter(known).map(cool).collect()
    }

    fn has_lost(&self, longest: f64, period: f64) -> bool {
        let period = if longest > 0.0 { period } else { MAX_LOSS };
        self.generation_start > 0.0 && self.now < self.generation_start + period
    }

    /// Returns how much of [`WHOLE`] is held back of a limit of `units` for which nothing matters that was spent `settle` ago.
    fn held_back(&self, settle: f64, units: f64) -> f64 {
        let saved = self.model.parts.get(self.group).filter(|parts| parts.saved >= self.generation_start);
        if self.now < saved.map_or(0.0, |parts| parts.quiet_until) {
            return 0.0;
        }
        let (holders, now) = (self.holders(), self.now);
        let (mut held, mut known) = (0.0, 0.0);
        for it in &holders {
            known += it.part + it.earlier;
            if settle > it.valid {
                continue;
            }
            let is_absent = now >= it.renewed + it.absent && now < it.renewed + it.valid + settle;
            if is_absent && it.part * units >= WHOLE {
                held += it.part;
            }
            if now < it.ended + settle && it.earlier * units >= WHOLE {
                held += it.earlier;
            }
        }
        let longest = longest(&holders);
        if self.has_lost(longest, longest + settle) && (longest == 0.0 || settle <= longest) {
            held += (WHOLE - known).max(0.0);
        }
        held.min(WHOLE)
    }

    /// Renews the part of an instance; returns it, or -1 if nothing was renewed.
    pub(super) fn renew(&mut self, list: &[f64]) -> i64 {
        let &[id, demand, valid, absent, claimed, has_spent, deadline, sent] = list else { panic!() };
        let now = self.now;
        if now > deadline {
            return -1;
        }
        let (mine, mut kept): (Vec<_>, Vec<_>) = self.holders().into_iter().partition(|it| it.id == id);
        if mine.first().is_some_and(|it| it.sent > sent) {
            return -1;
        }
        if mine.is_empty() && valid == 0.0 {
            return 0;
        }
        let longest = longest(&kept).max(mine.first().map_or(0.0, |it| it.valid)).max(valid);
        let present = kept.iter().filter(|it| now < it.renewed + it.absent);
        let demand_of_all = present.clone().map(|it| it.demand).fold(demand, |sum, of| sum + of);
        let present = 1.0 + present.count() as f64;
        let others: f64 = kept.iter().map(|it| it.part + it.earlier).sum();
        let (is_lossy, free) = (self.has_lost(longest, 2.0 * longest), (WHOLE - others).max(0.0));
        let part = if is_lossy { free.min(claimed) } else { 0.0 };
        let new = Holder { id, part, renewed: now, valid, absent, earlier: 0.0, ended: 0.0, demand, sent };
        let mut mine = mine.into_iter().next().unwrap_or(new);
        if has_spent == 1.0 {
            (mine.earlier, mine.ended, mine.part) = (mine.earlier + mine.part, now, 0.0);
        }
        let by_demand = if demand_of_all > 0.0 { demand / demand_of_all } else { 1.0 / present };
        let wanted = WHOLE * (EQUAL / present + (1.0 - EQUAL) * by_demand);
        let most = if is_lossy { mine.part } else { wanted.min((free - mine.earlier).max(0.0)) };
        let granted = if valid > 0.0 { most.floor() } else { 0.0 };
        mine.part = granted.max(if valid > 0.0 { mine.part.min(claimed) } else { 0.0 });
        let absent = if valid > 0.0 { absent } else { 0.0 };
        (mine.renewed, mine.absent, mine.demand, mine.sent) = (now, absent, demand, sent);
        let before = if mine.earlier > 0.0 { mine.valid } else { 0.0 };
        mine.valid = if valid > 0.0 { valid.max(before) } else { mine.valid };
        kept.push(mine);
        self.save_parts(kept);
        granted as i64
    }

    fn save_parts(&mut self, mut holders: Vec<Holder>) {
        let now = self.now;
        holders.retain(|it| it.part + it.earlier > 0.0 || now < it.renewed + it.absent);
        if holders.is_empty() {
            self.model.parts.remove(self.group);
            return;
        }
        let calm = |it: &Holder| match it {
            it if it.earlier > 0.0 => 0.0,
            it if it.part > 0.0 => it.renewed + it.absent,
            _ => f64::INFINITY,
        };
        let calm = holders.iter().map(calm).fold(f64::INFINITY, f64::min);
        let longest = longest(&holders);
        let quiet_until = if self.has_lost(longest, 2.0 * longest) { 0.0 } else { calm };
        self.model.parts.insert(self.group.into(), Parts { quiet_until, saved: now, holders });
    }

    /// Decides a request of the kind `kind`, which is in upper case if parts of its limit are held back.
    pub(super) fn decide(&mut self, key: &str, kind: &str, list: &mut Vec<f64>) -> [i64; 6] {
        let counted_as = kind.to_lowercase();
        let [units, needed, instances] = match &*counted_as {
            "b" => [1, 6, 14],
            "r" => [2, 6, 14],
            "w" => [0, 4, 15],
            _ => [0, 6, 14],
        };
        if kind == counted_as {
            return self.count(key, &counted_as, list);
        }
        let settle = list.remove(0);
        let held = self.held_back(settle, list[units]);
        if held == 0.0 {
            return self.count(key, &counted_as, list);
        }
        let (whole, left) = (list[units], 1.0 - held / WHOLE);
        let instances = list.get(instances).copied().unwrap_or(1.0);
        let asks_after = HELD_POLL.max(SECOND / 200.0 * instances).min(SECOND / 2.0);
        let rate = left.max(1.0 / WHOLE);
        match &*counted_as {
            "b" => list[0] /= rate,
            "r" => list[0] *= rate,
            _ => {}
        }
        if (whole * left).floor() < 1.0 {
            if list[needed + 4] > 0.0 || list[needed + 6] > 0.0 {
                list[needed..needed + 2].fill(0.0);
                self.count(key, &counted_as, list);
            }
            return [0.0, 0.0, asks_after, asks_after / 4.0, 0.0, 0.0].map(|number| number as i64);
        }
        list[units] = (whole * left).floor();
        self.whole = Some(whole);
        let mut reply = self.count(key, &counted_as, list);
        self.whole = None;
        reply[2..5].iter_mut().for_each(|time| *time = (*time).min(asks_after as i64));
        reply
    }
}
