// The table of rules. Only rows near the viewport exist, so that hundreds of rules cost no more than a screenful.

const MAX_ROWS_DRAWN_AT_ONCE = 40;
const OVERSCAN_ROWS = 6;
const SORT_INTERVAL_MS = 5000;
const COLUMNS = [
  { id: "name", label: "Rule", class: "c-name", sort: (one, other) => one.name.localeCompare(other.name) },
  { id: "plot", label: "Last two minutes", class: "c-plot" },
  { id: "allowed", label: "Allowed/s", class: "c-number n", series: 0 },
  { id: "delayed", label: "Delayed/s", class: "c-number n", series: 1 },
  { id: "shadow", label: "Shadow/s", class: "c-number n", series: 2 },
  { id: "rejected", label: "Rejected/s", class: "c-number n", series: 3 },
  { id: "keys", label: "Keys", class: "c-number c-keys n" },
];

/** Returns the limits of a rule with what they count, such as `100000 tokens/min`. Requests need no unit. */
function limitsOf(rule) {
  const unit = rule.unit && rule.unit !== "requests" ? ` ${rule.unit}/` : "/";
  const streams = (rule.streams ?? []).map((stream) => stream.limit);
  return [...(rule.limits ?? []).map((limit) => limit.replace("/", unit)), ...streams];
}

/** Returns what the limits inside streams of a rule did, as text, one line for each. */
function streamsOf(rule) {
  return (rule.streams ?? []).map(({ limit, measure, units }) => {
    const shadow = units.shadow > 0 ? `, ${formatCount(units.shadow)} in shadow mode` : "";
    const text = `${formatCount(units.allowed + units.delayed)}, of which ${formatCount(units.delayed)} waited${shadow}`;
    return [`${measure.replace("_", " ")} (${limit})`, text];
  });
}

/** Returns the units that responses were charged, and how many per second, as text; null if they do not state the cost. */
function chargedOf(rule, history) {
  if (rule.charged_units === null || rule.charged_units === undefined) return null;
  const rate = history?.recent()?.[0];
  return `${formatCount(rule.charged_units)} since start, ${formatRate(rate)}/s`;
}

/** Returns the limits and the mode of a rule in one line. */
function termsOf(rule) {
  const parts = rule.action === "limit" ? limitsOf(rule) : [rule.action];
  if (rule.throttle && rule.throttle !== "hard") parts.push(rule.throttle);
  if (rule.shared) parts.push("shared");
  if (rule.factor) parts.push(`now × ${tenths.format(rule.factor)}`);
  const concurrency = concurrencyOf(rule);
  if (concurrency) parts.push(concurrency);
  return parts.join(" · ");
}

/** Returns the concurrency limit of a rule as text; an adaptive one with the number in force. */
function concurrencyOf(rule) {
  if (rule.concurrency) return `${formatCount(rule.concurrency.limit)} in flight now`;
  return rule.in_flight ? `${formatCount(rule.in_flight)} in flight` : null;
}

class RuleRow {
  constructor(name, toggle) {
    this.title = create("span", { class: "title" });
    this.terms = create("span", { class: "terms" });
    const arrow = createShape("svg", { class: "arrow", viewBox: "0 0 9 9", "aria-hidden": "true" });
    arrow.append(createShape("path", { d: "M2.5 1l4 3.5-4 3.5" }));
    this.button = create("button", { type: "button", class: "rule-name", "aria-expanded": "false" },
      arrow, create("span", { class: "text" }, this.title, this.terms));
    this.button.addEventListener("click", () => toggle(name));
    this.spark = new Sparkline();
    this.cells = COLUMNS.slice(2).map((column) => create("td", { class: column.class, role: "cell", "data-label": column.label }));
    this.element = create("tr", { class: "rule", role: "row" },
      create("th", { scope: "row", role: "rowheader", class: "c-name" }, this.button),
      create("td", { class: "c-plot", role: "cell" }, this.spark.svg), ...this.cells);
  }

  update(rule, history, now, isOpen) {
    setText(this.title, rule.name);
    setText(this.terms, termsOf(rule));
    this.title.title = rule.name;
    this.button.setAttribute("aria-expanded", String(isOpen));
    const rates = history.recent();
    const values = [...(rates ?? [null, null, null, null]), rule.keys];
    values.forEach((value, index) => {
      setText(this.cells[index], index < 4 ? formatRate(value) : formatCount(value));
      this.cells[index].classList.toggle("zero", !value);
    });
    this.cells[3].classList.toggle("hot", Boolean(rates?.[3]));
    this.spark.draw(history, now, describeHistory(rule.name, history));
  }
}

/** The row below an open rule: its plot, its decisions and its heaviest keys. */
class RuleDetail {
  constructor(name) {
    this.plot = new Plot();
    this.facts = create("dl", { class: "facts" });
    this.shares = create("div", { class: "shares" });
    this.keys = new KeyTable({ label: `Heaviest keys of rule ${name}`, hasRule: false });
    this.keysTitle = create("h3", {}, "Heaviest keys");
    const cell = create("td", { colspan: COLUMNS.length, role: "cell" }, create("div", { class: "detail-grid" },
      create("div", {}, this.plot.element, this.facts, this.shares),
      create("div", {}, this.keysTitle, this.keys.element)));
    this.element = create("tr", { class: "detail", role: "row" }, cell);
  }

  update(rule, history, now, { top, charges }) {
    this.plot.draw(history, now, describeHistory(rule.name, history));
    const made = Object.entries(rule.decisions).filter(([, count]) => count > 0);
    const charged = chargedOf(rule, charges);
    const decided = made.map(([outcome, count]) => `${outcome} ${formatCount(count)}`).join(", ");
    describe(this.facts, [
      ["Rule", rule.name],
      ["Limit", limitsOf(rule).join(", ") || concurrencyOf(rule) || rule.action],
      ...(rule.throttle ? [["Throttle", rule.throttle]] : []),
      ...(rule.factor ? [["Elastic factor", tenths.format(rule.factor)]] : []),
      ...(rule.limits?.length && concurrencyOf(rule) ? [["Concurrency limit", concurrencyOf(rule)]] : []),
      ...(rule.keys === null || rule.keys === undefined ? [] : [["Counters", formatCount(rule.keys)]]),
      ...streamsOf(rule),
      ...(charged ? [[`Charged ${rule.unit ?? "units"}`, charged]] : []),
      ["Decisions since start", decided || "none"],
    ]);
    showShares(this.shares, rule.shared);
    const entries = (top?.keys ?? []).map((key) => ({ rule: rule.name, key }));
    const error = (top?.max_overcount ? `, counts at most ${formatCount(top.max_overcount)} too high` : "")
      + (top?.incomplete ? ", incomplete: counts may be too low" : "");
    setText(this.keysTitle, `Heaviest keys${top ? ` (${formatCount(top.tracked)} tracked${error})` : ""}`);
    this.keys.show(entries, rule.action === "limit" ? "No requests in the last minutes." : "This rule has no counters.");
  }
}

/** Shows how a shared limit is divided among instances. */
function showShares(element, shared) {
  const signature = JSON.stringify(shared ?? null);
  if (element.dataset.signature === signature) return;
  element.dataset.signature = signature;
  element.replaceChildren();
  if (!shared) return;
  const facts = [];
  if (shared.in_force) facts.push(["Mode", shared.in_force]);
  if (shared.store) facts.push(["Store", shared.store]);
  if (shared.instances) facts.push(["Instances", String(shared.instances)]);
  if (shared.error_bound !== undefined) facts.push(["May exceed by", String(shared.error_bound)]);
  for (const limit of shared.limits ?? []) {
    const here = limit.limit_here ?? null;
    const held = `${formatCount(limit.held)} units held, demand ${formatRate(limit.demand_per_second)}/s`;
    facts.push([limit.limit ?? "limit", here ? `here ${here}` : held]);
  }
  const list = create("dl", { class: "facts" });
  describe(list, facts);
  element.append(create("h3", {}, "Shared limit"), list);
}

class RuleTable {
  constructor() {
    this.rows = new Map();
    this.rules = [];
    this.shown = [];
    this.open = null;
    this.detailHeight = 300;
    this.sorting = null;
    this.sortedAt = 0;
    this.body = byId("rule-rows");
    this.scroller = byId("rule-scroll");
    this.scroller.addEventListener("scroll", () => requestAnimationFrame(() => this.draw()), { passive: true });
    this.above = this.space();
    this.below = this.space();
    byId("rule-head").append(...COLUMNS.map((column) => this.heading(column)));
    byId("filter").addEventListener("input", () => this.filter());
    for (const event of ["scroll", "resize"]) {
      addEventListener(event, () => requestAnimationFrame(() => this.draw()), { passive: true });
    }
  }

  space() {
    return create("tr", { class: "space", "aria-hidden": "true", role: "presentation" }, create("td", { colspan: COLUMNS.length }));
  }

  heading(column) {
    const isSortable = column.sort || column.series !== undefined;
    const content = isSortable ? create("button", { type: "button", class: "sort" }, column.label) : column.label;
    const cell = create("th", { scope: "col", role: "columnheader", class: column.class }, content);
    if (isSortable) content.addEventListener("click", () => this.sort(column, cell));
    return cell;
  }

  /** Sorts by a column; the same column again restores the order of the file. */
  sort(column, cell) {
    this.sorting = this.sorting === column ? null : column;
    for (const other of byId("rule-head").children) other.removeAttribute("aria-sort");
    if (this.sorting) cell.setAttribute("aria-sort", column.sort ? "ascending" : "descending");
    this.sortedAt = 0;
    this.select();
    this.draw();
  }

  filter() {
    this.sortedAt = 0;
    this.select();
    this.draw();
    setText(byId("filter-result"), `${this.shown.length} of ${this.rules.length} rules`);
  }

  /** Takes the rules of a snapshot. */
  update(snapshot, histories) {
    this.now = Date.parse(snapshot.time) / 1000;
    this.rules = snapshot.rules;
    this.histories = histories;
    this.top = new Map(snapshot.top.map((top) => [top.rule, top]));
    // One rule with keys is opened at first, so that its keys are seen without a click.
    if (this.open === null && !this.hasChosen) {
      const busiest = snapshot.top.find(({ keys }) => keys.length > 0);
      if (busiest && snapshot.rules.length <= 12) this.open = busiest.rule;
      if (this.open) this.hasChosen = true;
    }
    this.select();
    this.draw();
  }

  /** Chooses and orders the rules that match the filter. */
  select() {
    const wanted = byId("filter").value.trim().toLowerCase();
    const matches = (rule) => !wanted || rule.name.toLowerCase().includes(wanted) || termsOf(rule).toLowerCase().includes(wanted);
    const found = this.rules.filter(matches);
    const isHeld = this.body.matches(":hover") || this.body.contains(document.activeElement);
    const isDue = this.sortedAt === 0 || (!isHeld && Date.now() - this.sortedAt > SORT_INTERVAL_MS);
    const order = new Map(this.shown.map(({ name }, index) => [name, index]));
    if (this.sorting && isDue) {
      const { sort, series } = this.sorting;
      const rate = ({ name }) => this.histories.rules.get(name)?.recent()?.[series] ?? 0;
      found.sort(sort ?? ((one, other) => rate(other) - rate(one)));
      this.sortedAt = Date.now();
    } else if (this.sorting) {
      const place = ({ name }) => order.get(name) ?? order.size;
      found.sort((one, other) => place(one) - place(other));
    }
    this.shown = found;
    const count = wanted ? `${found.length} of ${this.rules.length}` : String(this.rules.length);
    setText(byId("rule-count"), this.rules.length > 0 ? count : "");
    byId("filter-box").hidden = this.rules.length < 8 && !wanted;
    byId("no-rules").hidden = found.length > 0;
    byId("rule-table").hidden = found.length === 0;
    setText(byId("no-rules"), this.rules.length === 0
      ? "No rules: every request is forwarded. Add some under `rules:` in the configuration."
      : "No rule matches the filter.");
  }

  toggle(name) {
    this.hasChosen = true;
    this.open = this.open === name ? null : name;
    this.draw();
  }

  /** Returns the range of rows in or near the viewport. */
  visibleRange(height, openIndex) {
    const start = (index) => index * height + (openIndex >= 0 && openIndex < index ? this.detailHeight : 0);
    if (this.shown.length <= MAX_ROWS_DRAWN_AT_ONCE) return { first: 0, last: this.shown.length, above: 0, below: 0 };
    const box = this.scroller.getBoundingClientRect();
    const body = this.body.getBoundingClientRect().top;
    const top = Math.max(box.top, 0) - body;
    const bottom = Math.min(box.bottom, innerHeight) - body;
    let first = 0;
    while (first < this.shown.length && start(first + 1) < top) first += 1;
    let last = first;
    while (last < this.shown.length && start(last) < bottom) last += 1;
    first = Math.max(first - OVERSCAN_ROWS, 0);
    last = Math.min(last + OVERSCAN_ROWS, this.shown.length);
    return { first, last, above: start(first), below: start(this.shown.length) - start(last) };
  }

  draw() {
    if (!this.histories || this.shown.length === 0) return;
    const isLong = this.shown.length > MAX_ROWS_DRAWN_AT_ONCE;
    this.scroller.classList.toggle("many", isLong);
    // A region that scrolls can be reached with the keyboard.
    if (isLong) this.scroller.tabIndex = 0;
    else this.scroller.removeAttribute("tabindex");
    const height = Number.parseInt(getComputedStyle(document.documentElement).getPropertyValue("--row"), 10);
    const openIndex = this.shown.findIndex(({ name }) => name === this.open);
    if (this.detail?.element.isConnected) this.detailHeight = this.detail.element.offsetHeight;
    const { first, last, above, below } = this.visibleRange(height, openIndex);
    const elements = [this.above];
    for (const [index, rule] of this.shown.slice(first, last).entries()) {
      elements.push(this.drawRow(rule, first + index));
      if (rule.name === this.open) elements.push(this.drawDetail(rule));
    }
    elements.push(this.below);
    this.above.firstChild.style.height = `${above}px`;
    this.below.firstChild.style.height = `${below}px`;
    byId("rule-table").setAttribute("aria-rowcount", String(this.shown.length + 1 + (openIndex >= 0 ? 1 : 0)));
    const drawn = new Set(this.shown.slice(first, last).map(({ name }) => name));
    for (const name of this.rows.keys()) if (!drawn.has(name)) this.rows.delete(name);
    arrange(this.body, elements);
  }

  drawRow(rule, index) {
    if (!this.rows.has(rule.name)) this.rows.set(rule.name, new RuleRow(rule.name, (name) => this.toggle(name)));
    const row = this.rows.get(rule.name);
    row.element.setAttribute("aria-rowindex", String(index + 2));
    row.update(rule, this.histories.rules.get(rule.name), this.now, rule.name === this.open);
    return row.element;
  }

  drawDetail(rule) {
    if (this.detail?.name !== rule.name) {
      this.detail = new RuleDetail(rule.name);
      this.detail.name = rule.name;
    }
    const { rules, charges } = this.histories;
    this.detail.update(rule, rules.get(rule.name), this.now, { top: this.top.get(rule.name), charges: charges.get(rule.name) });
    return this.detail.element;
  }
}
