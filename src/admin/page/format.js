// Numbers, durations and elements: the smallest pieces of the page.

const counts = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** Returns a rate or a count in at most seven characters. */
function formatRate(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value > 0 && value < 0.1) return "< 0.1";
  if (value < 10) return tenths.format(value);
  return value < 10000 ? counts.format(value) : compact.format(value);
}

function formatCount(value) {
  if (value === null || value === undefined) return "–";
  return value < 10000000 ? counts.format(value) : compact.format(value);
}

function formatMilliseconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1000) return `${tenths.format(value / 1000)} s`;
  return `${value < 10 ? tenths.format(value) : counts.format(value)} ms`;
}

/** Returns the two largest units of a duration in seconds. */
function formatDuration(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => seconds >= size);
  if (first < 0) return "0 s";
  const [name, size] = units[first];
  const parts = [`${Math.floor(seconds / size)} ${name}`];
  const next = units[first + 1];
  const rest = next && Math.floor((seconds % size) / next[1]);
  if (rest) parts.push(`${rest} ${next[0]}`);
  return parts.join(" ");
}

function formatClock(date) {
  return date.toLocaleTimeString("en-GB");
}

/** Creates an element. Text is always set as text, never as markup: keys come from clients. */
function create(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(attribute, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(attribute, value);
  }
  element.append(...children);
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

/** Sets a text only if it differs, so that a screen reader does not start again. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Puts `wanted` into `parent` in this order. Elements that stay in place keep the focus. */
function arrange(parent, wanted) {
  const kept = new Set(wanted);
  const focused = document.activeElement;
  for (const child of [...parent.children]) if (!kept.has(child)) child.remove();
  wanted.forEach((child, index) => {
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
  });
  if (focused && focused !== document.activeElement && parent.contains(focused)) {
    focused.focus({ preventScroll: true });
  }
}

/** Fills a definition list; the entries are names and texts. */
function describe(list, entries) {
  const signature = JSON.stringify(entries);
  if (list.dataset.signature === signature) return;
  list.dataset.signature = signature;
  list.replaceChildren(...entries.flatMap(([name, text]) => [create("dt", {}, name), create("dd", {}, text)]));
}

/** Limits keys and messages to a length that cannot disturb the layout. */
function shorten(text, max = 200) {
  return text.length > max ? `${text.slice(0, max - 1)}…` : text;
}
