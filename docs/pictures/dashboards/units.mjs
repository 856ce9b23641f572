// Numbers with units as Grafana writes them, for the units that the dashboards use.

const THOUSANDS = ["", " K", " Mil", " Bil"];
const BINARY = [" B", " KiB", " MiB", " GiB", " TiB"];
const DURATIONS = [[31536000, " years"], [604800, " weeks"], [86400, " days"], [3600, " hours"], [60, " mins"], [1, " s"], [1e-3, " ms"], [1e-6, " µs"]];
const RATES = { reqps: " req/s", ops: " ops/s", cps: " c/s" };

function scaled(value, factor, suffixes) {
  let [step, rest] = [0, value];
  for (; Math.abs(rest) >= factor && step + 1 < suffixes.length; step += 1) rest /= factor;
  return [rest, suffixes[step]];
}

function duration(value) {
  const [seconds, suffix] = DURATIONS.find(([least]) => Math.abs(value) >= least) ?? (value === 0 ? [1, " s"] : DURATIONS.at(-1));
  return [value / seconds, suffix];
}

function inUnit(value, unit) {
  if (unit === "percentunit") return [value * 100, "%"];
  if (unit === "bytes") return scaled(value, 1024, BINARY);
  if (unit === "s") return duration(value);
  const [rest, suffix] = scaled(value, 1000, THOUSANDS);
  return [rest, RATES[unit] ? suffix.trim() + RATES[unit] : suffix];
}

/** Writes a number with three digits, a whole number without decimals. */
export function format(value, unit) {
  const [rest, suffix] = inUnit(value, unit);
  const decimals = Number.isInteger(rest) ? 0 : 2 - Math.floor(Math.log10(Math.abs(rest)));
  return `${rest.toFixed(Math.min(3, Math.max(0, decimals)))}${suffix}`;
}

/** Writes the number of an axis: without zeros at its end. */
export function formatMark(value, unit) {
  return format(value, unit).replace(/^(\d+)(\.\d*?)0+(?!\d)/, (_, whole, decimals) => (decimals === "." ? whole : whole + decimals));
}

/** Returns about `count` round values from 0 to `maximum`, the last of them at `maximum` or above. */
export function ticks(maximum, unit, count = 4) {
  const base = unit === "bytes" ? 2 ** (10 * Math.floor(Math.log2(Math.max(maximum, 1)) / 10)) : 1;
  const raw = maximum / base / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999) * base;
  return Array.from({ length: Math.ceil((maximum / step) * 0.999) + 1 }, (_, index) => Number((index * step).toPrecision(9)));
}
