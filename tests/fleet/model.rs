//! Model of the store's script in Rust, operation by operation, for simulations. A test compares the two on a real
//! server.

#[path = "model/fingerprint.rs"]
mod fingerprint;
#[path = "model/instances.rs"]
mod instances;
#[path = "model/parts.rs"]
mod parts;
#[path = "model/request.rs"]
mod request;

use std::collections::HashMap;

use self::parts::Parts;
pub(crate) use self::request::UnitFlow;
use self::request::{
    Demand, PRIORITIES, SECOND, StoreRequest, max_min_share, prefetch_fraction, record_demand, reserved,
    share,
};

const SLICES: usize = 6;
/// Number of units that stands for "unknown".
const UNKNOWN: f64 = 1_099_511_627_776.0;

/// Data of the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    /// Values, with the millisecond at which they expire.
    values: HashMap<String, (Vec<f64>, f64)>,
    generations: HashMap<String, (String, String, f64)>,
    /// Parts by their key. Those that expire do not matter any more.
    parts: HashMap<String, Parts>,
    /// Number of times that each group has started with full limits.
    pub(crate) full_starts: HashMap<String, u32>,
    /// Statistics of the buckets.
    pub(crate) unit_flow: UnitFlow,
}

/// One call, at `now` in microseconds.
struct Call<'a> {
    model: &'a mut Model,
    /// Key of the parts of its group.
    group: &'a str,
    /// Units of the limit of the current request, if parts of it are held back.
    whole: Option<f64>,
    now: f64,
    generation_start: f64,
}

impl Model {
    /// Runs the script at `now`, in microseconds. Returns the generation, the renewed part, and a reply to each request.
    pub(crate) fn call(
        &mut self,
        keys: &[String],
        args: &[String],
        now: u64,
    ) -> (String, i64, Vec<[i64; 6]>) {
        let now = now as f64;
        let [known, run, new] = [&args[0], &args[1], &args[2]];
        let lost = |id: &str| known != "-" && known != id;
        let generation = match self.generations.get(&keys[0]) {
            None => (new.clone(), run.clone(), if known == "-" { 0.0 } else { now }),
            Some((id, of_run, since)) if of_run != run || lost(id) && *since == 0.0 => {
                (id.clone(), run.clone(), now)
            }
            Some(same) => same.clone(),
        };
        if !self.generations.contains_key(&keys[0]) {
            let begun = self.full_starts.entry(keys[0].clone()).or_default();
            *begun += u32::from(known == "-");
        }
        let (id, born) = (generation.0.clone(), generation.2);
        self.generations.insert(keys[0].clone(), generation);
        let mut call = Call { model: self, group: &keys[1], whole: None, now, generation_start: born };
        let numbers = |text: &str| text.split(' ').map(|word| word.parse().unwrap()).collect::<Vec<f64>>();
        let renewed = if args[3] == "-" { -1 } else { call.renew(&numbers(&args[3])) };
        let replies = keys[2..].iter().zip(&args[4..]);
        let replies =
            replies.map(|(key, question)| call.decide(key, &question[..1], &mut numbers(&question[2..])));
        (id, renewed, replies.collect())
    }

    /// Asks `question` about a counter, with the known generation, the server's run and a new generation. Returns the
    /// generation and the reply.
    pub(crate) fn ask(
        &mut self,
        counter: &str,
        [known, run, new]: [&str; 3],
        question: &str,
        now: u64,
    ) -> (String, [i64; 6]) {
        let keys = ["generation", "parts", counter].map(str::to_owned);
        let args = [known, run, new, "-", question].map(str::to_owned);
        let (generation, _, replies) = self.call(&keys, &args, now);
        (generation, replies[0])
    }

    /// Leaves the buckets as an instance of an earlier version would write them, which does not know the last number.
    pub(crate) fn write_as_earlier_version(&mut self) {
        let buckets = self.values.values_mut().filter(|(list, _)| list.len() == 12 + 2 * SLICES);
        buckets.for_each(|(list, _)| list[11 + 2 * SLICES] = UNKNOWN * 4096.0);
    }

    /// Deletes all data of the server.
    pub(crate) fn flush(&mut self) {
        (self.values, self.generations, self.parts) = Default::default();
    }
}

fn reply(numbers: [f64; 6]) -> [i64; 6] {
    numbers.map(|number| number.floor() as i64)
}

fn demand_of(list: &[f64]) -> Demand {
    [list[0], list[1], list[2], list[3], list[4]]
}

/// Begins a new slice if the latest is old enough, or all slices anew if the bucket is empty.
fn age_slices(slices: &mut Vec<f64>, now: f64, backlog: f64, valid: f64) {
    if backlog == 0.0 {
        *slices = [now, 0.0].repeat(SLICES);
    } else if now - slices[0] >= (SECOND / 20.0).max(valid / 4.0) {
        slices.rotate_right(2);
        (slices[0], slices[1]) = (now, backlog);
    }
}

/// Returns the number in which the units granted since the bucket was unused share a place with the time for which units
/// are out.
fn pack(used: f64, out: f64) -> f64 {
    UNKNOWN.min((used - 0.000001).ceil()) * 4096.0 + (out / 1000.0).ceil().clamp(0.0, 4095.0)
}

/// Returns a full bucket.
fn full_bucket(now: f64, interval: f64, rate: f64) -> Vec<f64> {
    let mut list = vec![now, 0.0, 0.0, now, interval, rate, 0.0, 0.0, 0.0, 0.0, 0.0];
    list.extend([now, 0.0].repeat(SLICES));
    list.push(UNKNOWN * 4096.0);
    list
}

impl Call<'_> {
    fn count(&mut self, key: &str, kind: &str, list: &[f64]) -> [i64; 6] {
        match kind {
            "b" => self.bucket(key, list),
            "w" => self.window(key, list),
            "s" => self.sliding(key, list),
            "r" => self.refill(key, list),
            "x" => self.ban(key, list),
            _ => self.permits(key, list),
        }
    }

    fn returned_by(&self, before: f64, granted: f64, valid: f64) -> f64 {
        if granted == 0.0 {
            return before;
        }
        before.max(self.now + valid.max(SECOND / 50.0) + SECOND * 2.0 / 5.0)
    }

    fn wait_for_return(&self, wait: f64, spread: f64, out_until: f64, q: &StoreRequest) -> (f64, f64) {
        let may_return = q.instances > 1.0 && out_until > self.now && wait > 2.0 * SECOND;
        if may_return { (q.poll(), q.poll() / 4.0) } else { (wait, spread) }
    }

    fn load(&self, key: &str) -> Option<Vec<f64>> {
        let (list, until) = self.model.values.get(key)?;
        // The server expires keys by its own clock, in whole milliseconds.
        ((self.now / 1000.0).floor() < *until).then(|| list.clone())
    }

    fn save(&mut self, key: &str, list: Vec<f64>, microseconds: f64) {
        let until = (self.now / 1000.0).floor() + (microseconds / 1000.0).ceil() + 1000.0;
        self.model.values.insert(key.into(), (list, until));
    }

    /// Whether units of a bucket that is full for this time may have been lost with the data of the store.
    fn may_have_lost(&self, lost: f64, full: f64) -> bool {
        let since_loss = self.now - self.generation_start;
        self.generation_start > 0.0 && since_loss < lost + (0.6 * full).min(SECOND)
    }

    fn bucket(&mut self, key: &str, list: &[f64]) -> [i64; 6] {
        let &[interval, burst, claim_valid, priority, fair, weight, ref rest @ ..] = list else { panic!() };
        let q = StoreRequest::new(priority, weight, rest, &rest[8..]);
        let now = self.now;
        let (full, rate) = (burst * interval, SECOND / interval);
        let over = (60.0 * SECOND).min(SECOND.max(100.0 * interval));
        let known = self.load(key);
        let s = known.clone().unwrap_or_else(|| full_bucket(now, interval, rate));
        let elapsed = (now - s[0]).max(0.0);
        self.model.unit_flow.idle += (elapsed - s[1]).max(0.0) / interval;
        let (mut backlog, mut busy_until) = ((s[1] - elapsed).max(0.0), s[3]);
        let mut longest = if now < busy_until + s[2] { s[2] } else { 0.0 };
        let (mut slices, packed) = (s[11..11 + 2 * SLICES].to_vec(), s[11 + 2 * SLICES]);
        let (mut used, mut out_until) = ((packed / 4096.0).floor(), s[0] + packed % 4096.0 * 1000.0);
        if s[4] != interval {
            let ratio = interval / s[4];
            backlog *= ratio;
            longest = (longest * ratio.max(1.0)).min(longest.max(full));
            slices = [now, 0.0].repeat(SLICES);
            used = UNKNOWN;
        }
        let lost = self.whole.unwrap_or(burst) * interval;
        if (known.is_none() || s[0] < self.generation_start) && self.may_have_lost(lost, full) {
            (backlog, used) = (backlog.max(lost - (now - self.generation_start)), UNKNOWN);
            longest = longest.max((0.6 * full).min(SECOND));
        }
        slices[1] = slices[1].min(backlog);
        let is_new = backlog == 0.0;
        used = if is_new && longest == 0.0 { 0.0 } else { used };
        age_slices(&mut slices, now, backlog, claim_valid.max(longest));
        if let Some(back) = self.return_units(&q, interval, backlog, &mut slices) {
            (backlog, used) = (backlog - back, (used - q.returned).max(0.0));
        }
        let mut demand = demand_of(&s[6..]);
        record_demand(&mut demand, elapsed, over, &q);
        let owed = (q.owed * interval).min((2.0 * full - backlog).max(0.0));
        (backlog, used) = (backlog + owed, used + owed / interval);
        let tolerance = full - claim_valid.max(longest);
        let slack = (1.0 - backlog / tolerance.max(interval)).max(0.0);
        let (mut cap, mut part) = (s[5], 1.0);
        if fair == 1.0 {
            (cap, part) = max_min_share((rate, cap), elapsed.min(over) / over, slack, &q);
        } else if slack < 0.5 {
            part = share(&demand, rate, slack, &q);
        }
        let reserved = reserved(&demand, (rate, interval), tolerance, &q);
        let room = ((tolerance - reserved - backlog) / interval + 0.000001).floor().max(0.0);
        let room = room.max((burst - used - reserved / interval + 0.000001).floor());
        let (mut wait, mut spread, mut pause) = (0.0, 0.0, 0.0);
        let granted;
        if q.needed > room {
            wait = (backlog + q.needed * interval - (tolerance - reserved)).ceil();
            spread = SECOND.min(demand[PRIORITIES] * interval);
            if part < 1.0 && slack < 0.5 {
                wait = wait.max(q.paced_duration(q.needed, part));
            }
            (wait, spread) = self.wait_for_return(wait, spread, out_until, &q);
            granted = q.last_units(room);
        } else if room * interval >= SECOND {
            granted = q.stock_share(room, room);
        } else {
            granted = room.min(q.needed.max((q.wanted * part * prefetch_fraction(slack)).floor()));
            if part < 1.0 && (slack < 0.5 || granted > q.needed) {
                pause = q.paced_duration(granted, part);
            }
        }
        (backlog, used) = (backlog + granted * interval, used + granted);
        out_until = self.returned_by(out_until, granted, claim_valid);
        self.model.unit_flow.granted += granted;
        if is_new {
            slices[1] = backlog;
        }
        longest = if granted > 0.0 { longest.max(claim_valid) } else { longest };
        busy_until = if backlog > 0.0 { now + backlog } else { busy_until };
        let state = vec![now, backlog, longest, busy_until, interval, cap];
        let saved = [state, demand.to_vec(), slices, vec![pack(used, out_until - now)]].concat();
        self.save(key, saved, backlog + longest + over);
        let remaining = ((full - backlog) / interval + 0.000001).floor().max(0.0);
        reply([granted, claim_valid, wait, spread, pause, remaining])
    }

    /// Returns units to the bucket, at most by its lowest level since they were granted, or by what has not drained of them
    /// since. The result is in microseconds; `None` if it is not known what has drained since.
    fn return_units(
        &mut self,
        q: &StoreRequest,
        interval: f64,
        backlog: f64,
        slices: &mut [f64],
    ) -> Option<f64> {
        if q.returned <= 0.0 {
            return None;
        }
        self.model.unit_flow.late += q.returned;
        let (mut most, mut since) = (f64::INFINITY, None);
        for (index, slice) in slices.chunks(2).enumerate() {
            most = most.min(slice[1]);
            if q.granted_at >= slice[0] {
                since = Some(index);
                break;
            }
        }
        let index = since?;
        let units = q.returned * interval;
        let back = units.min(backlog).min(most.max(units - (self.now - q.granted_at)));
        self.model.unit_flow.returned += back / interval;
        self.model.unit_flow.late -= back / interval;
        slices
            .iter_mut()
            .take(2 * index + 2)
            .skip(1)
            .step_by(2)
            .for_each(|low| *low = (*low - back).max(0.0));
        Some(back)
    }

    fn window(&mut self, key: &str, list: &[f64]) -> [i64; 6] {
        let &[count, claim_valid, priority, weight, ref rest @ ..] = list else { panic!() };
        let (q, marks) = (StoreRequest::new(priority, weight, rest, &rest[11..]), &rest[8..]);
        let now = self.now;
        if now < marks[0] || now >= marks[2] {
            return [-1, 0, 0, 0, 0, 0];
        }
        let (start, stop) = if now >= marks[1] { (marks[1], marks[2]) } else { (marks[0], marks[1]) };
        let text = self.load(key);
        let is_known = text.is_some();
        let s = text.unwrap_or_else(|| vec![stop, 0.0, now, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let (mut used, mut out_until) = (s[1], s[8]);
        if s[0] != stop {
            used = (used - self.whole.unwrap_or(count)).max(0.0);
        }
        if self.generation_start >= start && (!is_known || s[2] < self.generation_start) {
            used = used.max(self.whole.unwrap_or(count));
        }
        let over = (60.0 * SECOND).min(SECOND.max((stop - start) / 4.0));
        let mut demand = demand_of(&s[3..]);
        record_demand(&mut demand, (now - s[2]).max(0.0), over, &q);
        if q.granted_at >= start {
            used = (used - q.returned).max(0.0);
        }
        used += q.owed.min((2.0 * count - used).max(0.0));
        let room = (count - used).max(0.0);
        let (mut wait, mut spread, mut pause) = (0.0, 0.0, 0.0);
        let granted;
        if q.needed > room {
            let natural = (stop - now, 5000_f64.min((stop - now) / 10.0));
            (wait, spread) = self.wait_for_return(natural.0, natural.1, out_until, &q);
            granted = q.last_units(room);
        } else {
            let higher: f64 = demand[..q.priority].iter().sum();
            granted = q.stock_share(room, (room - higher * q.period / SECOND).max(room / 100.0));
            if room == 0.0 {
                pause = q.poll().min(stop - now);
            }
        }
        used += granted;
        out_until = self.returned_by(out_until, granted, claim_valid.min(stop - now));
        let ends = stop - now + if used > count { stop - start } else { 0.0 };
        let mut saved = vec![stop, used, now];
        saved.extend(demand);
        saved.push(out_until);
        self.save(key, saved, ends);
        reply([granted, claim_valid.min(stop - now), wait.ceil(), spread, pause, (count - used).max(0.0)])
    }

    fn sliding(&mut self, key: &str, list: &[f64]) -> [i64; 6] {
        let &[count, length, parts, claim_valid, priority, weight, ref rest @ ..] = list else { panic!() };
        let q = StoreRequest::new(priority, weight, rest, &rest[8..]);
        let now = self.now;
        let part_length = length / parts;
        let current = (now / part_length).floor();
        let oldest = current - parts;
        let text = self.load(key);
        let is_known = text.is_some();
        let s = text.unwrap_or_else(|| vec![now, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let pairs = s[6..].chunks(2).map(|pair| (pair[0], pair[1]));
        let mut out_until = pairs.clone().find(|(index, _)| *index == -1.0).map_or(0.0, |(_, until)| until);
        let mut counts: Vec<(f64, f64)> = pairs.filter(|(index, _)| *index >= oldest).collect();
        let mut used: f64 = counts.iter().map(|(_, units)| units).sum();
        if self.generation_start > 0.0 && (!is_known || s[0] < self.generation_start) {
            let lost = (self.generation_start / part_length).floor();
            if lost >= oldest {
                let whole = self.whole.unwrap_or(count);
                counts.insert(0, (lost, (whole - used).max(0.0)));
                used = used.max(whole);
            }
        }
        let mut demand = demand_of(&s[1..]);
        let over = (60.0 * SECOND).min(SECOND.max(length / 4.0));
        record_demand(&mut demand, (now - s[0]).max(0.0), over, &q);
        let of_claim = (q.granted_at / part_length).floor();
        let mut returned = q.returned;
        for (index, units) in counts.iter_mut().rev() {
            if *index == of_claim {
                let back = units.min(returned);
                (*units, used, returned) = (*units - back, used - back, returned - back);
            }
        }
        let owed = q.owed.min((2.0 * count - used).max(0.0));
        let room = (count - used - owed).max(0.0);
        let (mut wait, mut spread, mut pause) = (0.0, 0.0, 0.0);
        let granted;
        if q.needed > room {
            let mut freed = 0.0;
            wait = length;
            for (index, units) in &counts {
                freed += units;
                if room + freed >= q.needed {
                    wait = (index + parts + 1.0) * part_length - now;
                    break;
                }
            }
            spread = SECOND.min(demand[PRIORITIES] * length / count);
            (wait, spread) = self.wait_for_return(wait, spread, out_until, &q);
            granted = q.last_units(room);
        } else if room > 0.0 && room * length / count >= SECOND {
            granted = q.stock_share(room, room);
        } else {
            let part = share(&demand, count * SECOND / length, room / count, &q);
            granted = room.min(q.needed.max((q.wanted * part).floor()));
            if part < 1.0 && granted > q.needed {
                pause = 0.9 * q.period;
            }
            if room == 0.0 {
                pause = q.poll().max(pause);
            }
        }
        let ends = (current + 1.0) * part_length - now;
        out_until = self.returned_by(out_until, granted, claim_valid.min(ends));
        if granted + owed > 0.0 {
            match counts.last_mut() {
                Some((index, units)) if *index == current => *units += granted + owed,
                _ => counts.push((current, granted + owed)),
            }
        }
        let mut saved = vec![now];
        saved.extend(demand);
        saved.extend(
            counts.iter().filter(|(_, units)| *units > 0.0).flat_map(|(index, units)| [*index, *units]),
        );
        saved.extend([-1.0, out_until]);
        self.save(key, saved, length + part_length + over);
        reply([granted, claim_valid.min(ends), wait.ceil(), spread, pause, (room - granted).max(0.0)])
    }

    fn refill(&mut self, key: &str, list: &[f64]) -> [i64; 6] {
        let &[count, every, burst, claim_valid, priority, weight, ref rest @ ..] = list else { panic!() };
        let q = StoreRequest::new(priority, weight, rest, &rest[8..]);
        let now = self.now;
        let text = self.load(key);
        let is_known = text.is_some();
        let s = text.unwrap_or_else(|| vec![now, 0.0, now, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let (mut since, mut missing, mut out_until) = (s[0], s[1], s[8]);
        if self.generation_start > 0.0 && (!is_known || s[2] < self.generation_start) {
            (since, missing) = (self.generation_start, self.whole.unwrap_or(burst));
        }
        let refills = ((now - since) / every).floor().max(0.0);
        missing = (missing - refills * count).max(0.0);
        since += refills * every;
        if missing == 0.0 {
            since = now;
        }
        let mut demand = demand_of(&s[3..]);
        let over = (60.0 * SECOND).min(SECOND.max(every));
        record_demand(&mut demand, (now - s[2]).max(0.0), over, &q);
        if q.granted_at >= since {
            missing = (missing - q.returned).max(0.0);
        }
        missing += q.owed.min((2.0 * burst - missing).max(0.0));
        let room = (burst - missing + 0.000001).floor().max(0.0);
        let (mut wait, mut spread, mut pause) = (0.0, 0.0, 0.0);
        let granted;
        if q.needed > room {
            wait = since + ((missing + q.needed - burst) / count).ceil() * every - now;
            (wait, spread) = self.wait_for_return(wait, 5000_f64.min(every / 10.0), out_until, &q);
            granted = q.last_units(room);
        } else if room > 0.0 && room * every / count >= SECOND {
            granted = q.stock_share(room, room);
        } else {
            let part = share(&demand, count * SECOND / every, room / burst, &q);
            granted = room.min(q.needed.max((q.wanted * part).floor()));
            if part < 1.0 && granted > q.needed {
                pause = (0.9 * q.period).min(since + every - now);
            }
            if room == 0.0 {
                pause = q.poll().min(since + every - now).max(pause);
            }
        }
        missing += granted;
        out_until = self.returned_by(out_until, granted, claim_valid.min(since + every - now));
        let mut saved = vec![since, missing, now];
        saved.extend(demand);
        saved.push(out_until);
        self.save(key, saved, (missing / count).ceil() * every + over);
        let valid = claim_valid.min(since + every - now);
        let remaining = (burst - missing + 0.000001).floor().max(0.0);
        reply([granted, valid, wait.ceil(), spread, pause, remaining])
    }
}
