//! Model of what the script keeps of single instances and clients: bans and permits.

use super::{Call, reply};

impl Call<'_> {
    pub(super) fn ban(&mut self, key: &str, list: &[f64]) -> [i64; 6] {
        let &[first, most, began] = list else { panic!() };
        let (now, known) = (self.now, self.load(key));
        let (mut ends, mut doubled) = known.as_ref().map_or((0.0, 0.0), |state| (state[0], state[1]));
        if began >= 0.0 && ends <= now {
            let is_again = known.is_some() && now <= ends + most;
            doubled = if is_again { (doubled + 1.0_f64).min(63.0) } else { 0.0 };
            ends = now - began + most.min(first * doubled.exp2());
            self.save(key, vec![ends, doubled], (ends - now).max(0.0) + most);
        }
        reply([doubled, 0.0, (ends - now).ceil().max(0.0), 0.0, 0.0, 0.0])
    }

    pub(super) fn permits(&mut self, key: &str, list: &[f64]) -> [i64; 6] {
        let &[count, valid, instance, used, wanted, held, sent] = list else { panic!() };
        let now = self.now;
        let text = self.load(key);
        let is_known = text.is_some();
        let (mut kept, mut mine, mut others, mut last) = (Vec::new(), 0.0, 0.0, now + valid);
        for holder in text.unwrap_or_default().chunks(4) {
            let is_valid = holder[2] > now;
            if holder[0] == instance {
                if holder[3] > sent {
                    return [0; 6];
                }
                mine = if is_valid { holder[1] } else { 0.0 };
            } else if is_valid {
                kept.extend(holder);
                others += holder[1];
                last = last.max(holder[2]);
            }
        }
        if self.generation_start > 0.0 && now < self.generation_start + valid && !is_known {
            others = others.max(count - used);
        }
        let free = (count - others).max(0.0);
        let ahead = used.max(wanted.min(used + ((free - used).max(0.0) / 2.0 + 0.5).floor()));
        let granted = free.min(ahead);
        let out = granted.max(mine.min(held));
        if out > 0.0 {
            kept.extend([instance, out, now + valid, sent]);
        }
        if kept.is_empty() {
            self.model.values.remove(key);
        } else {
            self.save(key, kept, last - now);
        }
        let wait = if granted < wanted { valid / 40.0 } else { 0.0 };
        reply([granted, valid, wait, wait, 0.0, (free - out).max(0.0)])
    }
}
