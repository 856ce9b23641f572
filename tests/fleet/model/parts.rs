//! Model of `parts.lua`: the parts that instances may spend without the store, and what is held back for them.

use super::Call;

/// The number that stands for all of a limit.
const WHOLE: f64 = 1_048_576.0;
/// Part that is divided equally.
const EQUAL: f64 = 1.0 / 16.0;
/// Maximum time for which what was lost may matter.
const MAX_LOSS: f64 = 2.0 * 86_400.0 * 1e6;
/// Time after which instances ask again while parts are held back.
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

    /// Returns the units of [`WHOLE`] that are held back of a limit for which nothing matters that was spent `settle` ago.
    fn held_back(&self, settle: f64) -> f64 {
        let saved = self.model.parts.get(self.group).filter(|parts| parts.saved >= self.generation_start);
        let quiet_until = saved.map_or(0.0, |parts| parts.quiet_until);
        if self.now < quiet_until {
            return 0.0;
        }
        let (holders, now) = (self.holders(), self.now);
        let (mut held, mut known) = (0.0, 0.0);
        for it in &holders {
            known += it.part + it.earlier;
            if settle > it.valid {
                continue;
            }
            if now >= it.renewed + it.absent && now < it.renewed + it.valid + settle {
                held += it.part;
            }
            if now < it.ended + settle {
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
        let longest = longest(&kept).max(mine.first().map_or(0.0, |it| it.valid)).max(valid);
        if mine.first().is_some_and(|it| it.sent > sent) {
            return -1;
        }
        let present = kept.iter().filter(|it| now < it.renewed + it.absent);
        let demand_of_all = present.clone().map(|it| it.demand).fold(demand, |sum, of| sum + of);
        let present = 1.0 + present.count() as f64;
        let others: f64 = kept.iter().map(|it| it.part + it.earlier).sum();
        let is_lossy = self.has_lost(longest, 2.0 * longest);
        let part = if is_lossy { claimed } else { 0.0 };
        let new =
            Holder { id, part, renewed: now, valid: 0.0, absent, earlier: 0.0, ended: 0.0, demand, sent };
        let mut mine = mine.into_iter().next().unwrap_or(new);
        if has_spent == 1.0 {
            (mine.earlier, mine.ended, mine.part) = (mine.earlier + mine.part, now, 0.0);
        }
        let by_demand = if demand_of_all > 0.0 { demand / demand_of_all } else { 1.0 / present };
        let wanted = WHOLE * (EQUAL / present + (1.0 - EQUAL) * by_demand);
        let free = if is_lossy { mine.part } else { (WHOLE - others - mine.earlier).max(0.0) };
        let granted = if valid > 0.0 { wanted.min(free).floor() } else { 0.0 };
        mine.part = granted.max(if valid > 0.0 { mine.part.min(claimed) } else { 0.0 });
        (mine.renewed, mine.absent, mine.demand, mine.sent) = (now, absent, demand, sent);
        let before = if mine.earlier > 0.0 { mine.valid } else { 0.0 };
        mine.valid = if valid > 0.0 { valid.max(before) } else { mine.valid };
        if mine.valid > 0.0 {
            kept.push(mine);
        }
        let calm = kept.iter().map(|it| if it.earlier > 0.0 { 0.0 } else { it.renewed + it.absent });
        let calm = calm.fold(f64::INFINITY, f64::min);
        let longest = self::longest(&kept);
        let quiet_until = if self.has_lost(longest, 2.0 * longest) { 0.0 } else { calm };
        if kept.is_empty() {
            self.model.parts.remove(self.group);
        } else {
            self.model.parts.insert(self.group.into(), Parts { quiet_until, saved: now, holders: kept });
        }
        granted as i64
    }

    /// Decides a request of the kind `kind`, which is in upper case if parts of its limit are held back.
    pub(super) fn decide(&mut self, key: &str, kind: &str, list: &mut [f64]) -> [i64; 6] {
        let counted_as = kind.to_lowercase();
        let settle = match &*counted_as {
            "b" => list[0] * list[1],
            "w" => list[13] - list[12],
            "s" => list[1] * (1.0 + 1.0 / list[2]),
            "r" => ((list[2] / list[0]).ceil() + 1.0) * list[1],
            _ => 0.0,
        };
        let held = if kind == counted_as { 0.0 } else { self.held_back(settle) };
        if held == 0.0 {
            return self.count(key, &counted_as, list);
        }
        let (whole, units) = reduce(&counted_as, list, 1.0 - held / WHOLE);
        if held >= WHOLE || units < 1.0 {
            return [0, 0, HELD_POLL as i64, HELD_POLL as i64 / 4, 0, 0];
        }
        self.whole = Some(whole);
        let mut reply = self.count(key, &counted_as, list);
        self.whole = None;
        reply[2..5].iter_mut().for_each(|time| *time = (*time).min(HELD_POLL as i64));
        reply
    }
}

/// Reduces the limit of a request to the fraction `left`; returns its units before and after.
fn reduce(kind: &str, list: &mut [f64], left: f64) -> (f64, f64) {
    list[0] = match kind {
        "b" => list[0] / left,
        "r" => list[0] * left,
        _ => list[0],
    };
    let place = match kind {
        "b" => 1,
        "r" => 2,
        _ => 0,
    };
    let whole = list[place];
    list[place] = (whole * left).floor();
    (whole, list[place])
}
