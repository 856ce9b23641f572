// Rates of the last two minutes, from cumulative counts.

const SERIES = ["allowed", "delayed", "shadow", "rejected"];
const SPAN_SECONDS = 120;
const MEAN_SECONDS = 5;

/** Returns the counts of a rule by series. */
function seriesOf(decisions) {
  const of = (...names) => names.reduce((sum, name) => sum + (decisions[name] ?? 0), 0);
  return [of("allowed", "soft", "exempt", "diverted"), of("delayed"), of("shadow"), of("limited", "banned", "denied")];
}

/** Returns the requests by series. Each has one outcome, however many rules apply to it. */
function seriesOfRequests(outcomes) {
  const series = seriesOf(outcomes);
  series[3] += (outcomes.shed ?? 0) + (outcomes.not_stored ?? 0);
  return series;
}

/** Rates of a few series that are counted together. */
class History {
  constructor() {
    this.points = [];
    this.last = null;
  }

  /** Adds counts of one moment, in seconds of the process's uptime. */
  add(at, values) {
    const { last } = this;
    const isReset = last && (at < last.at || values.some((value, index) => value < last.values[index]));
    if (isReset) this.points = [];
    if (last && !isReset && at > last.at) {
      const span = at - last.at;
      const rates = values.map((value, index) => (value - last.values[index]) / span);
      this.points.push({ at, span, rates });
    }
    if (!last || isReset || at > last.at) this.last = { at, values };
    const oldest = at - SPAN_SECONDS;
    while (this.points.length > 0 && this.points[0].at < oldest) this.points.shift();
  }

  /** Adds what was counted in the seconds before the first snapshot. */
  preload(at, span, counts) {
    if (this.last === null && span > 0) this.points.push({ at, span, rates: counts.map((count) => count / span) });
  }

  /** Returns the mean rates of the last seconds; null before two snapshots. */
  recent() {
    return this.mean(MEAN_SECONDS, 0);
  }

  /** Returns the mean rates of `seconds` that ended `ago` seconds before the last snapshot. */
  mean(seconds, ago) {
    if (this.points.length === 0) return null;
    const end = this.points.at(-1).at - ago;
    const within = this.points.filter(({ at }) => at <= end && at > end - seconds);
    const span = within.reduce((sum, point) => sum + point.span, 0);
    if (span === 0) return null;
    return within[0].rates.map((_, index) =>
      within.reduce((sum, point) => sum + point.rates[index] * point.span, 0) / span);
  }

  /** Returns the largest total rate. */
  peak() {
    return this.points.reduce((max, { rates }) => Math.max(max, rates.reduce((sum, rate) => sum + rate, 0)), 0);
  }
}

/** All histories of the page. Rules that no longer exist are forgotten. */
class Histories {
  constructor() {
    this.rules = new Map();
    /** Units that responses were charged, by rule. */
    this.charges = new Map();
    this.total = new History();
    this.upstreams = new Map();
    this.classes = new History();
  }

  add(snapshot) {
    const at = Date.parse(snapshot.time) / 1000;
    // A new process counts from zero, possibly above the old counts by the time the page is connected again.
    const started = at - snapshot.uptime_seconds;
    if (this.started !== undefined && Math.abs(started - this.started) > 3) {
      [this.rules, this.charges, this.upstreams] = [new Map(), new Map(), new Map()];
      [this.total, this.classes] = [new History(), new History()];
    }
    this.started = started;
    const alive = new Set();
    for (const rule of snapshot.rules) {
      historyOf(this.rules, rule.name).add(at, seriesOf(rule.decisions));
      if (typeof rule.charged_units === "number") historyOf(this.charges, rule.name).add(at, [rule.charged_units]);
      alive.add(rule.name);
    }
    for (const histories of [this.rules, this.charges]) {
      for (const name of histories.keys()) if (!alive.has(name)) histories.delete(name);
    }
    this.addTotals(at, snapshot);
  }

  /** Takes the history that the process has kept, unless the page has one of its own. */
  preload({ end, points }) {
    if (this.started !== undefined || points.length === 0) return;
    let at = Date.parse(end) / 1000 - points.reduce((sum, { seconds }) => sum + seconds, 0);
    // Omitted rules and upstreams had no requests in that second.
    const names = (field) => new Set(points.flatMap((point) => Object.keys(point[field])));
    const [rules, upstreams] = [names("rules"), names("upstreams")];
    for (const { seconds, requests, failed, outcomes, ...counts } of points) {
      at += seconds;
      this.total.preload(at, seconds, seriesOfRequests(outcomes));
      this.classes.preload(at, seconds, [requests, failed]);
      for (const name of rules) historyOf(this.rules, name).preload(at, seconds, counts.rules[name] ?? [0, 0, 0, 0]);
      for (const name of upstreams) historyOf(this.upstreams, name).preload(at, seconds, [counts.upstreams[name] ?? 0]);
    }
  }

  addTotals(at, { requests, upstreams }) {
    this.total.add(at, seriesOfRequests(requests.by_outcome ?? {}));
    this.classes.add(at, [requests.total, requests.by_class?.["5xx"] ?? 0]);
    for (const upstream of upstreams) historyOf(this.upstreams, upstream.name).add(at, [upstream.requests]);
    const names = new Set(upstreams.map(({ name }) => name));
    for (const name of this.upstreams.keys()) if (!names.has(name)) this.upstreams.delete(name);
  }
}

function historyOf(map, name) {
  if (!map.has(name)) map.set(name, new History());
  return map.get(name);
}
